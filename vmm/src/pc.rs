//! The PC that Linux guests see, as far as KVM does not emulate it itself: what an access to a port or to an address
//! that is no memory means. Interrupt controllers and the PIT are in the kernel; ACPI tables are in `acpi.rs`.

use exotrace_patcher::control::GuestEnd;
use exotrace_trace::ids::Gpa;

use crate::exit::{Action, Exit, Facts, SERIAL_PORTS, decide_other};
use crate::layout::pc;

/// The keyboard controller's command and status port.
const I8042_COMMAND: u16 = 0x64;
/// Its command to pulse the reset line.
const I8042_RESET: u8 = 0xfe;
/// PM1 control: ACPI has the machine.
const PM1_SCI_EN: u16 = 1;
/// PM1 control: go to the sleep state in bits 12 to 10.
const PM1_SLP_EN: u16 = 1 << 13;
/// pvpanic: the guest panicked.
const PANICKED: u8 = 1;
/// pvpanic: it panicked, and a crash kernel takes over.
const CRASH_LOADED: u8 = 2;
/// Bytes of the PM1 event block.
const PM1_EVENT_BYTES: u16 = 4;

/// Decides what to do about an exit of a Linux guest.
pub(crate) fn decide(exit: Exit, facts: &Facts<'_>) -> Action {
    match exit {
        Exit::PortOut { port, .. } if facts.hooks.contains(&port) => Action::Hook(port),
        Exit::PortOut { port, size: 1, data } if SERIAL_PORTS.contains(&port) => {
            Action::SerialWrite { register: (port - SERIAL_PORTS.start) as u8, data }
        }
        Exit::PortOut { port, data, .. } => port_out(port, &data),
        Exit::PortIn { port, size: 1, bytes } if SERIAL_PORTS.contains(&port) => {
            Action::SerialRead { register: (port - SERIAL_PORTS.start) as u8, bytes }
        }
        Exit::PortIn { port, bytes, .. } => port_in(port, bytes, facts),
        Exit::MmioRead { gpa, bytes } => match virtio(gpa) {
            Some((device, offset)) => Action::VirtioRead { device, offset, bytes },
            None => Action::Nobody { reply: bytes },
        },
        Exit::MmioWrite { gpa, data } => match virtio(gpa) {
            Some((device, offset)) => Action::VirtioWrite { device, offset, data },
            None => Action::Nobody { reply: 0 },
        },
        // The interrupt controller in the kernel keeps a halted vCPU to itself.
        Exit::Hlt => Action::Resume,
        other => decide_other(other),
    }
}

/// Which virtio device an address belongs to, and the offset into its registers.
fn virtio(gpa: Gpa) -> Option<(usize, u64)> {
    let from_first = gpa.0.checked_sub(pc::VIRTIO_GPA)?;
    let device = (from_first / pc::VIRTIO_STRIDE) as usize;
    (device < pc::VIRTIO_DEVICES).then_some((device, from_first % pc::VIRTIO_STRIDE))
}

fn port_out(port: u16, data: &[u8]) -> Action {
    let byte = data.first().copied().unwrap_or(0);
    let word = u16::from_le_bytes([byte, data.get(1).copied().unwrap_or(0)]);
    match port {
        I8042_COMMAND if byte == I8042_RESET => Action::End(GuestEnd::Reset),
        // 2 arms, 6 and 0xe pull the line.
        pc::RESET_PORT if byte & 0b100 != 0 => Action::End(GuestEnd::Reset),
        pc::RESET_PORT => Action::Resume,
        pc::PVPANIC_PORT if byte & PANICKED != 0 => Action::End(GuestEnd::Panic),
        pc::PVPANIC_PORT if byte & CRASH_LOADED != 0 => Action::Resume,
        pc::PM1_CONTROL_PORT if word & PM1_SLP_EN != 0 => match (word >> 10 & 7) as u8 {
            pc::SLEEP_OFF => Action::End(GuestEnd::PowerOff),
            _ => Action::Refused,
        },
        pc::PM1_CONTROL_PORT => Action::Resume,
        _ if port == pc::PM1_EVENT_PORT + 2 => Action::AcpiEnable(word),
        // No event is ever pending, so there is none to be cleared.
        pc::PM1_EVENT_PORT => Action::Resume,
        _ => Action::Nobody { reply: 0 },
    }
}

