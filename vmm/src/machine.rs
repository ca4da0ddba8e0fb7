//! The two machines that a guest can find itself on: none that exists elsewhere (the embedded guest, and tests), and a
//! PC (Linux). From a VM with memory to vCPUs that are ready to run.

use exotrace_patcher::machine::VcpuState;
use exotrace_trace::ids::{Gva, VcpuId};
use kvm_bindings::{
    CpuId, KVM_MAX_CPUID_ENTRIES, KVM_PIT_SPEAKER_DUMMY, Msrs, kvm_msr_entry, kvm_pit_config, kvm_xcrs,
};
use kvm_ioctls::{Cap, Kvm, VcpuFd, VmFd};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::boot::embedded::{self, BootFacts, write_boot};
use crate::boot::linux;
use crate::builder::read_clock;
use crate::config::{LinuxImage, VmConfig};
use crate::devices::virtio::{Block, Console, Device, MmioDevice, Rng};
use crate::error::Error;
use crate::layout::pc;
use crate::memory::Ram;
use crate::shared::{Pc, VirtioConsole};
use crate::vcpu::read_state;
use crate::vm::ClockFacts;
use crate::{acpi, cpuid, image};

const MSR_MISC_ENABLE: u32 = 0x1a0;
/// Fast string operations.
const MISC_ENABLE_FAST_STRING: u64 = 1;
const MSR_MTRR_DEF_TYPE: u32 = 0x2ff;
/// MTRRs are on, and without any of them memory is write-back.
const MTRR_WRITE_BACK: u64 = 1 << 11 | 6;
/// Offsets in a local APIC's page, and delivery modes in its vector table.
const APIC_LVT0: usize = 0x350;
const APIC_LVT1: usize = 0x360;
const APIC_MODE_NMI: u32 = 4 << 8;
const APIC_MODE_EXTINT: u32 = 7 << 8;

/// vCPUs that are ready to run.
pub(crate) struct Machine {
    pub(crate) fds: Vec<VcpuFd>,
    pub(crate) states: Vec<VcpuState>,
    /// The privilege level of the guest's kernel.
    pub(crate) cpl: u8,
    pub(crate) clock: ClockFacts,
    pub(crate) pc: Option<Pc>,
}

/// Loads the embedded guest (or a test's instructions) and sets its vCPUs up.
pub(crate) fn embedded(kvm: &Kvm, fd: &VmFd, cpl: u8, config: &VmConfig, ram: &Ram) -> Result<Machine, Error> {
    let entry = image::load(&config.image, ram)?;
    let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(Error::kvm("list the CPU's features"))?;
    let (mut fds, mut states) = (Vec::new(), Vec::new());
    for id in (0..config.vcpus).map(VcpuId) {
        let (vcpu, state) = embedded_vcpu(fd, id, cpl, entry, &cpuid)?;
        states.push(state);
        fds.push(vcpu);
    }
    let clock = read_clock(&fds[0], cpl)?;
    let facts = BootFacts { vcpus: config.vcpus, cpl, tsc_hz: clock.tsc_hz, cmdline: &config.cmdline };
    write_boot(ram, &facts).map_err(|e| Error::Map { bytes: ram.len(), source: std::io::Error::other(e) })?;
    Ok(Machine { fds, states, cpl, clock, pc: None })
}

fn embedded_vcpu(fd: &VmFd, id: VcpuId, cpl: u8, entry: Gva, cpuid: &CpuId) -> Result<(VcpuFd, VcpuState), Error> {
    let vcpu = fd.create_vcpu(id.0.into()).map_err(Error::kvm("create a vCPU"))?;
    let mut cpuid = cpuid.clone();
    for e in cpuid.as_mut_slice() {
        match e.function {
            // Initial APIC id.
            1 => e.ebx = e.ebx & 0x00ff_ffff | u32::from(id.0) << 24,
            // x2APIC id.
            0xb | 0x1f => e.edx = id.0.into(),
            _ => {}
        }
    }
    vcpu.set_cpuid2(&cpuid).map_err(Error::kvm("set a vCPU's features"))?;
    let mut sregs = vcpu.get_sregs().map_err(Error::kvm("read a vCPU's registers"))?;
    embedded::set_sregs(&mut sregs, id, cpl);
    vcpu.set_sregs(&sregs).map_err(Error::kvm("set a vCPU's system registers"))?;
    vcpu.set_regs(&embedded::regs(id, cpl, entry)).map_err(Error::kvm("set a vCPU's registers"))?;
    let state = read_state(&vcpu, false).map_err(Error::kvm("read a vCPU's registers"))?;
    Ok((vcpu, state))
}

