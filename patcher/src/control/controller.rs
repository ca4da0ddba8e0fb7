//! The controller: threads that carry out commands, drain rings and forward what the guest does.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use exotrace_trace::file::{EventKind, Meta};
use exotrace_trace::ids::VcpuId;
use exotrace_trace::ring::layout::FullPolicy;

use super::live::LiveView;
use super::output::Output;
use super::session::{Change, MachineCollector, RingOptions, Session, SessionError};
use super::target::{Target, TargetEvent};
use super::{Command, Control, Event, GuestEnd, PauseTimes, RunInfo, Selection, Snapshot, VcpuGauge, error_chain};
use crate::image::KernelImage;
use crate::machine::Stopped;
use crate::plan::Plan;

/// How long records lie in a ring at most before they are shown, when no doorbell rings.
const TICK: Duration = Duration::from_millis(20);
/// How often the trace file is written through.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// The thread that carries out commands.
const CONTROL_THREAD: &str = "exo-control";
/// Events that wait for a reader at most.
const EVENTS_AT_MOST: usize = 4096;

/// What to trace and how, from the start.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The kernel image.
    pub image: Arc<KernelImage>,
    /// Rings.
    pub rings: RingOptions,
    /// What is traced from the first instruction on.
    pub trace: Option<Selection>,
    /// The trace file that is written from the first instruction on.
    pub file: Option<PathBuf>,
    /// Facts for trace files.
    pub meta: Meta,
    /// One line on the guest.
    pub guest: String,
    /// One line on the host.
    pub host: String,
}

