//! The embedded guest's boot protocol: what lies in memory and in the registers before its first instruction.
//!
//! Every vCPU starts straight in 64-bit mode. On a host without hardware virtualisation the kernel runs at CPL 3 with
//! IOPL 3 (CPL 0 would be emulated instruction by instruction), everywhere else at CPL 0.

use exotrace_guest::abi;
use exotrace_patcher::machine::MemoryError;
use exotrace_trace::ids::{Gpa, Gva, VcpuId};
use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs};

use crate::layout::{
    GDT_LIMIT, IDT_LIMIT, IO_BITMAP_BYTES, IO_BITMAP_GPA, LARGE_PAGE, PAGE, TSS_BYTES, TSS_IO_BASE, TSS_RSP0,
    TSS_STRIDE, boot_info,
};
use crate::memory::Ram;

/// Present, writable, user.
const PTE_TABLE: u64 = 0x7;
/// Present, writable, user, large.
const PTE_LARGE: u64 = 0x87;

/// PG, AM, WP, NE, ET, MP, PE.
const CR0: u64 = 0x8005_0033;
/// PAE, OSFXSR, OSXMMEXCPT. PCIDE is refused by a PVM host.
const CR4: u64 = 0x620;
/// SCE, LME, LMA. NXE is refused by a PVM host.
const EFER: u64 = 0x501;
/// Bit 1 always, IF, IOPL 3: a CPL 3 kernel uses ports.
const RFLAGS_CPL3: u64 = 0x3202;
/// Bit 1 always; the kernel switches interrupts on when it can take them.
const RFLAGS_CPL0: u64 = 0x2;

/// What the guest is told.
pub(crate) struct BootFacts<'a> {
    pub(crate) vcpus: u8,
    pub(crate) cpl: u8,
    pub(crate) tsc_hz: u64,
    pub(crate) cmdline: &'a str,
}

// The structures lie one after another, and below the image.
const _: () = {
    assert!(abi::PAGE_TABLES_GPA + 3 * PAGE <= abi::GDT_GPA);
    assert!(abi::BOOT_INFO_GPA + boot_info::CMDLINE + abi::CMDLINE_BYTES <= abi::TSS_GPA);
    assert!(TSS_BYTES <= TSS_STRIDE);
    assert!(tss(abi::MAX_CPUS) <= IO_BITMAP_GPA);
    assert!(IO_BITMAP_GPA + IO_BITMAP_BYTES <= abi::ENTRY_STACK_GPA);
    assert!(abi::ENTRY_STACK_GPA + abi::MAX_CPUS * PAGE <= abi::IMAGE_GPA);
    assert!(abi::PERCPU_GPA + abi::MAX_CPUS * abi::PERCPU_STRIDE <= abi::FREE_GPA);
};

const fn gva(gpa: u64) -> u64 {
    gpa + abi::VIRT_OFFSET
}

/// GPA of a vCPU's TSS.
const fn tss(n: u64) -> u64 {
    abi::TSS_GPA + n * TSS_STRIDE
}

/// Where the shared I/O permission bitmap begins, counted from a vCPU's TSS.
const fn io_base(n: u64) -> u16 {
    (IO_BITMAP_GPA - tss(n)) as u16
}

/// Limit of a vCPU's TSS: up to and with the bitmap.
const fn tss_limit(n: u64) -> u32 {
    (io_base(n) as u64 + IO_BITMAP_BYTES - 1) as u32
}

