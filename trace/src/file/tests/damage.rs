//! Files that were cut, bent or made up.
use super::*;
use crate::file::format::{BLOCK_HEADER_BYTES, BlockHeader, FILE_HEADER_BYTES, MAX_PAYLOAD_BYTES, block, file_header};

/// The records of a file, if it can be opened at all.
fn try_records(bytes: &[u8]) -> Option<(Vec<Record>, Ending, Damage)> {
    let mut r = TraceReader::new(Cursor::new(bytes)).ok()?;
    let all = records(&items(&mut r));
    Some((all, r.trace().ending(), r.trace().damage()))
}

fn of(records: &[Record], vcpu: u8) -> Vec<(u64, RawRecord)> {
    records.iter().filter(|r| r.vcpu.0 == vcpu).map(|r| (r.index, r.raw)).collect()
}

#[test]
fn cut_at_every_byte_it_is_a_prefix() {
    let bytes = small();
    let (whole, ..) = try_records(&bytes).unwrap();
    let mut most = 0;
    for len in 0..bytes.len() {
        let cut = &bytes[..len];
        let Some((records, ending, damage)) = try_records(cut) else {
            assert!(len < FILE_HEADER_BYTES, "{len} bytes hold a header");
            continue;
        };
        for v in 0..2 {
            assert!(of(&whole, v).starts_with(&of(&records, v)), "at {len}");
        }
        assert!(records.len() >= most, "a longer file holds no less");
        most = records.len();
        match ending {
            Ending::NotClosed => {}
            Ending::Truncated { at } => assert!((at as usize) < len && len - (at as usize) < 300, "{at} of {len}"),
            other => panic!("{len}: {other:?}"),
        }
        assert_eq!(damage, Damage::default(), "a cut is no damage");
    }
    assert_eq!(most, whole.len(), "only End is missing from the longest");
}

#[test]
fn every_flipped_bit_is_seen_and_no_false_record_comes_through() {
    let bytes = small();
    let (whole, ..) = try_records(&bytes).unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut bent = bytes.clone();
        bent[bit / 8] ^= 1 << (bit % 8);
        let Ok(mut r) = TraceReader::new(Cursor::new(&bent[..])) else {
            assert!(bit / 8 < FILE_HEADER_BYTES, "bit {bit}");
            continue;
        };
        let got = items(&mut r);
        let some = records(&got);
        assert!(
            some.iter().all(|r| whole.iter().any(|w| (w.vcpu, w.index, w.raw) == (r.vcpu, r.index, r.raw))),
            "bit {bit}"
        );
        let shown_lost: u64 = got
            .iter()
            .map(|i| match i {
                Got::Loss(Loss { reason: LossReason::Damaged, count, .. }) => *count,
                _ => 0,
            })
            .sum();
        let t = r.trace();
        let seen = shown_lost > 0 || t.damage() != Damage::default() || t.ending() != Ending::Clean;
        // The upper half of the file header's flags is free for later use.
        assert!(seen || (14..16).contains(&(bit / 8)), "bit {bit} went unnoticed");
        if t.ending() == Ending::Clean && t.damage().malformed == 0 {
            assert_eq!(some.len() as u64 + shown_lost, 10, "bit {bit}: what a bad block held is counted");
        }
    }
}

fn with_block(kind: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = file_header(format::VERSION, 0).to_vec();
    out.extend_from_slice(&BlockHeader::of(kind, payload).to_bytes());
    out.extend_from_slice(payload);
    out
}

#[test]
fn unknown_blocks_are_skipped_and_counted() {
    let mut bytes = with_block(4242, &[7; 100]);
    bytes.extend_from_slice(&small()[FILE_HEADER_BYTES..]);
    let r = read(&bytes);
    assert_eq!((r.trace().damage().unknown, r.trace().ending()), (1, Ending::Clean));
    assert_eq!(r.trace().records(VcpuId(0)), 6);
}