/// Why a run could not begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Preparing the guest.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The trace file.
    #[error(transparent)]
    File(#[from] exotrace_trace::file::WriteError),
    /// The VMM.
    #[error("{0}")]
    Target(String),
    /// A thread.
    #[error("starting a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Shared state that snapshots read.
#[derive(Default)]
struct Board {
    active: Vec<bool>,
    last_pause: Option<PauseTimes>,
    pauses: u64,
    paused: bool,
    ended: Option<GuestEnd>,
    file: Option<PathBuf>,
    done: bool,
    events: VecDeque<Event>,
    events_dropped: u64,
}

struct Shared<T: Target> {
    target: Arc<T>,
    collector: Arc<MachineCollector<T>>,
    board: Mutex<Board>,
    changed: Condvar,
    info: RunInfo,
    output: Output,
    live: LiveView,
    policy: FullPolicy,
    started: Instant,
    closing: AtomicBool,
}

enum Input {
    Command(Command),
    Target(TargetEvent),
}

/// A running, traced VM. Dropping it ends the VM.
pub struct Controller<T: Target> {
    shared: Arc<Shared<T>>,
    inputs: Sender<Input>,
    threads: Vec<JoinHandle<()>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Target> Shared<T> {
    fn publish(&self, event: Event) {
        let mut board = lock(&self.board);
        if board.events.len() == EVENTS_AT_MOST {
            board.events.pop_front();
            board.events_dropped += 1;
        }
        board.events.push_back(event);
        drop(board);
        self.changed.notify_all();
    }

    fn note(&self, kind: EventKind) {
        self.collector.event(&self.output.event_now(kind));
    }

    fn check_file(&self) {
        if let Some(e) = self.collector.take_file_error() {
            let path = lock(&self.board).file.take().unwrap_or_default();
            self.publish(Event::FileFailed { path, why: error_chain(&e) });
        }
    }
}

impl<T: Target> Controller<T> {
    /// Prepares a machine that has not started, and starts it.
    ///
    /// # Errors
    /// See [`StartError`]; nothing runs then, and no file was left behind.
    pub fn start(target: Arc<T>, setup: Setup) -> Result<Controller<T>, StartError> {
        let (session, collector) =
            Session::attach(&*target, Arc::clone(&setup.image), setup.rings, setup.trace.as_ref())?;
        let clock = target.clock();
        let functions = session.functions();
        let output = Output::new(Arc::clone(&setup.image), Arc::clone(session.sites()), setup.meta, clock);
        let board = Board {
            active: functions.iter().map(|f| session.is_active(f.site)).collect(),
            file: setup.file.clone(),
            ..Board::default()
        };
        let live = LiveView::new(setup.image, Arc::clone(session.sites()), clock);
        let policy = setup.rings.policy;
        let info = RunInfo { functions, policy, guest: setup.guest, host: setup.host };
        let shared = Arc::new(Shared {
            target: Arc::clone(&target),
            collector,
            board: Mutex::new(board),
            changed: Condvar::new(),
            info,
            output,
            live,
            policy,
            started: Instant::now(),
            closing: AtomicBool::new(false),
        });
        let hooked = Arc::clone(&shared.collector);
        target.on_ring_full(Arc::new(move |vcpu| hooked.drain_full(vcpu))).map_err(StartError::Target)?;
        if let Some(path) = &setup.file {
            shared.collector.start_file(shared.output.create(path)?)?;
        }
        // Everything that drains stands before the guest runs: it may fill its rings at once.
        let this = Self::spawn(Arc::clone(&shared), session);
        if let Err(why) = target.start() {
            drop(this);
            if let Some(path) = &setup.file {
                // There is nothing in it; that it stays if it can't be removed is less than the first error.
                let _ = std::fs::remove_file(path);
            }
            return Err(StartError::Target(why));
        }
        this
    }

    fn spawn(shared: Arc<Shared<T>>, session: Session) -> Result<Controller<T>, StartError> {
        let (inputs, rx) = unbounded();
        let mut this = Controller { shared: Arc::clone(&shared), inputs: inputs.clone(), threads: Vec::new() };
        let watched = Arc::clone(&shared);
        let quit = inputs.clone();
        let mut thread = |name: &'static str, body: Box<dyn FnOnce() + Send>| -> Result<(), StartError> {
            let fall = Fall { name, shared: Arc::clone(&watched), inputs: quit.clone() };
            let body = move || {
                let _fall = fall;
                body();
            };
            this.threads.push(std::thread::Builder::new().name(name.into()).spawn(body)?);
            Ok(())
        };
        let s = Arc::clone(&shared);
        thread("exo-drain", Box::new(move || drain_loop(&s)))?;
        let s = Arc::clone(&shared);
        thread("exo-events", Box::new(move || event_loop(&s, &inputs)))?;
        thread(CONTROL_THREAD, Box::new(move || Worker::new(&shared, session).run(&rx)))?;
        Ok(this)
    }

    /// Waits until there are events, the run is over, or `timeout` has passed.
    #[must_use]
    pub fn wait_events(&self, timeout: Duration) -> Vec<Event> {
        let board = lock(&self.shared.board);
        let waited = self.shared.changed.wait_timeout_while(board, timeout, |b| b.events.is_empty() && !b.done);
        let (mut board, _) = waited.unwrap_or_else(PoisonError::into_inner);
        board.events.drain(..).collect()
    }

    /// The run is over: [`Command::Quit`] was carried out, files are closed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        lock(&self.shared.board).done
    }

    /// The VM.
    #[must_use]
    pub fn target(&self) -> &Arc<T> {
        &self.shared.target
    }

    /// The collector: exact counts and totals.
    #[must_use]
    pub fn collector(&self) -> &MachineCollector<T> {
        &self.shared.collector
    }
}

impl<T: Target> Drop for Controller<T> {
    fn drop(&mut self) {
        // A controller that is gone already was told to quit before.
        let _ = self.inputs.send(Input::Command(Command::Quit));
        for t in self.threads.drain(..) {
            // A thread that panicked has printed its message; there is nothing more to do with it here.
            let _ = t.join();
        }
    }
}

impl<T: Target> Control for Controller<T> {
    fn info(&self) -> &RunInfo {
        &self.shared.info
    }

    fn send(&self, command: Command) {
        // After the end there is nobody left to carry it out, and nothing to carry it out on.
        let _ = self.inputs.send(Input::Command(command));
    }

    fn poll_events(&self) -> Vec<Event> {
        lock(&self.shared.board).events.drain(..).collect()
    }

    fn snapshot(&self) -> Snapshot {
        let s = &self.shared;
        let mut counts = Vec::new();
        s.collector.add_counts(&mut counts);
        let gauge = |v: u8| {
            let vcpu = VcpuId(v);
            let t = s.collector.totals(vcpu);
            VcpuGauge {
                delivered: t.delivered,
                lost: t.lost(),
                corrupt: t.corrupt,
                inverted: t.inverted,
                used: t.used,
                pending: t.unfinished as u32,
                capacity: s.collector.capacity(vcpu),
                blocked: t.blocked,
                online: s.target.online(vcpu),
            }
        };
        let vcpus = (0..s.target.vcpus()).map(gauge).collect();
        let live = s.live.lines(&s.collector.tail(super::live::LINES));
        let console = s.target.console().into();
        let written = s.collector.file_written();
        let board = lock(&s.board);
        Snapshot {
            counts,
            active: board.active.clone(),
            vcpus,
            live,
            console,
            last_pause: board.last_pause,
            pauses: board.pauses,
            file: board.file.clone().zip(written.map(|w| w.bytes)),
            paused: board.paused,
            ended: board.ended.clone(),
            uptime: s.started.elapsed(),
        }
    }
}

