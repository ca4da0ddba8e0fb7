//! The reader's second pass: records, losses and events in order of time, in bounded memory (one block a vCPU).
//!
//! # Order
//!
//! Within a vCPU, records keep the order of the ring: that of their reservation. Their time stamps almost grow, but a
//! writer that was interrupted between reserving its slot and reading the TSC stamps later than its successors. Such an
//! *inversion* is not repaired: the record keeps its place and its stamp, and the successor is marked and counted.
//!
//! Between vCPUs, a record is placed by the smallest stamp from itself to the end of its block: it was reserved no
//! later than that. So one late stamp does not hold back all that its vCPU did meanwhile. At equal times the lower vCPU
//! comes first. A loss comes right before the record that it precedes, an event before the first record at or after
//! its time.

use std::io::{self, BufReader, Read, Seek, SeekFrom};

use zerocopy::IntoBytes;

use super::error::ReadError;
use super::format::{BLOCK_HEADER_BYTES, BlockHeader, RECORDS_HEADER_BYTES};
use super::model::{Event, Loss, LossReason};
use super::reader::{BlockRef, Stream, Trace};
use crate::ids::{Tsc, VcpuId};
use crate::ring::layout::{MAX_RINGS, RawRecord};

/// A set of vCPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vcpus(u16);

const _: () = assert!(MAX_RINGS <= u16::BITS as usize);

impl Vcpus {
    /// All of them.
    pub const ALL: Vcpus = Vcpus(u16::MAX);
    /// None of them.
    pub const NONE: Vcpus = Vcpus(0);

    /// These and `vcpu` as well. One that no trace can have adds nothing.
    #[must_use]
    pub const fn with(self, vcpu: VcpuId) -> Vcpus {
        if vcpu.index() < MAX_RINGS { Vcpus(self.0 | 1 << vcpu.0) } else { self }
    }

    /// Whether `vcpu` is among them.
    #[must_use]
    pub const fn contains(self, vcpu: VcpuId) -> bool {
        vcpu.index() < MAX_RINGS && self.0 & (1 << vcpu.0) != 0
    }
}

impl FromIterator<VcpuId> for Vcpus {
    fn from_iter<I: IntoIterator<Item = VcpuId>>(vcpus: I) -> Vcpus {
        vcpus.into_iter().fold(Vcpus::NONE, Vcpus::with)
    }
}

/// A record and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The vCPU whose ring held it.
    pub vcpu: VcpuId,
    /// Its ring index.
    pub index: u64,
    /// Its stamp lies before its predecessor's.
    pub inverted: bool,
    /// As the guest wrote it.
    pub raw: RawRecord,
}

impl Default for Vcpus {
    fn default() -> Vcpus {
        Vcpus::ALL
    }
}

/// What a trace consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A record.
    Record(Record),
    /// Records are missing here.
    Loss(Loss),
    /// Something happened.
    Event(&'a Event),
}

/// What was read of one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tally {
    /// Records.
    pub records: u64,
    /// Records missing, those in damaged blocks included; saturates.
    pub lost: u64,
    /// Records whose stamp lies before their predecessor's.
    pub inverted: u64,
}

/// One vCPU's position.
struct Cursor<'a> {
    vcpu: VcpuId,
    blocks: &'a [BlockRef],
    losses: &'a [Loss],
    /// A block that could not be used, to be shown before anything else of this vCPU.
    damaged: Option<Loss>,
    /// The block being read: its records, the time that each is placed at, the next one, the index of the first.
    records: Vec<RawRecord>,
    places: Vec<u64>,
    next: usize,
    first_index: u64,
    last_tsc: u64,
    /// Where the head is placed; `None` at the end.
    place: Option<u64>,
    tally: Tally,
}

/// Reads a trace in order of time. See the module's docs for what that means.
pub struct Merge<'a, R> {
    source: &'a mut BufReader<R>,
    trace: &'a Trace,
    cursors: Vec<Cursor<'a>>,
    events: &'a [Event],
    started: bool,
}

impl<'a, R: Read + Seek> Merge<'a, R> {
    pub(super) fn new(source: &'a mut BufReader<R>, trace: &'a Trace, vcpus: Vcpus) -> Merge<'a, R> {
        let cursors = trace.streams.iter().zip(0..).map(|(s, n)| (VcpuId(n), s)).filter(|&(v, _)| vcpus.contains(v));
        let cursors = cursors.map(|(v, s)| Cursor::new(v, s)).collect();
        Merge { source, trace, cursors, events: &trace.events, started: false }
    }

    /// Everything but the records.
    #[must_use]
    pub fn trace(&self) -> &'a Trace {
        self.trace
    }

    /// What was read so far of a vCPU.
    #[must_use]
    pub fn tally(&self, vcpu: VcpuId) -> Tally {
        self.cursors.iter().find(|c| c.vcpu == vcpu).map_or(Tally::default(), |c| c.tally)
    }

    /// The next item; `None` at the end.
    ///
    /// # Errors
    /// Reading failed. (Damage is no error: it comes as a loss.)
    #[allow(clippy::should_implement_trait)] // an Iterator of Results would go on after an error
    pub fn next(&mut self) -> Result<Option<Item<'a>>, ReadError> {
        if !self.started {
            self.started = true;
            for c in &mut self.cursors {
                c.load(self.source)?;
            }
        }
        // At most MAX_RINGS cursors: looking at each is quicker than a heap.
        let mut first: Option<(usize, u64)> = None;
        for (n, c) in self.cursors.iter().enumerate() {
            if let Some(place) = c.place
                && first.is_none_or(|(_, best)| place < best)
            {
                first = Some((n, place));
            }
        }
        if let Some((event, later)) = self.events.split_first()
            && first.is_none_or(|(_, place)| event.tsc.0 <= place)
        {
            self.events = later;
            return Ok(Some(Item::Event(event)));
        }
        match first {
            Some((n, _)) => self.cursors[n].take(self.source),
            None => Ok(None),
        }
    }
}

