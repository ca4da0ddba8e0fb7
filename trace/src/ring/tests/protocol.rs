//! Every record exactly once, whatever the interleaving.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::mock::{Ask, Context, Mem, Outcome, machine};
use crate::ids::VcpuId;
use crate::ring::Consumer;
use crate::ring::layout::{FullPolicy, RawRecord};

const RECORDS: u32 = 64;

#[derive(Clone, Debug)]
enum Op {
    /// Run a context of this CPU for some instructions: the newest one, or another (a migrated or resumed thread).
    Step { cpu: u8, which: u8, steps: u8 },
    /// An interrupt or a call: a new context begins.
    Begin { cpu: u8 },
    /// Many whole calls in a row.
    Burst { cpu: u8, calls: u8 },
    /// The scheduler moves a context.
    Migrate { from: u8, to: u8, which: u8 },
    /// The host drains one ring.
    Drain { cpu: u8 },
}

fn op(cpus: u8) -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..cpus, any::<u8>(), 1u8..12).prop_map(|(cpu, which, steps)| Op::Step { cpu, which, steps }),
        3 => (0..cpus).prop_map(|cpu| Op::Begin { cpu }),
        3 => (0..cpus, 1u8..90).prop_map(|(cpu, calls)| Op::Burst { cpu, calls }),
        2 => (0..cpus, 0..cpus, any::<u8>()).prop_map(|(from, to, which)| Op::Migrate { from, to, which }),
        1 => (0..cpus).prop_map(|cpu| Op::Drain { cpu }),
    ]
}

struct World {
    mem: Mem,
    rings: Vec<Consumer<Mem>>,
    policy: FullPolicy,
    running: Vec<Vec<Context>>,
    next: u64,
    written: BTreeSet<u64>,
    dropped: u64,
    seen: Vec<RawRecord>,
}

impl World {
    fn new(cpus: u8, policy: FullPolicy) -> World {
        let (mem, rings) = machine(cpus, RECORDS, policy);
        let running = vec![Vec::new(); usize::from(cpus)];
        World { mem, rings, policy, running, next: 1, written: BTreeSet::new(), dropped: 0, seen: Vec::new() }
    }

    fn context(&mut self) -> Context {
        self.next += 1;
        Context::new(self.next, self.policy, self.rings.len() as u8, RECORDS)
    }

    fn drain(&mut self, cpu: u8) {
        let seen = &mut self.seen;
        self.rings[usize::from(cpu)].drain(&mut |_: VcpuId, _: u64, r: &[RawRecord]| seen.extend_from_slice(r));
    }

    fn step(&mut self, context: &mut Context, cpu: u8) {
        if context.step(&self.mem, cpu) == Ask::Full {
            let seen = &mut self.seen;
            let sink = &mut |_: VcpuId, _: u64, r: &[RawRecord]| seen.extend_from_slice(r);
            self.rings[usize::from(cpu)].drain_full(sink);
        }
        match context.outcome() {
            Some(Outcome::Written) => assert!(self.written.insert(context.id)),
            Some(Outcome::Dropped) => self.dropped += 1,
            None => {}
        }
    }

