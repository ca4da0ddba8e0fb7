//! Tests of the trace file as a whole: what was written is read, and damage is seen for what it is.
#![allow(clippy::unwrap_used)]

mod damage;
#[cfg(unix)]
mod errors;
mod order;

use std::io::Cursor;

use proptest::prelude::*;

use super::format::MAX_BLOCK_RECORDS;
use super::*;
use crate::clock::Clock;
use crate::ids::{Gva, SiteId, Tsc, VcpuId};
use crate::ring::layout::RawRecord;

/// A record that can be told from every other.
fn rec(vcpu: u8, index: u64, tsc: u64) -> RawRecord {
    RawRecord { tsc, parent: 0xffff_0000 + index, sp: u32::from(vcpu), meta: 1, ip: 0x1005, tag: index as u32 }
}

fn recs(vcpu: u8, first: u64, count: u64, tsc: u64) -> Vec<RawRecord> {
    (0..count).map(|n| rec(vcpu, first + n, tsc + n)).collect()
}

fn meta() -> Meta {
    Meta { exotrace: "1".into(), vcpus: 2, policy: "drop".into(), ..Meta::default() }
}

fn clock() -> Clock {
    Clock::new(1_000_000_000, Tsc(1000), 7, 8).unwrap()
}

fn read(bytes: &[u8]) -> TraceReader<Cursor<&[u8]>> {
    TraceReader::new(Cursor::new(bytes)).unwrap()
}

/// A merged trace as owned items.
#[derive(Debug, PartialEq, Eq, Clone)]
enum Got {
    Record(Record),
    Loss(Loss),
    Event(Event),
}

fn items<R: std::io::Read + std::io::Seek>(reader: &mut TraceReader<R>) -> Vec<Got> {
    let mut merge = reader.merge(Vcpus::ALL);
    let mut all = Vec::new();
    while let Some(item) = merge.next().unwrap() {
        all.push(match item {
            Item::Record(r) => Got::Record(r),
            Item::Loss(l) => Got::Loss(l),
            Item::Event(e) => Got::Event(e.clone()),
        });
    }
    assert_eq!(merge.next().unwrap(), None, "the end stays the end");
    all
}

fn records(items: &[Got]) -> Vec<Record> {
    items.iter().filter_map(|i| if let Got::Record(r) = i { Some(*r) } else { None }).collect()
}

fn totals() -> Vec<VcpuTotals> {
    vec![VcpuTotals { vcpu: VcpuId(1), delivered: 6, lost: 5, corrupt: 4, inverted: 3, pending: 2 }]
}

/// A small file with every type of block: 6 records of vCPU 0 in 2 blocks, 4 of vCPU 1 in 1.
fn small() -> Vec<u8> {
    let mut out = Vec::new();
    let mut w = TraceWriter::new(&mut out, "small", &meta()).unwrap();
    w.write_clock(&clock()).unwrap();
    w.write_symbols([Symbol { addr: Gva(0x1000), size: 16, name: "f" }]).unwrap();
    w.write_sites([Site { id: SiteId(0), addr: Gva(0x1000), function: "f" }]).unwrap();
    w.write_records(VcpuId(0), 64, &recs(0, 64, 4, 2000)).unwrap();
    w.write_records(VcpuId(1), 64, &recs(1, 64, 4, 2001)).unwrap();
    w.flush().unwrap();
    w.write_loss(&Loss { vcpu: VcpuId(0), reason: LossReason::Dropped, count: 9, before_index: 68 }).unwrap();
    w.write_event(&Event { tsc: Tsc(2002), kind: EventKind::Mark { mark: 3 } }).unwrap();
    w.write_records(VcpuId(0), 68, &recs(0, 68, 2, 2500)).unwrap();
    w.finish(&totals()).unwrap();
    out
}

