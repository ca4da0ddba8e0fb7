//! Collecting: drains all rings, counts per site, keeps the last records for the live view and writes the trace file.
//!
//! A ring is drained under its own lock, by whoever comes first: the drain thread (doorbell or tick) or, in `block`
//! policy, the thread of a vCPU that waits for room. Nothing is queued between ring and file, so memory stays flat:
//! a slow disk makes rings full, and their policy decides what happens then.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::file::{Event, Loss, LossReason, TraceWriter, VcpuTotals, WriteError, Written};
use crate::ids::{SiteId, VcpuId};
use crate::ring::layout::RawRecord;
use crate::ring::{Consumer, Drained, RecordSink, RingMemory, RingTotals};

#[cfg(test)]
mod tests;

/// Records kept per ring for the live view.
const TAIL_RECORDS: usize = 512;
/// The views' copy is made anew at most this often while a ring is full of records.
const SHOW_EVERY: Duration = Duration::from_millis(20);
/// [`Collector::file_bytes`] without a file.
const NO_FILE: u64 = u64::MAX;

/// From the low half of a recorded address to the site. Called once per record.
pub trait SiteLookup: Send + Sync {
    /// The site that a record with this `ip` (low 32 bits of site + 5) came from.
    fn site_of_ip(&self, ip: u32) -> Option<SiteId>;
    /// Sites of the image.
    fn site_count(&self) -> usize;
}

/// A record of the live view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailRecord {
    /// Its vCPU.
    pub vcpu: VcpuId,
    /// Its index in the vCPU's ring.
    pub index: u64,
    /// The record.
    pub record: RawRecord,
}

/// What views see of a ring. A copy of its own, so that no view ever waits for a drain, which may wait for a disk.
#[derive(Clone, Debug, Default)]
struct Shown {
    totals: RingTotals,
    counts: Vec<u64>,
    unknown: u64,
    tail: Vec<TailRecord>,
}

struct Ring<M> {
    /// When the views' copy was made.
    shown_at: Instant,
    consumer: Consumer<M>,
    counts: Vec<u64>,
    unknown: u64,
    tail: VecDeque<TailRecord>,
    /// Losses already in the file.
    told: RingTotals,
    /// Totals when the file was begun.
    at_file_start: RingTotals,
    next_index: u64,
}

/// The trace file of a collector.
enum Out {
    None,
    Open(TraceWriter<File>),
    Failed(Option<WriteError>),
}

/// See the module's docs.
pub struct Collector<M, L> {
    /// Set when the rings are made, which may be after the guest started.
    rings: OnceLock<Vec<Mutex<Ring<M>>>>,
    shown: Vec<Mutex<Shown>>,
    out: Mutex<Out>,
    /// Bytes in the open file; [`NO_FILE`] without one.
    file_bytes: AtomicU64,
    lookup: L,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panicking holder left behind is counters and a queue: still the best there is to show.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a ring's records to counters, live view and file.
struct Tap<'a, L> {
    counts: &'a mut [u64],
    unknown: &'a mut u64,
    tail: &'a mut VecDeque<TailRecord>,
    next_index: &'a mut u64,
    out: &'a Mutex<Out>,
    lookup: &'a L,
}

impl<L: SiteLookup> RecordSink for Tap<'_, L> {
    fn records(&mut self, vcpu: VcpuId, first_index: u64, records: &[RawRecord]) {
        for r in records {
            match self.lookup.site_of_ip(r.ip).and_then(|s| self.counts.get_mut(s.index())) {
                Some(count) => *count += 1,
                None => *self.unknown += 1,
            }
        }
        let kept = records.len().saturating_sub(TAIL_RECORDS);
        let over = (self.tail.len() + records.len() - kept).saturating_sub(TAIL_RECORDS);
        self.tail.drain(..over);
        let numbered = records.iter().enumerate().skip(kept);
        self.tail.extend(numbered.map(|(i, &record)| TailRecord { vcpu, index: first_index + i as u64, record }));
        *self.next_index = (*self.next_index).max(first_index + records.len() as u64);
        write(self.out, |w| w.write_records(vcpu, first_index, records));
    }
}

/// Writes to the file if there is one; a failure closes it and is kept for [`Collector::take_file_error`].
fn write(out: &Mutex<Out>, f: impl FnOnce(&mut TraceWriter<File>) -> Result<(), WriteError>) {
    let mut out = lock(out);
    if let Out::Open(w) = &mut *out
        && let Err(e) = f(w)
    {
        *out = Out::Failed(Some(e));
    }
}

impl<M: RingMemory, L: SiteLookup> Collector<M, L> {
    /// A collector over rings that their vCPUs do not use yet.
    pub fn new(consumers: Vec<Consumer<M>>, lookup: L) -> Collector<M, L> {
        let collector = Collector::without_rings(consumers.len(), lookup);
        collector.set_rings(consumers);
        collector
    }