/// A thread that panics ends the run: whoever watches it is told, and waits for nothing that will not come.
struct Fall<T: Target> {
    name: &'static str,
    shared: Arc<Shared<T>>,
    inputs: Sender<Input>,
}

impl<T: Target> Drop for Fall<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let why = format!("exotrace itself failed: its thread {} panicked; please report what it printed", self.name);
        self.shared.publish(Event::Ended(GuestEnd::Failed { why }));
        if self.name == CONTROL_THREAD {
            self.shared.target.quit();
            self.shared.closing.store(true, Ordering::Release);
            lock(&self.shared.board).done = true;
            self.shared.changed.notify_all();
        } else {
            // If the control thread is gone as well, it has done the rest.
            let _ = self.inputs.send(Input::Command(Command::Quit));
        }
    }
}

/// Drains on doorbell and tick until the run closes.
fn drain_loop<T: Target>(s: &Shared<T>) {
    let mut flushed = Instant::now();
    let mut more = false;
    while !s.closing.load(Ordering::Acquire) {
        if !more {
            s.target.wait_doorbell(TICK);
        }
        more = s.policy != FullPolicy::Overwrite && s.collector.drain_all();
        if flushed.elapsed() >= FLUSH_EVERY {
            s.collector.flush();
            flushed = Instant::now();
        }
        s.check_file();
    }
}

fn event_loop<T: Target>(s: &Shared<T>, inputs: &Sender<Input>) {
    while !s.closing.load(Ordering::Acquire) {
        if let Some(event) = s.target.next_event(Duration::from_millis(100))
            && inputs.send(Input::Target(event)).is_err()
        {
            return;
        }
    }
}

/// Carries out commands, one after another.
struct Worker<'a, T: Target> {
    s: &'a Shared<T>,
    session: Session,
    /// Held while the guest is paused by command.
    paused: Option<T::Stopped<'a>>,
}

impl<'a, T: Target> Worker<'a, T> {
    fn new(s: &'a Shared<T>, session: Session) -> Worker<'a, T> {
        Worker { s, session, paused: None }
    }

    fn run(mut self, inputs: &Receiver<Input>) {
        // Ends with Quit; the channel closes only after that.
        while let Ok(input) = inputs.recv() {
            match input {
                Input::Target(event) => self.target_event(event),
                Input::Command(Command::Quit) => break,
                Input::Command(command) => self.command(command),
            }
        }
        self.quit();
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Switch { what, on } => {
                let verb = if on { "switching on" } else { "switching off" };
                self.switch(verb, |session| session.plan(&what, on));
            }
            Command::SwitchExactly { what } => self.switch("switching", |session| session.plan_exactly(&what)),
            Command::StartFile { path } => self.start_file(&path),
            Command::StopFile => self.stop_file(),
            Command::Pause => self.pause(),
            Command::Resume => self.resume(),
            Command::ConsoleInput(bytes) => self.s.target.console_input(&bytes),
            Command::Detach => self.detach(),
            Command::Quit => {}
        }
    }

    fn refuse(&self, what: &str, why: impl std::error::Error) {
        self.s.publish(Event::Refused { what: what.into(), why: error_chain(&why) });
    }

    /// Plans while the guest runs, then stops it for verify and write.
    fn change(
        &mut self,
        plan: impl FnOnce(&Session) -> Result<Plan, SessionError>,
    ) -> Result<(Change, PauseTimes), SessionError> {
        let plan = plan(&self.session)?;
        if plan.is_empty() {
            let unchanged = plan.outcomes().len();
            let applied = crate::engine::Applied { unchanged, ..Default::default() };
            return Ok((Change { applied, ..Change::default() }, PauseTimes::default()));
        }
        if let Some(guard) = &mut self.paused {
            let begin = Instant::now();
            let change = self.session.apply(&plan, guard)?;
            return Ok((change, PauseTimes { work: begin.elapsed(), ..PauseTimes::default() }));
        }
        let mut guard = self.s.target.stop()?;
        let begin = Instant::now();
        let change = self.session.apply(&plan, &mut guard);
        let (kick, work) = (guard.stop_time(), begin.elapsed());
        let begin = Instant::now();
        drop(guard);
        let times = PauseTimes { kick, work, resume: begin.elapsed() };
        let mut board = lock(&self.s.board);
        board.last_pause = Some(times);
        board.pauses += 1;
        drop(board);
        Ok((change?, times))
    }

