//! KVM exits as owned values, and the decision on what to do about one.
//!
//! [`decide`] is a pure function: it looks at nothing but the exit and a few facts, and touches nothing. The vCPU
//! thread carries its decision out.

use exotrace_guest::abi;
use exotrace_patcher::control::GuestEnd;
use exotrace_trace::ids::{Gpa, VcpuId};

/// Registers of the 16550.
pub(crate) const SERIAL_PORTS: std::ops::Range<u16> = abi::PORT_SERIAL..abi::PORT_SERIAL + 8;
/// The keyboard controller's command port.
const I8042_COMMAND: u16 = 0x64;
/// Its command to pulse the reset line.
const I8042_RESET: u32 = 0xfe;

/// Why a vCPU left guest mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It wrote to a port: elements of `size` bytes, one after another.
    PortOut {
        /// The port.
        port: u16,
        /// Bytes of an element: 1, 2 or 4.
        size: u8,
        /// All elements.
        data: Vec<u8>,
    },
    /// It reads from a port and waits for `bytes` bytes.
    PortIn {
        /// The port.
        port: u16,
        /// Bytes of an element: 1, 2 or 4.
        size: u8,
        /// Bytes of all elements.
        bytes: usize,
    },
    /// It read from an address that is no memory.
    MmioRead {
        /// Where.
        gpa: Gpa,
        /// Bytes that it waits for.
        bytes: usize,
    },
    /// It wrote to an address that is no memory.
    MmioWrite {
        /// Where.
        gpa: Gpa,
        /// What: 1 to 8 bytes.
        data: Vec<u8>,
    },
    /// It executed `hlt`.
    Hlt,
    /// It can take an interrupt now.
    IrqWindow,
    /// A signal or `immediate_exit`.
    Interrupted,
    /// Triple fault.
    Shutdown,
    /// The processor refused its state.
    FailEntry {
        /// The processor's reason.
        reason: u64,
    },
    /// KVM could not emulate an instruction, or gave up for another reason.
    Internal {
        /// KVM's suberror.
        suberror: u32,
    },
    /// An exit that nothing here asks for.
    Unexpected(String),
    /// KVM_RUN failed.
    Errno(i32),
}

/// What [`decide`] may know.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// How many vCPUs there are.
    pub vcpus: u8,
    /// The vCPU's interrupt flag.
    pub if_flag: bool,
    /// Whether its NMI timer runs.
    pub nmi_armed: bool,
    /// Ports with a hook.
    pub hooks: &'a [u16],
    /// What a Linux guest wrote to ACPI's PM1 enable register.
    pub acpi_enabled: u16,
}

/// What to do about an exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Go on.
    Resume,
    /// Several things, in this order.
    Many(Vec<Action>),
    /// Nobody answers: count it, and let a read see ones.
    Nobody {
        /// Bytes that the guest waits for; 0 for a write.
        reply: usize,
    },
    /// The access was to something that exists, but asks for nothing sensible: count it.
    Refused,
    /// Bytes for one register of the serial port.
    SerialWrite {
        /// Which register.
        register: u8,
        /// In this order.
        data: Vec<u8>,
    },
    /// Reads of one register of the serial port.
    SerialRead {
        /// Which register.
        register: u8,
        /// How many.
        bytes: usize,
    },
    /// What a read sees.
    Answer(Vec<u8>),
    /// ACPI's PM1 enable register is set to this.
    AcpiEnable(u16),
    /// A read of a virtio device's registers.
    VirtioRead {
        /// Which device; there may be no such.
        device: usize,
        /// Where in its registers.
        offset: u64,
        /// How many bytes.
        bytes: usize,
    },
    /// A write to a virtio device's registers.
    VirtioWrite {
        /// Which device; there may be no such.
        device: usize,
        /// Where in its registers.
        offset: u64,
        /// What.
        data: Vec<u8>,
    },
    /// Start a vCPU.
    CpuOn(VcpuId),
    /// Make the inter-processor interrupt pending.
    Ipi(VcpuId),
    /// Set this vCPU's timer to a period in microseconds; 0 stops it.
    Timer(u32),
    /// Set this vCPU's NMI timer to a period in microseconds; 0 stops it.
    NmiTimer(u32),
    /// Wait until an interrupt or NMI is pending.
    Idle,
    /// Wait until an NMI is pending.
    IdleForNmi,
    /// This vCPU is done.
    Park,
    /// The guest reports a phase.
    Mark(u32),
    /// Call a port's hook.
    Hook(u16),
    /// The guest ends.
    End(GuestEnd),
    /// It halted for good.
    Hang,
    /// A triple fault.
    TripleFault,
    /// KVM can't go on; a sentence without its full stop, to which the place is added.
    Fail(String),
}

