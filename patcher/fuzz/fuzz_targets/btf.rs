//! Any bytes as BTF: `cargo fuzz run btf -s none` in `patcher/`. A good start for the corpus is the `.BTF` section of a
//! kernel module.
#![no_main]

use exotrace_patcher::image::checks::check_btf;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_btf(bytes));
