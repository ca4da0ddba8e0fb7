//! Who may be in guest mode: the lock behind starting, stopping, idling and ending.
//!
//! One mutex guards one small table. A vCPU thread is either *running* (in guest mode, or on its way in or out) or it
//! *stands*, with its registers published and any port or MMIO access completed. A thread runs only between two calls
//! of [`Rendezvous::stand`]; stopping is asking everybody to come to `stand` and waiting until nobody runs.
//!
//! What keeps a kick from being lost: a request is stored before the kick, the kick sets `immediate_exit`, and the
//! thread clears `immediate_exit` *before* it looks for requests on its way into guest mode. Either it sees the
//! request, or KVM_RUN sees `immediate_exit`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use exotrace_patcher::control::GuestEnd;
use exotrace_patcher::machine::VcpuState;
use exotrace_trace::ids::VcpuId;

use crate::event::{EventSink, VmEvent};
use crate::intc::Pending;
use crate::lock;
use crate::vcpu::kvm::Kicker;

/// While waiting for a vCPU it is kicked again this often: a safety net that has nothing to do in practice.
const KICK_AGAIN: Duration = Duration::from_millis(100);

/// What a vCPU does, or waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not started by the guest yet.
    WaitingForStart,
    /// In guest mode, or would be if it were not for a stop.
    Running,
    /// Waits for an interrupt or NMI.
    Idle,
    /// Waits for an NMI.
    IdleForNmi,
    /// Done for good.
    Parked,
}

/// What a vCPU's thread shares with everybody.
#[derive(Debug)]
pub(crate) struct CpuShared {
    pub(crate) pending: Pending,
    /// There is something to look at before going into guest mode.
    pub(crate) attention: AtomicBool,
    /// Of a vCPU that the guest starts with INIT and SIPI, without us: it has been started.
    pub(crate) started: AtomicBool,
    pub(crate) kicker: Kicker,
}

impl CpuShared {
    pub(crate) fn new(kicker: Kicker) -> CpuShared {
        CpuShared {
            pending: Pending::default(),
            attention: AtomicBool::new(false),
            started: AtomicBool::new(false),
            kicker,
        }
    }

    fn kick(&self) {
        self.attention.store(true, Ordering::SeqCst);
        self.kicker.kick();
    }
}

#[derive(Debug)]
struct Slot {
    phase: Phase,
    running: bool,
    state: VcpuState,
}

#[derive(Debug)]
struct Table {
    stop: bool,
    /// Stops so far: tells a thread that one came and went while it stood.
    stops: u64,
    ended: Option<GuestEnd>,
    announced: bool,
    shutdown: bool,
    slots: Vec<Slot>,
}

/// What a thread that stood does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Go into guest mode. `stopped`: all vCPUs were stopped meanwhile.
    Go { stopped: bool },
    /// End the thread.
    Leave,
}

/// See the module's docs.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    table: Mutex<Table>,
    /// One a vCPU: its thread stands.
    go: Vec<Condvar>,
    /// Someone waits for all to stand.
    stood: Condvar,
    cpus: Vec<Arc<CpuShared>>,
    events: Arc<EventSink>,
}

impl Rendezvous {
    /// All vCPUs stand, with these registers; the first `ready` are ready to run once they have a thread.
    pub(crate) fn new(
        cpus: Vec<Arc<CpuShared>>,
        states: Vec<VcpuState>,
        ready: usize,
        events: Arc<EventSink>,
    ) -> Rendezvous {
        let slots = states.into_iter().enumerate().map(|(n, state)| Slot {
            phase: if n < ready { Phase::Running } else { Phase::WaitingForStart },
            running: false,
            state,
        });
        let table =
            Table { stop: false, stops: 0, ended: None, announced: false, shutdown: false, slots: slots.collect() };
        let go = cpus.iter().map(|_| Condvar::new()).collect();
        Rendezvous { table: Mutex::new(table), go, stood: Condvar::new(), cpus, events }
    }