    fn refresh_active(&self) {
        let functions = &self.s.info.functions;
        let active = functions.iter().map(|f| self.session.is_active(f.site)).collect();
        lock(&self.s.board).active = active;
    }

    fn switch(&mut self, what: &str, plan: impl FnOnce(&Session) -> Result<Plan, SessionError>) {
        match self.change(plan) {
            Err(why) => self.refuse(what, why),
            Ok((change, pause)) => {
                self.refresh_active();
                let active = self.session.active();
                self.s.note(EventKind::Switched {
                    on: change.on as u64,
                    off: change.off as u64,
                    active: active as u64,
                    pause: super::output::file_pause(pause),
                });
                let unchanged = change.applied.unchanged;
                self.s.publish(Event::Switched { on: change.on, off: change.off, unchanged, active, pause });
            }
        }
    }

    fn detach(&mut self) {
        match self.change(Session::plan_detach) {
            Err(why) => self.refuse("detaching", why),
            Ok((change, _)) => {
                self.session.set_detached();
                self.refresh_active();
                let sites = change.applied.patched;
                self.s.note(EventKind::Detached { sites: sites as u64 });
                self.s.publish(Event::Detached { sites });
            }
        }
    }

    fn pause(&mut self) {
        if self.paused.is_some() {
            return;
        }
        match self.s.target.stop() {
            Err(why) => self.refuse("pausing the guest", why),
            Ok(guard) => {
                self.paused = Some(guard);
                self.s.collector.drain_all();
                self.s.note(EventKind::Paused);
                lock(&self.s.board).paused = true;
                self.s.publish(Event::Paused(true));
            }
        }
    }

    fn resume(&mut self) {
        if self.paused.take().is_some() {
            lock(&self.s.board).paused = false;
            self.s.note(EventKind::Resumed);
            self.s.publish(Event::Paused(false));
        }
    }

    fn start_file(&mut self, path: &Path) {
        let started = self.s.output.create(path);
        match started.and_then(|w| self.s.collector.start_file(w)) {
            Err(why) => self.refuse("starting a trace file", why),
            Ok(()) => {
                lock(&self.s.board).file = Some(path.to_owned());
                self.s.publish(Event::FileStarted { path: path.to_owned() });
            }
        }
    }

    fn stop_file(&mut self) {
        let Some(closed) = self.s.collector.finish_file() else { return };
        let path = lock(&self.s.board).file.take().unwrap_or_default();
        self.s.publish(match closed {
            Ok(w) => Event::FileStopped { path, records: w.records, bytes: w.bytes },
            Err(e) => Event::FileFailed { path, why: error_chain(&e) },
        });
    }

    fn target_event(&mut self, event: TargetEvent) {
        match event {
            TargetEvent::Mark(mark) => {
                self.s.note(EventKind::Mark { mark });
                self.s.publish(Event::Mark(mark));
            }
            TargetEvent::Ended(end) => {
                self.s.collector.drain_all();
                self.s.note(EventKind::Ended { how: end.to_string() });
                self.s.collector.flush();
                lock(&self.s.board).ended = Some(end.clone());
                self.s.publish(Event::Ended(end));
            }
        }
    }

    fn quit(mut self) {
        self.paused = None;
        if lock(&self.s.board).ended.is_none() {
            self.s.target.quit();
            self.await_end();
        }
        self.s.collector.drain_all();
        self.stop_file();
        self.s.closing.store(true, Ordering::Release);
        lock(&self.s.board).done = true;
        self.s.changed.notify_all();
    }

    /// After `quit` every vCPU stands soon; the stop makes sure of it.
    fn await_end(&mut self) {
        if let Err(why) = self.s.target.stop().map(drop) {
            self.refuse("waiting for the vCPUs to end", why);
        }
        self.target_event(TargetEvent::Ended(GuestEnd::Quit));
    }
}
