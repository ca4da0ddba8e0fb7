//! One thread that makes timer interrupts and NMIs pending, for all vCPUs.
//!
//! There are at most 32 periods, so the next deadline is found by looking at all of them. Missed deadlines are never
//! made up for: after a late wake-up or a stop each period begins anew.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use exotrace_trace::ids::VcpuId;

use crate::lock;

/// The shortest period: below it the host would do nothing else.
const SHORTEST: Duration = Duration::from_micros(50);

/// What a period makes pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tick {
    Timer = 0,
    Nmi = 1,
}

#[derive(Clone, Copy, Debug)]
struct Period {
    next: Instant,
    every: Duration,
}

#[derive(Debug)]
struct State {
    periods: Vec<[Option<Period>; 2]>,
    /// Vcpus stand: nothing is due.
    held: bool,
    /// The thread waits for the hold to end.
    resting: bool,
    quit: bool,
}

/// The periods and their thread's state.
#[derive(Debug)]
pub(crate) struct Timers {
    state: Mutex<State>,
    changed: Condvar,
}

impl Timers {
    pub(crate) fn new(vcpus: u8) -> Timers {
        let periods = vec![[None; 2]; vcpus.into()];
        let state = State { periods, held: false, resting: false, quit: false };
        Timers { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Sets a period in microseconds; 0 stops it, and very short ones are made longer.
    pub(crate) fn set(&self, vcpu: VcpuId, tick: Tick, us: u32) {
        let period = (us > 0).then(|| {
            let every = Duration::from_micros(us.into()).max(SHORTEST);
            Period { next: Instant::now() + every, every }
        });
        let mut s = lock(&self.state);
        if let Some(slots) = s.periods.get_mut(vcpu.index()) {
            slots[tick as usize] = period;
            self.changed.notify_one();
        }
    }

    /// Whether a period is set.
    pub(crate) fn armed(&self, vcpu: VcpuId, tick: Tick) -> bool {
        let s = lock(&self.state);
        s.periods.get(vcpu.index()).is_some_and(|p| p[tick as usize].is_some())
    }

    /// Holds all periods while the vCPUs stand, or lets them go on.
    pub(crate) fn hold(&self, on: bool) {
        let mut s = lock(&self.state);
        s.held = on;
        // The thread notices a hold at its next deadline; there is no need to wake it for one.
        if !on && s.resting {
            self.changed.notify_one();
        }
    }

    /// Ends the thread.
    pub(crate) fn quit(&self) {
        lock(&self.state).quit = true;
        self.changed.notify_one();
    }

    /// The thread: calls `fire` for everything that is due until [`Timers::quit`].
    pub(crate) fn run(&self, fire: impl Fn(VcpuId, Tick)) {
        let mut due = Vec::new();
        let mut s = lock(&self.state);
        while !s.quit {
            s.resting = s.held;
            let next = if s.held { None } else { s.take_due(Instant::now(), &mut due) };
            if !due.is_empty() {
                drop(s);
                due.drain(..).for_each(|(vcpu, tick)| fire(vcpu, tick));
                s = lock(&self.state);
                continue;
            }
            s = match next {
                None => self.changed.wait(s).unwrap_or_else(std::sync::PoisonError::into_inner),
                Some(wait) => self.changed.wait_timeout(s, wait).unwrap_or_else(std::sync::PoisonError::into_inner).0,
            };
        }
    }
}

impl State {
    /// Collects what is due and begins its next period; the result is how long nothing will be due.
    fn take_due(&mut self, now: Instant, due: &mut Vec<(VcpuId, Tick)>) -> Option<Duration> {
        let mut earliest: Option<Instant> = None;
        for (n, slots) in self.periods.iter_mut().enumerate() {
            for tick in [Tick::Timer, Tick::Nmi] {
                let Some(p) = &mut slots[tick as usize] else { continue };
                if p.next <= now {
                    due.push((VcpuId(n as u8), tick));
                    p.next += p.every;
                    if p.next <= now {
                        p.next = now + p.every;
                    }
                }
                earliest = Some(earliest.map_or(p.next, |e| e.min(p.next)));
            }
        }
        earliest.map(|e| e.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc;

    #[test]
    fn due_periods_begin_anew_and_never_burst() {
        let t = Timers::new(2);
        t.set(VcpuId(0), Tick::Timer, 1000);
        t.set(VcpuId(1), Tick::Nmi, 1);
        t.set(VcpuId(9), Tick::Timer, 1000);
        assert!(t.armed(VcpuId(0), Tick::Timer) && !t.armed(VcpuId(0), Tick::Nmi));
        assert!(!t.armed(VcpuId(9), Tick::Timer));
        let mut s = lock(&t.state);
        assert_eq!(s.periods[1][1].unwrap().every, SHORTEST);
        let start = s.periods[0][0].unwrap().next - Duration::from_millis(1);
        let mut due = Vec::new();
        s.take_due(start, &mut due);
        assert_eq!(due, []);
        s.take_due(start + Duration::from_millis(1), &mut due);
        assert_eq!(due, [(VcpuId(0), Tick::Timer), (VcpuId(1), Tick::Nmi)]);
        due.clear();
        // An hour late: once each, and the next a whole period later.
        let late = start + Duration::from_secs(3600);
        let wait = s.take_due(late, &mut due);
        assert_eq!((due.len(), wait), (2, Some(SHORTEST)));
        due.clear();
        s.take_due(late, &mut due);
        assert_eq!(due, []);
    }

    #[test]
    fn the_thread_fires_holds_and_quits() {
        let t = Arc::new(Timers::new(1));
        let (tx, rx) = mpsc::channel();
        let u = Arc::clone(&t);
        let thread = std::thread::spawn(move || u.run(|v, k| tx.send((v, k)).unwrap()));
        t.set(VcpuId(0), Tick::Timer, 500);
        let wait = Duration::from_secs(10);
        assert_eq!(rx.recv_timeout(wait).unwrap(), (VcpuId(0), Tick::Timer));
        t.hold(true);
        std::thread::sleep(Duration::from_millis(20));
        while rx.try_recv().is_ok() {}
        assert!(rx.recv_timeout(Duration::from_millis(20)).is_err(), "fired while held");
        t.hold(false);
        rx.recv_timeout(wait).unwrap();
        t.quit();
        thread.join().unwrap();
    }
}