/// Decides what to do about an exit of the embedded guest, or of a test's.
#[must_use]
pub fn decide(exit: Exit, facts: &Facts<'_>) -> Action {
    match exit {
        Exit::PortOut { port, size, data } => port_out(port, size, data, facts),
        Exit::PortIn { port, size: 1, bytes } if SERIAL_PORTS.contains(&port) => {
            Action::SerialRead { register: (port - SERIAL_PORTS.start) as u8, bytes }
        }
        Exit::PortIn { bytes, .. } | Exit::MmioRead { bytes, .. } => Action::Nobody { reply: bytes },
        Exit::MmioWrite { .. } => Action::Nobody { reply: 0 },
        Exit::Hlt if facts.if_flag => Action::Idle,
        Exit::Hlt if facts.nmi_armed => Action::IdleForNmi,
        Exit::Hlt => Action::Hang,
        other => decide_other(other),
    }
}

/// What has nothing to do with the machine that the guest sees.
pub(crate) fn decide_other(exit: Exit) -> Action {
    match exit {
        Exit::IrqWindow | Exit::Interrupted => Action::Resume,
        Exit::Shutdown => Action::TripleFault,
        Exit::FailEntry { reason } => {
            Action::Fail(format!("the processor refused the vCPU's state (reason {reason:#x})"))
        }
        Exit::Internal { suberror: 1 } => Action::Fail("KVM could not emulate an instruction".into()),
        Exit::Internal { suberror } => Action::Fail(format!("KVM gave up with internal error {suberror}")),
        Exit::Unexpected(what) => Action::Fail(format!("KVM reported the unexpected exit {what}")),
        Exit::Errno(e) => {
            let text = std::io::Error::from_raw_os_error(e);
            Action::Fail(format!("KVM_RUN failed: {text}"))
        }
        Exit::PortOut { .. } | Exit::PortIn { .. } | Exit::MmioRead { .. } | Exit::MmioWrite { .. } | Exit::Hlt => {
            Action::Fail(format!("nothing handles the exit {exit:?}"))
        }
    }
}

fn port_out(port: u16, size: u8, data: Vec<u8>, facts: &Facts<'_>) -> Action {
    if facts.hooks.contains(&port) {
        return Action::Hook(port);
    }
    if size == 1 && SERIAL_PORTS.contains(&port) {
        return Action::SerialWrite { register: (port - SERIAL_PORTS.start) as u8, data };
    }
    let mut all = data.chunks_exact(usize::from(size.max(1))).map(|element| {
        let value = element.iter().rev().fold(0, |v, b| v << 8 | u32::from(*b));
        command(port, value, facts)
    });
    match (all.next(), all.len()) {
        (None, _) => Action::Refused,
        (Some(only), 0) => only,
        (Some(first), _) => Action::Many(std::iter::once(first).chain(all).collect()),
    }
}

