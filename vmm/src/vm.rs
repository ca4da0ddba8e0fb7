//! The running VM as its users see it.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use exotrace_patcher::control::GuestEnd;
use exotrace_trace::ids::VcpuId;
use kvm_ioctls::{IoEventAddress, NoDatamatch, VcpuFd, VmFd};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::builder::build;
use crate::config::VmConfig;
use crate::error::Error;
use crate::event::VmEvent;
use crate::histogram::PauseStats;
use crate::host::HostReport;
use crate::lock;
use crate::memory::InjectedMemory;
use crate::rendezvous::Phase;
use crate::shared::{Shared, VmCounters};
use crate::target::Bell;
use crate::vcpu;

/// How long tearing a VM down waits for its threads. Only a hook that never returns makes it wait at all; its thread
/// is left behind then.
const LAST_WAIT: Duration = Duration::from_secs(3);

/// Called on a vCPU's thread when the vCPU wrote to a hooked port. The vCPU counts as stopped meanwhile: the hook may
/// block, and others may stop the VM while it does. It should return soon after the guest has ended.
pub type PortHook = Arc<dyn Fn(VcpuId) + Send + Sync>;

/// How the guest's TSC relates to the host's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockFacts {
    /// The TSC's frequency, in Hz.
    pub tsc_hz: u64,
    /// What a `rdtsc` of the guest would have read at `host_ns`.
    pub guest_tsc: u64,
    /// The host's CLOCK_MONOTONIC, in nanoseconds.
    pub host_ns: u64,
}

/// What is needed before or at the start only.
#[derive(Default)]
pub(crate) struct SetUp {
    /// Given to their threads at the start.
    pub(crate) fds: Option<Vec<VcpuFd>>,
    pub(crate) hooks: Vec<(u16, PortHook)>,
    pub(crate) doorbells: Vec<(u16, EventFd)>,
    pub(crate) threads: Vec<JoinHandle<()>>,
    /// Disconnected when the last vCPU thread is over.
    pub(crate) alive: Option<Receiver<()>>,
}

/// A virtual machine. Dropping it ends the guest and its threads.
pub struct Vm {
    pub(crate) shared: Arc<Shared>,
    pub(crate) injected: InjectedMemory,
    pub(crate) injected_gpa: u64,
    pub(crate) fd: VmFd,
    pub(crate) cpl: u8,
    pub(crate) clock: ClockFacts,
    pub(crate) stop_timeout: Duration,
    /// Held by whoever has the vCPUs stopped.
    pub(crate) stopping: Mutex<()>,
    pub(crate) stats: Mutex<PauseStats>,
    pub(crate) set_up: Mutex<SetUp>,
    /// Set when a controller takes the VM over.
    pub(crate) bell: OnceLock<Bell>,
}

impl Vm {
    /// Makes a VM, loads its image and sets up its vCPUs. Nothing runs yet.
    ///
    /// # Errors
    /// When the host, the configuration or the image won't do, or KVM refuses something; see [`Error`].
    pub fn new(config: VmConfig, host: &HostReport) -> Result<Vm, Error> {
        build(config, host)
    }