#[test]
fn every_block_is_read_back() {
    let bytes = small();
    let mut r = read(&bytes);
    let t = r.trace();
    assert_eq!(t.meta(), &meta());
    assert_eq!(t.clock(), Some(&clock()));
    assert_eq!(t.symbols().iter().collect::<Vec<_>>(), [Symbol { addr: Gva(0x1000), size: 16, name: "f" }]);
    assert_eq!(t.sites().iter().collect::<Vec<_>>(), [Site { id: SiteId(0), addr: Gva(0x1000), function: "f" }]);
    assert_eq!(t.totals(), Some(&totals()[..]));
    assert_eq!((t.ending(), t.damage()), (Ending::Clean, Damage::default()));
    assert_eq!((t.records(VcpuId(0)), t.records(VcpuId(1)), t.lost(VcpuId(0)), t.vcpus()), (6, 4, 9, 2));
    assert_eq!(t.bytes(), bytes.len() as u64);
    assert_eq!(records(&items(&mut r)).len(), 10);
}

#[test]
fn every_event_and_reason_is_read_back() {
    let kinds = [
        EventKind::Switched { on: 1, off: 2, active: 3, pause: Pause { kick_ns: 4, work_ns: 5, resume_ns: 6 } },
        EventKind::Mark { mark: u32::MAX },
        EventKind::Paused,
        EventKind::Resumed,
        EventKind::Detached { sites: u64::MAX },
        EventKind::Ended { how: "power off \u{1b}[31m \"quoted\"".into() },
        EventKind::Note { text: "ä".into() },
    ];
    let events: Vec<Event> = kinds.into_iter().zip(5..).map(|(kind, t)| Event { tsc: Tsc(t), kind }).collect();
    let mut out = Vec::new();
    let mut w = TraceWriter::new(&mut out, "events", &meta()).unwrap();
    events.iter().for_each(|e| w.write_event(e).unwrap());
    for code in 0..=u8::MAX {
        let reason = LossReason::from_code(code);
        assert_eq!(reason.code(), code);
        w.write_loss(&Loss { vcpu: VcpuId(15), reason, count: u64::MAX, before_index: code.into() }).unwrap();
    }
    w.finish(&[]).unwrap();
    let r = read(&out);
    assert_eq!(r.trace().events(), &events);
    assert_eq!(r.trace().losses(VcpuId(15)).len(), 256);
    assert_eq!(r.trace().lost(VcpuId(15)), u64::MAX, "hostile counts saturate");
    let kind: EventKind = serde_json::from_str(r#"{"event":"from_the_future","x":{"y":1}}"#).unwrap();
    assert_eq!(kind, EventKind::Unknown);
}

#[test]
fn names_that_could_harm_a_terminal_are_defused_and_long_ones_cut() {
    let long = "é".repeat(4000);
    let mut out = Vec::new();
    let mut w = TraceWriter::new(&mut out, "names", &meta()).unwrap();
    w.write_symbols([
        Symbol { addr: Gva(1), size: 0, name: "a\x1b[2Jb\n" },
        Symbol { addr: Gva(2), size: 0, name: &long },
    ])
    .unwrap();
    w.finish(&[]).unwrap();
    let r = read(&out);
    let names: Vec<_> = r.trace().symbols().iter().map(|s| s.name.to_owned()).collect();
    assert_eq!(names, ["a\u{fffd}[2Jb\u{fffd}", &"é".repeat(2048)]);
}

#[test]
fn big_batches_become_several_blocks_and_small_ones_few() {
    let n = MAX_BLOCK_RECORDS as u64 * 2 + 5000;
    let all = recs(0, 64, n, 1);
    let blocks = |batch: usize| {
        let mut out = Vec::new();
        let mut w = TraceWriter::new(&mut out, "batches", &meta()).unwrap();
        for (i, chunk) in all.chunks(batch).enumerate() {
            w.write_records(VcpuId(0), 64 + (i * batch) as u64, chunk).unwrap();
        }
        w.finish(&[]).unwrap();
        let mut r = read(&out);
        let got: Vec<RawRecord> = records(&items(&mut r)).iter().map(|r| r.raw).collect();
        assert!(got == all, "batches of {batch}");
        r.trace().streams[0].blocks.len()
    };
    assert_eq!(blocks(all.len()), 3);
    assert!(blocks(1) <= all.len() / 2000, "single records are gathered");
    assert!(blocks(2047) <= all.len() / 2000);
}

#[test]
fn a_later_clock_replaces_an_earlier_one() {
    let mut out = Vec::new();
    let mut w = TraceWriter::new(&mut out, "clocks", &meta()).unwrap();
    w.write_clock(&Clock::new(5, Tsc(1), 2, 3).unwrap()).unwrap();
    w.write_clock(&clock()).unwrap();
    w.finish(&[]).unwrap();
    assert_eq!(read(&out).trace().clock(), Some(&clock()));
}

/// One thing to do with a writer.
#[derive(Clone, Debug)]
enum Step {
    Records { vcpu: u8, count: u16, gap: u8, tsc: u64 },
    Loss { vcpu: u8, count: u64 },
    Event { tsc: u64, mark: u32 },
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        6 => (0..4_u8, 1..40_u16, 0..3_u8, any::<u64>())
            .prop_map(|(vcpu, count, gap, tsc)| Step::Records { vcpu, count, gap, tsc }),
        1 => (0..1_u8, 2000..5000_u16, 0..2_u8, any::<u64>())
            .prop_map(|(vcpu, count, gap, tsc)| Step::Records { vcpu, count, gap, tsc }),
        2 => (0..4_u8, any::<u64>()).prop_map(|(vcpu, count)| Step::Loss { vcpu, count }),
        2 => (any::<u64>(), any::<u32>()).prop_map(|(tsc, mark)| Step::Event { tsc, mark }),
        1 => Just(Step::Flush),
    ];
    prop::collection::vec(one, 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_was_written_is_read(steps in steps()) {
        let mut out = Vec::new();
        let mut w = TraceWriter::new(&mut out, "steps", &meta()).unwrap();
        let mut next = [64_u64; 4];
        let mut want_records: Vec<Vec<(u64, RawRecord)>> = vec![Vec::new(); 4];
        let mut want_losses: Vec<Vec<Loss>> = vec![Vec::new(); 4];
        let mut want_events = Vec::new();
        for step in &steps {
            match *step {
                Step::Records { vcpu, count, gap, tsc } => {
                    let index = &mut next[usize::from(vcpu)];
                    *index += u64::from(gap);
                    let batch: Vec<_> = (0..u64::from(count)).map(|n| rec(vcpu, *index + n, tsc.wrapping_add(n))).collect();
                    w.write_records(VcpuId(vcpu), *index, &batch).unwrap();
                    want_records[usize::from(vcpu)].extend((*index..).zip(batch));
                    *index += u64::from(count);
                }
                Step::Loss { vcpu, count } => {
                    let before_index = next[usize::from(vcpu)];
                    let loss = Loss { vcpu: VcpuId(vcpu), reason: LossReason::Overwritten, count, before_index };
                    w.write_loss(&loss).unwrap();
                    want_losses[usize::from(vcpu)].push(loss);
                }
                Step::Event { tsc, mark } => {
                    let event = Event { tsc: Tsc(tsc), kind: EventKind::Mark { mark } };
                    w.write_event(&event).unwrap();
                    want_events.push(event);
                }
                Step::Flush => w.flush().unwrap(),
            }
        }
        let written = w.finish(&totals()).unwrap();
        prop_assert_eq!(written.bytes, out.len() as u64);
        let mut r = read(&out);
        prop_assert_eq!(r.trace().ending(), Ending::Clean);
        prop_assert_eq!(r.trace().damage(), Damage::default());
        let got = items(&mut r);
        prop_assert_eq!(records(&got).len() as u64, written.records);
        want_events.sort_by_key(|e| e.tsc);
        let events: Vec<_> = got.iter().filter_map(|i| if let Got::Event(e) = i { Some(e.clone()) } else { None }).collect();
        prop_assert_eq!(events, want_events);
        for v in 0..4_u8 {
            let mine: Vec<_> = records(&got).iter().filter(|r| r.vcpu.0 == v).map(|r| (r.index, r.raw)).collect();
            prop_assert_eq!(&mine, &want_records[usize::from(v)]);
            let losses: Vec<_> = got.iter().filter_map(|i| match i { Got::Loss(l) if l.vcpu.0 == v => Some(*l), _ => None }).collect();
            prop_assert_eq!(&losses, &want_losses[usize::from(v)]);
            let naive = mine.windows(2).filter(|w| w[1].1.tsc < w[0].1.tsc).count();
            prop_assert_eq!(records(&got).iter().filter(|r| r.vcpu.0 == v && r.inverted).count(), naive);
        }
    }
}
