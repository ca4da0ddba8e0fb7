//! Any bytes as a kernel image: `cargo fuzz run image -s none` in `patcher/`. A good start for the corpus is the
//! embedded guest's image or any small ELF program.
#![no_main]

use exotrace_patcher::mock::check_image;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| check_image(bytes.to_vec()));