    /// Runs a context to its end; a trampoline that never ends is a bug.
    fn finish(&mut self, mut context: Context, cpu: u8) {
        for _ in 0..10_000 {
            if context.outcome().is_some() {
                return;
            }
            self.step(&mut context, cpu);
        }
        panic!("a trampoline did not come to its end: {context:?}");
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Begin { cpu } => {
                let c = self.context();
                self.running[usize::from(cpu)].push(c);
            }
            Op::Burst { cpu, calls } => {
                for _ in 0..calls {
                    let c = self.context();
                    self.finish(c, cpu);
                }
            }
            Op::Step { cpu, which, steps } => {
                let Some(mut c) = self.take(cpu, which) else { return };
                for _ in 0..steps {
                    if c.outcome().is_none() {
                        self.step(&mut c, cpu);
                    }
                }
                if c.outcome().is_none() {
                    self.running[usize::from(cpu)].push(c);
                }
            }
            Op::Migrate { from, to, which } => {
                if let Some(c) = self.take(from, which) {
                    self.running[usize::from(to)].push(c);
                }
            }
            Op::Drain { cpu } => self.drain(cpu),
        }
    }

    fn take(&mut self, cpu: u8, which: u8) -> Option<Context> {
        let run = &mut self.running[usize::from(cpu)];
        if run.is_empty() { None } else { Some(run.swap_remove(usize::from(which) % run.len())) }
    }

    fn end(&mut self) {
        for cpu in 0..self.running.len() as u8 {
            while let Some(c) = self.take(cpu, 0) {
                self.finish(c, cpu);
            }
        }
        for cpu in 0..self.rings.len() as u8 {
            self.drain(cpu);
        }
    }

    /// Records seen are whole, and each was seen once.
    fn check_seen(&self) -> BTreeSet<u64> {
        let ids: BTreeSet<u64> = self.seen.iter().map(|r| r.tsc).collect();
        assert_eq!(ids.len(), self.seen.len(), "a record was delivered twice");
        for r in &self.seen {
            let whole = r.ip == r.tsc as u32 && r.parent == !r.tsc && r.sp == r.tsc as u32 ^ 0x5555;
            assert!(whole, "torn record {r:?}");
        }
        ids
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn block_delivers_everything(ops in prop::collection::vec(op(3), 1..120)) {
        let mut w = World::new(3, FullPolicy::Block);
        ops.iter().for_each(|o| w.apply(o));
        w.end();
        prop_assert_eq!(w.check_seen(), w.written.clone());
        prop_assert_eq!(w.dropped, 0);
        for r in &mut w.rings {
            let t = r.totals();
            prop_assert_eq!((t.corrupt, t.unfinished, t.used), (0, 0, 0));
        }
    }

    #[test]
    fn drop_counts_what_it_loses(ops in prop::collection::vec(op(3), 1..120)) {
        let mut w = World::new(3, FullPolicy::Drop);
        ops.iter().for_each(|o| w.apply(o));
        w.end();
        prop_assert_eq!(w.check_seen(), w.written.clone());
        let lost: u64 = w.rings.iter_mut().map(|r| r.totals().dropped).sum();
        prop_assert_eq!(lost, w.dropped);
        let delivered: u64 = w.rings.iter_mut().map(|r| r.totals().delivered).sum();
        let reserved: u64 = w.rings.iter().map(Consumer::reserved).sum();
        prop_assert_eq!(delivered, reserved);
        prop_assert_eq!(delivered + lost, w.next - 1);
    }

    #[test]
    fn overwrite_keeps_the_last(calls in 1u64..500, drain_at in 0u64..500) {
        let mut w = World::new(1, FullPolicy::Overwrite);
        for i in 0..calls {
            let c = w.context();
            w.finish(c, 0);
            if i == drain_at {
                w.drain(0);
            }
        }
        w.drain(0);
        let ids = w.check_seen();
        let first_of_last = (calls + 2).saturating_sub(u64::from(RECORDS)).max(2);
        prop_assert!((first_of_last..calls + 2).all(|id| ids.contains(&id)));
        let t = w.rings[0].totals();
        prop_assert_eq!(t.delivered + t.overwritten, calls);
    }
}

/// A writer preempted for many laps: in `block` its slot is passed each time, and its record still arrives.
#[test]
fn a_writer_preempted_for_many_laps_still_arrives() {
    let mut w = World::new(1, FullPolicy::Block);
    let mut slow = w.context();
    while slow.step(&w.mem.clone(), 0) == Ask::Nothing && w.mem_head() == u64::from(RECORDS) {}
    for _ in 0..10 * RECORDS {
        let c = w.context();
        w.finish(c, 0);
    }
    assert!(w.rings[0].totals().skipped >= 9);
    let id = slow.id;
    w.finish(slow, 0);
    w.end();
    assert!(w.check_seen().contains(&id));
    assert_eq!(w.check_seen(), w.written);
}

/// In `drop` a preempted writer holds its slot: what does not fit meanwhile is counted, nothing else is lost.
#[test]
fn a_preempted_writer_in_drop_costs_counted_records_only() {
    let mut w = World::new(1, FullPolicy::Drop);
    let mut slow = w.context();
    while w.mem_head() == u64::from(RECORDS) {
        slow.step(&w.mem.clone(), 0);
    }
    for _ in 0..3 * RECORDS {
        let c = w.context();
        w.finish(c, 0);
        w.drain(0);
    }
    assert_eq!(w.rings[0].totals().dropped, u64::from(3 * RECORDS) - u64::from(RECORDS - 1));
    w.finish(slow, 0);
    w.end();
    assert_eq!(w.check_seen(), w.written);
}

impl World {
    fn mem_head(&self) -> u64 {
        use crate::ring::RingMemory;
        self.mem.load_u64(crate::ring::layout::ctrl::HEAD)
    }
}
