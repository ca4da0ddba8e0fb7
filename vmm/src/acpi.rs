//! ACPI tables of the PC that Linux guests see: the least that makes a kernel find its processors, its interrupt
//! controllers, the serial port, the virtio devices, and the registers that switch the machine off and reset it.
//!
//! It is not a "hardware-reduced" machine: such a one has no PIT and no ISA interrupts for Linux. In exchange the PM1
//! registers exist; `pc.rs` answers for them.

use acpi_tables::aml::{Device, EISAName, IO, Interrupt, Memory32Fixed, Name, Package, ResourceTemplate, Scope, ZERO};
use acpi_tables::facs::FACS;
use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, aml};
use exotrace_guest::abi;
use exotrace_patcher::machine::MemoryError;
use exotrace_trace::ids::Gpa;

use crate::layout::pc;
use crate::memory::Ram;

const OEM: [u8; 6] = *b"EXOTRC";
const OEM_TABLE: [u8; 8] = *b"EXOTRACE";
const OEM_REVISION: u32 = 1;
/// Tables begin at multiples of this; the FACS needs it.
const TABLE_ALIGN: u64 = 64;

/// "There is an 8259 as well."
const MADT_PCAT_COMPAT: u32 = 1;
/// An ISA interrupt that is active high and level triggered.
const MADT_HIGH_LEVEL: u16 = 0b11_01;
/// No VGA, no CMOS clock to be probed for; there is no keyboard controller either, for that its bit stays clear.
const BOOT_ARCH: u16 = 1 << 2 | 1 << 5;
/// The tables name their version: FADT 6.
const SDT_HEADER: u32 = 36;

/// Writes the tables of a machine with `vcpus` processors and `virtio` virtio devices; the result is the RSDP's GPA.
pub(crate) fn write(ram: &Ram, vcpus: u8, virtio: usize) -> Result<Gpa, MemoryError> {
    let mut at = pc::ACPI_GPA + TABLE_ALIGN;
    let mut put = |table: &dyn Aml| -> Result<u64, MemoryError> {
        let mut bytes = Vec::new();
        table.to_aml_bytes(&mut bytes);
        let gpa = at;
        at = (at + bytes.len() as u64).next_multiple_of(TABLE_ALIGN);
        assert!(at <= pc::HIGH_GPA, "the tables of 16 processors and 8 devices take a few KiB");
        ram.write(Gpa(gpa), &bytes)?;
        Ok(gpa)
    };
    let facs = put(&FACS::new())?;
    let dsdt = put(&dsdt(virtio))?;
    let fadt = put(&fadt(dsdt as u32, facs as u32).finalize())?;
    let madt = put(&madt(vcpus))?;
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, OEM_REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    let xsdt = put(&xsdt)?;
    let mut rsdp = Vec::new();
    Rsdp::new(OEM, xsdt).to_aml_bytes(&mut rsdp);
    ram.write(Gpa(pc::ACPI_GPA), &rsdp)?;
    Ok(Gpa(pc::ACPI_GPA))
}

fn fadt(dsdt: u32, facs: u32) -> FADTBuilder {
    // Power and sleep buttons and the clock's alarm are not among the fixed registers.
    let flags = [Flags::Wbinvd, Flags::PwrButton, Flags::SlpButton, Flags::FixRtc, Flags::ResetRegSup];
    let mut t = FADTBuilder::new(OEM, OEM_TABLE, OEM_REVISION).dsdt_32(dsdt).firmware_ctrl_32(facs);
    for flag in flags {
        t = t.flag(flag);
    }
    t.sci_int = u16::from(pc::SCI_GSI).into();
    t.pm1a_evt_blk = u32::from(pc::PM1_EVENT_PORT).into();
    t.pm1_evt_len = 4;
    t.pm1a_cnt_blk = u32::from(pc::PM1_CONTROL_PORT).into();
    t.pm1_cnt_len = 2;
    // No C2 and C3: these are what the specification calls "not supported".
    t.p_lvl2_lat = 101.into();
    t.p_lvl3_lat = 1001.into();
    t.iapc_boot_arch = BOOT_ARCH.into();
    t.reset_reg = GAS::new(AddressSpace::SystemIo, 8, 0, AccessSize::ByteAccess, pc::RESET_PORT.into());
    t.reset_value = pc::RESET_VALUE;
    t
}

fn madt(vcpus: u8) -> Sdt {
    let mut t = Sdt::new(*b"APIC", SDT_HEADER, 5, OEM, OEM_TABLE, OEM_REVISION);
    t.append_slice(&pc::LAPIC_GPA.to_le_bytes());
    t.append_slice(&MADT_PCAT_COMPAT.to_le_bytes());
    for n in 0..vcpus {
        // Processor local APIC: UID, APIC id, enabled.
        t.append_slice(&[0, 8, n, n, 1, 0, 0, 0]);
    }
    // I/O APIC, its id after the processors', lines from 0 on.
    t.append_slice(&[1, 12, vcpus, 0]);
    t.append_slice(&pc::IOAPIC_GPA.to_le_bytes());
    t.append_slice(&0u32.to_le_bytes());
    // Interrupt source override: ACPI's interrupt is active high here.
    t.append_slice(&[2, 10, 0, pc::SCI_GSI]);
    t.append_slice(&u32::from(pc::SCI_GSI).to_le_bytes());
    t.append_slice(&MADT_HIGH_LEVEL.to_le_bytes());
    // NMIs come in at LINT1 of every processor.
    t.append_slice(&[4, 6, 0xff, 0, 0, 1]);
    t
}

