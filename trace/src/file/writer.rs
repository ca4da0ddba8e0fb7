//! The writer: blocks into a buffer, whole blocks to the destination.
//!
//! Small batches of records are gathered per vCPU so that a ring drained often does not make a file of tiny blocks.
//! What has not been flushed is lost when the process is killed; what has been is whole. A write that fails ends the
//! file at its last whole block, and the writer with it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use zerocopy::IntoBytes;

use super::codec::{self, RecordsHeader};
use super::dest::{self, Destination};
use super::error::WriteError;
use super::format::{
    BLOCK_HEADER_BYTES, BlockHeader, FILE_HEADER_BYTES, MAX_BLOCK_RECORDS, MAX_JSON_BYTES, MAX_TABLE_ENTRIES,
    RECORDS_HEADER_BYTES, VERSION, block, file_header,
};
use super::model::{Event, Loss, Meta, Site, Symbol, VcpuTotals};
use crate::clock::Clock;
use crate::ids::VcpuId;
use crate::ring::layout::{CURSOR_INDEX_MASK, MAX_RINGS, RawRecord};

/// The buffer goes to the destination when it holds this much.
const BUFFER_BYTES: usize = 1 << 20;
/// Batches below this many records are gathered (64 KiB).
const GATHER_RECORDS: usize = 2048;
/// Symbols and sites are cut into blocks of about this size.
const TABLE_BLOCK_BYTES: usize = 256 << 10;

/// Records of one vCPU waiting for more.
#[derive(Default)]
struct Gathered {
    first_index: u64,
    records: Vec<RawRecord>,
}

/// What a closed file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Written {
    /// Records.
    pub records: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Writes one trace. See the module's docs; the order of calls is free, except that `finish` is the last.
pub struct TraceWriter<D: Destination> {
    dest: D,
    /// For error texts.
    path: PathBuf,
    /// Whole blocks that are not at the destination yet.
    buffer: Vec<u8>,
    /// One for each possible vCPU, in order.
    gathered: Vec<Gathered>,
    /// Bytes at the destination.
    committed: u64,
    /// Records accepted.
    records: u64,
    /// Nothing more can be written: an error was reported, or the file was finished.
    over: bool,
}

impl TraceWriter<File> {
    /// Creates the trace file `path`, readable by the user only, replacing what an existing file holds.
    ///
    /// # Errors
    /// [`WriteError::Create`]: nothing new was left behind.
    pub fn create(path: &Path, meta: &Meta) -> Result<TraceWriter<File>, WriteError> {
        // Before the file is touched: facts that don't fit must not cost the user an existing file.
        check_meta(meta)?;
        let failed = |source| WriteError::Create { path: path.to_owned(), source };
        let (file, fresh) = dest::create_private(path).map_err(failed)?;
        TraceWriter::new(file, path, meta).map_err(|e| {
            if fresh {
                // Nothing useful is in it; if it can't be removed either, the first error is still the one to tell.
                let _ = std::fs::remove_file(path);
            }
            match e {
                WriteError::Write { path, source, .. } | WriteError::NotCut { path, source, .. } => {
                    WriteError::Create { path, source }
                }
                other => other,
            }
        })
    }
}

fn check_meta(meta: &Meta) -> Result<Vec<u8>, WriteError> {
    let json = serde_json::to_vec(meta).expect("facts are plain data");
    if json.len() > MAX_JSON_BYTES {
        return Err(WriteError::TooLong { what: "the description", bytes: json.len(), max: MAX_JSON_BYTES });
    }
    Ok(json)
}

impl<D: Destination> TraceWriter<D> {
    /// Starts a trace at the beginning of `dest`, with the file header and `meta` written through to it. `name` is for
    /// error texts.
    ///
    /// # Errors
    /// The first write failed, or `meta` is longer than 64 KiB of JSON.
    pub fn new(dest: D, name: impl Into<PathBuf>, meta: &Meta) -> Result<TraceWriter<D>, WriteError> {
        let json = check_meta(meta)?;
        let mut w = TraceWriter {
            dest,
            path: name.into(),
            buffer: Vec::with_capacity(2 * BUFFER_BYTES),
            gathered: (0..MAX_RINGS).map(|_| Gathered::default()).collect(),
            committed: 0,
            records: 0,
            over: false,
        };
        w.buffer.extend_from_slice(&file_header(VERSION, 0));
        w.block(block::META, &json)?;
        w.flush()?;
        Ok(w)
    }

    /// Where the trace goes, as named at the start.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Records accepted so far, and bytes of whole blocks (batches still being gathered are not among those).
    #[must_use]
    pub fn written(&self) -> Written {
        Written { records: self.records, bytes: self.committed + self.buffer.len() as u64 }
    }

    /// Says how guest time maps to host time. A later one replaces an earlier one (a better measured frequency).
    ///
    /// # Errors
    /// A write failed, now or before.
    pub fn write_clock(&mut self, clock: &Clock) -> Result<(), WriteError> {
        self.block(block::CLOCK, &codec::clock(clock))
    }

