//! Any bytes as a trace file. Run with `cargo fuzz run trace_file` (`-s none` on a stable toolchain).
#![no_main]

#[path = "../any_bytes.rs"]
mod any_bytes;

use exotrace_trace::file::format::{
    BLOCK_HEADER_BYTES, BlockHeader, FILE_HEADER_BYTES, MAX_PAYLOAD_BYTES, file_header,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    any_bytes::any_bytes(data);
    any_bytes::any_bytes(&blocks(data));
});

/// The input as blocks with good checks: type byte, u16 length, payload. No fuzzer guesses a CRC.
fn blocks(mut data: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(FILE_HEADER_BYTES + data.len() + BLOCK_HEADER_BYTES);
    file.extend_from_slice(&file_header(1, 0));
    while let [kind, low, high, rest @ ..] = data {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len()).min(MAX_PAYLOAD_BYTES);
        let (payload, later) = rest.split_at(len);
        file.extend_from_slice(&BlockHeader::of(u32::from(kind % 10), payload).to_bytes());
        file.extend_from_slice(payload);
        data = later;
    }
    file
}
