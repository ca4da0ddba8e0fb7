//! The worker: carries out commands, one after another.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crossbeam_channel::Receiver;
use exotrace_trace::file::EventKind;

use super::controller::{Input, Shared, lock};
use super::session::{Change, Session, SessionError};
use super::target::{Target, TargetEvent};
use super::{Command, Event, GuestEnd, PauseTimes, error_chain};
use crate::machine::Stopped;
use crate::plan::Plan;

/// See the module's docs.
pub(super) struct Worker<'a, T: Target> {
    s: &'a Shared<T>,
    session: Session,
    /// Held while the guest is paused by command.
    paused: Option<T::Stopped<'a>>,
}

impl<'a, T: Target> Worker<'a, T> {
    pub(super) fn new(s: &'a Shared<T>, session: Session) -> Worker<'a, T> {
        Worker { s, session, paused: None }
    }

    pub(super) fn run(mut self, inputs: &Receiver<Input>) {
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