    /// A collector for that many vCPUs whose rings are made later.
    pub fn without_rings(vcpus: usize, lookup: L) -> Collector<M, L> {
        let shown = || Mutex::new(Shown { counts: vec![0; lookup.site_count()], ..Shown::default() });
        let shown = std::iter::repeat_with(shown).take(vcpus).collect();
        let (out, file_bytes) = (Mutex::new(Out::None), AtomicU64::new(NO_FILE));
        Collector { rings: OnceLock::new(), shown, out, file_bytes, lookup }
    }

    /// Takes the rings, one per vCPU, once; they must not be in use yet. False if there are rings already.
    pub fn set_rings(&self, consumers: Vec<Consumer<M>>) -> bool {
        let sites = self.lookup.site_count();
        let ring = |consumer: Consumer<M>| {
            Mutex::new(Ring {
                shown_at: Instant::now(),
                consumer,
                counts: vec![0; sites],
                unknown: 0,
                tail: VecDeque::new(),
                told: RingTotals::default(),
                at_file_start: RingTotals::default(),
                next_index: 0,
            })
        };
        self.rings.set(consumers.into_iter().take(self.shown.len()).map(ring).collect()).is_ok()
    }

    fn all(&self) -> &[Mutex<Ring<M>>] {
        self.rings.get().map_or(&[], Vec::as_slice)
    }