impl<'a> Cursor<'a> {
    fn new(vcpu: VcpuId, stream: &'a Stream) -> Cursor<'a> {
        Cursor {
            vcpu,
            blocks: &stream.blocks,
            losses: &stream.losses,
            damaged: None,
            records: Vec::new(),
            places: Vec::new(),
            next: 0,
            first_index: 0,
            last_tsc: 0,
            place: None,
            tally: Tally::default(),
        }
    }

    /// Takes the head, which there is.
    fn take<R: Read + Seek>(&mut self, source: &mut BufReader<R>) -> Result<Option<Item<'a>>, ReadError> {
        let index = self.records.get(self.next).map(|_| self.first_index + self.next as u64);
        let earlier = |l: &Loss| index.is_none_or(|i| l.before_index <= i);
        // The damaged block lies before the head too; of the two the one with the lower index is first.
        if let Some(loss) = self.damaged
            && self.losses.first().is_none_or(|l| l.before_index > loss.before_index)
        {
            self.damaged = None;
            return self.lose(loss, source);
        }
        if let Some((&loss, later)) = self.losses.split_first()
            && (self.damaged.is_some() || earlier(&loss))
        {
            self.losses = later;
            return self.lose(loss, source);
        }
        let Some((&raw, index)) = self.records.get(self.next).zip(index) else { return Ok(None) };
        let inverted = self.tally.records > 0 && raw.tsc < self.last_tsc;
        self.last_tsc = raw.tsc;
        self.tally.records += 1;
        self.tally.inverted += u64::from(inverted);
        self.next += 1;
        if let Some(&place) = self.places.get(self.next) {
            self.place = Some(place);
        } else {
            self.load(source)?;
        }
        Ok(Some(Item::Record(Record { vcpu: self.vcpu, index, inverted, raw })))
    }

    fn lose<R: Read + Seek>(&mut self, loss: Loss, source: &mut BufReader<R>) -> Result<Option<Item<'a>>, ReadError> {
        self.tally.lost = self.tally.lost.saturating_add(loss.count);
        if self.next >= self.records.len() {
            self.load(source)?;
        }
        Ok(Some(Item::Loss(loss)))
    }

    /// Makes the next block's first record the head, or a damaged block, or the losses at the end, or nothing.
    fn load<R: Read + Seek>(&mut self, source: &mut BufReader<R>) -> Result<(), ReadError> {
        self.records.clear();
        self.places.clear();
        self.next = 0;
        if self.damaged.is_some() {
            return Ok(());
        }
        if let Some((block, later)) = self.blocks.split_first() {
            self.blocks = later;
            self.first_index = block.first_index;
            let good = read_records(source, block, &mut self.records)
                .map_err(|source| ReadError::Read { at: block.offset, source })?;
            if !good {
                self.records.clear();
                self.damaged = Some(Loss {
                    vcpu: self.vcpu,
                    reason: LossReason::Damaged,
                    count: block.count.into(),
                    before_index: block.first_index + u64::from(block.count),
                });
            }
        }
        let mut least = u64::MAX;
        self.places.extend(self.records.iter().rev().map(|r| {
            least = least.min(r.tsc);
            least
        }));
        self.places.reverse();
        self.place = match self.places.first() {
            Some(&place) => Some(place),
            // What is missing has no time of its own: it comes right behind what was there.
            None => (self.damaged.is_some() || !self.losses.is_empty()).then_some(self.place.unwrap_or(0)),
        };
        Ok(())
    }
}

/// Reads a block of records; false if it is damaged. The index held its length against the file's when it was built.
fn read_records<R: Read + Seek>(
    source: &mut BufReader<R>,
    block: &BlockRef,
    records: &mut Vec<RawRecord>,
) -> io::Result<bool> {
    source.seek(SeekFrom::Start(block.offset))?;
    let mut head = [0; BLOCK_HEADER_BYTES + RECORDS_HEADER_BYTES];
    source.read_exact(&mut head)?;
    records.resize(block.count as usize, RawRecord::default());
    source.read_exact(records.as_mut_bytes())?;
    let mut crc = crc32fast::Hasher::new();
    crc.update(&head[BLOCK_HEADER_BYTES..]);
    crc.update(records.as_bytes());
    let header = head.first_chunk().and_then(BlockHeader::from_bytes);
    super::codec::swap_if_big_endian(records);
    Ok(header.is_some_and(|h| h.crc == crc.finalize()))
}

impl Record {
    /// The time stamp.
    #[must_use]
    pub const fn tsc(&self) -> Tsc {
        self.raw.tsc()
    }
}
