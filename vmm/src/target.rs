//! A [`Vm`] as the controller drives it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::RecvTimeoutError;
use exotrace_patcher::control::{FullHook, PatchHook, Target, TargetEvent, error_chain};
use exotrace_trace::clock::{Clock, MAX_TSC_HZ, NS_PER_SEC};
use exotrace_trace::ids::{Tsc, VcpuId};
use exotrace_trace::ring::layout::{DOORBELL_PORT, FULL_PORT, PATCH_BEGIN_PORT, PATCH_END_PORT};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use crate::builder::monotonic_ns;
use crate::event::VmEvent;
use crate::vm::Vm;

/// The trampolines' doorbell: an eventfd that KVM signals, and what it takes to wait for it with a timeout.
pub(crate) struct Bell {
    fd: EventFd,
    epoll: Epoll,
}

impl Bell {
    pub(crate) fn new(fd: EventFd) -> io::Result<Bell> {
        use std::os::fd::AsRawFd;
        let epoll = Epoll::new()?;
        epoll.ctl(ControlOperation::Add, fd.as_raw_fd(), EpollEvent::new(EventSet::IN, 0))?;
        Ok(Bell { fd, epoll })
    }

    fn wait(&self, timeout: Duration) -> bool {
        let ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        // A signal ends the wait early, which the caller can't tell from a timeout and need not.
        let rang = self.epoll.wait(ms, &mut [EpollEvent::default()]).is_ok_and(|n| n > 0);
        if rang {
            // Only this thread reads it; WouldBlock can't be.
            let _ = self.fd.read();
        }
        rang
    }
}

impl Target for Vm {
    fn start(&self) -> Result<(), String> {
        Vm::start(self).map_err(|e| error_chain(&e))
    }

    fn next_event(&self, timeout: Duration) -> Option<TargetEvent> {
        match self.events().recv_timeout(timeout) {
            Ok(VmEvent::Mark { value, .. }) => Some(TargetEvent::Mark(value)),
            Ok(VmEvent::Ended(end)) => Some(TargetEvent::Ended(end)),
            // The console is read from its buffer, and who is online is asked when it is drawn.
            Ok(VmEvent::Console | VmEvent::CpuOnline(_))
            | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }

    fn console(&self) -> Vec<u8> {
        Vm::console(self)
    }

    fn console_input(&self, bytes: &[u8]) {
        Vm::console_input(self, bytes);
    }

    fn online(&self, vcpu: VcpuId) -> bool {
        self.vcpu_online(vcpu)
    }

    fn on_ring_full(&self, hook: FullHook) -> Result<(), String> {
        self.set_port_hook(FULL_PORT, hook).map_err(|e| error_chain(&e))?;
        let bell = self.doorbell(DOORBELL_PORT).map_err(|e| error_chain(&e))?;
        let bell = Bell::new(bell).map_err(|e| format!("cannot wait for the doorbell: {e}"))?;
        // Set once: a VM has one controller, which sets its hooks once.
        let _ = self.bell.set(bell);
        Ok(())
    }

    fn on_guest_patching(&self, hook: PatchHook) -> Result<(), String> {
        for (port, begin) in [(PATCH_BEGIN_PORT, true), (PATCH_END_PORT, false)] {
            let hook = Arc::clone(&hook);
            self.set_port_hook(port, Arc::new(move |_| hook(begin))).map_err(|e| error_chain(&e))?;
        }
        Ok(())
    }

    fn wait_doorbell(&self, timeout: Duration) -> bool {
        match self.bell.get() {
            Some(bell) => bell.wait(timeout),
            None => {
                std::thread::sleep(timeout);
                false
            }
        }
    }

    fn clock(&self) -> Clock {
        let facts = Vm::clock(self);
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let wall_ns = wall.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
        let now_ns = monotonic_ns();
        // KVM told the frequency; should it be nonsense, times are shown as if cycles were nanoseconds.
        let hz = if facts.tsc_hz == 0 || facts.tsc_hz > MAX_TSC_HZ { NS_PER_SEC } else { facts.tsc_hz };
        let measured = Clock::new(hz, Tsc(facts.guest_tsc), 0, facts.host_ns).expect("the frequency is in range");
        Clock::new(hz, measured.tsc_at_mono(now_ns), wall_ns, now_ns).expect("the frequency is in range")
    }

    fn quit(&self) {
        Vm::quit(self);
    }
}
