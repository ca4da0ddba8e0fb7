//! Damaged kallsyms tables of every layout: `cargo fuzz run kallsyms -s none` in `patcher/`. Needs no corpus: the input
//! is a list of changes of good tables.
#![no_main]

use exotrace_patcher::image::checks::{Edit, check_kallsyms};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, Vec<Edit>)| check_kallsyms(input.0, &input.1));
