//! A made-up run to develop and test the UI against: it obeys commands, counts calls, prints on its console and can be
//! made hostile. Time passes only when told ([`MockControl::advance`]) or, if `live`, by the clock.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use exotrace_patcher::control::{
    Command, Control, Event, FunctionInfo, GuestEnd, LiveRecord, PauseTimes, RunInfo, Selection, Snapshot, VcpuGauge,
};
use exotrace_trace::ids::{Gva, SiteId, Tsc, VcpuId};
use exotrace_trace::ring::layout::FullPolicy;

use crate::state::filter::Filter;

/// Live records kept.
const LIVE: usize = 512;
/// Console bytes kept.
const CONSOLE: usize = 16 * 1024;
/// Slots of a ring.
const CAPACITY: u32 = 1 << 14;

/// What run to make up.
#[derive(Clone, Copy, Debug)]
pub struct MockOptions {
    /// Functions.
    pub functions: u32,
    /// vCPUs.
    pub vcpus: u8,
    /// Names and console output try to break the screen.
    pub hostile: bool,
    /// Time passes by the clock.
    pub live: bool,
}

impl Default for MockOptions {
    fn default() -> MockOptions {
        MockOptions { functions: 340, vcpus: 2, hostile: false, live: false }
    }
}

struct State {
    snapshot: Snapshot,
    live: VecDeque<LiveRecord>,
    console: Vec<u8>,
    events: Vec<Event>,
    sent: Vec<Command>,
    /// Calls per second of each function, and what is left of the last fraction of a call.
    speeds: Vec<(f64, f64)>,
    rng: u64,
    clock: Option<Instant>,
    next_line: Duration,
}

/// The made-up run.
pub struct MockControl {
    info: RunInfo,
    hostile: bool,
    state: Mutex<State>,
}

fn name(i: u32, hostile: bool) -> String {
    const A: [&str; 8] = ["vfs", "ksys", "kmem", "sched", "tcp", "slab", "timer", "page"];
    const B: [&str; 8] = ["read", "write", "alloc", "free", "lookup", "enqueue", "insert", "wake_up"];
    const C: [&str; 4] = ["", "_slow", "_locked", "_noprof"];
    if hostile && i.is_multiple_of(3) {
        return format!(
            "\x1b[2J{}漢字\u{202e}e\u{301}\t{i}{}",
            "x".repeat(i as usize % 40),
            if i == 0 { "長".repeat(10_000) } else { String::new() }
        );
    }
    let (a, b, c) = (A[i as usize % 8], B[i as usize / 8 % 8], C[i as usize / 64 % 4]);
    if i < 256 { format!("{a}_{b}{c}") } else { format!("{a}_{b}{c}.{}", i / 256) }
}

impl MockControl {
    /// A run that has just begun; nothing is traced.
    #[must_use]
    pub fn new(options: MockOptions) -> MockControl {
        let functions: Arc<[FunctionInfo]> = (0..options.functions)
            .map(|i| FunctionInfo {
                site: SiteId(i),
                name: name(i, options.hostile).into(),
                addr: Gva(0xffff_ffff_8100_0000 + u64::from(i) * 0x40),
                skipped: (i % 97 == 13).then(|| "site holds e8 10 20 00 00, expected a 5-byte nop".into()),
            })
            .collect();
        let n = functions.len();
        let info = RunInfo {
            functions,
            policy: FullPolicy::Drop,
            guest: format!("embedded guest, {} vCPUs, 64 MiB", options.vcpus),
            host: "KVM on PVM".to_owned(),
        };
        let gauge = VcpuGauge { capacity: CAPACITY, online: true, ..VcpuGauge::default() };
        let snapshot = Snapshot {
            counts: vec![0; n],
            active: vec![false; n],
            vcpus: vec![gauge; usize::from(options.vcpus)],
            ..Snapshot::default()
        };
        let speeds = (0..n).map(|i| (2e6 / (1.0 + ((i * 7919) % n) as f64).powf(1.2), 0.0)).collect();
        let state = State {
            snapshot,
            live: VecDeque::new(),
            console: b"exotrace guest booting\r\nsmp: vCPUs online\r\n".to_vec(),
            events: Vec::new(),
            sent: Vec::new(),
            speeds,
            rng: 0x9e37_79b9_7f4a_7c15,
            clock: options.live.then(Instant::now),
            next_line: Duration::ZERO,
        };
        let mock = MockControl { info, hostile: options.hostile, state: Mutex::new(state) };
        mock.lock().publish();
        mock
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets time pass.
    pub fn advance(&self, time: Duration) {
        self.lock().advance(time, &self.info, self.hostile);
    }

    /// Changes the state in ways that no command can.
    pub fn tamper(&self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut self.lock().snapshot);
    }