fn dsdt(virtio: usize) -> Sdt {
    let off = pc::SLEEP_OFF;
    let mut body = Vec::new();
    Name::new("_S5_".into(), &Package::new(vec![&off, &off, &ZERO, &ZERO])).to_aml_bytes(&mut body);
    let mut devices = Vec::new();
    serial(&mut devices);
    panic_device(&mut devices);
    for n in 0..virtio {
        virtio_device(n, &mut devices);
    }
    body.extend(Scope::raw("_SB_".into(), devices));
    let mut t = Sdt::new(*b"DSDT", SDT_HEADER, 2, OEM, OEM_TABLE, OEM_REVISION);
    t.append_slice(&body);
    t
}

fn serial(to: &mut Vec<u8>) {
    let port = IO::new(abi::PORT_SERIAL, abi::PORT_SERIAL, 1, 8);
    let irq = Interrupt::new(true, true, false, false, pc::SERIAL_GSI);
    Device::new(
        "COM1".into(),
        vec![
            &Name::new("_HID".into(), &EISAName::new("PNP0501")),
            &Name::new("_UID".into(), &ZERO),
            &Name::new("_CRS".into(), &ResourceTemplate::new(vec![&port, &irq])),
        ],
    )
    .to_aml_bytes(to);
}

/// pvpanic: a guest with its driver says that it panics.
fn panic_device(to: &mut Vec<u8>) {
    let port = IO::new(pc::PVPANIC_PORT, pc::PVPANIC_PORT, 1, 1);
    // Present, enabled, functioning.
    let status: aml::Byte = 0xf;
    Device::new(
        "PEVT".into(),
        vec![
            &Name::new("_HID".into(), &"QEMU0001"),
            &Name::new("_STA".into(), &status),
            &Name::new("_CRS".into(), &ResourceTemplate::new(vec![&port])),
        ],
    )
    .to_aml_bytes(to);
}

fn virtio_device(n: usize, to: &mut Vec<u8>) {
    let base = pc::VIRTIO_GPA + n as u64 * pc::VIRTIO_STRIDE;
    let registers = Memory32Fixed::new(true, base as u32, pc::VIRTIO_STRIDE as u32);
    let irq = Interrupt::new(true, true, false, false, pc::VIRTIO_GSI + n as u32);
    let uid = n as aml::Byte;
    Device::new(
        format!("VIO{n:X}").as_str().into(),
        vec![
            &Name::new("_HID".into(), &"LNRO0005"),
            &Name::new("_UID".into(), &uid),
            &Name::new("_CRS".into(), &ResourceTemplate::new(vec![&registers, &irq])),
        ],
    )
    .to_aml_bytes(to);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn bytes(ram: &Ram, gpa: u64, len: usize) -> Vec<u8> {
        let mut b = vec![0; len];
        ram.read(Gpa(gpa), &mut b).unwrap();
        b
    }

    fn u32_at(b: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(b[at..at + 4].try_into().unwrap())
    }

    /// A table with its signature, its checksum verified.
    fn table(ram: &Ram, gpa: u64, signature: &[u8; 4]) -> Vec<u8> {
        let len = u32_at(&bytes(ram, gpa, 8), 4) as usize;
        let t = bytes(ram, gpa, len);
        assert_eq!(&t[..4], signature);
        if signature != b"FACS" {
            assert_eq!(t.iter().fold(0u8, |s, b| s.wrapping_add(*b)), 0, "checksum of {signature:?}");
        }
        t
    }

    #[test]
    fn the_tables_are_linked_and_their_checksums_right() {
        let ram = Ram::new(4 << 20).unwrap();
        let rsdp = write(&ram, 16, pc::VIRTIO_DEVICES).unwrap();
        let r = bytes(&ram, rsdp.0, 36);
        assert_eq!(&r[..8], b"RSD PTR ");
        assert_eq!(r.iter().fold(0u8, |s, b| s.wrapping_add(*b)), 0);
        let xsdt = table(&ram, u64::from(u32_at(&r, 24)), b"XSDT");
        let fadt = table(&ram, u64::from(u32_at(&xsdt, 36)), b"FACP");
        assert_eq!((u32_at(&fadt, 56), u32_at(&fadt, 64)), (0x600, 0x604));
        table(&ram, u64::from(u32_at(&fadt, 36)), b"FACS");
        let dsdt = table(&ram, u64::from(u32_at(&fadt, 40)), b"DSDT");
        let devices = dsdt.windows(8).filter(|w| w == b"LNRO0005").count();
        assert_eq!(devices, pc::VIRTIO_DEVICES);
        let madt = table(&ram, u64::from(u32_at(&xsdt, 44)), b"APIC");
        assert_eq!(madt.len(), 44 + 16 * 8 + 12 + 10 + 6);
        assert_eq!(madt[44 + 15 * 8..][..4], [0, 8, 15, 15]);
    }
}
