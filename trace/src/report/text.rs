//! One line a record, as ftrace's function tracer prints it with `irq-info` off.
//!
//! ```text
//! #           TASK-PID     CPU#     TIMESTAMP  FUNCTION
//! #              | |         |         |         |
//!            <...>-0       [001]     12.345678901: vfs_read <-ksys_read
//! ```
//!
//! Columns and their widths are the kernel's, so scripts that read its `trace` file read this one; the only difference
//! is nine digits of a second for six. A record holds no task and no interrupt state: the task column says `<...>-0`
//! as the kernel's does of a task that it does not know, and the flags column is left out as the kernel does when they
//! are not recorded. Everything else is in lines that start with `#`.

use std::io::{self, Write};

use super::lines::{self, Lines, put_number, put_seconds, put_unknown};
use super::{Sink, Summary};
use crate::clock::NS_PER_SEC;
use crate::file::{Event, EventKind, Loss, Record, Trace, printable};
use crate::ids::{Gva, Tsc};
use crate::ring::layout::KIND_ENTRY;

/// What the time column counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TimeBase {
    /// Seconds since the trace began.
    #[default]
    Start,
    /// The host's CLOCK_MONOTONIC, seconds.
    HostMonotonic,
    /// Seconds since 1970-01-01 00:00 UTC.
    Wall,
    /// The guest's TSC, cycles.
    Tsc,
}

/// How the text looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TextOptions {
    /// The time column.
    pub time: TimeBase,
    /// Callers with their offset: `ksys_read+0x52` for `ksys_read`.
    pub parent_offsets: bool,
}

/// Callers whose text is kept.
const CACHE_ENTRIES: usize = 4096;

/// The text of an address that was looked up before.
#[derive(Clone, Default)]
struct Caller {
    addr: u64,
    text: Vec<u8>,
}

/// Prints records as ftrace does. See the module's docs.
pub struct TextSink<W> {
    lines: Lines<W>,
    options: TextOptions,
    callers: Vec<Caller>,
}

impl<W: Write> TextSink<W> {
    /// Prints to `out`, which need not be buffered.
    pub fn new(out: W, options: TextOptions) -> TextSink<W> {
        TextSink { lines: Lines::new(out), options, callers: vec![Caller::default(); CACHE_ENTRIES] }
    }

    fn put_time(&mut self, trace: &Trace, tsc: Tsc) {
        let buf = &mut self.lines.buf;
        let Some(clock) = trace.clock() else { return put_number(buf, tsc.0, 15, b' ') };
        match self.options.time {
            TimeBase::Start => {
                let ns = clock.since_start_ns(tsc);
                put_seconds(buf, ns.unsigned_abs(), ns < 0);
            }
            TimeBase::HostMonotonic => put_seconds(buf, clock.mono_ns(tsc), false),
            TimeBase::Wall => put_seconds(buf, clock.wall_ns(tsc), false),
            TimeBase::Tsc => put_number(buf, tsc.0, 15, b' '),
        }
    }

    fn put_caller(&mut self, trace: &Trace, addr: Gva) {
        // Return addresses differ in their low bits; any mix that spreads those will do.
        let slot = (addr.0 ^ addr.0 >> 12) as usize % CACHE_ENTRIES;
        let caller = &mut self.callers[slot];
        if caller.addr != addr.0 || caller.text.is_empty() {
            caller.addr = addr.0;
            caller.text.clear();
            match trace.symbols().caller(addr) {
                Some((symbol, offset)) => {
                    caller.text.extend_from_slice(symbol.name.as_bytes());
                    if self.options.parent_offsets {
                        write!(caller.text, "+{offset:#x}").expect("a Vec takes everything");
                    }
                }
                None => write!(caller.text, "{addr}").expect("a Vec takes everything"),
            }
        }
        self.lines.buf.extend_from_slice(&caller.text);
    }

    fn put_function(&mut self, trace: &Trace, ip: u32, site: Option<usize>) {
        let buf = &mut self.lines.buf;
        match site.and_then(|n| trace.sites().get(n)) {
            Some(site) => buf.extend_from_slice(site.function.as_bytes()),
            None => put_unknown(buf, trace, ip),
        }
    }

