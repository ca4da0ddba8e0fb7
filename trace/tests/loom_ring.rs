//! The ring protocol under loom: the real consumer against a guest thread, every interleaving and every reordering
//! that the memory model allows within the bounds below. The weakened twins must fail, else the model proves nothing.
//!
//! One guest thread stands for one vCPU: what runs on a CPU is serialised there, its interrupts are nested calls. The
//! guest's accesses have the orderings that x86 gives plain loads and stores (acquire, release).

#![allow(clippy::unwrap_used)]

use exotrace_trace::ids::VcpuId;
use exotrace_trace::ring::layout::{FullPolicy, RECORD_BYTES, RawRecord, ctrl, rec};
use exotrace_trace::ring::{Consumer, RingMemory, RingPlace};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const RECORDS: u32 = 2;
/// Fields of a slot that the model carries: enough to see a torn record.
const FIELDS: [usize; 3] = [rec::TSC, rec::PARENT, rec::TAG];

/// What the guest does wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weakness {
    None,
    /// The tag is stored before the payload.
    TagFirst,
    /// The tag is stored last, but without release ordering (as a compiler or a weaker CPU could reorder it).
    TagRelaxed,
    /// The guest does not look at the limit.
    NoLimit,
}

struct Words {
    head: AtomicU64,
    lost: AtomicU64,
    soft: AtomicU64,
    hard: AtomicU64,
    slots: Vec<[AtomicU32; 3]>,
}

#[derive(Clone)]
struct Mem(Arc<Words>);

impl Mem {
    fn new() -> Mem {
        let slots = (0..RECORDS).map(|_| std::array::from_fn(|_| AtomicU32::new(0))).collect();
        let word = || AtomicU64::new(0);
        Mem(Arc::new(Words { head: word(), lost: word(), soft: word(), hard: word(), slots }))
    }
    fn word(&self, offset: usize) -> &AtomicU64 {
        match offset {
            ctrl::HEAD => &self.0.head,
            ctrl::LOST => &self.0.lost,
            ctrl::SOFT_LAST => &self.0.soft,
            ctrl::HARD_LAST => &self.0.hard,
            other => panic!("no word at {other:#x}"),
        }
    }
    fn field(&self, offset: usize) -> Option<&AtomicU32> {
        let offset = offset - ctrl::BYTES;
        let field = FIELDS.iter().position(|&f| f == offset % RECORD_BYTES)?;
        Some(&self.0.slots[offset / RECORD_BYTES][field])
    }
}

impl RingMemory for Mem {
    fn load_u32(&self, offset: usize) -> u32 {
        self.field(offset).unwrap().load(Ordering::Acquire)
    }
    fn load_u64(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }
    fn store_u64(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }
    fn copy_out(&self, offset: usize, buf: &mut [u8]) {
        for i in (0..buf.len()).step_by(4) {
            let v = self.field(offset + i).map_or(0, |f| f.load(Ordering::Relaxed));
            buf[i..i + 4].copy_from_slice(&v.to_le_bytes());
        }
    }
    fn copy_in(&self, _: usize, _: &[u8]) {
        unreachable!("the consumer copies nothing in");
    }
    fn len(&self) -> usize {
        ctrl::BYTES + RECORDS as usize * RECORD_BYTES
    }
}

/// The `drop` trampoline up to the reservation. `None`: dropped. `head` is the vCPU's own copy of the head: on its CPU
/// `cmpxchg` is atomic. (loom looks for conflicts with the last access of a word only: were the guest to load its own
/// head from memory, that load would hide the consumer's, and hardly any interleaving would be explored.)
fn reserve(mem: &Mem, head: &mut u64, weakness: Weakness) -> Option<u64> {
    if weakness != Weakness::NoLimit {
        let hard = mem.word(ctrl::HARD_LAST).load(Ordering::Acquire);
        if hard.wrapping_sub(*head) == u64::MAX {
            mem.word(ctrl::LOST).fetch_add(1, Ordering::Release);
            return None;
        }
    }
    *head += 1;
    mem.word(ctrl::HEAD).store(*head, Ordering::Release);
    Some(*head - 1)
}