#[test]
fn blocks_that_break_the_rules_are_counted() {
    let mut over_count = vec![0; 16 + 32];
    over_count[4] = 2; // two records where there is room for one
    let mut bad_vcpu = over_count.clone();
    (bad_vcpu[0], bad_vcpu[4]) = (16, 1);
    let mut bad_index = over_count.clone();
    (bad_index[4], bad_index[15]) = (1, 1);
    let cases: [(u32, &[u8]); 14] = [
        (block::RECORDS, &[]),
        (block::RECORDS, &[0; 16]),
        (block::RECORDS, &over_count),
        (block::RECORDS, &bad_vcpu),
        (block::RECORDS, &bad_index),
        (block::META, b"{"),
        (block::META, b"[]["),
        (block::CLOCK, &[0; 32]),
        (block::CLOCK, &[1; 31]),
        (block::SYMBOLS, &[0xff; 4]),
        (block::SITES, &[1, 0, 0]),
        (block::LOSS, &[16; 24]),
        (block::EVENT, b"12345678nonsense"),
        (block::END, &[0xff; 4]),
    ];
    for (kind, payload) in cases {
        let bytes = with_block(kind, payload);
        let mut r = read(&bytes);
        assert_eq!(r.trace().damage().malformed, 1, "{kind} {payload:?}");
        assert_eq!(r.trace().ending(), Ending::NotClosed);
        assert_eq!(items(&mut r), []);
    }
    let deep = [b"12345678".to_vec(), b"[".repeat(50_000)].concat();
    assert_eq!(read(&with_block(block::EVENT, &deep)).trace().damage().malformed, 1, "no stack is overrun");
    let big = [b"12345678".to_vec(), b" ".repeat(format::MAX_JSON_BYTES + 1)].concat();
    assert_eq!(read(&with_block(block::EVENT, &big)).trace().damage().malformed, 1);
}

#[test]
fn lengths_are_not_believed() {
    let mut bytes = file_header(format::VERSION, 0).to_vec();
    let header = BlockHeader { kind: block::SYMBOLS, len: MAX_PAYLOAD_BYTES as u32, crc: 0 };
    bytes.extend_from_slice(&header.to_bytes());
    assert_eq!(read(&bytes).trace().ending(), Ending::Truncated { at: 16 });
    let header = BlockHeader { len: u32::MAX, ..header };
    bytes[FILE_HEADER_BYTES..].copy_from_slice(&header.to_bytes());
    assert_eq!(read(&bytes).trace().ending(), Ending::Damaged { at: 16 });
    // A hole, as a crashed host leaves at the end of a file.
    let mut bytes = small();
    let len = bytes.len() as u64;
    bytes.extend_from_slice(&[0; 4096]);
    assert_eq!(read(&bytes).trace().ending(), Ending::Damaged { at: len });
}

#[test]
fn what_is_behind_an_end_makes_the_file_unclosed() {
    let mut bytes = small();
    let more = with_block(block::CLOCK, &super::codec::clock(&clock()));
    bytes.extend_from_slice(&more[FILE_HEADER_BYTES..]);
    assert_eq!(read(&bytes).trace().ending(), Ending::NotClosed);
}

#[test]
fn other_files_and_versions_are_refused_with_a_reason() {
    let text = |bytes: &[u8]| TraceReader::new(Cursor::new(bytes)).err().unwrap().to_string();
    assert!(text(b"\x7fELF and so on").contains("not an exotrace trace"));
    assert!(text(b"").contains("only 0 bytes"));
    assert!(text(&small()[..12]).contains("only 12 bytes"));
    assert!(text(&file_header(2, 0)).contains("version 2, this exotrace reads version 1"));
    assert!(text(&file_header(1, 1)).contains("flags 0x1"));
    let dir = tempfile::tempdir().unwrap();
    let open = |p: &std::path::Path| TraceReader::open(p).err().unwrap();
    assert!(
        matches!(open(dir.path()), ReadError::Open { source, .. } if source.kind() == std::io::ErrorKind::IsADirectory)
    );
    assert!(open(&dir.path().join("none.exo")).to_string().contains("none.exo"));
    assert_eq!(BLOCK_HEADER_BYTES, 16);
}
