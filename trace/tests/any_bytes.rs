//! The fuzz target's property over a bounded number of inputs: random bytes, bent real files, and made-up blocks with
//! good checks.
#![allow(clippy::unwrap_used)]

#[path = "../fuzz/any_bytes.rs"]
mod any_bytes;

use any_bytes::any_bytes;
use exotrace_trace::clock::Clock;
use exotrace_trace::file::format::{BlockHeader, file_header};
use exotrace_trace::file::{Event, EventKind, Loss, LossReason, Meta, Site, Symbol, TraceWriter};
use exotrace_trace::ids::{Gva, SiteId, Tsc, VcpuId};
use exotrace_trace::ring::layout::RawRecord;
use proptest::prelude::*;

fn real_file() -> Vec<u8> {
    let mut out = Vec::new();
    let mut w = TraceWriter::new(&mut out, "real", &Meta::default()).unwrap();
    w.write_clock(&Clock::new(1, Tsc(1), 2, 3).unwrap()).unwrap();
    w.write_symbols([Symbol { addr: Gva(0x1000), size: 16, name: "f" }]).unwrap();
    w.write_sites([Site { id: SiteId(0), addr: Gva(0x1000), function: "f" }]).unwrap();
    for n in 0..4 {
        w.write_records(
            VcpuId(n),
            64,
            &[RawRecord { tsc: u64::from(n), meta: 1, ip: 0x1005, ..RawRecord::default() }; 3],
        )
        .unwrap();
        w.flush().unwrap();
    }
    w.write_loss(&Loss { vcpu: VcpuId(1), reason: LossReason::Dropped, count: 1, before_index: 65 }).unwrap();
    w.write_event(&Event { tsc: Tsc(2), kind: EventKind::Mark { mark: 1 } }).unwrap();
    w.finish(&[]).unwrap();
    out
}

/// Blocks with good checks, so that the payloads are looked at.
fn made_up(blocks: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut file = file_header(1, 0).to_vec();
    for (kind, payload) in blocks {
        file.extend_from_slice(&BlockHeader::of((*kind).into(), payload).to_bytes());
        file.extend_from_slice(payload);
    }
    file
}

/// A payload of records that passes the first checks: vCPU, count and length fit.
fn records_payload() -> impl Strategy<Value = Vec<u8>> {
    (0..16_u8, 0..u64::MAX >> 8, prop::collection::vec(any::<[u8; 32]>(), 1..8)).prop_map(|(vcpu, first, records)| {
        let mut p = vec![vcpu, 0, 0, 0];
        p.extend_from_slice(&(records.len() as u32).to_le_bytes());
        p.extend_from_slice(&first.to_le_bytes());
        p.extend(records.concat());
        p
    })
}

fn block() -> impl Strategy<Value = (u8, Vec<u8>)> {
    prop_oneof![
        3 => (0..10_u8, prop::collection::vec(any::<u8>(), 0..80)),
        // Small numbers: counts and lengths that are nearly right.
        2 => (0..10_u8, prop::collection::vec(prop_oneof![Just(0_u8), 0..20_u8], 0..80)),
        3 => (Just(5), records_payload()),
        1 => (Just(6), (0..16_u8, any::<u8>(), any::<(u64, u64)>()).prop_map(|(v, r, (c, i))| {
            [&[v, r, 0, 0, 0, 0, 0, 0][..], &c.to_le_bytes(), &i.to_le_bytes()].concat()
        })),
        1 => (Just(2), any::<[u64; 4]>().prop_map(|w| w.map(|v| (v >> 30).to_le_bytes()).concat())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300), header: bool) {
        let file = if header { [&file_header(1, 0)[..], &bytes].concat() } else { bytes };
        prop_assert_eq!(any_bytes(&file), header);
    }

    #[test]
    fn bent_files(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), cut: prop::sample::Index) {
        let mut file = real_file();
        for (at, value) in flips {
            let at = at.index(file.len());
            file[at] = value;
        }
        any_bytes(&file);
        any_bytes(&file[..cut.index(file.len())]);
    }

    #[test]
    fn made_up_blocks(blocks in prop::collection::vec(block(), 0..12)) {
        prop_assert!(any_bytes(&made_up(&blocks)));
    }
}