fn port_in(port: u16, bytes: usize, facts: &Facts<'_>) -> Action {
    let from = |value: &[u8]| {
        let mut reply = vec![0; bytes];
        let n = bytes.min(value.len());
        reply[..n].copy_from_slice(&value[..n]);
        Action::Answer(reply)
    };
    match port {
        // Idle: a kernel that resets through it waits for that first.
        I8042_COMMAND => from(&[0]),
        pc::RESET_PORT => from(&[0]),
        pc::PVPANIC_PORT => from(&[PANICKED | CRASH_LOADED]),
        pc::PM1_CONTROL_PORT => from(&PM1_SCI_EN.to_le_bytes()),
        _ if (pc::PM1_EVENT_PORT..pc::PM1_EVENT_PORT + PM1_EVENT_BYTES).contains(&port) => {
            let block = u32::from(facts.acpi_enabled) << 16;
            from(&block.to_le_bytes()[usize::from(port - pc::PM1_EVENT_PORT)..])
        }
        _ => Action::Nobody { reply: bytes },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts<'_> = Facts { vcpus: 2, if_flag: true, nmi_armed: false, hooks: &[0xe74], acpi_enabled: 0x20 };

    fn out(port: u16, size: u8, data: &[u8]) -> Action {
        decide(Exit::PortOut { port, size, data: data.to_vec() }, &FACTS)
    }
    fn read(port: u16, size: u8) -> Action {
        decide(Exit::PortIn { port, size, bytes: size.into() }, &FACTS)
    }

    #[test]
    fn the_ways_to_end() {
        assert_eq!(out(0x64, 1, &[0xfe]), Action::End(GuestEnd::Reset));
        assert_eq!(out(0x64, 1, &[0xae]), Action::Nobody { reply: 0 });
        assert_eq!(out(0xcf9, 1, &[2]), Action::Resume);
        assert_eq!(out(0xcf9, 1, &[6]), Action::End(GuestEnd::Reset));
        assert_eq!(out(0xcf9, 1, &[0xe]), Action::End(GuestEnd::Reset));
        assert_eq!(out(0x505, 1, &[1]), Action::End(GuestEnd::Panic));
        assert_eq!(out(0x505, 1, &[2]), Action::Resume);
        assert_eq!(out(0x604, 2, &0x3401u16.to_le_bytes()), Action::End(GuestEnd::PowerOff));
        assert_eq!(out(0x604, 2, &0x2001u16.to_le_bytes()), Action::Refused, "S0 is no sleep state");
        assert_eq!(out(0x604, 2, &1u16.to_le_bytes()), Action::Resume);
        // Ports of the embedded guest mean nothing here.
        assert_eq!(out(0x500, 4, &[0; 4]), Action::Nobody { reply: 0 });
    }

    #[test]
    fn acpi_registers() {
        assert_eq!(out(0x602, 2, &[0x20, 1]), Action::AcpiEnable(0x120));
        assert_eq!(out(0x600, 2, &[1, 0]), Action::Resume);
        assert_eq!(read(0x600, 2), Action::Answer(vec![0, 0]));
        assert_eq!(read(0x602, 2), Action::Answer(vec![0x20, 0]));
        assert_eq!(read(0x600, 4), Action::Answer(vec![0, 0, 0x20, 0]));
        assert_eq!(read(0x604, 2), Action::Answer(vec![1, 0]));
        assert_eq!(read(0x603, 4), Action::Answer(vec![0, 0, 0, 0]), "beyond the block there is nothing");
        assert_eq!(read(0x71, 1), Action::Nobody { reply: 1 });
        assert_eq!(read(0x64, 1), Action::Answer(vec![0]));
    }

    #[test]
    fn hooks_serial_and_virtio() {
        assert_eq!(out(0xe74, 4, &[0; 4]), Action::Hook(0xe74));
        assert_eq!(out(0x3f8, 1, b"x"), Action::SerialWrite { register: 0, data: b"x".to_vec() });
        assert_eq!(read(0x3fd, 1), Action::SerialRead { register: 5, bytes: 1 });
        let at = |gpa| decide(Exit::MmioRead { gpa: Gpa(gpa), bytes: 4 }, &FACTS);
        assert_eq!(at(0xd000_1008), Action::VirtioRead { device: 1, offset: 8, bytes: 4 });
        assert_eq!(at(0xd000_8000), Action::Nobody { reply: 4 });
        assert_eq!(at(0xcfff_ffff), Action::Nobody { reply: 4 });
        let write = Exit::MmioWrite { gpa: Gpa(0xd000_0050), data: vec![1, 0, 0, 0] };
        let wanted = Action::VirtioWrite { device: 0, offset: 0x50, data: vec![1, 0, 0, 0] };
        assert_eq!(decide(write, &FACTS), wanted);
    }
}
