//! The worker: carries out commands, one after another.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use exotrace_trace::file::EventKind;

use super::controller::{Input, Shared, lock};
use super::linux;
use super::session::{Change, RingOptions, Session, SessionError};
use super::target::{Target, TargetEvent};
use super::{Command, Event, FunctionInfo, GuestEnd, PauseTimes, Selection, error_chain};
use crate::image::KernelImage;
use crate::machine::Stopped;
use crate::plan::Plan;

/// How often a guest that boots on its own is looked at when something is to be traced.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What an attach needs, and what is to be traced then.
pub(super) struct Armed {
    /// At the addresses that it was linked at.
    pub(super) image: Arc<KernelImage>,
    pub(super) rings: RingOptions,
    pub(super) trace: Option<Selection>,
}

/// See the module's docs.
pub(super) struct Worker<'a, T: Target> {
    s: &'a Shared<T>,
    /// None while a guest that boots on its own has not got far enough.
    session: Option<Session>,
    armed: Armed,
    /// Held while the guest is paused by command.
    paused: Option<T::Stopped<'a>>,
}

impl<'a, T: Target> Worker<'a, T> {
    pub(super) fn new(s: &'a Shared<T>, session: Option<Session>, armed: Armed) -> Worker<'a, T> {
        Worker { s, session, armed, paused: None }
    }

    pub(super) fn run(mut self, inputs: &Receiver<Input>) {
        // Ends with Quit; the channel closes only after that.
        loop {
            let waits = self.session.is_none() && self.armed.trace.is_some() && self.paused.is_none();
            let input = if waits { inputs.recv_timeout(LOOK_EVERY) } else { inputs.recv().map_err(Into::into) };
            match input {
                Ok(Input::Target(event)) => self.target_event(event),
                Ok(Input::Command(Command::Quit)) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(Input::Command(command)) => self.command(command),
                Ok(Input::Patching { begin, done }) => {
                    self.guest_patches(begin);
                    // The vCPU may have been torn down meanwhile.
                    let _ = done.send(());
                }
                Err(RecvTimeoutError::Timeout) => self.try_armed(),
            }
        }
        self.quit();
    }

    /// Attaches if the guest has got far enough by now, and traces what was asked for.
    fn try_armed(&mut self) {
        match self.attach() {
            Ok(()) => {
                if let Some(what) = self.armed.trace.take() {
                    self.switch("switching on", |session| session.plan(&what, true));
                }
            }
            Err(SessionError::NotYet(_) | SessionError::Stop(_)) => {}
            Err(why) => {
                // It won't get better by itself.
                self.armed.trace = None;
                self.refuse("attaching to the guest", why);
            }
        }
    }

    fn attach(&mut self) -> Result<(), SessionError> {
        if self.session.is_some() {
            return Ok(());
        }
        let found = linux::attach(&*self.s.target, &self.armed.image, self.armed.rings, &self.s.collector)?;
        self.s.lookup.set(&found.session);
        self.s.collector.with_file(|w| self.s.output.write_tables(w));
        let (slide, usable, left_out) = (found.slide, found.usable, found.session.left_out());
        let guarded = found.session.is_guarded();
        self.session = Some(found.session);
        self.s.note(EventKind::Note {
            text: format!(
                "attached: slide {slide:#x}, {usable} sites usable, left out {left_out:?}, guarded {guarded}"
            ),
        });
        self.s.publish(Event::Attached { slide, usable, left_out, guarded });
        Ok(())
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

    /// Attaches if need be, looks at the guest's text and changes it.
    fn change(
        &mut self,
        plan: impl FnOnce(&Session) -> Result<Plan, SessionError>,
    ) -> Result<(Change, PauseTimes), SessionError> {
        if self.paused.is_none() {
            self.attach()?;
        }
        let target = Arc::clone(&self.s.target);
        self.stopped_change(|session| {
            session.look(&*target);
            plan(session)
        })
    }

    /// Plans while the guest runs, then stops it for verify and write.
    fn stopped_change(
        &mut self,
        plan: impl FnOnce(&mut Session) -> Result<Plan, SessionError>,
    ) -> Result<(Change, PauseTimes), SessionError> {
        let session = self.session.as_mut().ok_or(SessionError::NotYet("it is paused; resume it first"))?;
        let plan = plan(session)?;
        if plan.is_empty() {
            let unchanged = plan.outcomes().len();
            let applied = crate::engine::Applied { unchanged, ..Default::default() };
            return Ok((Change { applied, ..Change::default() }, PauseTimes::default()));
        }
        if let Some(guard) = &mut self.paused {
            let begin = Instant::now();
            let change = session.apply(&plan, guard)?;
            return Ok((change, PauseTimes { work: begin.elapsed(), ..PauseTimes::default() }));
        }
        let mut guard = self.s.target.stop()?;
        let begin = Instant::now();
        let change = session.apply(&plan, &mut guard);
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
        let is_active = |f: &FunctionInfo| self.session.as_ref().is_some_and(|s| s.is_active(f.site));
        let active = functions.iter().map(is_active).collect();
        lock(&self.s.board).active = active;
    }

    fn switch(&mut self, what: &str, plan: impl FnOnce(&Session) -> Result<Plan, SessionError>) {
        match self.change(plan) {
            Err(why) => self.refuse(what, why),
            Ok((change, pause)) => {
                self.refresh_active();
                let active = self.session.as_ref().map_or(0, Session::active);
                self.s.note(EventKind::Switched {
                    on: change.on as u64,
                    off: change.off as u64,
                    active: active as u64,
                    pause: super::output::file_pause(pause),
                });
                let (unchanged, skipped) = (change.applied.unchanged, change.applied.skipped);
                self.s.publish(Event::Switched { on: change.on, off: change.off, unchanged, skipped, active, pause });
            }
        }
    }

    /// The guest is about to patch its own text, or has done so: our sites must hold its own bytes meanwhile.
    fn guest_patches(&mut self, begin: bool) {
        let target = Arc::clone(&self.s.target);
        let changed =
            self.stopped_change(|session| if begin { session.plan_hold() } else { session.plan_release(&*target) });
        if let Err(why) = changed {
            self.refuse("making way for the guest's own text patching", why);
        }
        if !begin {
            self.refresh_active();
        }
    }

    fn detach(&mut self) {
        match self.change(Session::plan_detach) {
            Err(why) => self.refuse("detaching", why),
            Ok((change, _)) => {
                self.unguard();
                if let Some(session) = &mut self.session {
                    session.set_detached();
                }
                self.refresh_active();
                let sites = change.applied.patched;
                self.s.note(EventKind::Detached { sites: sites as u64 });
                self.s.publish(Event::Detached { sites });
            }
        }
    }

    /// Takes the hooks out of the guest's own patching.
    fn unguard(&mut self) {
        let Some(session) = &self.session else { return };
        let done = match &mut self.paused {
            Some(guard) => session.set_guard(guard, false),
            None => self.s.target.stop().is_ok_and(|mut guard| session.set_guard(&mut guard, false)),
        };
        if !done {
            let what = "the returns of the guest's ftrace could not be restored".to_owned();
            self.s.publish(Event::Refused { what: "detaching".into(), why: what });
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