/// Makes a PC, loads a Linux kernel into it and sets its vCPUs up.
pub(crate) fn linux(kvm: &Kvm, fd: &VmFd, image: &LinuxImage, config: &VmConfig, ram: &Ram) -> Result<Machine, Error> {
    // Before any vCPU: each gets its local APIC when it is made.
    fd.create_irq_chip().map_err(Error::kvm("make interrupt controllers"))?;
    let pit = kvm_pit_config { flags: KVM_PIT_SPEAKER_DUMMY, ..Default::default() };
    fd.create_pit2(pit).map_err(Error::kvm("make a timer (PIT)"))?;
    let serial_irq = irq_line(fd, pc::SERIAL_GSI)?;
    let (virtio, console) = virtio_devices(fd, config)?;
    let rsdp = acpi::write(ram, config.vcpus, virtio.len())
        .map_err(|e| Error::Map { bytes: ram.len(), source: std::io::Error::other(e) })?;
    let entry = linux::load(image, &config.cmdline, rsdp, ram)?;

    let supported = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(Error::kvm("list the CPU's features"))?;
    let facts = cpuid::Facts { vcpus: config.vcpus, tsc_deadline: kvm.check_extension(Cap::TscDeadlineTimer) };
    let (mut fds, mut states) = (Vec::new(), Vec::new());
    for id in (0..config.vcpus).map(VcpuId) {
        let vcpu = linux_vcpu(fd, id, entry, cpuid::for_vcpu(&supported, id, facts))?;
        if let Some(xcr0) = cpuid::xcr0_to_preset(&supported) {
            set_xcr0(&vcpu, xcr0)?;
        }
        states.push(read_state(&vcpu, true).map_err(Error::kvm("read a vCPU's registers"))?);
        fds.push(vcpu);
    }
    let clock = read_clock(&fds[0], 0)?;
    let pc = Pc { acpi_enabled: 0.into(), serial_irq, virtio, console };
    Ok(Machine { fds, states, cpl: 0, clock, pc: Some(pc) })
}

/// Disks first, so that their numbers follow the command line's; then random numbers and the console.
fn virtio_devices(fd: &VmFd, config: &VmConfig) -> Result<(Vec<MmioDevice>, VirtioConsole), Error> {
    let mut devices: Vec<Box<dyn Device>> = Vec::new();
    for disk in &config.disks {
        devices.push(Box::new(Block::open(disk)?));
    }
    let no_random = |source| Error::Kvm { what: "connect the source of random numbers", source };
    devices.push(Box::new(Rng::new().map_err(no_random)?));
    let console = VirtioConsole { device: devices.len(), ..VirtioConsole::default() };
    devices.push(Box::new(Console::new(console.input.clone(), console.output.clone())));
    let mut all = Vec::new();
    for (n, device) in devices.into_iter().enumerate() {
        let irq = irq_line(fd, pc::VIRTIO_GSI + n as u32)?;
        all.push(MmioDevice::new(device, irq).expect("the devices' queues have possible lengths"));
    }
    Ok((all, console))
}

/// An event descriptor that pulls an interrupt line, as an edge, when it is written.
fn irq_line(fd: &VmFd, gsi: u32) -> Result<EventFd, Error> {
    let event = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)
        .map_err(|source| Error::Kvm { what: "connect an interrupt line", source })?;
    fd.register_irqfd(&event, gsi).map_err(Error::kvm("connect an interrupt line"))?;
    Ok(event)
}

fn linux_vcpu(fd: &VmFd, id: VcpuId, entry: Gva, cpuid: Option<CpuId>) -> Result<VcpuFd, Error> {
    let vcpu = fd.create_vcpu(id.0.into()).map_err(Error::kvm("create a vCPU"))?;
    let cpuid = cpuid.ok_or_else(|| Error::Kvm {
        what: "set a vCPU's features",
        source: std::io::Error::other("it lists more of them than it takes"),
    })?;
    vcpu.set_cpuid2(&cpuid).map_err(Error::kvm("set a vCPU's features"))?;
    set_msrs(&vcpu)?;
    set_lapic(&vcpu)?;
    if id.0 == 0 {
        let mut sregs = vcpu.get_sregs().map_err(Error::kvm("read a vCPU's registers"))?;
        linux::set_sregs(&mut sregs);
        vcpu.set_sregs(&sregs).map_err(Error::kvm("set a vCPU's system registers"))?;
        vcpu.set_regs(&linux::regs(entry)).map_err(Error::kvm("set a vCPU's registers"))?;
    }
    Ok(vcpu)
}

/// What firmware does. A kernel boots without either, if slower, so it is no error that a host refuses one.
fn set_msrs(vcpu: &VcpuFd) -> Result<(), Error> {
    for (index, data) in [(MSR_MISC_ENABLE, MISC_ENABLE_FAST_STRING), (MSR_MTRR_DEF_TYPE, MTRR_WRITE_BACK)] {
        let entry = kvm_msr_entry { index, data, ..Default::default() };
        let msrs = Msrs::from_entries(&[entry])
            .map_err(|e| Error::Kvm { what: "list an MSR", source: std::io::Error::other(format!("{e:?}")) })?;
        vcpu.set_msrs(&msrs).map_err(Error::kvm("set an MSR"))?;
    }
    Ok(())
}

fn set_xcr0(vcpu: &VcpuFd, value: u64) -> Result<(), Error> {
    let mut xcrs = kvm_xcrs { nr_xcrs: 1, ..Default::default() };
    (xcrs.xcrs[0].xcr, xcrs.xcrs[0].value) = (0, value);
    vcpu.set_xcrs(&xcrs).map_err(Error::kvm("set a vCPU's extended states"))
}

/// The 8259's interrupts come in at LINT0, NMIs at LINT1.
fn set_lapic(vcpu: &VcpuFd) -> Result<(), Error> {
    let mut lapic = vcpu.get_lapic().map_err(Error::kvm("read a local APIC"))?;
    for (at, mode) in [(APIC_LVT0, APIC_MODE_EXTINT), (APIC_LVT1, APIC_MODE_NMI)] {
        for (byte, value) in lapic.regs[at..at + 4].iter_mut().zip(mode.to_le_bytes()) {
            *byte = value as _;
        }
    }
    vcpu.set_lapic(&lapic).map_err(Error::kvm("set a local APIC"))
}