/// Writes page tables, GDT, TSSes and boot information.
pub(crate) fn write_boot(ram: &Ram, facts: &BootFacts<'_>) -> Result<(), MemoryError> {
    write_page_tables(ram)?;
    write_gdt(ram)?;
    for n in 0..u64::from(facts.vcpus) {
        let rsp0 = gva(abi::ENTRY_STACK_GPA + (n + 1) * PAGE);
        put64(ram, tss(n) + TSS_RSP0, rsp0)?;
        ram.write(Gpa(tss(n) + TSS_IO_BASE), &io_base(n).to_le_bytes())?;
    }
    let info = |offset: u64| Gpa(abi::BOOT_INFO_GPA + offset);
    for (offset, value) in [
        (boot_info::MAGIC, abi::BOOT_MAGIC),
        (boot_info::NR_CPUS, facts.vcpus.into()),
        (boot_info::CPL, facts.cpl.into()),
    ] {
        ram.write(info(offset), &value.to_le_bytes())?;
    }
    ram.write(info(boot_info::RAM_BYTES), &ram.len().to_le_bytes())?;
    ram.write(info(boot_info::TSC_HZ), &facts.tsc_hz.to_le_bytes())?;
    // The rest of the page is zero, so the text is terminated; its length was checked with the configuration.
    ram.write(info(boot_info::CMDLINE), facts.cmdline.as_bytes())
}

fn put64(ram: &Ram, gpa: u64, value: u64) -> Result<(), MemoryError> {
    ram.write(Gpa(gpa), &value.to_le_bytes())
}

/// All RAM at VIRT_OFFSET, in 2 MiB pages, and nothing else.
fn write_page_tables(ram: &Ram) -> Result<(), MemoryError> {
    let pml4 = abi::PAGE_TABLES_GPA;
    let (pdpt, pd) = (pml4 + PAGE, pml4 + 2 * PAGE);
    put64(ram, pml4 + 8 * (abi::VIRT_OFFSET >> 39 & 511), pdpt | PTE_TABLE)?;
    put64(ram, pdpt + 8 * (abi::VIRT_OFFSET >> 30 & 511), pd | PTE_TABLE)?;
    for i in 0..ram.len() / LARGE_PAGE {
        put64(ram, pd + 8 * i, (i * LARGE_PAGE) | PTE_LARGE)?;
    }
    Ok(())
}

fn write_gdt(ram: &Ram) -> Result<(), MemoryError> {
    let base = gva(tss(0));
    let limit = u64::from(tss_limit(0));
    let tss_low = limit & 0xffff | (base & 0xff_ffff) << 16 | 0x8b << 40 | (base >> 24 & 0xff) << 56;
    for (selector, descriptor) in [
        (abi::SEL_CODE0, 0x00af_9b00_0000_ffff),
        (abi::SEL_DATA0, 0x00cf_9300_0000_ffff),
        (abi::SEL_DATA3 & !3, 0x00cf_f300_0000_ffff),
        (abi::SEL_CODE3 & !3, 0x00af_fb00_0000_ffff),
        // vCPU 0's; every vCPU's task register is loaded with its own base, whatever the descriptor says.
        (abi::SEL_TSS, tss_low),
        (abi::SEL_TSS + 8, base >> 32),
    ] {
        put64(ram, abi::GDT_GPA + selector, descriptor)?;
    }
    Ok(())
}

fn segment(selector: u64, code: bool, dpl: u8) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector: selector as u16,
        // Accessed; readable code or writable data.
        type_: if code { 0xb } else { 0x3 },
        present: 1,
        dpl,
        db: u8::from(!code),
        s: 1,
        l: u8::from(code),
        g: 1,
        ..Default::default()
    }
}

/// Sets the system registers that a vCPU starts with; the others stay as KVM made them.
pub(crate) fn set_sregs(s: &mut kvm_sregs, vcpu: VcpuId, cpl: u8) {
    let n = u64::from(vcpu.0);
    (s.cr0, s.cr3, s.cr4, s.efer) = (CR0, abi::PAGE_TABLES_GPA, CR4, EFER);
    let (code, data) = if cpl == 3 { (abi::SEL_CODE3, abi::SEL_DATA3) } else { (abi::SEL_CODE0, abi::SEL_DATA0) };
    s.cs = segment(code, true, cpl);
    let data = segment(data, false, cpl);
    (s.ss, s.ds, s.es, s.fs, s.gs) = (data, data, data, data, data);
    s.gs.base = gva(abi::PERCPU_GPA + n * abi::PERCPU_STRIDE);
    s.tr = kvm_segment {
        base: gva(tss(n)),
        limit: tss_limit(n),
        selector: abi::SEL_TSS as u16,
        type_: 0xb,
        present: 1,
        ..Default::default()
    };
    (s.gdt.base, s.gdt.limit) = (gva(abi::GDT_GPA), GDT_LIMIT);
    (s.idt.base, s.idt.limit) = (gva(abi::IDT_GPA), IDT_LIMIT);
}