/// One value written to a port that is neither hooked nor the serial port's.
fn command(port: u16, value: u32, facts: &Facts<'_>) -> Action {
    let vcpu = || u8::try_from(value).ok().filter(|v| *v < facts.vcpus).map(VcpuId);
    match port {
        abi::PORT_EXIT => match value {
            abi::EXIT_POWEROFF => Action::End(GuestEnd::PowerOff),
            abi::EXIT_RESET => Action::End(GuestEnd::Reset),
            abi::EXIT_PANIC => Action::End(GuestEnd::Panic),
            abi::EXIT_SELFCHECK => Action::End(GuestEnd::SelfCheckFailed),
            _ => Action::Fail(format!("the guest exited with the unknown code {value:#x}")),
        },
        abi::PORT_CPU_ON => vcpu().map_or(Action::Refused, Action::CpuOn),
        abi::PORT_IPI => vcpu().map_or(Action::Refused, Action::Ipi),
        abi::PORT_TIMER => Action::Timer(value),
        abi::PORT_NMI_TIMER => Action::NmiTimer(value),
        abi::PORT_IDLE => Action::Idle,
        abi::PORT_PARK => Action::Park,
        abi::PORT_MARK => Action::Mark(value),
        I8042_COMMAND if value == I8042_RESET => Action::End(GuestEnd::Reset),
        _ => Action::Nobody { reply: 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts<'_> =
        Facts { vcpus: 4, if_flag: true, nmi_armed: false, hooks: &[0xe74, 0x51c], acpi_enabled: 0 };

    fn out(port: u16, size: u8, data: &[u8]) -> Action {
        decide(Exit::PortOut { port, size, data: data.to_vec() }, &FACTS)
    }
    fn out32(port: u16, value: u32) -> Action {
        out(port, 4, &value.to_le_bytes())
    }

    #[test]
    fn ports_of_the_guest_abi() {
        assert_eq!(out32(abi::PORT_EXIT, 0), Action::End(GuestEnd::PowerOff));
        assert_eq!(out32(abi::PORT_EXIT, 1), Action::End(GuestEnd::Reset));
        assert_eq!(out32(abi::PORT_EXIT, 2), Action::End(GuestEnd::Panic));
        assert_eq!(out32(abi::PORT_EXIT, 3), Action::End(GuestEnd::SelfCheckFailed));
        assert!(matches!(out32(abi::PORT_EXIT, 4), Action::Fail(_)));
        assert_eq!(out32(abi::PORT_CPU_ON, 3), Action::CpuOn(VcpuId(3)));
        assert_eq!(out32(abi::PORT_CPU_ON, 4), Action::Refused);
        assert_eq!(out32(abi::PORT_CPU_ON, 0x100), Action::Refused, "truncated to vCPU 0");
        assert_eq!(out32(abi::PORT_IPI, 0), Action::Ipi(VcpuId(0)));
        assert_eq!(out32(abi::PORT_IPI, u32::MAX), Action::Refused);
        assert_eq!(out32(abi::PORT_TIMER, 4000), Action::Timer(4000));
        assert_eq!(out32(abi::PORT_NMI_TIMER, 0), Action::NmiTimer(0));
        assert_eq!(out32(abi::PORT_IDLE, 0), Action::Idle);
        assert_eq!(out32(abi::PORT_PARK, 0), Action::Park);
        assert_eq!(out32(0x64, 0xfe), Action::End(GuestEnd::Reset));
        assert_eq!(out32(0x64, 0xfd), Action::Nobody { reply: 0 });
    }

    #[test]
    fn hooks_come_first() {
        assert_eq!(out32(0xe74, 1), Action::Hook(0xe74));
        assert_eq!(out32(abi::PORT_MARK, 1), Action::Hook(abi::PORT_MARK));
        let facts = Facts { hooks: &[], ..FACTS };
        let exit = Exit::PortOut { port: abi::PORT_MARK, size: 4, data: vec![7, 0, 0, 0] };
        assert_eq!(decide(exit, &facts), Action::Mark(7));
    }

    #[test]
    fn serial_and_strings() {
        let data = b"hello".to_vec();
        assert_eq!(out(0x3f8, 1, b"hello"), Action::SerialWrite { register: 0, data });
        assert_eq!(out(0x3f8, 2, b"he"), Action::Nobody { reply: 0 });
        let read = |port, size| decide(Exit::PortIn { port, size, bytes: 2 }, &FACTS);
        assert_eq!(read(0x3fd, 1), Action::SerialRead { register: 5, bytes: 2 });
        assert_eq!(read(0x3f8, 2), Action::Nobody { reply: 2 });
        assert_eq!(read(0x400, 1), Action::Nobody { reply: 2 });
        assert_eq!(
            out(abi::PORT_IPI, 1, &[1, 9, 3]),
            Action::Many(vec![Action::Ipi(VcpuId(1)), Action::Refused, Action::Ipi(VcpuId(3))])
        );
        assert_eq!(out(abi::PORT_IPI, 4, &[1, 2]), Action::Refused, "half an element");
        assert_eq!(out(abi::PORT_IPI, 0, &[1]), Action::Ipi(VcpuId(1)));
    }

    #[test]
    fn halting() {
        assert_eq!(decide(Exit::Hlt, &FACTS), Action::Idle);
        let off = Facts { if_flag: false, ..FACTS };
        assert_eq!(decide(Exit::Hlt, &off), Action::Hang);
        assert_eq!(decide(Exit::Hlt, &Facts { nmi_armed: true, ..off }), Action::IdleForNmi);
    }

    #[test]
    fn the_rest() {
        let d = |e| decide(e, &FACTS);
        assert_eq!(d(Exit::MmioRead { gpa: Gpa(1), bytes: 8 }), Action::Nobody { reply: 8 });
        assert_eq!(d(Exit::MmioWrite { gpa: Gpa(1), data: vec![0] }), Action::Nobody { reply: 0 });
        assert_eq!(d(Exit::IrqWindow), Action::Resume);
        assert_eq!(d(Exit::Interrupted), Action::Resume);
        assert_eq!(d(Exit::Shutdown), Action::TripleFault);
        for e in [
            Exit::FailEntry { reason: 0x8000_0021 },
            Exit::Internal { suberror: 1 },
            Exit::Internal { suberror: 3 },
            Exit::Unexpected("x".into()),
            Exit::Errno(libc::EFAULT),
        ] {
            assert!(matches!(d(e.clone()), Action::Fail(_)), "{e:?}");
        }
    }
}
