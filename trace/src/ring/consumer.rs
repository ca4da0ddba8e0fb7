//! The host's side of one ring.
//!
//! Everything in the ring is written by the guest, so nothing here follows a guest value without checking it against
//! numbers the host keeps for itself. The work of one [`Consumer::drain`] is bounded by the size of the ring whatever
//! the guest does meanwhile.
//!
//! A slot that is reserved but not yet written is *passed*: it is remembered in `pending`, the slots behind it are
//! delivered, and its own record is delivered when its writer (a preempted thread, perhaps) has finished. Until then
//! the slot must not be reserved again: its `guard` is the next index that falls on the same slot, and no index
//! at or past any guard is published as free. In `block` policy that could stop a vCPU for good, because the writer
//! may run only after the vCPU goes on; so there the host moves the head over the one slot ([`Consumer::drain_full`]),
//! which it may do because the vCPU that owns the ring stands in its exit.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use zerocopy::IntoBytes;

use super::RingMemory;
use super::layout::{Cursor, FullPolicy, RECORD_BYTES, RawRecord, ctrl, rec};
use crate::ids::VcpuId;

/// Slots looked at and copied at once.
const BATCH: usize = 256;
/// Pending slots passed in one ring-full exit.
const MAX_SKIPS: usize = 64;

/// Where a ring lies in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlace {
    /// The vCPU that it belongs to; also its number in cursor words.
    pub vcpu: VcpuId,
    /// Offset of its control page.
    pub ctrl: usize,
    /// Offset of its slots.
    pub slots: usize,
    /// Number of slots, a power of two.
    pub records: u32,
}

/// Where drained records go.
pub trait RecordSink {
    /// Takes records with consecutive indices. Indices of one ring mostly grow; a record whose writer was preempted
    /// comes late, on its own.
    fn records(&mut self, vcpu: VcpuId, first_index: u64, records: &[RawRecord]);
}

impl<F: FnMut(VcpuId, u64, &[RawRecord])> RecordSink for F {
    fn records(&mut self, vcpu: VcpuId, first_index: u64, records: &[RawRecord]) {
        self(vcpu, first_index, records);
    }
}

/// What has become of the records of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RingTotals {
    /// Delivered to the sink.
    pub delivered: u64,
    /// Dropped by the guest because the ring was full (`drop`).
    pub dropped: u64,
    /// Overwritten before they were read (`overwrite`).
    pub overwritten: u64,
    /// Slots whose contents changed while they were read, or cursor words that made no sense: a hostile or broken guest.
    pub corrupt: u64,
    /// Records stamped earlier than the one before them in the ring.
    pub inverted: u64,
    /// Slots reserved whose writer has not finished.
    pub unfinished: u64,
    /// Slots in use: reserved and not yet read.
    pub used: u32,
    /// Times the vCPU waited for room (`block`).
    pub blocked: u64,
    /// Slots passed over by the host because their writer was preempted for a whole lap (`block`). Not a loss.
    pub skipped: u64,
}

impl RingTotals {
    /// Records that will never be delivered, whatever the reason, unfinished ones aside.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.dropped + self.overwritten
    }
}

/// A slot passed because its writer has not finished.
#[derive(Clone, Copy, Debug)]
struct Pending {
    index: u64,
    /// The next index on the same slot that is not yet given away.
    guard: u64,
}

/// What a drain did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Records delivered.
    pub delivered: u64,
    /// The ring was half full again when the drain ended: come back at once rather than wait for the doorbell.
    pub more: bool,
}

/// The consumer of one ring. See the module's docs.
pub struct Consumer<M> {
    mem: M,
    place: RingPlace,
    policy: FullPolicy,
    /// Every index below has been delivered, skipped, or is in `pending`.
    tail: u64,
    hard_last: u64,
    pending: Vec<Pending>,
    /// Indices from `tail` on that the host moved the head over, ascending.
    skipped: VecDeque<u64>,
    last_tsc: u64,
    totals: RingTotals,
    batch: Box<[RawRecord]>,
}

