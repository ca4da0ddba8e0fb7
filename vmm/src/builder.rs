//! From a configuration to a VM that is ready to start.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use kvm_bindings::{Msrs, kvm_msr_entry, kvm_userspace_memory_region};
use kvm_ioctls::{Cap, Kvm, VcpuFd, VmFd};

use crate::config::VmConfig;
use crate::devices::serial::SerialPort;
use crate::error::Error;
use crate::event::EventSink;
use crate::histogram::PauseStats;
use crate::host::HostReport;
use crate::layout::{KVM_IDENTITY_MAP_ADDRESS, KVM_TSS_ADDRESS, SLOT_INJECTED, SLOT_RAM, SLOT_RAM_HIGH, injected_gpa};
use crate::machine;
use crate::memory::{InjectedMemory, Ram};
use crate::rendezvous::{CpuShared, Rendezvous};
use crate::shared::{Counters, Shared};
use crate::timer::Timers;
use crate::vcpu::kvm::{Kicker, RunPage};
use crate::vm::{ClockFacts, Vm};

const MSR_IA32_TSC: u32 = 0x10;

/// Builds a VM. Nothing runs yet.
pub(crate) fn build(config: VmConfig, host: &HostReport) -> Result<Vm, Error> {
    host.usable()?;
    config.validate(host.max_vcpus)?;
    if config.linux().is_some() {
        host.runs_linux()?;
    }
    let path = CString::new(host.device.as_os_str().as_bytes())
        .map_err(|e| Error::Kvm { what: "open its device", source: e.into() })?;
    let kvm = Kvm::new_with_path(path).map_err(Error::kvm("open its device"))?;
    let fd = create_vm(&kvm)?;
    let ram = Ram::new(config.ram_bytes)?;
    let injected = InjectedMemory::new(config.injected_bytes)?;
    for ((gpa, len, at), slot) in ram.parts().zip([SLOT_RAM, SLOT_RAM_HIGH]) {
        add_memory(&fd, slot, gpa, len, at)?;
    }
    let injected_gpa = injected_gpa(config.ram_bytes);
    add_memory(&fd, SLOT_INJECTED, injected_gpa, config.injected_bytes, injected.host_address())?;
    let machine = match config.linux() {
        Some(image) => machine::linux(&kvm, &fd, image, &config, &ram)?,
        None => machine::embedded(&kvm, &fd, host.guest_cpl(), &config, &ram)?,
    };

    let mut cpus = Vec::new();
    for vcpu in &machine.fds {
        let page =
            RunPage::map(vcpu, fd.run_size()).map_err(|source| Error::Kvm { what: "share a vCPU's state", source })?;
        cpus.push(Arc::new(CpuShared::new(Kicker::new(Some(page)))));
    }
    let events = Arc::new(EventSink::new());
    // KVM starts the other vCPUs of a PC, we those of the embedded guest.
    let ready = if machine.pc.is_some() { cpus.len() } else { 1 };
    let shared = Shared {
        ram,
        rendezvous: Rendezvous::new(cpus.clone(), machine.states, ready, Arc::clone(&events)),
        cpus,
        timers: Timers::new(config.vcpus),
        serial: SerialPort::new(),
        events,
        counters: Counters::default(),
        pc: machine.pc,
        hooks: OnceLock::new(),
    };
    Ok(Vm {
        shared: Arc::new(shared),
        injected,
        injected_gpa,
        fd,
        cpl: machine.cpl,
        clock: machine.clock,
        stop_timeout: config.stop_timeout,
        stopping: Mutex::new(()),
        stats: Mutex::new(PauseStats::default()),
        set_up: Mutex::new(crate::vm::SetUp { fds: Some(machine.fds), ..Default::default() }),
        bell: std::sync::OnceLock::new(),
    })
}

fn create_vm(kvm: &Kvm) -> Result<VmFd, Error> {
    let start = Instant::now();
    let fd = loop {
        match kvm.create_vm() {
            Ok(fd) => break fd,
            // A signal may interrupt it; Linux documents no other reason to try again.
            Err(e) if e.errno() == libc::EINTR && start.elapsed() < Duration::from_secs(5) => {}
            Err(e) => return Err(Error::kvm("create a VM")(e)),
        }
    };
    // VMX needs both; elsewhere they are accepted or not offered.
    if kvm.check_extension(Cap::SetIdentityMapAddr) {
        fd.set_identity_map_address(KVM_IDENTITY_MAP_ADDRESS).map_err(Error::kvm("place its identity map"))?;
    }
    if kvm.check_extension(Cap::SetTssAddr) {
        fd.set_tss_address(KVM_TSS_ADDRESS).map_err(Error::kvm("place its TSS"))?;
    }
    Ok(fd)
}

fn add_memory(fd: &VmFd, slot: u32, gpa: u64, len: u64, host: u64) -> Result<(), Error> {
    let region =
        kvm_userspace_memory_region { slot, flags: 0, guest_phys_addr: gpa, memory_size: len, userspace_addr: host };
    // SAFETY: `host` is the start of a mapping of `len` bytes that lives as long as any vCPU thread of this VM, and all
    // accesses of this program to it are volatile or atomic.
    unsafe { fd.set_user_memory_region(region) }.map_err(Error::kvm("add guest memory"))
}

/// Relates the guest's TSC to the host's monotonic clock, before the guest runs.
pub(crate) fn read_clock(vcpu: &VcpuFd, cpl: u8) -> Result<ClockFacts, Error> {
    let khz = vcpu.get_tsc_khz().map_err(Error::kvm("tell the TSC's frequency"))?;
    let before = monotonic_ns();
    let guest_tsc = if cpl == 3 {
        // Without hardware virtualisation nothing offsets the TSC: `rdtsc` at CPL 3 reads the processor's.
        // SAFETY: RDTSC exists on every x86-64 processor and user programs may execute it.
        unsafe { std::arch::x86_64::_rdtsc() }
    } else {
        let entry = kvm_msr_entry { index: MSR_IA32_TSC, ..Default::default() };
        let mut msrs = Msrs::from_entries(&[entry])
            .map_err(|e| Error::Kvm { what: "list an MSR", source: std::io::Error::other(format!("{e:?}")) })?;
        vcpu.get_msrs(&mut msrs).map_err(Error::kvm("read the guest's TSC"))?;
        msrs.as_slice().first().map_or(0, |m| m.data)
    };
    // The middle of the two is at most half their distance off.
    let host_ns = before + (monotonic_ns() - before) / 2;
    Ok(ClockFacts { tsc_hz: u64::from(khz) * 1000, guest_tsc, host_ns })
}

pub(crate) fn monotonic_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime fills the structure that it is given, and CLOCK_MONOTONIC always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
