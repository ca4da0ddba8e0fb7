//! Making trace files: what goes to the head of each.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use exotrace_trace::clock::Clock;
use exotrace_trace::file::{self, Event, EventKind, Meta, Pause, TraceWriter, WriteError};

use super::PauseTimes;
use super::session::Lookup;

/// See the module's docs.
pub(super) struct Output {
    lookup: Lookup,
    meta: Meta,
    clock: Clock,
    /// The host instant that `clock` was taken at.
    at: Instant,
}

impl Output {
    pub(super) fn new(lookup: Lookup, meta: Meta, clock: Clock) -> Output {
        Output { lookup, meta, clock, at: Instant::now() }
    }

    /// Creates a trace file with everything that a reader needs before the first record.
    pub(super) fn create(&self, path: &Path) -> Result<TraceWriter<File>, WriteError> {
        let mut w = TraceWriter::create(path, &self.meta)?;
        w.write_clock(&self.clock)?;
        self.write_tables(&mut w)?;
        w.flush()?;
        Ok(w)
    }

    /// Writes the kernel's names, if it is known by now where it runs.
    pub(super) fn write_tables(&self, w: &mut TraceWriter<File>) -> Result<(), WriteError> {
        let Some(tables) = self.lookup.tables() else { return Ok(()) };
        let code = tables.image.symbols().code();
        w.write_symbols(code.map(|s| file::Symbol {
            addr: s.addr,
            size: u32::try_from(s.size).unwrap_or(u32::MAX),
            name: s.name,
        }))?;
        w.write_sites(tables.sites.iter().map(|(id, s)| file::Site { id, addr: s.addr, function: &s.name }))
    }

    /// An event of now, in guest time.
    pub(super) fn event_now(&self, kind: EventKind) -> Event {
        let ns = self.at.elapsed().as_nanos();
        let mono = self.clock.mono_start_ns().saturating_add(u64::try_from(ns).unwrap_or(u64::MAX));
        Event { tsc: self.clock.tsc_at_mono(mono), kind }
    }
}

/// The times of a stop as the file has them.
pub(super) fn file_pause(p: PauseTimes) -> Pause {
    let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    Pause { kick_ns: ns(p.kick), work_ns: ns(p.work), resume_ns: ns(p.resume) }
}
