//! Counts, live view, losses and the file, against the mock guest.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use super::*;
use crate::file::{Item, LossReason, Meta, TraceReader, Vcpus};
use crate::ring::layout::FullPolicy;
use crate::ring::tests::mock::{Context, Mem, Outcome, machine};

/// `ip` is the context's number in the mock: odd ones are site 0, even ones site 1, those above 1,000 unknown.
struct Parity;

impl SiteLookup for Parity {
    fn site_of_ip(&self, ip: u32) -> Option<SiteId> {
        (ip <= 1000).then_some(SiteId(1 - ip % 2))
    }
    fn site_count(&self) -> usize {
        2
    }
}

fn world(policy: FullPolicy) -> (Mem, Collector<Mem, Parity>) {
    let (mem, rings) = machine(2, 64, policy);
    (mem, Collector::new(rings, Parity))
}

/// Calls on one CPU; returns how many were dropped.
fn call(mem: &Mem, cpu: u8, ids: std::ops::Range<u64>, policy: FullPolicy) -> u64 {
    let run = |id| {
        let mut c = Context::new(id, policy, 2, 64);
        while c.outcome().is_none() {
            c.step(mem, cpu);
        }
        u64::from(c.outcome() == Some(Outcome::Dropped))
    };
    ids.map(run).sum()
}

fn create(path: &Path) -> TraceWriter<File> {
    TraceWriter::create(path, &Meta::default()).unwrap()
}

#[test]
fn counts_tail_and_unknown() {
    let (mem, c) = world(FullPolicy::Drop);
    call(&mem, 0, 1..31, FullPolicy::Drop);
    call(&mem, 1, 31..42, FullPolicy::Drop);
    call(&mem, 1, 2000..2003, FullPolicy::Drop);
    c.drain_all();
    let mut counts = Vec::new();
    c.add_counts(&mut counts);
    assert_eq!(counts, [21, 20]);
    assert_eq!(c.unknown(), 3);
    let tail: Vec<u64> = c.tail(5).iter().map(|t| t.record.tsc).collect();
    assert_eq!(tail, [40, 41, 2000, 2001, 2002]);
    assert_eq!(c.totals(VcpuId(0)).delivered, 30);
    assert_eq!(c.totals(VcpuId(9)), RingTotals::default());
}

#[test]
fn the_file_holds_what_came_after_its_start_and_the_losses_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.exo");
    let (mem, c) = world(FullPolicy::Drop);
    call(&mem, 0, 1..11, FullPolicy::Drop);
    c.start_file(create(&path)).unwrap();
    let lost = call(&mem, 0, 100..200, FullPolicy::Drop);
    assert_eq!(lost, 36);
    c.drain_all();
    call(&mem, 0, 300..310, FullPolicy::Drop);
    let written = c.finish_file().unwrap().unwrap();
    assert_eq!(written.records, 74);
    assert!(c.finish_file().is_none());

    let mut reader = TraceReader::open(&path).unwrap();
    assert_eq!(reader.trace().totals().unwrap()[0].delivered, 74);
    let mut merge = reader.merge(Vcpus::ALL);
    let mut seen = Vec::new();
    while let Some(item) = merge.next().unwrap() {
        match item {
            Item::Record(r) => seen.push(r.raw.tsc.to_string()),
            Item::Loss(l) => {
                assert_eq!((l.vcpu, l.reason), (VcpuId(0), LossReason::Dropped));
                seen.push(format!("lost {}", l.count));
            }
            Item::Event(_) => {}
        }
    }
    let mut expected: Vec<String> = (100..164).map(|i| i.to_string()).collect();
    expected.push("lost 36".into());
    expected.extend((300..310).map(|i| i.to_string()));
    assert_eq!(seen, expected);
}

