//! Any text as a filter, applied to a name: `cargo fuzz run filter -s none` in `patcher/`.
#![no_main]

use exotrace_patcher::filter::Filter;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, &str)| match Filter::parse(input.0) {
    Ok(filter) => _ = filter.matches(input.1),
    Err(e) => assert_eq!(e.to_string().lines().count(), 3),
});
