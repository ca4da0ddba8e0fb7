//! Any bytes as a bzImage or compressed data: `cargo fuzz run packed -s none -- -max_len=65536` in `patcher/`. Good starts
//! for the corpus are small files packed with gzip, xz (with `--x86`), lzma, bzip2, `lz4 -l` and zstd.
#![no_main]

use exotrace_patcher::image::checks::check_packed;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_packed(bytes));
