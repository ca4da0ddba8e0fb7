//! The controller: starts a traced VM, runs the threads that drain rings, forward what the guest does and carry out
//! commands (the worker), and takes snapshots.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use exotrace_trace::collect::Collector;
use exotrace_trace::file::{EventKind, Meta};
use exotrace_trace::ids::VcpuId;
use exotrace_trace::ring::layout::FullPolicy;

use super::live::LiveView;
use super::output::Output;
use super::session::{Lookup, MachineCollector, RingOptions, Session, SessionError, functions, select};
use super::target::{Target, TargetEvent};
use super::worker::{Armed, Worker};
use super::{
    Command, Control, Event, FunctionInfo, GuestEnd, PauseTimes, RunInfo, Selection, Snapshot, VcpuGauge, error_chain,
};
use crate::image::{KernelImage, SiteTable};

/// How long records lie in a ring at most before they are shown, when no doorbell rings.
const TICK: Duration = Duration::from_millis(20);
/// How often the trace file is written through.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// The thread that carries out commands.
const CONTROL_THREAD: &str = "exo-control";
/// Events that wait for a reader at most.
const EVENTS_AT_MOST: usize = 4096;

/// How the guest comes to its page tables and its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boot {
    /// The VMM sets them up: everything is prepared before the first instruction.
    Prepared,
    /// The guest does, as Linux: exotrace attaches as soon as it has.
    OnItsOwn,
}

/// What to trace and how, from the start.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The kernel image.
    pub image: Arc<KernelImage>,
    /// How it boots.
    pub boot: Boot,
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
pub(super) struct Board {
    pub(super) active: Vec<bool>,
    pub(super) last_pause: Option<PauseTimes>,
    pub(super) pauses: u64,
    pub(super) paused: bool,
    pub(super) ended: Option<GuestEnd>,
    pub(super) file: Option<PathBuf>,
    pub(super) done: bool,
    pub(super) events: VecDeque<Event>,
    pub(super) events_dropped: u64,
}

pub(super) struct Shared<T: Target> {
    pub(super) target: Arc<T>,
    pub(super) collector: Arc<MachineCollector<T>>,
    pub(super) lookup: Lookup,
    pub(super) board: Mutex<Board>,
    pub(super) changed: Condvar,
    pub(super) info: RunInfo,
    pub(super) output: Output,
    pub(super) live: LiveView,
    pub(super) policy: FullPolicy,
    /// Slots per ring.
    pub(super) capacity: u32,
    pub(super) started: Instant,
    pub(super) closing: AtomicBool,
}

/// What the worker is told.
pub(super) enum Input {
    Command(Command),
    Target(TargetEvent),
    /// A vCPU waits in a stub around the guest's own text patching until this was answered.
    Patching {
        /// Before it, or after.
        begin: bool,
        /// Dropped or sent to when the vCPU may go on.
        done: Sender<()>,
    },
}

/// What the worker begins with.
struct Work {
    session: Option<Session>,
    armed: Armed,
    inputs: Receiver<Input>,
}

/// A running, traced VM. Dropping it ends the VM.
pub struct Controller<T: Target> {
    shared: Arc<Shared<T>>,
    inputs: Sender<Input>,
    threads: Vec<JoinHandle<()>>,
}

pub(super) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Target> Shared<T> {
    pub(super) fn publish(&self, event: Event) {
        let mut board = lock(&self.board);
        if board.events.len() == EVENTS_AT_MOST {
            board.events.pop_front();
            board.events_dropped += 1;
        }
        board.events.push_back(event);
        drop(board);
        self.changed.notify_all();
    }

    pub(super) fn note(&self, kind: EventKind) {
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
        let sites = SiteTable::build(&setup.image);
        if let Some(trace) = &setup.trace {
            // A wrong filter is to be known before anything is made.
            select(&sites, trace)?;
        }
        let functions = functions(&sites);
        let lookup = Lookup::new(sites.len());
        let collector = Arc::new(Collector::without_rings(usize::from(target.vcpus()), lookup.clone()));
        let mut armed = Armed { image: Arc::clone(&setup.image), rings: setup.rings, trace: setup.trace.clone() };
        let session = match setup.boot {
            Boot::Prepared => {
                let session =
                    Session::attach(&*target, setup.image, setup.rings, armed.trace.take().as_ref(), &collector)?;
                lookup.set(&session);
                Some(session)
            }
            Boot::OnItsOwn => None,
        };
        let clock = target.clock();
        let output = Output::new(lookup.clone(), setup.meta, clock);
        let is_active = |f: &FunctionInfo| session.as_ref().is_some_and(|s| s.is_active(f.site));
        let board =
            Board { active: functions.iter().map(is_active).collect(), file: setup.file.clone(), ..Board::default() };
        let live = LiveView::new(lookup.clone(), clock);
        let policy = setup.rings.policy;
        let info = RunInfo { functions, policy, guest: setup.guest, host: setup.host };
        let shared = Arc::new(Shared {
            target: Arc::clone(&target),
            collector,
            lookup,
            board: Mutex::new(board),
            changed: Condvar::new(),
            info,
            output,
            live,
            policy,
            capacity: setup.rings.records,
            started: Instant::now(),
            closing: AtomicBool::new(false),
        });
        let hooked = Arc::clone(&shared.collector);
        target.on_ring_full(Arc::new(move |vcpu| hooked.drain_full(vcpu))).map_err(StartError::Target)?;
        let (inputs, rx) = unbounded();
        let to_worker = inputs.clone();
        let patching = move |begin| {
            let (done, answered) = bounded(1);
            if to_worker.send(Input::Patching { begin, done }).is_ok() {
                // Without an answer the worker is gone, and with it whoever would change text.
                let _ = answered.recv();
            }
        };
        target.on_guest_patching(Arc::new(patching)).map_err(StartError::Target)?;
        if let Some(path) = &setup.file {
            shared.collector.start_file(shared.output.create(path)?)?;
        }
        // Everything that drains stands before the guest runs: it may fill its rings at once.
        let work = Work { session, armed, inputs: rx };
        let this = Self::spawn(Arc::clone(&shared), inputs, work);
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

    fn spawn(shared: Arc<Shared<T>>, inputs: Sender<Input>, work: Work) -> Result<Controller<T>, StartError> {
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
        thread(CONTROL_THREAD, Box::new(move || Worker::new(&shared, work.session, work.armed).run(&work.inputs)))?;
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
            let t = s.collector.shown_totals(vcpu);
            VcpuGauge {
                delivered: t.delivered,
                lost: t.lost(),
                corrupt: t.corrupt,
                inverted: t.inverted,
                used: t.used,
                pending: t.unfinished as u32,
                capacity: s.capacity,
                blocked: t.blocked,
                online: s.target.online(vcpu),
            }
        };
        let vcpus = (0..s.target.vcpus()).map(gauge).collect();
        let live = s.live.lines(&s.collector.tail(super::live::LINES));
        let console = s.target.console().into();
        let bytes = s.collector.file_bytes();
        let board = lock(&s.board);
        Snapshot {
            counts,
            active: board.active.clone(),
            vcpus,
            live,
            console,
            last_pause: board.last_pause,
            pauses: board.pauses,
            file: board.file.clone().zip(bytes),
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
        if s.policy == FullPolicy::Overwrite {
            s.collector.refresh();
        } else {
            more = s.collector.drain_all();
        }
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
