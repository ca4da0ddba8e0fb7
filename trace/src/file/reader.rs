//! The reader's first pass: which blocks there are and what the small ones say.
//!
//! Opening a trace walks its block headers once and keeps, of the records, only where they are (24 bytes a block), so a
//! file of many gigabytes opens quickly and takes little memory. [`super::Merge`] then reads the records block by block.
//!
//! The file is hostile: lengths and counts are bounded before anything is allocated, each block's check is compared
//! before it is believed, and damage is data ([`Trace::ending`], [`Trace::damage`]) rather than an error wherever
//! something can still be read.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use super::codec::{self, RecordsHeader};
use super::error::ReadError;
use super::format::{
    BLOCK_HEADER_BYTES, BlockHeader, FILE_HEADER_BYTES, INCOMPATIBLE_FLAGS, MAGIC, MAX_EVENT_BYTES, MAX_EVENTS,
    RECORDS_HEADER_BYTES, VERSION, block,
};
use super::merge::{Merge, Vcpus};
use super::model::{Ending, Event, Loss, Meta, VcpuTotals};
use super::tables::{SiteTable, SymbolTable};
use crate::clock::Clock;
use crate::ids::VcpuId;
use crate::ring::layout::MAX_RINGS;

/// Where a block of records is.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockRef {
    /// Offset of its header.
    pub offset: u64,
    /// Ring index of its first record.
    pub first_index: u64,
    /// Records in it.
    pub count: u32,
}

/// What the file holds of one vCPU.
#[derive(Clone, Debug, Default)]
pub(super) struct Stream {
    /// In order of index.
    pub blocks: Vec<BlockRef>,
    /// In order of index.
    pub losses: Vec<Loss>,
}

/// Blocks that could not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Damage {
    /// Blocks whose payload does not match its check. (Of records this is found, and shown as loss, when they are read.)
    pub bad_checks: u64,
    /// Blocks with a good check whose content breaks the format's rules.
    pub malformed: u64,
    /// Blocks of records whose indices overlap those of the block before.
    pub overlapping: u64,
    /// Blocks of a type that this version does not know (no damage, but not shown either).
    pub unknown: u64,
    /// Events over the limit of what is kept.
    pub ignored_events: u64,
}

/// Everything in a trace but the records themselves.
#[derive(Clone, Debug)]
pub struct Trace {
    pub(super) meta: Meta,
    pub(super) clock: Option<Clock>,
    pub(super) symbols: SymbolTable,
    pub(super) sites: SiteTable,
    pub(super) streams: Vec<Stream>,
    pub(super) events: Vec<Event>,
    pub(super) totals: Option<Vec<VcpuTotals>>,
    pub(super) ending: Ending,
    pub(super) damage: Damage,
    pub(super) bytes: u64,
}

impl Trace {
    /// Facts of guest and host. The default (empty) ones if their block is damaged.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }
    /// How guest time maps to host time.
    #[must_use]
    pub fn clock(&self) -> Option<&Clock> {
        self.clock.as_ref()
    }
    /// The symbols.
    #[must_use]
    pub fn symbols(&self) -> &SymbolTable {
        &self.symbols
    }
    /// The sites.
    #[must_use]
    pub fn sites(&self) -> &SiteTable {
        &self.sites
    }
    /// The events, in order of time.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }
    /// The writer's totals per vCPU, if the file was closed.
    #[must_use]
    pub fn totals(&self) -> Option<&[VcpuTotals]> {
        self.totals.as_deref()
    }
    /// How the file ends.
    #[must_use]
    pub fn ending(&self) -> Ending {
        self.ending
    }
    /// Blocks that could not be used.
    #[must_use]
    pub fn damage(&self) -> Damage {
        self.damage
    }
    /// Length of the file in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// vCPUs of the guest: as many as the facts say, but at least those that have records or losses.
    #[must_use]
    pub fn vcpus(&self) -> u8 {
        let seen = self.streams.iter().rposition(|s| !s.blocks.is_empty() || !s.losses.is_empty()).map_or(0, |n| n + 1);
        let said = usize::try_from(self.meta.vcpus).unwrap_or(MAX_RINGS).min(MAX_RINGS);
        u8::try_from(seen.max(said)).expect("MAX_RINGS fits")
    }

    /// Records that the file holds of a vCPU.
    #[must_use]
    pub fn records(&self, vcpu: VcpuId) -> u64 {
        self.streams.get(vcpu.index()).map_or(0, |s| s.blocks.iter().map(|b| u64::from(b.count)).sum())
    }