    fn with_ring(&self, vcpu: VcpuId, f: impl FnOnce(&mut Consumer<M>, &mut Tap<'_, L>) -> Drained) -> Option<Drained> {
        let mut guard = lock(self.all().get(vcpu.index())?);
        let Ring { consumer, counts, unknown, tail, told, next_index, shown_at: _, at_file_start: _ } = &mut *guard;
        let mut tap = Tap { counts, unknown, tail, next_index, out: &self.out, lookup: &self.lookup };
        let result = f(consumer, &mut tap);
        self.tell_losses(vcpu, consumer.totals(), told, *next_index);
        if !result.more || guard.shown_at.elapsed() >= SHOW_EVERY {
            self.show(vcpu, &mut guard);
        }
        self.note_file_size();
        Some(result)
    }

    /// Makes the views' copy of a ring.
    fn show(&self, vcpu: VcpuId, ring: &mut Ring<M>) {
        let mut shown = lock(&self.shown[vcpu.index()]);
        shown.totals = ring.consumer.totals();
        shown.counts.copy_from_slice(&ring.counts);
        shown.unknown = ring.unknown;
        shown.tail.clear();
        shown.tail.extend(&ring.tail);
        ring.shown_at = Instant::now();
    }

    fn note_file_size(&self) {
        let bytes = match &*lock(&self.out) {
            Out::Open(w) => w.written().bytes,
            Out::None | Out::Failed(_) => NO_FILE,
        };
        self.file_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Puts what was lost since the last time into the file, at its place in the stream.
    fn tell_losses(&self, vcpu: VcpuId, now: RingTotals, told: &mut RingTotals, before_index: u64) {
        let losses = [
            (LossReason::Dropped, now.dropped - told.dropped),
            (LossReason::Overwritten, now.overwritten - told.overwritten),
            (LossReason::Corrupt, now.corrupt - told.corrupt),
        ];
        for (reason, count) in losses.into_iter().filter(|(_, n)| *n > 0) {
            write(&self.out, |w| w.write_loss(&Loss { vcpu, reason, count, before_index }));
        }
        *told = now;
    }

    /// How many rings there are: none before they were made.
    #[must_use]
    pub fn rings(&self) -> usize {
        self.all().len()
    }

    /// Drains one ring.
    pub fn drain(&self, vcpu: VcpuId) -> Option<Drained> {
        self.with_ring(vcpu, |c, tap| c.drain(tap))
    }

    /// Drains all rings once; true if some ring filled up meanwhile.
    pub fn drain_all(&self) -> bool {
        (0..self.rings()).fold(false, |more, i| more | self.drain(VcpuId(i as u8)).is_some_and(|d| d.more))
    }

    /// Makes room for a vCPU that stands in its ring-full exit. See [`Consumer::drain_full`].
    pub fn drain_full(&self, vcpu: VcpuId) {
        self.with_ring(vcpu, |c, tap| Drained { delivered: c.drain_full(tap), more: true });
    }

    /// Brings the views up to date without draining anything.
    pub fn refresh(&self) {
        for (n, ring) in self.all().iter().enumerate() {
            self.show(VcpuId(n as u8), &mut lock(ring));
        }
    }

    /// Totals of one ring as of a moment ago. Never waits for a drain.
    #[must_use]
    pub fn shown_totals(&self, vcpu: VcpuId) -> RingTotals {
        self.shown.get(vcpu.index()).map(|s| lock(s).totals).unwrap_or_default()
    }

    /// Totals of one ring, exact.
    #[must_use]
    pub fn totals(&self, vcpu: VcpuId) -> RingTotals {
        self.all().get(vcpu.index()).map(|r| lock(r).consumer.totals()).unwrap_or_default()
    }

    /// Adds the records delivered per site to `counts` (by [`SiteId`]; made as long as there are sites). As of a moment
    /// ago; exact when everything was drained. Never waits for a drain.
    pub fn add_counts(&self, counts: &mut Vec<u64>) {
        counts.resize(counts.len().max(self.lookup.site_count()), 0);
        for s in &self.shown {
            counts.iter_mut().zip(&lock(s).counts).for_each(|(sum, n)| *sum += n);
        }
    }

    /// Records whose address belongs to no site: a hostile or broken guest.
    #[must_use]
    pub fn unknown(&self) -> u64 {
        self.shown.iter().map(|s| lock(s).unknown).sum()
    }

    /// The last records of all rings, oldest first, `most` at the most. Never waits for a drain.
    #[must_use]
    pub fn tail(&self, most: usize) -> Vec<TailRecord> {
        let mut all: Vec<TailRecord> = Vec::new();
        for s in &self.shown {
            let shown = lock(s);
            all.extend(shown.tail.iter().skip(shown.tail.len().saturating_sub(most)));
        }
        all.sort_by_key(|t| t.record.tsc);
        all.drain(..all.len().saturating_sub(most));
        all
    }

    /// Starts writing into `file`. What was written by the guest before is not in it. An open file is closed first.
    ///
    /// # Errors
    /// The file that was open could not be closed properly; the new one is being written all the same.
    pub fn start_file(&self, file: TraceWriter<File>) -> Result<(), WriteError> {
        let closed = self.finish_file();
        self.drain_all();
        for ring in self.all() {
            let mut ring = lock(ring);
            ring.at_file_start = ring.consumer.totals();
        }
        *lock(&self.out) = Out::Open(file);
        self.note_file_size();
        closed.map_or(Ok(()), |r| r.map(drop))
    }

    /// Drains once more and closes the file. `None` if none is being written.
    pub fn finish_file(&self) -> Option<Result<Written, WriteError>> {
        self.drain_all();
        let totals: Vec<VcpuTotals> = (0..self.rings()).map(|i| self.file_totals(VcpuId(i as u8))).collect();
        self.file_bytes.store(NO_FILE, Ordering::Relaxed);
        match std::mem::replace(&mut *lock(&self.out), Out::None) {
            Out::Open(mut w) => Some(Self::tell_unfinished(&mut w, &totals).and_then(|()| w.finish(&totals))),
            Out::Failed(Some(e)) => Some(Err(e)),
            Out::Failed(None) | Out::None => None,
        }
    }

    fn tell_unfinished(w: &mut TraceWriter<File>, totals: &[VcpuTotals]) -> Result<(), WriteError> {
        for t in totals.iter().filter(|t| t.pending > 0) {
            let before_index = u64::MAX >> 8;
            w.write_loss(&Loss { vcpu: t.vcpu, reason: LossReason::Unfinished, count: t.pending, before_index })?;
        }
        Ok(())
    }

    fn file_totals(&self, vcpu: VcpuId) -> VcpuTotals {
        let mut ring = lock(&self.all()[vcpu.index()]);
        let (t, start) = (ring.consumer.totals(), ring.at_file_start);
        VcpuTotals {
            vcpu,
            delivered: t.delivered - start.delivered,
            lost: t.lost() - start.lost(),
            corrupt: t.corrupt - start.corrupt,
            inverted: t.inverted - start.inverted,
            pending: t.unfinished,
        }
    }

    /// Writes an event into the file, if one is being written.
    pub fn event(&self, event: &Event) {
        write(&self.out, |w| w.write_event(event));
    }

    /// Writes something else into the file, if one is being written: names that became known later.
    pub fn with_file(&self, f: impl FnOnce(&mut TraceWriter<File>) -> Result<(), WriteError>) {
        write(&self.out, f);
    }

    /// Writes what is buffered through to the file.
    pub fn flush(&self) {
        write(&self.out, TraceWriter::flush);
    }

    /// The error that ended the file, once.
    pub fn take_file_error(&self) -> Option<WriteError> {
        match &mut *lock(&self.out) {
            Out::Failed(e) => e.take(),
            Out::Open(_) | Out::None => None,
        }
    }

    /// Bytes in the file so far, if one is being written. Never waits for the file.
    #[must_use]
    pub fn file_bytes(&self) -> Option<u64> {
        Some(self.file_bytes.load(Ordering::Relaxed)).filter(|b| *b != NO_FILE)
    }
}