fn write(mem: &Mem, index: u64, weakness: Weakness) {
    let slot = &mem.0.slots[(index & u64::from(RECORDS - 1)) as usize];
    let [tsc, parent, tag] = slot;
    let v = index as u32 * 16 + 1;
    if weakness == Weakness::TagFirst {
        tag.store(index as u32, Ordering::Release);
    }
    tsc.store(v, Ordering::Release);
    parent.store(!v, Ordering::Release);
    match weakness {
        Weakness::TagFirst => {}
        Weakness::TagRelaxed => tag.store(index as u32, Ordering::Relaxed),
        _ => tag.store(index as u32, Ordering::Release),
    }
}

/// The guest of the twin with the relaxed tag also stores its payload relaxed, as nothing would order it then.
fn write_relaxed(mem: &Mem, index: u64) {
    let [tsc, parent, tag] = &mem.0.slots[(index & u64::from(RECORDS - 1)) as usize];
    let v = index as u32 * 16 + 1;
    tsc.store(v, Ordering::Relaxed);
    parent.store(!v, Ordering::Relaxed);
    tag.store(index as u32, Ordering::Relaxed);
}

fn check(records: &[RawRecord], first: u64) {
    for (i, r) in records.iter().enumerate() {
        let v = (first as u32 + i as u32) * 16 + 1;
        assert!(r.tsc as u32 == v && r.parent as u32 == !v, "torn record {r:?}, expected {v}");
    }
}

/// `calls` trampolines, the second interrupting the first between reservation and write when `nested`.
fn guest(mem: &Mem, calls: u32, nested: bool, weakness: Weakness) -> u64 {
    let put = |i: u64| {
        if weakness == Weakness::TagRelaxed { write_relaxed(mem, i) } else { write(mem, i, weakness) }
    };
    let mut head = u64::from(RECORDS);
    let mut produced = 0;
    let mut held = None;
    for call in 0..calls {
        produced += 1;
        let Some(index) = reserve(mem, &mut head, weakness) else { continue };
        if nested && call == 0 {
            held = Some(index);
        } else {
            put(index);
        }
        if call == 1 {
            held.take().into_iter().for_each(put);
        }
    }
    held.into_iter().for_each(put);
    produced
}

fn model(calls: u32, nested: bool, weakness: Weakness) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    // How often the two really met: a model that never gets there proves nothing.
    let met = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let met_in = met.clone();
    builder.check(move || {
        let mem = Mem::new();
        let place = RingPlace { vcpu: VcpuId(0), ctrl: 0, slots: ctrl::BYTES, records: RECORDS };
        let mut consumer = Consumer::new(mem.clone(), place, FullPolicy::Drop);
        let vcpu = {
            let mem = mem.clone();
            loom::thread::spawn(move || guest(&mem, calls, nested, weakness))
        };
        let mut indices = Vec::new();
        let mut sink = |_: VcpuId, first: u64, r: &[RawRecord]| {
            check(r, first);
            indices.extend(first..first + r.len() as u64);
        };
        if consumer.drain(&mut sink).delivered > 0 {
            met_in.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        let produced = vcpu.join().unwrap();
        consumer.drain(&mut sink);
        consumer.drain(&mut sink);
        let delivered = indices.len() as u64;
        indices.sort_unstable();
        indices.dedup();
        assert_eq!(indices.len() as u64, delivered, "delivered twice");
        let t = consumer.totals();
        assert_eq!(t.delivered + t.dropped, produced, "{t:?}");
        assert_eq!((t.corrupt, t.unfinished), (0, 0), "{t:?}");
    });
    assert!(met.load(std::sync::atomic::Ordering::Relaxed) > 10, "the model explored too little: {met:?}");
}

#[test]
fn every_record_arrives_whole_or_is_counted() {
    model(3, false, Weakness::None);
}

#[test]
fn an_interrupt_between_reservation_and_write_is_harmless() {
    model(3, true, Weakness::None);
}

#[test]
#[should_panic(expected = "torn record")]
fn twin_that_stores_the_tag_first_fails() {
    model(2, false, Weakness::TagFirst);
}

#[test]
#[should_panic(expected = "torn record")]
fn twin_that_does_not_order_the_tag_fails() {
    model(2, false, Weakness::TagRelaxed);
}

#[test]
#[should_panic]
fn twin_that_ignores_the_limit_fails() {
    model(4, false, Weakness::NoLimit);
}