    /// Starts the guest: vCPU 0 runs at the image's entry point, the others when the guest asks for them.
    ///
    /// # Errors
    /// When it was started before, or a thread can't be started. Such a VM can only be dropped.
    pub fn start(&self) -> Result<(), Error> {
        let mut s = lock(&self.set_up);
        let Some(fds) = s.fds.take() else { return Err(Error::Started("a start")) };
        // Set only here, and `fds` was there: this is the first and only time.
        let _ = self.shared.hooks.set(std::mem::take(&mut s.hooks));
        let (alive, over) = bounded(0);
        s.alive = Some(over);
        let shared = Arc::clone(&self.shared);
        let name = "timer".to_owned();
        let thread = std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || shared.timers.run(|vcpu, tick| shared.tick(vcpu, tick)))
            .map_err(|source| Error::Thread { name, source })?;
        s.threads.push(thread);
        self.shared.cpus[0].started.store(true, Ordering::Relaxed);
        self.shared.events.send(VmEvent::CpuOnline(VcpuId(0)));
        for (n, fd) in fds.into_iter().enumerate() {
            let shared = Arc::clone(&self.shared);
            s.threads.push(vcpu::spawn(VcpuId(n as u8), fd, shared, alive.clone())?);
        }
        Ok(())
    }

    /// Calls `hook` whenever a vCPU writes to `port`; nothing else happens at that port then.
    ///
    /// # Errors
    /// When the VM was started already.
    pub fn set_port_hook(&self, port: u16, hook: PortHook) -> Result<(), Error> {
        let mut s = lock(&self.set_up);
        if s.fds.is_none() {
            return Err(Error::Started("setting a port hook"));
        }
        s.hooks.retain(|(p, _)| *p != port);
        s.hooks.push((port, hook));
        Ok(())
    }

    /// An event descriptor that becomes readable when a vCPU writes to `port`, without an exit to this program. It
    /// does not block: reading it when nothing was written is `WouldBlock`.
    ///
    /// # Errors
    /// When KVM refuses it, or descriptors run out.
    pub fn doorbell(&self, port: u16) -> Result<EventFd, Error> {
        let failed = |source: io::Error| Error::Kvm { what: "make a doorbell", source };
        let mut s = lock(&self.set_up);
        if let Some((_, fd)) = s.doorbells.iter().find(|(p, _)| *p == port) {
            return fd.try_clone().map_err(failed);
        }
        let fd = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map_err(failed)?;
        let copy = fd.try_clone().map_err(failed)?;
        let at = IoEventAddress::Pio(port.into());
        self.fd.register_ioevent(&fd, &at, NoDatamatch).map_err(Error::kvm("make a doorbell"))?;
        s.doorbells.push((port, fd));
        Ok(copy)
    }

    /// What happens. All receivers share one stream.
    #[must_use]
    pub fn events(&self) -> Receiver<VmEvent> {
        self.shared.events.receiver()
    }

    /// The last 64 KiB of console output.
    #[must_use]
    pub fn console(&self) -> Vec<u8> {
        self.console_since(0).1
    }

    /// Console output from byte `from` on (counted over all output ever, as far as it is kept), and the number of the
    /// byte that comes next.
    #[must_use]
    pub fn console_since(&self, from: u64) -> (u64, Vec<u8>) {
        self.shared.events.console_read();
        self.shared.serial.output_since(from)
    }

    /// Bytes that the guest wrote to its console, ever.
    #[must_use]
    pub fn console_total(&self) -> u64 {
        self.shared.serial.output_since(u64::MAX).0
    }

    /// Types at the guest's console. Returns how many bytes were taken: a guest that does not read has a bounded
    /// buffer.
    pub fn console_input(&self, bytes: &[u8]) -> usize {
        self.shared.type_in(bytes)
    }

    /// Whether a vCPU was started and is neither parked nor ended.
    #[must_use]
    pub fn vcpu_online(&self, vcpu: VcpuId) -> bool {
        let phase = self.shared.rendezvous.phase(vcpu);
        if self.shared.pc.is_some()
            && !self.shared.cpus.get(vcpu.index()).is_some_and(|c| c.started.load(Ordering::Relaxed))
        {
            return false;
        }
        lock(&self.set_up).alive.is_some()
            && !self.shared.rendezvous.ending()
            && matches!(phase, Some(Phase::Running | Phase::Idle | Phase::IdleForNmi))
    }

    /// Why the guest ended, once it has and all vCPUs stand.
    #[must_use]
    pub fn ended(&self) -> Option<GuestEnd> {
        self.shared.rendezvous.ended()
    }

    /// Ends the guest. Returns at once; [`VmEvent::Ended`] follows unless it had ended before.
    pub fn quit(&self) {
        self.shared.end(GuestEnd::Quit);
    }

    /// Counts since the VM was made.
    #[must_use]
    pub fn counters(&self) -> VmCounters {
        self.shared.counters()
    }

    /// How long stops took.
    #[must_use]
    pub fn pause_stats(&self) -> PauseStats {
        lock(&self.stats).clone()
    }

    /// The privilege level that the guest's kernel runs at: 0 or 3.
    #[must_use]
    pub fn guest_cpl(&self) -> u8 {
        self.cpl
    }

    /// How the guest's TSC relates to the host's clock.
    #[must_use]
    pub fn clock(&self) -> ClockFacts {
        self.clock
    }

    /// Guest RAM in bytes.
    #[must_use]
    pub fn ram_bytes(&self) -> u64 {
        self.shared.ram.len()
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.quit();
        self.shared.rendezvous.shutdown();
        self.shared.timers.quit();
        let mut s = lock(&self.set_up);
        let over = s.alive.take().map(|a| a.recv_timeout(LAST_WAIT));
        let threads = std::mem::take(&mut s.threads);
        if over == Some(Err(RecvTimeoutError::Timeout)) {
            return;
        }
        for t in threads {
            // A panic was reported as the guest's end.
            let _ = t.join();
        }
    }
}