impl<M: RingMemory> Consumer<M> {
    /// Prepares a ring that no vCPU uses yet: writes its control page and takes it over.
    ///
    /// # Panics
    /// When the place does not lie in `mem` or its size is not a power of two: the host's own mistake.
    pub fn new(mem: M, place: RingPlace, policy: FullPolicy) -> Consumer<M> {
        assert!(place.records.is_power_of_two(), "ring size is a power of two");
        let slots_end = place.slots + place.records as usize * RECORD_BYTES;
        assert!(place.ctrl + ctrl::BYTES <= mem.len() && slots_end <= mem.len(), "the ring lies in its memory");
        let tail = u64::from(place.records);
        let mut this = Consumer {
            mem,
            place,
            policy,
            tail,
            hard_last: 0,
            pending: Vec::new(),
            skipped: VecDeque::new(),
            last_tsc: 0,
            totals: RingTotals::default(),
            batch: vec![RawRecord::default(); BATCH].into_boxed_slice(),
        };
        this.store(ctrl::LOST, 0);
        this.publish();
        this.store(ctrl::HEAD, this.cursor(tail));
        this
    }

    /// Delivers what has been written since the last call and makes room.
    ///
    /// In `overwrite` policy the vCPU is not held back, so records that are overwritten while they are read are
    /// counted as such; stop the vCPUs first for an exact picture.
    pub fn drain(&mut self, sink: &mut impl RecordSink) -> Drained {
        let before = self.totals.delivered;
        if self.policy == FullPolicy::Overwrite {
            self.drain_overwrite(sink);
            return Drained { delivered: self.totals.delivered - before, more: false };
        }
        let Some(head) = self.head() else { return Drained { delivered: 0, more: false } };
        self.revisit_pending(sink);
        while self.tail < head {
            if self.skipped.front() == Some(&self.tail) {
                self.skipped.pop_front();
                self.tail += 1;
                continue;
            }
            match self.committed_run(head) {
                0 => {
                    let guard = self.tail + u64::from(self.place.records);
                    self.pending.push(Pending { index: self.tail, guard });
                    self.tail += 1;
                }
                n => {
                    self.deliver(self.tail, n, sink);
                    self.tail += n as u64;
                }
            }
        }
        self.publish();
        let used = self.head().map_or(0, |h| h - self.tail);
        Drained { delivered: self.totals.delivered - before, more: used > u64::from(self.place.records / 2) }
    }

    /// Makes room for a vCPU that stands in its ring-full exit (`block`). Must be called only while the vCPU that
    /// owns the ring is out of guest mode. Returns the number of records delivered.
    pub fn drain_full(&mut self, sink: &mut impl RecordSink) -> u64 {
        let before = self.totals.delivered;
        self.totals.blocked += 1;
        // Each round passes one pending slot. Should there be more of them in a row than rounds, the vCPU finds no
        // room and comes back: an exit each time, so that a hostile guest makes only itself wait.
        for _ in 0..MAX_SKIPS {
            self.drain(sink);
            let Some(head) = self.head() else { break };
            if head <= self.hard_last {
                break;
            }
            let Some(p) = self.pending.iter_mut().find(|p| p.guard == head) else { break };
            p.guard += u64::from(self.place.records);
            self.skipped.push_back(head);
            self.totals.skipped += 1;
            self.store(ctrl::HEAD, self.cursor(head + 1));
            self.publish();
        }
        self.totals.delivered - before
    }

    /// The totals now. Reads the guest's counter of dropped records.
    pub fn totals(&mut self) -> RingTotals {
        // The guest's word only ever grows; a hostile one that goes back is not believed.
        self.totals.dropped = self.totals.dropped.max(self.mem.load_u64(self.place.ctrl + ctrl::LOST));
        self.totals.unfinished = self.pending.len() as u64;
        let ahead = self.peek_head().map_or(0, |h| h.saturating_sub(self.tail));
        let used = ahead.min(u64::from(self.place.records)) + self.totals.unfinished;
        self.totals.used = used.min(u64::from(self.place.records)) as u32;
        self.totals
    }

    /// Records reserved since the ring was made, read or not (dropped ones not included).
    #[must_use]
    pub fn reserved(&self) -> u64 {
        let first = u64::from(self.place.records);
        self.peek_head().map_or(0, |h| h.saturating_sub(first)).saturating_sub(self.totals.skipped)
    }

    /// Where the ring lies.
    #[must_use]
    pub const fn place(&self) -> RingPlace {
        self.place
    }

    fn cursor(&self, index: u64) -> u64 {
        Cursor { ring: self.place.vcpu, index }.to_raw()
    }

    fn store(&self, word: usize, value: u64) {
        self.mem.store_u64(self.place.ctrl + word, value);
    }