    /// Makes an event happen.
    pub fn happen(&self, event: Event) {
        let mut state = self.lock();
        if let Event::Ended(end) = &event {
            state.snapshot.ended = Some(end.clone());
        }
        state.events.push(event);
    }

    /// The commands since the last call.
    pub fn sent(&self) -> Vec<Command> {
        std::mem::take(&mut self.lock().sent)
    }
}

impl Control for MockControl {
    fn info(&self) -> &RunInfo {
        &self.info
    }

    fn send(&self, command: Command) {
        let mut state = self.lock();
        state.sent.push(command.clone());
        state.obey(command, &self.info);
    }

    fn poll_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.lock().events)
    }

    fn snapshot(&self) -> Snapshot {
        let mut state = self.lock();
        if let Some(then) = state.clock {
            state.clock = Some(Instant::now());
            let time = then.elapsed();
            state.advance(time, &self.info, self.hostile);
        }
        state.snapshot.clone()
    }
}

impl State {
    fn random(&mut self) -> u64 {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        self.rng
    }

    fn publish(&mut self) {
        self.snapshot.live = self.live.iter().cloned().collect();
        let start = self.console.len().saturating_sub(CONSOLE);
        self.console.drain(..start);
        self.snapshot.console = self.console.as_slice().into();
    }

    fn advance(&mut self, time: Duration, info: &RunInfo, hostile: bool) {
        self.snapshot.uptime += time;
        if self.snapshot.paused || self.snapshot.ended.is_some() {
            return;
        }
        let seconds = time.as_secs_f64();
        let mut called = 0;
        for (i, (speed, rest)) in self.speeds.iter_mut().enumerate().filter(|(i, _)| self.snapshot.active[*i]) {
            let calls = *speed * seconds + *rest;
            *rest = calls.fract();
            self.snapshot.counts[i] += calls as u64;
            called += calls as u64;
        }
        self.fill_rings(called);
        self.make_records(called, info);
        if let Some((_, bytes)) = &mut self.snapshot.file {
            *bytes += called * 32;
        }
        while self.next_line <= self.snapshot.uptime {
            let ms = self.next_line.as_millis();
            let line = format!("[{:>5}.{:03}] workload: round {} ok\r\n", ms / 1000, ms % 1000, ms / 700);
            self.console.extend_from_slice(line.as_bytes());
            if hostile {
                self.console.extend_from_slice("\x1b[2J\x1b]0;owned\x07\x1b[41m漢字\u{202e}rev\u{9b}1m\x01".as_bytes());
                self.console.extend_from_slice(&[b'y'; 10_000]);
            }
            self.next_line += Duration::from_millis(700);
        }
        self.publish();
    }

    fn fill_rings(&mut self, called: u64) {
        let n = self.snapshot.vcpus.len().max(1) as u64;
        for i in 0..self.snapshot.vcpus.len() {
            let noise = self.random();
            let share = called / n;
            let lost = if share > 100_000 && i == 1 { noise % 50 } else { 0 };
            let v = &mut self.snapshot.vcpus[i];
            v.delivered += share - lost.min(share);
            v.lost += lost;
            v.inverted += u64::from(share > 0 && noise.is_multiple_of(11));
            v.pending = (noise % 3) as u32;
            v.used = (share.min(u64::from(CAPACITY)) as u32).min(CAPACITY - (noise % 400) as u32);
        }
    }