    /// A vCPU thread stands in `phase` until it may go on. `state`: its registers, if they may have changed.
    pub(crate) fn stand(&self, id: VcpuId, phase: Phase, state: Option<VcpuState>) -> Next {
        let n = id.index();
        let mut t = lock(&self.table);
        let (stops, mut stopped) = (t.stops, t.stop);
        self.stood_in(&mut t, n, phase, state);
        loop {
            if t.shutdown {
                return Next::Leave;
            }
            if !t.stop && t.ended.is_none() && self.may_run(&t, n) {
                t.slots[n].running = true;
                t.slots[n].phase = Phase::Running;
                stopped |= t.stops != stops;
                return Next::Go { stopped };
            }
            t = self.go[n].wait(t).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A vCPU thread stands, but does something else before it comes to [`Rendezvous::stand`].
    pub(crate) fn step_aside(&self, id: VcpuId, state: VcpuState) {
        let mut t = lock(&self.table);
        self.stood_in(&mut t, id.index(), Phase::Running, Some(state));
    }

    fn stood_in(&self, t: &mut Table, n: usize, phase: Phase, state: Option<VcpuState>) {
        let slot = &mut t.slots[n];
        // A vCPU that was started while its thread was not standing yet keeps that.
        let started = phase == Phase::WaitingForStart && slot.phase == Phase::Running;
        slot.phase = if started { Phase::Running } else { phase };
        slot.running = false;
        if let Some(state) = state {
            slot.state = state;
        }
        let dead = |s: &Slot| matches!(s.phase, Phase::Parked | Phase::WaitingForStart);
        if phase == Phase::Parked && t.slots.iter().all(dead) && t.ended.is_none() {
            let why = "every vCPU parked itself, so nothing can run any more".into();
            t.ended = Some(GuestEnd::Failed { why });
        }
        self.nobody_runs(t);
    }

    fn may_run(&self, t: &Table, n: usize) -> bool {
        match t.slots[n].phase {
            Phase::Running => true,
            Phase::Idle => self.cpus[n].pending.any(),
            Phase::IdleForNmi => self.cpus[n].pending.nmi(),
            Phase::WaitingForStart | Phase::Parked => false,
        }
    }

    /// If nobody runs, tells those who wait for that; the end is announced once.
    fn nobody_runs(&self, t: &mut Table) {
        if t.slots.iter().any(|s| s.running) {
            return;
        }
        self.stood.notify_all();
        if t.announced {
            return;
        }
        if let Some(end) = &t.ended {
            self.events.send(VmEvent::Ended(end.clone()));
            t.announced = true;
        }
    }

    fn kick_running(&self, t: &Table) {
        for (slot, cpu) in t.slots.iter().zip(&self.cpus) {
            if slot.running {
                cpu.kick();
            }
        }
    }

    fn wake_all(&self) {
        self.go.iter().for_each(Condvar::notify_all);
    }

    /// Whether a thread on its way into guest mode has to stand.
    pub(crate) fn must_stand(&self) -> bool {
        let t = lock(&self.table);
        t.stop || t.shutdown || t.ended.is_some()
    }

    /// Something became pending for a vCPU.
    pub(crate) fn wake(&self, id: VcpuId) {
        let t = lock(&self.table);
        match t.slots.get(id.index()) {
            Some(slot) if slot.running => self.cpus[id.index()].kick(),
            Some(_) => self.go[id.index()].notify_all(),
            None => {}
        }
    }

    /// Starts a vCPU. False if it was started before.
    pub(crate) fn cpu_on(&self, id: VcpuId) -> bool {
        let mut t = lock(&self.table);
        match t.slots.get_mut(id.index()) {
            Some(slot) if slot.phase == Phase::WaitingForStart => slot.phase = Phase::Running,
            _ => return false,
        }
        self.events.send(VmEvent::CpuOnline(id));
        self.go[id.index()].notify_all();
        true
    }

    /// Stops all vCPUs: returns when they stand. The caller makes sure that there is one stop at a time.
    pub(crate) fn stop(&self, timeout: Duration) -> Result<(), VcpuId> {
        let start = Instant::now();
        let mut t = lock(&self.table);
        t.stop = true;
        t.stops += 1;
        loop {
            let Some(n) = t.slots.iter().position(|s| s.running) else { return Ok(()) };
            let Some(left) = timeout.checked_sub(start.elapsed()) else {
                t.stop = false;
                self.wake_all();
                return Err(VcpuId(n as u8));
            };
            self.kick_running(&t);
            t = self.wait_stood(t, left.min(KICK_AGAIN));
        }
    }

    fn wait_stood<'a>(&self, t: MutexGuard<'a, Table>, time: Duration) -> MutexGuard<'a, Table> {
        // Woken only when nobody runs, so a spurious wake-up costs one kick more and nothing else.
        self.stood.wait_timeout(t, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Lets the vCPUs go on that ran before [`Rendezvous::stop`].
    pub(crate) fn resume(&self) {
        lock(&self.table).stop = false;
        self.wake_all();
    }

    /// Ends the guest, unless it has ended: all vCPUs come to stand for good.
    pub(crate) fn end(&self, end: GuestEnd) {
        let mut t = lock(&self.table);
        if t.ended.is_none() {
            t.ended = Some(end);
            self.kick_running(&t);
            self.nobody_runs(&mut t);
        }
    }

    /// Sends all threads home. Idempotent.
    pub(crate) fn shutdown(&self) {
        let mut t = lock(&self.table);
        t.shutdown = true;
        self.kick_running(&t);
        self.wake_all();
    }

    /// A vCPU thread is over; it stands for good.
    pub(crate) fn thread_over(&self, id: VcpuId) {
        let mut t = lock(&self.table);
        if let Some(slot) = t.slots.get_mut(id.index()) {
            slot.running = false;
        }
        self.nobody_runs(&mut t);
    }

    /// Registers as of the last time that the vCPU stood.
    pub(crate) fn state(&self, id: VcpuId) -> Option<VcpuState> {
        lock(&self.table).slots.get(id.index()).map(|s| s.state)
    }

    /// What a vCPU does.
    pub(crate) fn phase(&self, id: VcpuId) -> Option<Phase> {
        lock(&self.table).slots.get(id.index()).map(|s| s.phase)
    }

    /// Whether the guest has ended, or is about to.
    pub(crate) fn ending(&self) -> bool {
        lock(&self.table).ended.is_some()
    }

    /// Why the guest ended, once it has and all vCPUs stand.
    pub(crate) fn ended(&self) -> Option<GuestEnd> {
        let t = lock(&self.table);
        if t.announced { t.ended.clone() } else { None }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::thread;

    const SHORT: Duration = Duration::from_millis(30);
    /// For another thread to be scheduled, on a loaded machine.
    const LONG_ENOUGH: Duration = Duration::from_millis(500);
    const LONG: Duration = Duration::from_secs(10);
    const GO: Next = Next::Go { stopped: false };

    fn table(n: usize) -> (Arc<Rendezvous>, Vec<Arc<CpuShared>>) {
        let cpu = || Arc::new(CpuShared::new(Kicker::new(None)));
        let cpus: Vec<_> = (0..n).map(|_| cpu()).collect();
        let states = vec![VcpuState::default(); n];
        let events = Arc::new(EventSink::new());
        (Arc::new(Rendezvous::new(cpus.clone(), states, 1, events)), cpus)
    }

    #[test]
    fn a_vcpu_that_never_comes_is_named_and_the_rest_goes_on() {
        let (r, cpus) = table(2);
        assert_eq!(r.stand(VcpuId(0), Phase::Running, None), GO);
        assert!(r.cpu_on(VcpuId(1)));
        assert!(!r.cpu_on(VcpuId(1)));
        assert!(!r.cpu_on(VcpuId(2)));
        assert_eq!(r.stand(VcpuId(1), Phase::WaitingForStart, None), GO);
        let q = Arc::clone(&r);
        // vCPU 0 comes, vCPU 1 does not.
        let t = thread::spawn(move || {
            while !q.must_stand() {
                thread::yield_now();
            }
            q.stand(VcpuId(0), Phase::Running, None)
        });
        assert_eq!(r.stop(LONG_ENOUGH), Err(VcpuId(1)));
        assert!(matches!(t.join().unwrap(), Next::Go { .. }), "resumed after the time-out");
        assert!(cpus[1].attention.load(Ordering::SeqCst));
        assert!(!r.must_stand());
    }

    #[test]
    fn standing_vcpus_need_no_kick_and_resume_as_before() {
        let (r, cpus) = table(3);
        assert_eq!(r.stop(SHORT), Ok(()));
        r.resume();
        assert!(cpus.iter().all(|c| !c.attention.load(Ordering::SeqCst)));
        let q = Arc::clone(&r);
        let idle = thread::spawn(move || q.stand(VcpuId(0), Phase::Idle, None));
        assert_eq!(r.stop(LONG), Ok(()));
        assert!(cpus[0].pending.raise(0x20));
        r.wake(VcpuId(0));
        thread::sleep(SHORT);
        assert!(!idle.is_finished(), "ran while stopped");
        r.resume();
        assert!(matches!(idle.join().unwrap(), Next::Go { .. }));
        assert_eq!(r.phase(VcpuId(0)), Some(Phase::Running));
    }

    #[test]
    fn the_end_is_announced_once_when_nobody_runs() {
        let (r, _) = table(2);
        let rx = r.events.receiver();
        assert_eq!(r.stand(VcpuId(0), Phase::Running, None), GO);
        r.end(GuestEnd::Panic);
        r.end(GuestEnd::PowerOff);
        assert_eq!((rx.len(), r.ended()), (0, None), "vCPU 0 still runs");
        r.step_aside(VcpuId(0), VcpuState { rip: exotrace_trace::ids::Gva(7), ..Default::default() });
        assert_eq!(rx.try_iter().collect::<Vec<_>>(), [VmEvent::Ended(GuestEnd::Panic)]);
        assert_eq!(r.ended(), Some(GuestEnd::Panic));
        assert_eq!(r.state(VcpuId(0)).unwrap().rip.0, 7);
        r.shutdown();
        assert_eq!(r.stand(VcpuId(0), Phase::Running, None), Next::Leave);
        r.thread_over(VcpuId(0));
        assert_eq!((rx.len(), r.stop(SHORT)), (0, Ok(())));
    }

    #[test]
    fn all_parked_is_an_end() {
        let (r, _) = table(2);
        assert_eq!(r.stand(VcpuId(0), Phase::Running, None), GO);
        let q = Arc::clone(&r);
        let t = thread::spawn(move || q.stand(VcpuId(0), Phase::Parked, None));
        let event = r.events.receiver().recv_timeout(LONG).unwrap();
        assert!(matches!(event, VmEvent::Ended(GuestEnd::Failed { .. })), "{event:?}");
        r.shutdown();
        assert_eq!(t.join().unwrap(), Next::Leave);
    }
}
