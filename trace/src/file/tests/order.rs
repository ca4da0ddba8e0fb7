//! The order of the merge: against a naive oracle, and the places of losses, events and late records.
use super::*;

/// Blocks of one vCPU: stamps per block.
type Blocks = Vec<Vec<u64>>;

fn write(streams: &[Blocks]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut w = TraceWriter::new(&mut out, "order", &meta()).unwrap();
    for (v, blocks) in streams.iter().enumerate() {
        let mut index = 64;
        for stamps in blocks {
            let batch: Vec<_> = stamps.iter().zip(index..).map(|(&t, i)| rec(v as u8, i, t)).collect();
            w.write_records(VcpuId(v as u8), index, &batch).unwrap();
            w.flush().unwrap();
            index += batch.len() as u64;
        }
    }
    w.finish(&[]).unwrap();
    out
}

/// The order as the module's docs define it, done in the simplest way.
fn oracle(streams: &[Blocks]) -> Vec<(u8, u64)> {
    let mut queues: Vec<Vec<(u64, u64)>> = streams
        .iter()
        .map(|blocks| {
            let placed = blocks.iter().flat_map(|b| (0..b.len()).map(|i| b[i..].iter().copied().min().unwrap()));
            let mut queue: Vec<_> = placed.zip(64..).collect();
            queue.reverse();
            queue
        })
        .collect();
    let mut order = Vec::new();
    while let Some(v) =
        (0..queues.len()).filter(|&v| !queues[v].is_empty()).min_by_key(|&v| queues[v].last().unwrap().0)
    {
        order.push((v as u8, queues[v].pop().unwrap().1));
    }
    order
}

fn order(bytes: &[u8]) -> Vec<(u8, u64)> {
    records(&items(&mut read(bytes))).iter().map(|r| (r.vcpu.0, r.index)).collect()
}

proptest! {
    #[test]
    fn merged_as_the_naive_oracle_does(
        streams in prop::collection::vec(prop::collection::vec(prop::collection::vec(0..60_u64, 1..12), 0..6), 1..5)
    ) {
        prop_assert_eq!(order(&write(&streams)), oracle(&streams));
    }

    #[test]
    fn without_inversions_it_is_a_sort_by_time(
        streams in prop::collection::vec(prop::collection::vec(prop::collection::vec(0..9_u64, 1..12), 0..6), 1..5)
    ) {
        let mut streams = streams;
        let mut all = Vec::new();
        for (v, blocks) in streams.iter_mut().enumerate() {
            let mut t = 0;
            let stamps = blocks.iter_mut().flatten();
            for (s, index) in stamps.zip(64..) {
                t += *s;
                *s = t;
                all.push((t, v as u8, index));
            }
        }
        all.sort_unstable();
        let want: Vec<_> = all.into_iter().map(|(_, v, i)| (v, i)).collect();
        prop_assert_eq!(order(&write(&streams)), want);
    }
}

#[test]
fn one_late_stamp_does_not_hold_back_its_vcpu() {
    // Record 65 of vCPU 0 was reserved at about 11 but stamped at 900.
    let bytes = write(&[vec![vec![10, 900, 12, 30]], vec![vec![11, 20, 40, 1000]]]);
    let all = records(&items(&mut read(&bytes)));
    let got: Vec<_> = all.iter().map(|r| (r.vcpu.0, r.raw.tsc, r.inverted)).collect();
    assert_eq!(
        got,
        [
            (0, 10, false),
            (1, 11, false),
            (0, 900, false),
            (0, 12, true),
            (1, 20, false),
            (0, 30, false),
            (1, 40, false),
            (1, 1000, false)
        ]
    );
}

#[test]
fn late_records_come_in_ring_order() {
    let mut out = Vec::new();
    let mut w = TraceWriter::new(&mut out, "late", &meta()).unwrap();
    w.write_records(VcpuId(0), 64, &recs(0, 64, 2, 10)).unwrap();
    w.write_records(VcpuId(0), 67, &recs(0, 67, 3, 13)).unwrap();
    w.flush().unwrap();
    w.write_records(VcpuId(0), 66, &recs(0, 66, 1, 12)).unwrap();
    w.finish(&[]).unwrap();
    let indices: Vec<_> = order(&out).iter().map(|r| r.1).collect();
    assert_eq!(indices, [64, 65, 66, 67, 68, 69]);
    assert_eq!(read(&out).trace().damage(), Damage::default());
}

#[test]
fn overlapping_blocks_are_counted_and_all_shown() {
    let mut out = Vec::new();
    let mut w = TraceWriter::new(&mut out, "overlap", &meta()).unwrap();
    w.write_records(VcpuId(0), 64, &recs(0, 64, 4, 10)).unwrap();
    w.write_records(VcpuId(0), 66, &recs(0, 66, 4, 12)).unwrap();
    w.finish(&[]).unwrap();
    assert_eq!(read(&out).trace().damage().overlapping, 1);
    assert_eq!(order(&out).len(), 8);
}

/// The items as short words: `0:64` a record, `0-9` a loss of 9, `@5` an event.
fn words(bytes: &[u8], vcpus: Vcpus) -> Vec<String> {
    let mut r = read(bytes);
    let mut merge = r.merge(vcpus);
    let mut words = Vec::new();
    while let Some(item) = merge.next().unwrap() {
        words.push(match item {
            Item::Record(r) => format!("{}:{}", r.vcpu, r.index),
            Item::Loss(l) => format!("{}-{}", l.vcpu, l.count),
            Item::Event(e) => format!("@{}", e.tsc),
        });
    }
    words
}

#[test]
fn losses_and_events_have_their_place() {
    let loss =
        |vcpu, count, before_index| Loss { vcpu: VcpuId(vcpu), reason: LossReason::Dropped, count, before_index };
    let mut out = Vec::new();
    let mut w = TraceWriter::new(&mut out, "places", &meta()).unwrap();
    // Before the first, within a block, between blocks, at the end, and of a vCPU without records.
    for l in [loss(0, 5, 999), loss(0, 3, 66), loss(0, 1, 64), loss(0, 2, 65), loss(1, 7, 64), loss(0, 4, 68)] {
        w.write_loss(&l).unwrap();
    }
    for tsc in [102, 0, 5000] {
        w.write_event(&Event { tsc: Tsc(tsc), kind: EventKind::Paused }).unwrap();
    }
    w.write_records(VcpuId(0), 64, &recs(0, 64, 4, 100)).unwrap();
    w.flush().unwrap();
    w.write_records(VcpuId(0), 70, &recs(0, 70, 1, 200)).unwrap();
    w.finish(&[]).unwrap();
    let want =
        ["@0", "1-7", "0-1", "0:64", "0-2", "0:65", "@102", "0-3", "0:66", "0:67", "0-4", "0:70", "0-5", "@5000"];
    assert_eq!(words(&out, Vcpus::ALL), want);
    assert_eq!(words(&out, Vcpus::NONE.with(VcpuId(1))), ["@0", "1-7", "@102", "@5000"]);
    let mut r = read(&out);
    let mut merge = r.merge(Vcpus::ALL);
    while merge.next().unwrap().is_some() {}
    assert_eq!(merge.tally(VcpuId(0)), Tally { records: 5, lost: 15, inverted: 0 });
    assert_eq!(merge.tally(VcpuId(1)).lost, 7);
}