/// A pipe without a reader stands for a disk that fails.
#[test]
fn a_failing_file_is_closed_and_told_once_and_the_drain_goes_on() {
    let (mem, c) = world(FullPolicy::Drop);
    let (reader, writer) = std::io::pipe().unwrap();
    let file = File::from(std::os::fd::OwnedFd::from(writer));
    c.start_file(TraceWriter::new(file, "pipe", &Meta::default()).unwrap()).unwrap();
    drop(reader);
    call(&mem, 0, 1..31, FullPolicy::Drop);
    c.drain_all();
    c.flush();
    let text = c.take_file_error().unwrap().to_string();
    assert!(text.contains("pipe"), "{text}");
    assert!(c.take_file_error().is_none());
    c.drain_all();
    assert!(c.file_bytes().is_none());
    call(&mem, 0, 31..41, FullPolicy::Drop);
    c.drain_all();
    assert_eq!(c.totals(VcpuId(0)).delivered, 40);
}

/// Ring memory that can be used from two threads.
#[derive(Clone)]
struct Shared(std::sync::Arc<Vec<AtomicU64>>);

impl RingMemory for Shared {
    fn load_u32(&self, offset: usize) -> u32 {
        (self.0[offset / 8].load(Ordering::Acquire) >> (offset % 8 * 8)) as u32
    }
    fn load_u64(&self, offset: usize) -> u64 {
        self.0[offset / 8].load(Ordering::Acquire)
    }
    fn store_u64(&self, offset: usize, value: u64) {
        self.0[offset / 8].store(value, Ordering::Release);
    }
    fn copy_out(&self, offset: usize, buf: &mut [u8]) {
        for (n, word) in buf.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&self.load_u64(offset + n * 8).to_le_bytes());
        }
    }
    fn copy_in(&self, _: usize, _: &[u8]) {}
    fn len(&self) -> usize {
        self.0.len() * 8
    }
}

/// A drain that waits for its file must not make the views wait: the terminal UI draws from them.
#[test]
fn views_do_not_wait_for_a_slow_file() {
    use crate::ring::RingPlace;
    use crate::ring::layout::{RECORD_BYTES, ctrl, rec};

    const RECORDS: u32 = 1 << 18;
    let bytes = ctrl::BYTES + RECORDS as usize * RECORD_BYTES;
    let mem = Shared(std::sync::Arc::new((0..bytes / 8).map(|_| AtomicU64::new(0)).collect()));
    let place = RingPlace { vcpu: VcpuId(0), ctrl: 0, slots: ctrl::BYTES, records: RECORDS };
    let consumer = Consumer::new(mem.clone(), place, FullPolicy::Drop);
    // A full ring, 8 MiB: more than a pipe holds.
    for n in 0..RECORDS as usize {
        let tag = (RECORDS as usize + n) as u64;
        mem.store_u64(ctrl::BYTES + n * RECORD_BYTES + rec::IP, tag << 32 | 1);
    }
    mem.store_u64(ctrl::HEAD, u64::from(RECORDS) * 2);

    let collector = std::sync::Arc::new(Collector::new(vec![consumer], Parity));
    let (mut reader, writer) = std::io::pipe().unwrap();
    let file = File::from(std::os::fd::OwnedFd::from(writer));
    let file = TraceWriter::new(file, "pipe", &Meta::default()).unwrap();
    *lock(&collector.out) = Out::Open(file);
    let drainer = {
        let collector = std::sync::Arc::clone(&collector);
        std::thread::spawn(move || collector.drain_all())
    };
    // Until the drain is inside: it holds the ring.
    while collector.all()[0].try_lock().is_ok() {
        std::thread::yield_now();
    }
    let (done, views) = std::sync::mpsc::channel();
    {
        let collector = std::sync::Arc::clone(&collector);
        std::thread::spawn(move || {
            let mut counts = Vec::new();
            collector.add_counts(&mut counts);
            let seen = (counts, collector.tail(10).len(), collector.shown_totals(VcpuId(0)), collector.file_bytes());
            // The test may have given up.
            let _ = done.send(seen);
        });
    }
    let seen = views.recv_timeout(Duration::from_secs(20));
    // Now the file is read, the drain comes to its end, and the views see all of it.
    std::thread::spawn(move || {
        let mut rest = vec![0; 1 << 16];
        while std::io::Read::read(&mut reader, &mut rest).is_ok_and(|n| n > 0) {}
    });
    drainer.join().unwrap();
    seen.expect("the views waited for the file");
    let mut counts = Vec::new();
    collector.add_counts(&mut counts);
    assert_eq!(counts, [u64::from(RECORDS), 0]);
}
