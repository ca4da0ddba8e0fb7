//! A run without a terminal: the guest's console goes to stdout, what happened to stderr.

use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use exotrace_patcher::control::{Command, Control, Controller, Event, GuestEnd, Snapshot};
use exotrace_vmm::Vm;

use crate::args::RunArgs;
use crate::exit::Exit;
use crate::signals;

/// How often console and signals are looked at.
const TICK: Duration = Duration::from_millis(50);
/// Functions in the summary.
const TOP: usize = 10;

/// Runs until the guest ends, its time is up, or a signal comes.
///
/// # Errors
/// The trace file could not be written.
pub fn watch(controller: &Controller<Vm>, args: &RunArgs) -> anyhow::Result<Exit> {
    let signal = signals::ending_flag()?;
    let deadline = args.seconds.map(|s| Instant::now() + Duration::from_secs_f64(s));
    let mut console = Console::default();
    let mut events = Vec::new();
    let interrupted = loop {
        let new = controller.wait_events(TICK);
        new.iter().for_each(say);
        events.extend(new);
        console.pass_on(controller);
        let ended = events.iter().any(|e| matches!(e, Event::Ended(_)));
        let failed = events.iter().any(|e| matches!(e, Event::FileFailed { .. }));
        let interrupted = signal.load(Ordering::Relaxed);
        if ended || failed || interrupted || deadline.is_some_and(|d| Instant::now() >= d) {
            break interrupted;
        }
    };
    controller.send(Command::Quit);
    let last = until_done(controller);
    last.iter().filter(|e| !matches!(e, Event::Ended(GuestEnd::Quit))).for_each(say);
    events.extend(last);
    console.pass_on(controller);
    let end = events.iter().find_map(|e| if let Event::Ended(end) = e { Some(end.clone()) } else { None });
    let end = end.unwrap_or(GuestEnd::Quit);
    summary(controller, &end, args);
    report_file_failures(&events)?;
    Ok(if interrupted { Exit::Interrupted } else { Exit::of_guest(&end) })
}

/// Waits until a quit was carried out; returns what happened meanwhile.
pub fn until_done(controller: &Controller<Vm>) -> Vec<Event> {
    let mut events = Vec::new();
    while !controller.is_done() {
        events.extend(controller.wait_events(TICK));
    }
    events.extend(controller.poll_events());
    events
}

/// An error if a trace file could not be written.
///
/// # Errors
/// Says which and why.
pub fn report_file_failures(events: &[Event]) -> anyhow::Result<Exit> {
    for e in events {
        if let Event::FileFailed { why, .. } = e {
            anyhow::bail!("{why}");
        }
    }
    Ok(Exit::Ok)
}

/// Passes the guest's console on to stdout.
#[derive(Default)]
struct Console {
    shown: u64,
}

impl Console {
    fn pass_on(&mut self, controller: &Controller<Vm>) {
        let (total, text) = controller.target().console_since(self.shown);
        let missing = (total - self.shown).saturating_sub(text.len() as u64);
        self.shown = total;
        let mut out = std::io::stdout().lock();
        // Nobody may be reading: the run goes on, its trace is what counts.
        let _ = match missing {
            0 => out.write_all(&text),
            n => writeln!(out, "[{n} bytes of console output left out]").and_then(|()| out.write_all(&text)),
        };
        let _ = out.flush();
    }
}

fn say(event: &Event) {
    match event {
        Event::Attached { slide, usable, left_out, guarded } => {
            eprintln!("exotrace: attached: {usable} sites can be traced, the kernel was moved by {slide:#x}");
            for (why, n) in left_out {
                eprintln!("exotrace:   {n} sites are left out: {why}");
            }
            if !guarded {
                eprintln!("exotrace:   the guest's own ftrace must not be used while functions are traced");
            }
        }
        Event::Switched { on, off, active, pause, .. } => {
            eprintln!("exotrace: {on} sites on, {off} off, {active} traced; the guest stood {:?}", pause.total());
        }
        Event::Refused { what, why } => eprintln!("exotrace: {what}: {why}"),
        Event::FileStarted { path } => eprintln!("exotrace: writing {}", path.display()),
        Event::FileStopped { path, records, bytes } => {
            eprintln!("exotrace: {}: {records} records, {bytes} bytes", path.display());
        }
        Event::Detached { sites } => eprintln!("exotrace: detached, {sites} sites restored"),
        Event::Ended(end) => eprintln!("exotrace: {end}"),
        // The failure of a file ends the run and is its error; phases are in the trace.
        Event::FileFailed { .. } | Event::Paused(_) | Event::Mark(_) => {}
    }
}

fn summary(controller: &Controller<Vm>, end: &GuestEnd, args: &RunArgs) {
    let snapshot = controller.snapshot();
    if args.trace.is_none() {
        return;
    }
    for (n, v) in snapshot.vcpus.iter().enumerate() {
        eprintln!(
            "exotrace: vCPU {n}: {} records, {} lost, {} unfinished, {} corrupt, {} inverted",
            v.delivered, v.lost, v.pending, v.corrupt, v.inverted
        );
    }
    stops(controller);
    top(controller, &snapshot);
    if Exit::of_guest(end) != Exit::Ok && args.last > 0 {
        last_records(&snapshot, args.last, controller);
    }
}

/// How long the guest stood, over all stops while it ran.
fn stops(controller: &Controller<Vm>) {
    let stats = controller.target().pause_stats();
    for (what, histogram) in [("kick", &stats.kick), ("work", &stats.work), ("resume", &stats.resume)] {
        let s = histogram.summary();
        if s.count > 0 {
            eprintln!("exotrace: {} stops, {what}: median {:?}, p99 {:?}, max {:?}", s.count, s.median, s.p99, s.max);
        }
    }
}

fn top(controller: &Controller<Vm>, snapshot: &Snapshot) {
    let mut rows: Vec<_> = controller.info().functions.iter().zip(&snapshot.counts).filter(|(_, n)| **n > 0).collect();
    rows.sort_by(|a, b| b.1.cmp(a.1).then_with(|| a.0.name.cmp(&b.0.name)));
    eprintln!("exotrace: {} functions were called; most often:", rows.len());
    for (f, n) in rows.iter().take(TOP) {
        eprintln!("  {n:>12}  {}", f.name);
    }
}

fn last_records(snapshot: &Snapshot, most: usize, controller: &Controller<Vm>) {
    let live = &snapshot.live[snapshot.live.len().saturating_sub(most)..];
    eprintln!("exotrace: the last {} records:", live.len());
    for r in live {
        let name = r.site.and_then(|s| controller.info().functions.get(s.index()));
        let name = name.map_or_else(|| r.ip.to_string(), |f| f.name.to_string());
        let (s, ns) = (r.time_ns / 1_000_000_000, r.time_ns % 1_000_000_000);
        eprintln!("  [{:03}] {s:>6}.{ns:09}: {name} <-{}", r.vcpu.0, r.parent);
    }
}
