//! `exotrace report`.

use std::io::{BufWriter, stdout};

use anyhow::Context;
use exotrace_patcher::filter::Filter;
use exotrace_trace::file::{ReadError, TraceReader, Vcpus};
use exotrace_trace::ids::VcpuId;
use exotrace_trace::report::{self, Selection, TextOptions, TimeBase};

use crate::args::{ReportArgs, Time};
use crate::exit::Exit;

/// Prints a trace file.
///
/// # Errors
/// The file can't be read, the filter is wrong, or the output fails (a closed pipe is no failure).
pub fn run(args: &ReportArgs) -> anyhow::Result<Exit> {
    let mut reader = TraceReader::open(&args.file).map_err(|e| match e {
        ReadError::Open { .. } => anyhow::Error::new(e),
        other => anyhow::Error::new(other).context(args.file.display().to_string()),
    })?;
    let selection = selection(args, reader.trace().vcpus())?;
    let out = BufWriter::with_capacity(1 << 16, stdout().lock());
    if args.summary {
        report::profile(&mut reader, &selection, out)?;
    } else {
        let options = TextOptions { time: time_base(args.time), parent_offsets: args.offsets };
        report::text(&mut reader, &selection, options, out)?;
    }
    Ok(Exit::Ok)
}

fn selection(args: &ReportArgs, vcpus: u8) -> anyhow::Result<Selection> {
    let mut selection = Selection::default();
    if !args.cpu.is_empty() {
        for &cpu in &args.cpu {
            anyhow::ensure!(cpu < vcpus, "the trace has no vCPU {cpu}: it has {vcpus}, counted from 0");
        }
        selection.vcpus = args.cpu.iter().fold(Vcpus::NONE, |set, &c| set.with(VcpuId(c)));
    }
    if let Some(text) = &args.filter {
        let filter = Filter::parse(text).context("--filter")?;
        selection.functions = Some(Box::new(move |name| filter.matches(name)));
    }
    Ok(selection)
}

fn time_base(time: Time) -> TimeBase {
    match time {
        Time::Start => TimeBase::Start,
        Time::Mono => TimeBase::HostMonotonic,
        Time::Wall => TimeBase::Wall,
        Time::Tsc => TimeBase::Tsc,
    }
}
