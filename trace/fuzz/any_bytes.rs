// What must hold for any bytes whatever; shared by the fuzz target and by `tests/any_bytes.rs`, which runs a bounded
// number of inputs with `cargo test`.

use std::io::{Cursor, sink};

use exotrace_trace::file::{TraceReader, Vcpus};
use exotrace_trace::report::{Selection, TextOptions, TimeBase, profile, text};

/// Opens `bytes` as a trace file and makes all reports of it. Panics if a property does not hold. False if they are no
/// trace file.
pub fn any_bytes(bytes: &[u8]) -> bool {
    let Ok(mut reader) = TraceReader::new(Cursor::new(bytes)) else { return false };
    // Each record takes 32 bytes of the file, whatever the counts in it say.
    let records: u64 =
        (0..reader.trace().vcpus()).map(|v| reader.trace().records(exotrace_trace::ids::VcpuId(v))).sum();
    assert!(records <= bytes.len() as u64 / 32);
    let mut merge = reader.merge(Vcpus::ALL);
    let mut items = 0_u64;
    while merge.next().expect("memory can be read").is_some() {
        items += 1;
        // Records, and blocks of at least 16 bytes.
        assert!(items <= bytes.len() as u64 / 16, "the merge spins");
    }
    // One time base an input, to keep an input cheap.
    let time = [TimeBase::Start, TimeBase::HostMonotonic, TimeBase::Wall, TimeBase::Tsc][bytes.len() % 4];
    let options = TextOptions { time, parent_offsets: true };
    text(&mut reader, &Selection::default(), options, sink()).expect("memory can be read");
    let selection = Selection { functions: Some(Box::new(|f| f.len().is_multiple_of(2))), ..Selection::default() };
    profile(&mut reader, &selection, sink()).expect("memory can be read");
    true
}