    fn make_records(&mut self, called: u64, info: &RunInfo) {
        let active: Vec<u32> =
            (0..self.snapshot.active.len() as u32).filter(|i| self.snapshot.active[*i as usize]).collect();
        if active.is_empty() {
            return;
        }
        let end = self.snapshot.uptime.as_nanos() as u64;
        let n = called.min(64);
        for k in 0..n {
            let site = active[self.random() as usize % active.len()];
            let parent = &info.functions[self.random() as usize % info.functions.len()].name;
            let parent = format!("{parent}+{:#x}", self.random() % 0x200).into();
            let vcpu = VcpuId((self.random() % self.snapshot.vcpus.len().max(1) as u64) as u8);
            let time_ns = end.saturating_sub((n - k) * 700);
            let ip = info.functions[site as usize].addr;
            self.live.push_back(LiveRecord {
                vcpu,
                tsc: Tsc(time_ns * 2),
                time_ns,
                site: Some(SiteId(site)),
                ip,
                parent,
            });
        }
        while self.live.len() > LIVE {
            self.live.pop_front();
        }
    }

    fn select(what: &Selection, info: &RunInfo) -> Vec<usize> {
        let all = info.functions.iter().filter(|f| f.skipped.is_none());
        match what {
            Selection::All => all.map(|f| f.site.index()).collect(),
            Selection::Filter(text) => {
                let filter = Filter::parse(text).unwrap_or_default();
                all.filter(|f| filter.matches(&f.name)).map(|f| f.site.index()).collect()
            }
            Selection::Sites(sites) => sites.iter().map(|s| s.index()).filter(|i| *i < info.functions.len()).collect(),
        }
    }

    fn switch(&mut self, wanted: &[(usize, bool)]) {
        let (mut on, mut off, mut unchanged) = (0, 0, 0);
        for (i, want) in wanted {
            match (std::mem::replace(&mut self.snapshot.active[*i], *want), want) {
                (false, true) => on += 1,
                (true, false) => off += 1,
                _ => unchanged += 1,
            }
        }
        let us = Duration::from_micros;
        let pause = PauseTimes { kick: us(65), work: us(4 + wanted.len() as u64 / 10), resume: us(8) };
        let active = self.snapshot.active.iter().filter(|a| **a).count();
        self.snapshot.last_pause = Some(pause);
        self.snapshot.pauses += 1;
        self.events.push(Event::Switched { on, off, unchanged, skipped: 0, active, pause });
    }

    fn obey(&mut self, command: Command, info: &RunInfo) {
        match command {
            Command::Switch { what, on } => {
                let wanted: Vec<_> = Self::select(&what, info).into_iter().map(|i| (i, on)).collect();
                self.switch(&wanted);
            }
            Command::SwitchExactly { what } => {
                let mut wanted: Vec<_> = (0..info.functions.len()).map(|i| (i, false)).collect();
                Self::select(&what, info).into_iter().for_each(|i| wanted[i].1 = true);
                self.switch(&wanted);
            }
            Command::StartFile { path } if path.components().count() > 1 => self.events.push(Event::Refused {
                what: format!("write {}", path.display()),
                why: "the directory does not exist; create it first, or give a name in a directory that exists and that you may write to".into(),
            }),
            Command::StartFile { path } => {
                self.snapshot.file = Some((path.clone(), 4096));
                self.events.push(Event::FileStarted { path });
            }
            Command::StopFile => {
                if let Some((path, bytes)) = self.snapshot.file.take() {
                    self.events.push(Event::FileStopped { path, records: bytes / 32, bytes });
                }
            }
            Command::Pause | Command::Resume => {
                self.snapshot.paused = command == Command::Pause;
                self.events.push(Event::Paused(self.snapshot.paused));
            }
            Command::ConsoleInput(bytes) => {
                self.console.extend_from_slice(&bytes);
                self.publish();
            }
            Command::Detach => {
                self.snapshot.active.fill(false);
                self.events.push(Event::Detached { sites: info.functions.len() });
            }
            Command::Quit => {
                self.snapshot.ended = Some(GuestEnd::Quit);
                self.events.push(Event::Ended(GuestEnd::Quit));
            }
        }
    }
}