    /// Adds symbols. Names are cut at 4,096 bytes; readers keep the first 4 Mi symbols.
    ///
    /// # Errors
    /// A write failed, now or before.
    pub fn write_symbols<'a>(&mut self, symbols: impl IntoIterator<Item = Symbol<'a>>) -> Result<(), WriteError> {
        self.table(block::SYMBOLS, symbols, codec::put_symbol)
    }

    /// Adds sites. Names are cut at 4,096 bytes; readers keep the first 4 Mi sites.
    ///
    /// # Errors
    /// A write failed, now or before.
    pub fn write_sites<'a>(&mut self, sites: impl IntoIterator<Item = Site<'a>>) -> Result<(), WriteError> {
        self.table(block::SITES, sites, codec::put_site)
    }

    /// Adds records of one vCPU; `first_index` is the ring index of the first (56 bits, growing over the whole trace),
    /// the others follow it without a gap. Batches may come late: readers put blocks of a vCPU in order of index.
    ///
    /// # Errors
    /// A write failed, now or before; or there is no such vCPU or index.
    pub fn write_records(
        &mut self,
        vcpu: VcpuId,
        first_index: u64,
        mut records: &[RawRecord],
    ) -> Result<(), WriteError> {
        self.check_open()?;
        if first_index.checked_add(records.len() as u64).is_none_or(|end| end > CURSOR_INDEX_MASK) {
            return Err(WriteError::NoSuchIndex { index: first_index });
        }
        let gathered = self.gathered.get_mut(vcpu.index()).ok_or(WriteError::NoSuchVcpu { vcpu })?;
        self.records += records.len() as u64;
        let waiting = gathered.records.len();
        let follows = gathered.first_index.wrapping_add(waiting as u64) == first_index;
        if (waiting == 0 || follows) && waiting + records.len() < GATHER_RECORDS {
            if waiting == 0 {
                gathered.first_index = first_index;
            }
            gathered.records.extend_from_slice(records);
            return Ok(());
        }
        self.emit_gathered(vcpu)?;
        let mut index = first_index;
        while records.len() >= GATHER_RECORDS {
            let (now, later) = records.split_at(records.len().min(MAX_BLOCK_RECORDS));
            self.records_block(vcpu, index, now)?;
            index = index.wrapping_add(now.len() as u64);
            records = later;
        }
        if !records.is_empty() {
            let gathered = &mut self.gathered[vcpu.index()];
            gathered.first_index = index;
            gathered.records.extend_from_slice(records);
        }
        Ok(())
    }

    /// Notes that records are missing. May come before or after the records around it.
    ///
    /// # Errors
    /// A write failed, now or before; or there is no such vCPU.
    pub fn write_loss(&mut self, loss: &Loss) -> Result<(), WriteError> {
        if loss.vcpu.index() >= MAX_RINGS {
            return Err(WriteError::NoSuchVcpu { vcpu: loss.vcpu });
        }
        self.block(block::LOSS, &codec::loss(loss))
    }

    /// Notes that something happened.
    ///
    /// # Errors
    /// A write failed, now or before; or the event's text is longer than 64 KiB.
    pub fn write_event(&mut self, event: &Event) -> Result<(), WriteError> {
        let payload = codec::event(event);
        if payload.len() - 8 > MAX_JSON_BYTES {
            let bytes = payload.len() - 8;
            return Err(WriteError::TooLong { what: "an event", bytes, max: MAX_JSON_BYTES });
        }
        self.block(block::EVENT, &payload)
    }

    /// Writes everything through to the destination. What is there then survives the end of this process, whatever
    /// ends it. (It is the operating system's matter when it reaches the disk.)
    ///
    /// # Errors
    /// A write failed, now or before.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        self.check_open()?;
        for vcpu in 0..MAX_RINGS {
            self.emit_gathered(VcpuId(vcpu as u8))?;
        }
        self.write_out()
    }

    /// Closes the trace with its totals. Without this it is readable, but readers say that it was not closed.
    ///
    /// # Errors
    /// A write failed, now or before.
    pub fn finish(mut self, totals: &[VcpuTotals]) -> Result<Written, WriteError> {
        if let Some(t) = totals.iter().find(|t| t.vcpu.index() >= MAX_RINGS) {
            return Err(WriteError::NoSuchVcpu { vcpu: t.vcpu });
        }
        // Records first: a file whose End is its last block is complete.
        self.flush()?;
        self.block(block::END, &codec::end(&totals[..totals.len().min(MAX_RINGS)]))?;
        self.write_out()?;
        self.over = true;
        Ok(self.written())
    }

    fn check_open(&self) -> Result<(), WriteError> {
        if self.over { Err(WriteError::GivenUp { path: self.path.clone() }) } else { Ok(()) }
    }

    fn table<'a, T>(
        &mut self,
        kind: u32,
        entries: impl IntoIterator<Item = T>,
        put: impl Fn(&mut Vec<u8>, &T),
    ) -> Result<(), WriteError>
    where
        T: 'a,
    {
        let mut entries = entries.into_iter().take(MAX_TABLE_ENTRIES).peekable();
        while entries.peek().is_some() {
            let mut payload = vec![0; 4];
            let mut count = 0_u32;
            while payload.len() < TABLE_BLOCK_BYTES
                && let Some(entry) = entries.next()
            {
                put(&mut payload, &entry);
                count += 1;
            }
            payload[..4].copy_from_slice(&count.to_le_bytes());
            self.block(kind, &payload)?;
        }
        Ok(())
    }

    fn emit_gathered(&mut self, vcpu: VcpuId) -> Result<(), WriteError> {
        let gathered = &mut self.gathered[vcpu.index()];
        if gathered.records.is_empty() {
            return Ok(());
        }
        let (index, mut records) = (gathered.first_index, std::mem::take(&mut gathered.records));
        let result = self.records_block(vcpu, index, &records);
        if result.is_ok() {
            // Its memory is used again. (After an error nothing is gathered any more.)
            records.clear();
            self.gathered[vcpu.index()].records = records;
        }
        result
    }

    fn records_block(&mut self, vcpu: VcpuId, first_index: u64, records: &[RawRecord]) -> Result<(), WriteError> {
        let count = u32::try_from(records.len()).expect("at most MAX_BLOCK_RECORDS");
        let header = RecordsHeader { vcpu, count, first_index }.to_bytes();
        let start = self.buffer.len();
        self.buffer.resize(start + BLOCK_HEADER_BYTES, 0);
        self.buffer.extend_from_slice(&header);
        if cfg!(target_endian = "big") {
            let mut swapped = records.to_vec();
            codec::swap_if_big_endian(&mut swapped);
            self.buffer.extend_from_slice(swapped.as_bytes());
        } else {
            self.buffer.extend_from_slice(records.as_bytes());
        }
        debug_assert_eq!(header.len(), RECORDS_HEADER_BYTES);
        self.seal(block::RECORDS, start)
    }

    fn block(&mut self, kind: u32, payload: &[u8]) -> Result<(), WriteError> {
        self.check_open()?;
        let start = self.buffer.len();
        self.buffer.resize(start + BLOCK_HEADER_BYTES, 0);
        self.buffer.extend_from_slice(payload);
        self.seal(kind, start)
    }

    /// Puts the header in front of a payload that ends the buffer; `start` is where the header goes.
    fn seal(&mut self, kind: u32, start: usize) -> Result<(), WriteError> {
        let body = start + BLOCK_HEADER_BYTES;
        let header = BlockHeader::of(kind, &self.buffer[body..]).to_bytes();
        self.buffer[start..body].copy_from_slice(&header);
        if self.buffer.len() >= BUFFER_BYTES { self.write_out() } else { Ok(()) }
    }

    fn write_out(&mut self) -> Result<(), WriteError> {
        let mut done = 0;
        while done < self.buffer.len() {
            match self.dest.write(&self.buffer[done..]) {
                Ok(0) => return Err(self.give_up(done, io::ErrorKind::WriteZero.into())),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.give_up(done, e)),
            }
        }
        self.committed += done as u64;
        self.buffer.clear();
        // A destination with buffers of its own must not be where blocks get stuck.
        self.dest.flush().map_err(|e| self.give_up(0, e))
    }

    /// Ends the file after an error; `done` bytes of the buffer had been taken.
    fn give_up(&mut self, done: usize, source: io::Error) -> WriteError {
        self.over = true;
        let kept = self.committed + whole_blocks(&self.buffer[..done], self.committed == 0) as u64;
        let cut = if kept == self.committed + done as u64 { Ok(()) } else { self.dest.cut_back(kept) };
        self.committed = kept;
        self.buffer = Vec::new();
        self.gathered = Vec::new();
        let path = self.path.clone();
        match cut {
            Ok(()) => WriteError::Write { path, kept, source },
            Err(_) => WriteError::NotCut { path, kept, source },
        }
    }
}

impl<D: Destination> Drop for TraceWriter<D> {
    /// A writer that is dropped without `finish` (a panic, an early return) still delivers what it has.
    fn drop(&mut self) {
        if !self.over {
            // There is nobody left to tell; the missing End block tells readers.
            let _ = self.flush();
        }
    }
}

/// How many of these bytes are whole blocks (behind the file header, if `at_start`).
fn whole_blocks(bytes: &[u8], at_start: bool) -> usize {
    let mut end = if at_start && bytes.len() >= FILE_HEADER_BYTES { FILE_HEADER_BYTES } else { 0 };
    if at_start && end == 0 {
        return 0;
    }
    while let Some(header) = bytes[end..].first_chunk::<BLOCK_HEADER_BYTES>()
        && let Some(header) = BlockHeader::from_bytes(header)
        && end + BLOCK_HEADER_BYTES + header.len as usize <= bytes.len()
    {
        end += BLOCK_HEADER_BYTES + header.len as usize;
    }
    end
}
