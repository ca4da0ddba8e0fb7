//! Reports: a trace file as text.
//!
//! [`run`] reads a trace in order of time and delivers what it finds to a [`Sink`]; loss, events and inversions go to
//! every sink, so none can leave them out unseen. [`TextSink`] prints one line a record as ftrace does, [`ProfileSink`]
//! counts records per function. Further exporters are further sinks.

mod lines;
mod profile;
mod text;

#[cfg(test)]
mod tests;

use std::io::{self, Read, Seek, Write};

pub use profile::ProfileSink;
pub use text::{TextOptions, TextSink, TimeBase};

use crate::file::{Event, Item, Loss, ReadError, Record, Tally, Trace, TraceReader, Vcpus};
use crate::ids::VcpuId;

/// Takes what a trace consists of, in order of time.
pub trait Sink {
    /// Called once, before anything else.
    ///
    /// # Errors
    /// Its output failed; the report ends.
    fn begin(&mut self, trace: &Trace) -> io::Result<()>;
    /// A record. `site` is its place in [`Trace::sites`], if it belongs to a known one.
    ///
    /// # Errors
    /// As above.
    fn record(&mut self, trace: &Trace, record: &Record, site: Option<usize>) -> io::Result<()>;
    /// Records are missing here.
    ///
    /// # Errors
    /// As above.
    fn loss(&mut self, trace: &Trace, loss: &Loss) -> io::Result<()>;
    /// Something happened here.
    ///
    /// # Errors
    /// As above.
    fn event(&mut self, trace: &Trace, event: &Event) -> io::Result<()>;
    /// Called once, after everything else, if nothing failed.
    ///
    /// # Errors
    /// As above.
    fn end(&mut self, trace: &Trace, summary: &Summary) -> io::Result<()>;
    /// Lets go of what is buffered. Called last, also if reading failed.
    ///
    /// # Errors
    /// As above.
    fn flush(&mut self) -> io::Result<()>;
}

/// Which records a report is about.
#[derive(Default)]
pub struct Selection {
    /// Of these vCPUs.
    pub vcpus: Vcpus,
    /// Of functions with a name that this takes; `None` takes all.
    #[allow(clippy::type_complexity)]
    pub functions: Option<Box<dyn Fn(&str) -> bool>>,
}

/// What a report was made from.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Summary {
    /// Records delivered to the sink.
    pub shown: u64,
    /// What was read per selected vCPU.
    pub vcpus: Vec<(VcpuId, Tally)>,
    /// The reader of the report went away (a closed pipe, as with `| head`) before its end. No error.
    pub cut_short: bool,
}

/// A report could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The trace could not be read (on).
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The report could not be written.
    #[error("cannot write the report")]
    Write(#[source] io::Error),
}

/// Delivers the selected part of a trace to `sink`.
///
/// # Errors
/// The trace can't be read, or the sink's output fails for another reason than a closed pipe.
pub fn run<R: Read + Seek, S: Sink>(
    reader: &mut TraceReader<R>,
    selection: &Selection,
    sink: &mut S,
) -> Result<Summary, ReportError> {
    let mut summary = Summary::default();
    let delivered = deliver(reader, selection, sink, &mut summary);
    let flushed = sink.flush().map_err(ReportError::Write);
    match delivered.and(flushed) {
        Err(ReportError::Write(e)) if e.kind() == io::ErrorKind::BrokenPipe => {
            summary.cut_short = true;
            Ok(summary)
        }
        Err(e) => Err(e),
        Ok(()) => Ok(summary),
    }
}

fn deliver<R: Read + Seek, S: Sink>(
    reader: &mut TraceReader<R>,
    selection: &Selection,
    sink: &mut S,
    summary: &mut Summary,
) -> Result<(), ReportError> {
    let mut merge = reader.merge(selection.vcpus);
    let trace = merge.trace();
    let wanted: Option<Vec<bool>> =
        selection.functions.as_ref().map(|wants| trace.sites().iter().map(|s| wants(s.function)).collect());
    sink.begin(trace).map_err(ReportError::Write)?;
    while let Some(item) = merge.next()? {
        match item {
            Item::Record(record) => {
                let site = trace.sites().place_of_ip(record.raw.ip);
                let shown = wanted.as_ref().is_none_or(|w| site.is_some_and(|n| w[n]));
                if !shown {
                    continue;
                }
                summary.shown += 1;
                sink.record(trace, &record, site)
            }
            Item::Loss(loss) => sink.loss(trace, &loss),
            Item::Event(event) => sink.event(trace, event),
        }
        .map_err(ReportError::Write)?;
    }
    let vcpus = (0..trace.vcpus()).map(VcpuId).filter(|&v| selection.vcpus.contains(v));
    summary.vcpus = vcpus.map(|v| (v, merge.tally(v))).collect();
    sink.end(trace, summary).map_err(ReportError::Write)
}

/// Prints a trace as ftrace-like text, one line a record. See [`TextSink`].
///
/// # Errors
/// As [`run`].
pub fn text<R: Read + Seek, W: Write>(
    reader: &mut TraceReader<R>,
    selection: &Selection,
    options: TextOptions,
    out: W,
) -> Result<Summary, ReportError> {
    run(reader, selection, &mut TextSink::new(out, options))
}

/// Prints how many records there are per function, most first.
///
/// # Errors
/// As [`run`].
pub fn profile<R: Read + Seek, W: Write>(
    reader: &mut TraceReader<R>,
    selection: &Selection,
    out: W,
) -> Result<Summary, ReportError> {
    run(reader, selection, &mut ProfileSink::new(out))
}
