//! Every guest physical address and KVM slot that the VMM chooses itself. What it shares with the embedded guest is in
//! `exotrace_guest::abi`.

/// Memslot of guest RAM.
pub(crate) const SLOT_RAM: u32 = 0;
/// Memslot of the injected memory.
pub(crate) const SLOT_INJECTED: u32 = 1;

/// GPA of the injected memory. Above the most RAM that the embedded guest can have and above the 32-bit hole, so it
/// collides with nothing, and 2 MiB aligned so that the tracer may map it with large pages.
pub const INJECTED_GPA: u64 = 1 << 32;

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
