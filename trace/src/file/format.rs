//! The bytes of the container: file header, block headers, block types, limits. `trace/FORMAT.md` is the same in prose;
//! the two are changed together.

use crate::ring::layout::RECORD_BYTES;

/// The first 8 bytes of a trace file. The high bit, the line ends and the ^Z betray a transfer that mangles bytes.
pub const MAGIC: [u8; 8] = *b"\x89exo\r\n\x1a\n";
/// The version this program writes, and the only one it reads.
pub const VERSION: u32 = 1;
/// Flag bits that a reader must know; a file with one that it does not know is refused. The others may be ignored.
pub const INCOMPATIBLE_FLAGS: u32 = 0xffff;
/// Size of the file header.
pub const FILE_HEADER_BYTES: usize = 16;
/// Size of a block header.
pub const BLOCK_HEADER_BYTES: usize = 16;
/// Size of what precedes the records in a `Records` payload.
pub const RECORDS_HEADER_BYTES: usize = 16;

/// The largest payload of any block, in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 16 << 20;
/// Records in a block, at most (1 MiB).
pub const MAX_BLOCK_RECORDS: usize = (1 << 20) / RECORD_BYTES;
/// The longest symbol or function name, in bytes.
pub const MAX_NAME_BYTES: usize = 4096;
/// The largest payload of a block that holds JSON (`Meta`, `Event`).
pub const MAX_JSON_BYTES: usize = 64 << 10;
/// Symbols, and sites, in a file, at most.
pub const MAX_TABLE_ENTRIES: usize = 1 << 22;
/// Bytes of all names of a file's symbols (and again of its sites), at most.
pub const MAX_TABLE_NAME_BYTES: usize = 256 << 20;
/// Events in a file that are kept, at most; the rest is counted as ignored.
pub const MAX_EVENTS: usize = 1 << 20;
/// Bytes of all event texts of a file that are kept, at most.
pub const MAX_EVENT_BYTES: usize = 64 << 20;

/// Block types.
pub mod block {
    /// Facts of guest and host, JSON.
    pub const META: u32 = 1;
    /// TSC to host time.
    pub const CLOCK: u32 = 2;
    /// Symbols of the guest kernel.
    pub const SYMBOLS: u32 = 3;
    /// Sites: what a record's `ip` means.
    pub const SITES: u32 = 4;
    /// Records of one vCPU.
    pub const RECORDS: u32 = 5;
    /// Records that are missing.
    pub const LOSS: u32 = 6;
    /// Something happened, JSON.
    pub const EVENT: u32 = 7;
    /// Totals; the last block of a file that was closed.
    pub const END: u32 = 8;
}

/// The file header for `version` and `flags`.
#[must_use]
pub fn file_header(version: u32, flags: u32) -> [u8; FILE_HEADER_BYTES] {
    let mut h = [0; FILE_HEADER_BYTES];
    h[..8].copy_from_slice(&MAGIC);
    h[8..12].copy_from_slice(&version.to_le_bytes());
    h[12..].copy_from_slice(&flags.to_le_bytes());
    h
}

/// A block header, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// See [`block`]; unknown ones are skipped.
    pub kind: u32,
    /// Payload length in bytes.
    pub len: u32,
    /// CRC-32 (IEEE) of the payload.
    pub crc: u32,
}

impl BlockHeader {
    /// The header of a block with this payload.
    #[must_use]
    pub fn of(kind: u32, payload: &[u8]) -> BlockHeader {
        let len = u32::try_from(payload.len()).expect("payloads are at most MAX_PAYLOAD_BYTES long");
        BlockHeader { kind, len, crc: crc32fast::hash(payload) }
    }

    /// As it lies in the file, with the check of the header itself.
    #[must_use]
    pub fn to_bytes(self) -> [u8; BLOCK_HEADER_BYTES] {
        let mut h = [0; BLOCK_HEADER_BYTES];
        h[..4].copy_from_slice(&self.kind.to_le_bytes());
        h[4..8].copy_from_slice(&self.len.to_le_bytes());
        h[8..12].copy_from_slice(&self.crc.to_le_bytes());
        let check = crc32fast::hash(&h[..12]);
        h[12..].copy_from_slice(&check.to_le_bytes());
        h
    }

    /// Reads a header; `None` if its check is wrong or the length is over the limit, so nothing behind it can be found.
    #[must_use]
    pub fn from_bytes(h: &[u8; BLOCK_HEADER_BYTES]) -> Option<BlockHeader> {
        let word = |at: usize| u32::from_le_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
        let header = BlockHeader { kind: word(0), len: word(4), crc: word(8) };
        let good = crc32fast::hash(&h[..12]) == word(12) && header.len as usize <= MAX_PAYLOAD_BYTES;
        good.then_some(header)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn header_round_trip_and_every_flipped_bit_is_noticed() {
        let h = BlockHeader::of(block::RECORDS, b"payload");
        let bytes = h.to_bytes();
        assert_eq!(BlockHeader::from_bytes(&bytes), Some(h));
        for bit in 0..BLOCK_HEADER_BYTES * 8 {
            let mut b = bytes;
            b[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(BlockHeader::from_bytes(&b), None, "bit {bit}");
        }
        assert_eq!(BlockHeader::from_bytes(&[0; BLOCK_HEADER_BYTES]), None, "a hole in a file is no block");
    }

    #[test]
    fn over_long_payloads_are_refused() {
        let h = BlockHeader { kind: 1, len: MAX_PAYLOAD_BYTES as u32 + 1, crc: 0 };
        assert_eq!(BlockHeader::from_bytes(&h.to_bytes()), None);
    }
}