    /// Records missing from a vCPU's stream, by all reasons that the file names; saturates.
    #[must_use]
    pub fn lost(&self, vcpu: VcpuId) -> u64 {
        self.losses(vcpu).iter().fold(0, |sum, l| sum.saturating_add(l.count))
    }

    /// The losses of a vCPU, in order of index.
    #[must_use]
    pub fn losses(&self, vcpu: VcpuId) -> &[Loss] {
        self.streams.get(vcpu.index()).map_or(&[], |s| &s.losses)
    }
}

/// An open trace file.
pub struct TraceReader<R> {
    source: BufReader<R>,
    trace: Trace,
}

impl TraceReader<File> {
    /// Opens the trace file `path`.
    ///
    /// # Errors
    /// It can't be opened or read, is no trace file, or one of another version.
    pub fn open(path: &Path) -> Result<TraceReader<File>, ReadError> {
        let failed = |source| ReadError::Open { path: path.to_owned(), source };
        // A directory opens, but every read of it fails; a pipe would block or could not be read twice.
        let meta = std::fs::metadata(path).map_err(failed)?;
        if meta.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        if !meta.is_file() {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
        }
        TraceReader::new(File::open(path).map_err(failed)?)
    }
}

impl<R: Read + Seek> TraceReader<R> {
    /// Reads everything but the records of the trace in `source`, from its start.
    ///
    /// # Errors
    /// It can't be read, is no trace file, or one of another version.
    pub fn new(source: R) -> Result<TraceReader<R>, ReadError> {
        let mut source = BufReader::new(source);
        let read = |at, r: io::Result<u64>| r.map_err(|source| ReadError::Read { at, source });
        let bytes = read(0, source.seek(SeekFrom::End(0)))?;
        read(0, source.seek(SeekFrom::Start(0)))?;
        check_file_header(&mut source, bytes)?;
        let mut indexer = Indexer::new(bytes);
        indexer.walk(&mut source)?;
        Ok(TraceReader { source, trace: indexer.done() })
    }

    /// What was read at the opening.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Reads records, losses and events of some vCPUs in order of time.
    pub fn merge(&mut self, vcpus: Vcpus) -> Merge<'_, R> {
        Merge::new(&mut self.source, &self.trace, vcpus)
    }
}

fn check_file_header(source: &mut impl Read, bytes: u64) -> Result<(), ReadError> {
    let mut h = [0; FILE_HEADER_BYTES];
    let have = bytes.min(FILE_HEADER_BYTES as u64) as usize;
    source.read_exact(&mut h[..have]).map_err(|source| ReadError::Read { at: 0, source })?;
    let magic = have.min(MAGIC.len());
    if h[..magic] != MAGIC[..magic] {
        return Err(ReadError::NotATrace);
    }
    if have < FILE_HEADER_BYTES {
        return Err(ReadError::TooShort { bytes });
    }
    let word = |at: usize| u32::from_le_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
    match (word(8), word(12)) {
        (VERSION, flags) if flags & INCOMPATIBLE_FLAGS == 0 => Ok(()),
        (VERSION, flags) => Err(ReadError::Flags { flags }),
        (found, _) => Err(ReadError::Version { found }),
    }
}

/// The first pass.
struct Indexer {
    trace: Trace,
    event_bytes: usize,
    /// The last whole block is an End.
    closed: bool,
}

impl Indexer {
    fn new(bytes: u64) -> Indexer {
        let trace = Trace {
            meta: Meta::default(),
            clock: None,
            symbols: SymbolTable::default(),
            sites: SiteTable::default(),
            streams: vec![Stream::default(); MAX_RINGS],
            events: Vec::new(),
            totals: None,
            ending: Ending::NotClosed,
            damage: Damage::default(),
            bytes,
        };
        Indexer { trace, event_bytes: 0, closed: false }
    }

