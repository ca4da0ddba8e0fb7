//! The patcher's view of a VM: stopping it, and its memory.
//!
//! A stop before the start or after the end of the guest succeeds: all vCPUs stand anyway, and their memory is there.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use exotrace_patcher::control::PauseTimes;
use exotrace_patcher::machine::{GuestRead, Machine, MemoryError, StopError, Stopped, VcpuState};
use exotrace_trace::ids::{Gpa, VcpuId};

use crate::lock;
use crate::memory::InjectedMemory;
use crate::vm::Vm;

/// All vCPUs of a VM, stopped. Dropping it lets those go on that ran before.
///
/// Stops take turns: a second one waits until the first guard is dropped, so a thread that holds one must not ask for
/// another.
pub struct StoppedVm<'a> {
    vm: &'a Vm,
    kick: Duration,
    since: Instant,
    _turn: MutexGuard<'a, ()>,
}

impl GuestRead for Vm {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), MemoryError> {
        self.shared.ram.read(gpa, buf)
    }
}

impl Machine for Vm {
    type Stopped<'a> = StoppedVm<'a>;
    type Injected = InjectedMemory;

    fn vcpus(&self) -> u8 {
        self.shared.cpus.len() as u8
    }

    fn stop(&self) -> Result<StoppedVm<'_>, StopError> {
        let turn = lock(&self.stopping);
        let start = Instant::now();
        self.shared.timers.hold(true);
        if let Err(vcpu) = self.shared.rendezvous.stop(self.stop_timeout) {
            self.shared.resume();
            return Err(StopError::Timeout { vcpu, waited: start.elapsed() });
        }
        Ok(StoppedVm { vm: self, kick: start.elapsed(), since: Instant::now(), _turn: turn })
    }

    fn injected(&self) -> InjectedMemory {
        self.injected.clone()
    }

    fn injected_gpa(&self) -> Gpa {
        Gpa(self.injected_gpa)
    }

    fn injected_len(&self) -> u64 {
        exotrace_trace::ring::RingMemory::len(&self.injected) as u64
    }
}

impl GuestRead for StoppedVm<'_> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), MemoryError> {
        self.vm.read(gpa, buf)
    }
}

impl Stopped for StoppedVm<'_> {
    fn write(&mut self, gpa: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.vm.shared.ram.write(gpa, bytes)
    }

    fn vcpu(&self, vcpu: VcpuId) -> Option<VcpuState> {
        self.vm.shared.rendezvous.state(vcpu)
    }

    fn stop_time(&self) -> Duration {
        self.kick
    }
}

impl Drop for StoppedVm<'_> {
    fn drop(&mut self) {
        let work = self.since.elapsed();
        let start = Instant::now();
        self.vm.shared.resume();
        let times = PauseTimes { kick: self.kick, work, resume: start.elapsed() };
        lock(&self.vm.stats).record(times);
    }
}