    fn comment_with_time(&mut self, trace: &Trace, tsc: Tsc, text: std::fmt::Arguments<'_>) -> io::Result<()> {
        self.lines.buf.extend_from_slice(b"# ");
        self.put_time(trace, tsc);
        self.lines.buf.extend_from_slice(b": ");
        self.lines.line(text);
        self.lines.pass_on()
    }
}

impl<W: Write> Sink for TextSink<W> {
    fn begin(&mut self, trace: &Trace) -> io::Result<()> {
        let out = &mut self.lines;
        lines::head(out, trace, "function");
        match (trace.clock(), self.options.time) {
            (None, _) => out.line(format_args!("# time: TSC cycles (the file has no clock)")),
            (Some(c), TimeBase::Tsc) => out.line(format_args!("# time: TSC cycles at {} Hz", c.tsc_hz())),
            (Some(c), TimeBase::Start) => {
                let (s, ns) = (c.wall_start_ns() / NS_PER_SEC, c.wall_start_ns() % NS_PER_SEC);
                out.line(format_args!("# time: seconds since the trace began, at Unix time {s}.{ns:09}"));
            }
            (Some(_), TimeBase::HostMonotonic) => out.line(format_args!("# time: the host's CLOCK_MONOTONIC, seconds")),
            (Some(_), TimeBase::Wall) => out.line(format_args!("# time: Unix time, seconds")),
        }
        out.line(format_args!("#"));
        out.line(format_args!("#           TASK-PID     CPU#     TIMESTAMP  FUNCTION"));
        out.line(format_args!("#              | |         |         |         |"));
        out.pass_on()
    }

    fn record(&mut self, trace: &Trace, record: &Record, site: Option<usize>) -> io::Result<()> {
        if record.raw.kind() != KIND_ENTRY {
            let (vcpu, kind, index) = (record.vcpu, record.raw.kind(), record.index);
            self.lines
                .line(format_args!("# CPU:{vcpu} record {index} is of kind {kind}, which this version does not know"));
            return self.lines.pass_on();
        }
        self.lines.buf.extend_from_slice(b"           <...>-0       [");
        put_number(&mut self.lines.buf, record.vcpu.0.into(), 3, b'0');
        self.lines.buf.extend_from_slice(b"]  ");
        self.put_time(trace, record.tsc());
        self.lines.buf.extend_from_slice(b": ");
        self.put_function(trace, record.raw.ip, site);
        self.lines.buf.extend_from_slice(b" <-");
        self.put_caller(trace, record.raw.parent());
        self.lines.buf.push(b'\n');
        self.lines.pass_on()
    }

    fn loss(&mut self, _: &Trace, loss: &Loss) -> io::Result<()> {
        let Loss { vcpu, count, reason, .. } = loss;
        self.lines.line(format_args!("# CPU:{vcpu} [LOST {count} EVENTS] {}", reason.text()));
        self.lines.pass_on()
    }

    fn event(&mut self, trace: &Trace, event: &Event) -> io::Result<()> {
        let tsc = event.tsc;
        match &event.kind {
            EventKind::Switched { on, off, active, pause } => {
                let us = pause.kick_ns.saturating_add(pause.work_ns).saturating_add(pause.resume_ns) / 1000;
                self.comment_with_time(
                    trace,
                    tsc,
                    format_args!("switched {on} on, {off} off, {active} traced now; the guest stood for {us} us"),
                )
            }
            EventKind::Mark { mark } => self.comment_with_time(trace, tsc, format_args!("mark {mark}")),
            EventKind::Paused => self.comment_with_time(trace, tsc, format_args!("paused")),
            EventKind::Resumed => self.comment_with_time(trace, tsc, format_args!("resumed")),
            EventKind::Detached { sites } => {
                self.comment_with_time(trace, tsc, format_args!("detached, {sites} sites restored"))
            }
            EventKind::Ended { how } => {
                self.comment_with_time(trace, tsc, format_args!("the guest ended: {}", printable(how)))
            }
            EventKind::Note { text } => self.comment_with_time(trace, tsc, format_args!("{}", printable(text))),
            EventKind::Unknown => {
                self.comment_with_time(trace, tsc, format_args!("an event of a kind that this version does not know"))
            }
        }
    }

    fn end(&mut self, trace: &Trace, summary: &Summary) -> io::Result<()> {
        lines::tail(&mut self.lines, trace, summary);
        self.lines.pass_on()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.lines.flush()
    }
}