    /// Goes from block to block; stops at the end of the file or where no next block can be found.
    fn walk<R: Read + Seek>(&mut self, source: &mut BufReader<R>) -> Result<(), ReadError> {
        let end = self.trace.bytes;
        let mut at = FILE_HEADER_BYTES as u64;
        let mut payload = Vec::new();
        while at < end {
            if end - at < BLOCK_HEADER_BYTES as u64 {
                self.trace.ending = Ending::Truncated { at };
                return Ok(());
            }
            let failed = |source| ReadError::Read { at, source };
            let mut h = [0; BLOCK_HEADER_BYTES];
            source.read_exact(&mut h).map_err(failed)?;
            let Some(header) = BlockHeader::from_bytes(&h) else {
                self.trace.ending = Ending::Damaged { at };
                return Ok(());
            };
            let body = at + BLOCK_HEADER_BYTES as u64;
            if end - body < u64::from(header.len) {
                self.trace.ending = Ending::Truncated { at };
                return Ok(());
            }
            self.closed = header.kind == block::END;
            match header.kind {
                block::RECORDS => self.records(source, at, header).map_err(failed)?,
                block::META..=block::SITES | block::LOSS..=block::END => {
                    self.whole(source, header, &mut payload).map_err(failed)?;
                }
                _ => {
                    self.trace.damage.unknown += 1;
                    source.seek_relative(i64::from(header.len)).map_err(failed)?;
                }
            }
            at = body + u64::from(header.len);
        }
        if self.closed {
            self.trace.ending = Ending::Clean;
        }
        Ok(())
    }

    /// Notes where records are, without reading them.
    fn records<R: Read + Seek>(&mut self, source: &mut BufReader<R>, at: u64, block: BlockHeader) -> io::Result<()> {
        if (block.len as usize) < RECORDS_HEADER_BYTES {
            self.trace.damage.malformed += 1;
            return source.seek_relative(i64::from(block.len));
        }
        let mut h = [0; RECORDS_HEADER_BYTES];
        source.read_exact(&mut h)?;
        match RecordsHeader::from_bytes(&h, block.len) {
            Some(RecordsHeader { vcpu, count, first_index }) => {
                self.trace.streams[vcpu.index()].blocks.push(BlockRef { offset: at, first_index, count });
            }
            None => self.trace.damage.malformed += 1,
        }
        source.seek_relative(i64::from(block.len) - RECORDS_HEADER_BYTES as i64)
    }

    /// Reads and takes in a block that is not records.
    fn whole(&mut self, source: &mut impl Read, block: BlockHeader, payload: &mut Vec<u8>) -> io::Result<()> {
        payload.resize(block.len as usize, 0);
        source.read_exact(payload)?;
        if crc32fast::hash(payload) != block.crc {
            self.trace.damage.bad_checks += 1;
            // Its totals can't be believed, so the file does not count as closed either.
            self.closed = false;
            return Ok(());
        }
        if !self.take_in(block.kind, payload) {
            self.trace.damage.malformed += 1;
            self.closed = false;
        }
        Ok(())
    }

    /// False if the payload breaks the format's rules.
    fn take_in(&mut self, kind: u32, payload: &[u8]) -> bool {
        let t = &mut self.trace;
        match kind {
            block::META => codec::get_meta(payload).map(|m| t.meta = m).is_some(),
            block::CLOCK => codec::get_clock(payload).map(|c| t.clock = Some(c)).is_some(),
            block::SYMBOLS => codec::get_symbols(payload, &mut t.symbols),
            block::SITES => codec::get_sites(payload, &mut t.sites),
            block::LOSS => codec::get_loss(payload).map(|l| t.streams[l.vcpu.index()].losses.push(l)).is_some(),
            block::EVENT => codec::get_event(payload).map(|e| self.event(e, payload.len())).is_some(),
            block::END => codec::get_end(payload).map(|e| t.totals = Some(e)).is_some(),
            _ => false,
        }
    }

    fn event(&mut self, event: Event, bytes: usize) {
        if self.trace.events.len() >= MAX_EVENTS || self.event_bytes + bytes > MAX_EVENT_BYTES {
            self.trace.damage.ignored_events += 1;
            return;
        }
        self.event_bytes += bytes;
        self.trace.events.push(event);
    }

    /// Puts everything in order.
    fn done(mut self) -> Trace {
        self.trace.symbols.sort();
        self.trace.sites.sort();
        self.trace.events.sort_by_key(|e| e.tsc);
        for s in &mut self.trace.streams {
            // Both stable: what has the same index stays in the order in which it was written.
            s.blocks.sort_by_key(|b| b.first_index);
            s.losses.sort_by_key(|l| l.before_index);
            let overlaps = |w: &&[BlockRef]| w[0].first_index + u64::from(w[0].count) > w[1].first_index;
            self.trace.damage.overlapping += s.blocks.windows(2).filter(overlaps).count() as u64;
        }
        self.trace
    }
}