/// The general registers that a vCPU starts with.
pub(crate) fn regs(vcpu: VcpuId, cpl: u8, entry: Gva) -> kvm_regs {
    kvm_regs {
        rip: entry.0,
        rdi: vcpu.0.into(),
        rsi: gva(abi::BOOT_INFO_GPA),
        rflags: if cpl == 3 { RFLAGS_CPL3 } else { RFLAGS_CPL0 },
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn get64(ram: &Ram, gpa: u64) -> u64 {
        let mut b = [0; 8];
        ram.read(Gpa(gpa), &mut b).unwrap();
        u64::from_le_bytes(b)
    }

    fn booted() -> Ram {
        let ram = Ram::new(abi::MIN_RAM_BYTES).unwrap();
        let facts = BootFacts { vcpus: 16, cpl: 3, tsc_hz: 1, cmdline: "workload=mix" };
        write_boot(&ram, &facts).unwrap();
        ram
    }

    /// Walks the tables as the processor does.
    fn walk(ram: &Ram, va: u64) -> Option<u64> {
        let mut table = abi::PAGE_TABLES_GPA;
        for shift in [39, 30, 21] {
            let pte = get64(ram, table + 8 * (va >> shift & 511));
            if pte & 7 != 7 {
                return None;
            }
            table = pte & !0xfff;
        }
        Some(table + va % LARGE_PAGE)
    }

    #[test]
    fn all_ram_is_mapped_and_nothing_else() {
        let ram = booted();
        for gpa in [0, 0x12_3456, abi::PERCPU_GPA, abi::MIN_RAM_BYTES - 1] {
            assert_eq!(walk(&ram, gpa + abi::VIRT_OFFSET), Some(gpa));
        }
        for va in [0, abi::VIRT_OFFSET - 1, abi::VIRT_OFFSET + abi::MIN_RAM_BYTES, 1 << 39] {
            assert_eq!(walk(&ram, va), None, "{va:#x}");
        }
    }

    #[test]
    fn entry_stacks_end_where_their_pages_do() {
        let ram = booted();
        let last = get64(&ram, tss(15) + TSS_IO_BASE) & 0xffff;
        assert_eq!(tss(15) + last, IO_BITMAP_GPA);
        let rsp0 = get64(&ram, abi::TSS_GPA + 15 * TSS_STRIDE + 4);
        assert_eq!(rsp0, abi::ENTRY_STACK_GPA + 16 * PAGE + abi::VIRT_OFFSET);
    }

    #[test]
    fn registers_follow_the_privilege_level() {
        for (cpl, cs, rflags) in [(0, 0x08, 0x2), (3, 0x33, 0x3202)] {
            let mut s = kvm_sregs::default();
            set_sregs(&mut s, VcpuId(2), cpl);
            assert_eq!((s.cs.selector, s.cs.dpl, s.ss.dpl), (cs, cpl, cpl));
            assert_eq!(s.gs.base, abi::PERCPU_GPA + abi::VIRT_OFFSET + 2 * abi::PERCPU_STRIDE);
            assert_eq!(s.tr.base, abi::TSS_GPA + abi::VIRT_OFFSET + 512);
            let r = regs(VcpuId(2), cpl, Gva(7));
            assert_eq!((r.rip, r.rdi, r.rflags, r.rsp), (7, 2, rflags, 0));
        }
    }
}
