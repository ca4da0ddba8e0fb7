//! Every guest physical address, port, interrupt line and KVM slot that the VMM chooses itself. What it shares with the
//! embedded guest is in `exotrace_guest::abi`; what a Linux guest sees is the lower half of this page.

/// Memslot of guest RAM.
pub(crate) const SLOT_RAM: u32 = 0;
/// Memslot of the injected memory.
pub(crate) const SLOT_INJECTED: u32 = 1;

/// Memslot of the RAM above the hole.
pub(crate) const SLOT_RAM_HIGH: u32 = 2;

/// Lowest GPA of the injected memory: above the 32-bit hole, so that it collides with nothing. A VM whose RAM goes
/// beyond it has its injected memory above that RAM, see [`injected_gpa`].
pub const INJECTED_GPA: u64 = 1 << 32;
/// Alignment of the injected memory: generous, so that its address is easily told from RAM's.
const INJECTED_ALIGN: u64 = 1 << 30;

/// First GPA of the hole for devices below 4 GiB; RAM that does not fit below goes above 4 GiB.
pub(crate) const HOLE_GPA: u64 = 3 << 30;
/// First GPA above the hole.
pub(crate) const HIGH_RAM_GPA: u64 = 1 << 32;

/// GPA of the injected memory of a VM with this much RAM.
pub(crate) fn injected_gpa(ram_bytes: u64) -> u64 {
    let above = ram_bytes.saturating_sub(HOLE_GPA);
    INJECTED_GPA + above.next_multiple_of(INJECTED_ALIGN)
}

/// Granule of RAM and of the injected memory: both are mapped with 2 MiB pages.
pub(crate) const LARGE_PAGE: u64 = 2 << 20;
/// A 4 KiB page.
pub(crate) const PAGE: u64 = 4096;

/// Where VMX keeps its three-page real-mode TSS: KVM wants it below 4 GiB, in no memslot.
pub(crate) const KVM_TSS_ADDRESS: usize = 0xfffb_d000;
/// Where VMX keeps its identity page table: right below the TSS.
pub(crate) const KVM_IDENTITY_MAP_ADDRESS: u64 = 0xfffb_c000;

/// Distance between the TSSes of two vCPUs.
pub(crate) const TSS_STRIDE: u64 = 256;
/// Size of a 64-bit TSS without an I/O permission bitmap.
pub(crate) const TSS_BYTES: u64 = 0x68;
/// Offset of the u16 that says where the I/O permission bitmap begins, counted from the TSS.
pub(crate) const TSS_IO_BASE: u64 = 0x66;
/// GPA of the I/O permission bitmap that all TSSes share: all zero, so that a CPL 3 kernel may use every port. IOPL
/// would do the same, but a PVM host does not keep it.
pub(crate) const IO_BITMAP_GPA: u64 = 0xd000;
/// One bit a port, and the byte after the last that processors look at as well.
pub(crate) const IO_BITMAP_BYTES: u64 = 65536 / 8 + 1;
/// Offset of RSP0 in a 64-bit TSS.
pub(crate) const TSS_RSP0: u64 = 4;
/// Limit of the GDT: up to and with the 16-byte TSS descriptor at 0x40.
pub(crate) const GDT_LIMIT: u16 = 0x4f;
/// Limit of the IDT: 256 gates of 16 bytes.
pub(crate) const IDT_LIMIT: u16 = 0xfff;

/// Offsets in `struct boot_info`: u32 magic, nr_cpus, cpl, reserved; u64 ram_bytes, tsc_hz; char cmdline[].
pub(crate) mod boot_info {
    /// u32.
    pub(crate) const MAGIC: u64 = 0;
    /// u32.
    pub(crate) const NR_CPUS: u64 = 4;
    /// u32: 0 or 3.
    pub(crate) const CPL: u64 = 8;
    /// u64.
    pub(crate) const RAM_BYTES: u64 = 16;
    /// u64.
    pub(crate) const TSC_HZ: u64 = 24;
    /// Zero-terminated text.
    pub(crate) const CMDLINE: u64 = 32;
}

/// What a Linux guest on a PC finds in its lowest MiB, and its devices.
pub(crate) mod pc {
    /// The GDT of the boot protocol: null, null, code, data.
    pub(crate) const GDT_GPA: u64 = 0x500;
    /// PML4; the PDPT and the four PDs that map the first 4 GiB follow page by page.
    pub(crate) const PAGE_TABLES_GPA: u64 = 0x1000;
    /// `struct boot_params`, one page.
    pub(crate) const ZERO_PAGE_GPA: u64 = 0x8000;
    /// End of the boot stack (it grows down into a page of its own).
    pub(crate) const STACK_GPA: u64 = 0xa000;
    /// The command line.
    pub(crate) const CMDLINE_GPA: u64 = 0x2_0000;
    /// The longest command line that any kernel takes, with its terminating zero.
    pub(crate) const CMDLINE_BYTES: u64 = 4096;
    /// First GPA that is no ordinary low memory any more: the EBDA of a PC, its video memory and its ROMs follow.
    pub(crate) const LOW_END_GPA: u64 = 0x9_fc00;
    /// ACPI's RSDP, where kernels look for it that are not told; the tables follow.
    pub(crate) const ACPI_GPA: u64 = 0xe_0000;
    /// First GPA after the room for ACPI tables, and of the room for kernels.
    pub(crate) const HIGH_GPA: u64 = 0x10_0000;

    /// KVM's I/O APIC.
    pub(crate) const IOAPIC_GPA: u32 = 0xfec0_0000;
    /// KVM's local APICs.
    pub(crate) const LAPIC_GPA: u32 = 0xfee0_0000;
    /// Registers of the first virtio device.
    pub(crate) const VIRTIO_GPA: u64 = 0xd000_0000;
    /// Distance between two virtio devices' registers.
    pub(crate) const VIRTIO_STRIDE: u64 = 0x1000;
    /// Interrupt line of the first virtio device: the first that no ISA device can have.
    pub(crate) const VIRTIO_GSI: u32 = 16;
    /// Virtio devices at most: the I/O APIC has 24 lines.
    pub(crate) const VIRTIO_DEVICES: usize = 8;

    /// Interrupt line of COM1.
    pub(crate) const SERIAL_GSI: u32 = 4;
    /// Interrupt line of ACPI events.
    pub(crate) const SCI_GSI: u8 = 9;
    /// pvpanic's one port.
    pub(crate) const PVPANIC_PORT: u16 = 0x505;
    /// ACPI's PM1a event block: u16 status, u16 enable.
    pub(crate) const PM1_EVENT_PORT: u16 = 0x600;
    /// ACPI's PM1a control register, u16.
    pub(crate) const PM1_CONTROL_PORT: u16 = 0x604;
    /// The chipset's reset control register.
    pub(crate) const RESET_PORT: u16 = 0xcf9;
    /// What resets the machine when it is written there.
    pub(crate) const RESET_VALUE: u8 = 0x06;
    /// SLP_TYP of the sleep state S5: off.
    pub(crate) const SLEEP_OFF: u8 = 5;
}