    fn slot(&self, index: u64) -> usize {
        let position = (index & u64::from(self.place.records - 1)) as usize;
        self.place.slots + position * RECORD_BYTES
    }

    fn is_committed(&self, index: u64) -> bool {
        self.mem.load_u32(self.slot(index) + rec::TAG) == index as u32
    }

    /// The head's index if it is one that the protocol allows.
    fn peek_head(&self) -> Option<u64> {
        let c = Cursor::from_raw(self.mem.load_u64(self.place.ctrl + ctrl::HEAD));
        let bounded = self.policy == FullPolicy::Overwrite || c.index <= self.hard_last + 1;
        (c.ring == self.place.vcpu && c.index >= self.tail && bounded).then_some(c.index)
    }

    fn head(&mut self) -> Option<u64> {
        let head = self.peek_head();
        if head.is_none() {
            self.totals.corrupt += 1;
        }
        head
    }

    /// How many slots from `tail` on are committed: up to the head, a skipped index, the wrap, or a batch.
    fn committed_run(&self, head: u64) -> usize {
        let mut end = head.min(self.tail + BATCH as u64);
        let lap = u64::from(self.place.records);
        end = end.min((self.tail / lap + 1) * lap);
        if let Some(&s) = self.skipped.front() {
            end = end.min(s);
        }
        (self.tail..end).take_while(|&i| self.is_committed(i)).count()
    }

    /// Copies `n` slots from `first` on (no wrap inside) into the batch.
    fn copy(&mut self, first: u64, n: usize) {
        let offset = self.slot(first);
        self.mem.copy_out(offset, self.batch[..n].as_mut_bytes());
        fence(Ordering::Acquire);
    }

    /// Delivers `batch[begin..n]`, the records from index `first + begin` on, those that are still what they were.
    fn emit(&mut self, first: u64, begin: usize, n: usize, sink: &mut impl RecordSink) {
        let mut from = begin;
        for i in begin..=n {
            if i < n && self.batch[i].tag == (first + i as u64) as u32 {
                let tsc = self.batch[i].tsc;
                self.totals.inverted += u64::from(tsc < self.last_tsc);
                self.last_tsc = tsc;
                continue;
            }
            if from < i {
                sink.records(self.place.vcpu, first + from as u64, &self.batch[from..i]);
                self.totals.delivered += (i - from) as u64;
            }
            self.totals.corrupt += u64::from(i < n);
            from = i + 1;
        }
    }

    fn deliver(&mut self, first: u64, n: usize, sink: &mut impl RecordSink) {
        self.copy(first, n);
        self.emit(first, 0, n, sink);
    }

    fn revisit_pending(&mut self, sink: &mut impl RecordSink) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|p| {
            let done = self.is_committed(p.index);
            if done {
                self.deliver(p.index, 1, sink);
            }
            !done
        });
        self.pending = pending;
    }

    /// Tells the guest how far it may reserve. The hard mark first: the guest must never see a soft mark past it.
    fn publish(&mut self) {
        if self.policy == FullPolicy::Overwrite {
            return;
        }
        let records = u64::from(self.place.records);
        let free_end = self.pending.iter().map(|p| p.guard).fold(self.tail + records, u64::min);
        self.hard_last = free_end - 1;
        let soft_last = self.hard_last.min(self.tail + records / 2 - 1);
        self.store(ctrl::HARD_LAST, self.cursor(self.hard_last));
        self.store(ctrl::SOFT_LAST, self.cursor(soft_last));
    }

    fn drain_overwrite(&mut self, sink: &mut impl RecordSink) {
        let Some(head) = self.head() else { return };
        let records = u64::from(self.place.records);
        let oldest = head.saturating_sub(records).max(self.tail);
        self.totals.overwritten += oldest - self.tail;
        self.tail = oldest;
        while self.tail < head {
            let n = self.committed_run(head);
            if n == 0 {
                // Overwritten meanwhile, or its writer has not finished and is not waited for.
                self.totals.overwritten += 1;
                self.tail += 1;
                continue;
            }
            self.copy(self.tail, n);
            // What the guest may have begun to overwrite while it was copied is not believed.
            let Some(now) = self.head() else { return };
            let unsafe_n = now.saturating_sub(records).saturating_sub(self.tail).min(n as u64);
            self.totals.overwritten += unsafe_n;
            self.emit(self.tail, unsafe_n as usize, n, sink);
            self.tail += n as u64;
        }
    }
}
