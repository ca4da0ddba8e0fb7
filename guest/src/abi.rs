// The contract between the embedded guest and the VMM that boots it. `build.rs` includes this file as well and turns
// every `pub const NAME: u64|u32|u16|u8 = …;` into a `#define EXO_NAME` for the C side, so there is one source of truth.
// (Plain comments, no inner docs: the file is `include!`d.)

/// Guest virtual address minus guest physical address of all guest RAM.
pub const VIRT_OFFSET: u64 = 0x4000_0000;
/// GPA of the boot page tables that the VMM writes: PML4, PDPT, PD follow page by page (RAM in 2 MiB pages, user bit set).
pub const PAGE_TABLES_GPA: u64 = 0x1000;
/// GPA of the GDT that the VMM writes.
pub const GDT_GPA: u64 = 0x8000;
/// GPA of the IDT: 256 16-byte gates. The VMM points IDTR at it; the guest fills it (it starts out zero).
pub const IDT_GPA: u64 = 0x9000;
/// GPA of the boot information page, `struct boot_info`.
pub const BOOT_INFO_GPA: u64 = 0xa000;
/// GPA of the TSS of vCPU 0; the TSS of vCPU n follows at n * 256 bytes. Written by the VMM; RSP0 is set.
pub const TSS_GPA: u64 = 0xc000;
/// GPA of the I/O permission bitmap that all TSSs share (8 KiB and a byte; the VMM writes it): with it a CPL 3 kernel
/// may use ports. IOPL is not kept on every host.
pub const IO_BITMAP_GPA: u64 = 0xd000;
/// GPA of the CPL 0 entry stack of vCPU 0 (used only when the kernel runs at CPL 3); one page each, RSP0 is its end.
pub const ENTRY_STACK_GPA: u64 = 0x10000;
/// GPA that the image is linked at (its GVA is VIRT_OFFSET higher).
pub const IMAGE_GPA: u64 = 0x10_0000;
/// GPA of vCPU 0's per-CPU area; GS base of vCPU n is PERCPU_GPA + VIRT_OFFSET + n * PERCPU_STRIDE.
pub const PERCPU_GPA: u64 = 0x80_0000;
/// Distance between per-CPU areas.
pub const PERCPU_STRIDE: u64 = 0x1_0000;
/// Memory from here up to the end of RAM is free for the guest's allocator.
pub const FREE_GPA: u64 = 0xa0_0000;
/// vCPUs at most.
pub const MAX_CPUS: u64 = 16;
/// Least RAM.
pub const MIN_RAM_BYTES: u64 = 0x200_0000;
/// Most RAM (one PD maps it all).
pub const MAX_RAM_BYTES: u64 = 0x2000_0000;

/// Selectors in the VMM's GDT.
pub const SEL_CODE0: u64 = 0x08;
/// Data, CPL 0.
pub const SEL_DATA0: u64 = 0x10;
/// Data, CPL 3 (must equal Linux's user data selector: on a PVM host `iretq` at CPL 3 runs natively).
pub const SEL_DATA3: u64 = 0x2b;
/// 64-bit code, CPL 3 (must equal Linux's user code selector).
pub const SEL_CODE3: u64 = 0x33;
/// TSS.
pub const SEL_TSS: u64 = 0x40;

/// `boot_info.magic`.
pub const BOOT_MAGIC: u32 = 0x6f78_6531;
/// Longest command line, with its terminating zero.
pub const CMDLINE_BYTES: u64 = 1024;

/// Vector of the timer interrupt.
pub const VEC_TIMER: u64 = 0x20;
/// Vector of the inter-processor interrupt.
pub const VEC_IPI: u64 = 0x21;
/// Vector of the serial port (COM1, IRQ 4).
pub const VEC_SERIAL: u64 = 0x24;

/// COM1.
pub const PORT_SERIAL: u16 = 0x3f8;
/// out u32: end of the run, EXIT_*.
pub const PORT_EXIT: u16 = 0x500;
/// out u32: start vCPU n at the image's entry point.
pub const PORT_CPU_ON: u16 = 0x504;
/// out u32: send VEC_IPI to vCPU n.
pub const PORT_IPI: u16 = 0x508;
/// out u32: period of this vCPU's timer interrupt in microseconds, 0 stops it.
pub const PORT_TIMER: u16 = 0x50c;
/// out u32: sleep until an interrupt or NMI is pending for this vCPU. Returns at once if one is, or if one was delivered
/// since the last sleep: it may have come between the guest's look for work and this request.
pub const PORT_IDLE: u16 = 0x510;
/// out u32: period of this vCPU's NMI in microseconds, 0 stops it.
pub const PORT_NMI_TIMER: u16 = 0x514;
/// out u32: this vCPU is done for good.
pub const PORT_PARK: u16 = 0x518;
/// out u32: a phase of the workload begins or ends (MARK_*); the VMM reports it as an event.
pub const PORT_MARK: u16 = 0x51c;

/// Exit: power off, all well.
pub const EXIT_POWEROFF: u32 = 0;
/// Exit: reset.
pub const EXIT_RESET: u32 = 1;
/// Exit: the guest panicked (its message is on the console).
pub const EXIT_PANIC: u32 = 2;
/// Exit: the guest's self-check failed.
pub const EXIT_SELFCHECK: u32 = 3;

/// Mark: all CPUs are up.
pub const MARK_SMP_UP: u32 = 1;
/// Mark: the workload begins.
pub const MARK_WORK_BEGIN: u32 = 2;
/// Mark: the workload is done, all workers have ended.
pub const MARK_WORK_END: u32 = 3;
