//! The 64-bit boot protocol of Linux: kernel, initial RAM disk, command line, `struct boot_params` ("zero page"), and a
//! vCPU in 64-bit mode with the first 4 GiB mapped as they are.
//!
//! A kernel is entered at one of two places. In the bzImage, the code at +0x200 unpacks the kernel, picks random
//! addresses for it unless told `nokaslr`, and goes there. In the unpacked kernel, the ELF's own entry point is used;
//! the setup header comes from the bzImage all the same.
//!
//! The other vCPUs stay as a reset leaves them: Linux starts them with INIT and SIPI, which KVM does by itself.

use std::io::Cursor;

use exotrace_patcher::machine::MemoryError;
use exotrace_trace::ids::{Gpa, Gva};
use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs};
use linux_loader::configurator::linux::LinuxBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use linux_loader::loader::{BzImage, KernelLoader};
use vm_memory::GuestAddress;

use crate::config::{Entry, LinuxImage};
use crate::error::Error;
use crate::image::{ImageError, Room, load_elf};
use crate::layout::{HIGH_RAM_GPA, LARGE_PAGE, PAGE, pc};
use crate::memory::Ram;

/// Where a bzImage's 64-bit entry point is, counted from its first loaded byte.
const ENTRY_64: u64 = 0x200;
/// Offset of the setup header in a bzImage.
const SETUP_HEADER: usize = 0x1f1;
/// The first protocol with a 64-bit entry point: 2.12.
const VERSION_64: u16 = 0x020c;
/// xloadflags: there is a 64-bit entry point.
const XLF_KERNEL_64: u16 = 1;
/// "Some other boot loader".
const LOADER_OTHER: u8 = 0xff;
/// e820: usable.
const E820_RAM: u32 = 1;
/// e820: not to be used.
const E820_RESERVED: u32 = 2;
/// Above this nothing is put that the kernel gets a 32-bit pointer to.
const BELOW_4G: u64 = 1 << 32;

/// Present, writable.
const PTE_TABLE: u64 = 0x3;
/// Present, writable, large.
const PTE_LARGE: u64 = 0x83;
/// PG, ET, PE.
const CR0: u64 = 0x8000_0011;
/// PAE.
const CR4: u64 = 0x20;
/// LME, LMA.
const EFER: u64 = 0x500;
/// The boot protocol's selectors.
const BOOT_CS: u16 = 0x10;
const BOOT_DS: u16 = 0x18;

/// Loads the kernel and what it is told; the result is where vCPU 0 begins.
pub(crate) fn load(image: &LinuxImage, cmdline: &str, rsdp: Gpa, ram: &Ram) -> Result<Gva, Error> {
    let mut header = setup_header_of(&image.bzimage)?;
    let max = header.cmdline_size;
    if cmdline.len() > max as usize {
        return Err(ImageError::Cmdline { len: cmdline.len(), max }.into());
    }
    let (entry, kernel_end) = match image.entry {
        Entry::BzImage => load_bzimage(&image.bzimage, &header, ram)?,
        Entry::Vmlinux => load_vmlinux(image, &header, ram)?,
    };
    let initrd = match image.initrd.as_deref() {
        Some(bytes) if !bytes.is_empty() => Some(load_initrd(bytes, &header, kernel_end, ram)?),
        _ => None,
    };
    let failed = |e: MemoryError| ImageError::Loader(e.to_string());
    // RAM is zero, so the text is terminated.
    ram.write(Gpa(pc::CMDLINE_GPA), cmdline.as_bytes()).map_err(failed)?;
    header.type_of_loader = LOADER_OTHER;
    header.cmd_line_ptr = pc::CMDLINE_GPA as u32;
    if let Some((at, len)) = initrd {
        (header.ramdisk_image, header.ramdisk_size) = (at as u32, len as u32);
    }
    write_zero_page(header, rsdp, ram)?;
    write_tables(ram).map_err(failed)?;
    Ok(entry)
}

/// The setup header, its fields checked as far as anything here relies on them.
fn setup_header_of(bzimage: &[u8]) -> Result<setup_header, ImageError> {
    let header = match bzimage.get(SETUP_HEADER..SETUP_HEADER + size_of::<setup_header>()) {
        Some(bytes) => {
            let mut h = setup_header::default();
            vm_memory::ByteValued::as_mut_slice(&mut h).copy_from_slice(bytes);
            h
        }
        None => return Err(ImageError::NotBzImage("it is too short for a setup header")),
    };
    if header.header != u32::from_le_bytes(*b"HdrS") || header.boot_flag != 0xaa55 {
        return Err(ImageError::NotBzImage("there is no \"HdrS\" at byte 514"));
    }
    if header.version < VERSION_64 || header.xloadflags & XLF_KERNEL_64 == 0 {
        return Err(ImageError::BzImage("it has no 64-bit entry point; Linux has one since 3.8"));
    }
    Ok(header)
}

/// Where the kernel runs unless it moves itself, and the first address after what it needs there.
fn kernel_room(header: &setup_header, ram: &Ram) -> Result<(u64, u64), ImageError> {
    let (low, high) = (Gpa(pc::HIGH_GPA), Gpa(ram.low_end()));
    let bytes = u64::from(header.init_size);
    let at = header.pref_address;
    let end = at.saturating_add(bytes);
    if at < low.0 || !at.is_multiple_of(PAGE) {
        return Err(ImageError::BzImage("its preferred address is not a page above 1 MiB"));
    }
    if end > high.0 {
        return Err(ImageError::NoRoom { what: "the kernel", bytes, low: Gpa(at), high });
    }
    Ok((at, end))
}

fn load_bzimage(bytes: &[u8], header: &setup_header, ram: &Ram) -> Result<(Gva, u64), ImageError> {
    let (at, end) = kernel_room(header, ram)?;
    let loaded = BzImage::load(ram.backend(), Some(GuestAddress(at)), &mut Cursor::new(bytes), None)
        .map_err(|e| ImageError::Loader(e.to_string()))?;
    Ok((Gva(at + ENTRY_64), end.max(loaded.kernel_end)))
}

fn load_vmlinux(image: &LinuxImage, header: &setup_header, ram: &Ram) -> Result<(Gva, u64), ImageError> {
    let bytes = image.vmlinux.as_deref().ok_or(ImageError::NoVmlinux)?;
    let (_, end) = kernel_room(header, ram)?;
    let room = Room { low: Gpa(pc::HIGH_GPA), high: Gpa(end), physical_entry: true };
    Ok((load_elf(bytes, ram, room)?, end))
}

/// Puts the initial RAM disk as high as the kernel allows; the result is its address and size.
fn load_initrd(bytes: &[u8], header: &setup_header, kernel_end: u64, ram: &Ram) -> Result<(u64, u64), ImageError> {
    let len = bytes.len() as u64;
    // The header names the last byte that may be used.
    let high = ram.low_end().min(u64::from(header.initrd_addr_max) + 1).min(BELOW_4G);
    let at = high.checked_sub(len).map(|at| at / PAGE * PAGE).filter(|at| *at >= kernel_end);
    let no_room =
        ImageError::NoRoom { what: "the initial RAM disk", bytes: len, low: Gpa(kernel_end), high: Gpa(high) };
    let at = at.ok_or(no_room)?;
    ram.write(Gpa(at), bytes).map_err(|e| ImageError::Loader(e.to_string()))?;
    Ok((at, len))
}

fn write_zero_page(header: setup_header, rsdp: Gpa, ram: &Ram) -> Result<(), ImageError> {
    let mut params = boot_params { hdr: header, acpi_rsdp_addr: rsdp.0, ..Default::default() };
    let map = memory_map(ram);
    for (to, from) in params.e820_table.iter_mut().zip(&map) {
        *to = *from;
    }
    params.e820_entries = map.len() as u8;
    let params = BootParams::new(&params, GuestAddress(pc::ZERO_PAGE_GPA));
    LinuxBootConfigurator::write_bootparams(&params, ram.backend()).map_err(|e| ImageError::Loader(e.to_string()))
}

/// What the guest is told about its memory. The injected memslot is not in it.
fn memory_map(ram: &Ram) -> Vec<boot_e820_entry> {
    let entry = |from: u64, to: u64, kind| boot_e820_entry { addr: from, size: to - from, r#type: kind };
    let mut map = vec![
        entry(0, pc::LOW_END_GPA, E820_RAM),
        entry(pc::LOW_END_GPA, pc::HIGH_GPA, E820_RESERVED),
        entry(pc::HIGH_GPA, ram.low_end(), E820_RAM),
    ];
    if ram.len() > ram.low_end() {
        map.push(entry(HIGH_RAM_GPA, HIGH_RAM_GPA + ram.len() - ram.low_end(), E820_RAM));
    }
    map
}

/// GDT and page tables.
fn write_tables(ram: &Ram) -> Result<(), MemoryError> {
    let put = |gpa: u64, value: u64| ram.write(Gpa(gpa), &value.to_le_bytes());
    put(pc::GDT_GPA + u64::from(BOOT_CS), 0x00af_9b00_0000_ffff)?;
    put(pc::GDT_GPA + u64::from(BOOT_DS), 0x00cf_9300_0000_ffff)?;
    let pml4 = pc::PAGE_TABLES_GPA;
    let (pdpt, pd) = (pml4 + PAGE, pml4 + 2 * PAGE);
    put(pml4, pdpt | PTE_TABLE)?;
    for gib in 0..4 {
        put(pdpt + 8 * gib, (pd + gib * PAGE) | PTE_TABLE)?;
    }
    for i in 0..BELOW_4G / LARGE_PAGE {
        put(pd + 8 * i, (i * LARGE_PAGE) | PTE_LARGE)?;
    }
    Ok(())
}

// The structures lie one after another.
const _: () = {
    assert!(pc::GDT_GPA + 4 * 8 <= pc::PAGE_TABLES_GPA);
    assert!(pc::PAGE_TABLES_GPA + 6 * PAGE <= pc::ZERO_PAGE_GPA);
    assert!(pc::ZERO_PAGE_GPA + PAGE < pc::STACK_GPA);
    assert!(pc::STACK_GPA <= pc::CMDLINE_GPA);
    assert!(pc::CMDLINE_GPA + pc::CMDLINE_BYTES <= pc::LOW_END_GPA);
};

/// Sets the system registers that vCPU 0 starts with; the others stay as KVM made them.
pub(crate) fn set_sregs(s: &mut kvm_sregs) {
    (s.cr0, s.cr3, s.cr4, s.efer) = (CR0, pc::PAGE_TABLES_GPA, CR4, EFER);
    let segment = |selector, code: bool| kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector,
        // Accessed; readable code or writable data.
        type_: if code { 0xb } else { 0x3 },
        present: 1,
        db: u8::from(!code),
        s: 1,
        l: u8::from(code),
        g: 1,
        ..Default::default()
    };
    s.cs = segment(BOOT_CS, true);
    let data = segment(BOOT_DS, false);
    (s.ss, s.ds, s.es, s.fs, s.gs) = (data, data, data, data, data);
    // VMX wants a busy TSS in the task register.
    s.tr = kvm_segment { limit: 0x67, type_: 0xb, present: 1, ..Default::default() };
    (s.gdt.base, s.gdt.limit) = (pc::GDT_GPA, 4 * 8 - 1);
    (s.idt.base, s.idt.limit) = (0, 0);
}

/// The general registers that vCPU 0 starts with.
pub(crate) fn regs(entry: Gva) -> kvm_regs {
    kvm_regs { rip: entry.0, rsi: pc::ZERO_PAGE_GPA, rsp: pc::STACK_GPA, rflags: 2, ..Default::default() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A bzImage of four setup sectors and a page of "kernel".
    fn bzimage(change: impl FnOnce(&mut setup_header)) -> Vec<u8> {
        let mut h = setup_header {
            setup_sects: 3,
            boot_flag: 0xaa55,
            header: u32::from_le_bytes(*b"HdrS"),
            version: 0x20f,
            loadflags: 1,
            xloadflags: 1,
            code32_start: 0x10_0000,
            initrd_addr_max: 0x7fff_ffff,
            cmdline_size: 2047,
            pref_address: 0x100_0000,
            init_size: 0x20_0000,
            ..Default::default()
        };
        change(&mut h);
        let mut b = vec![0; 4 * 512];
        b[SETUP_HEADER..SETUP_HEADER + size_of::<setup_header>()].copy_from_slice(vm_memory::ByteValued::as_slice(&h));
        b.resize(4 * 512 + 4096, 0x90);
        b
    }

    fn linux(bzimage: Vec<u8>, initrd: usize) -> LinuxImage {
        LinuxImage { bzimage: bzimage.into(), initrd: Some(vec![7; initrd].into()), ..Default::default() }
    }

    fn get(ram: &Ram, gpa: u64, bytes: usize) -> u64 {
        let mut b = [0; 8];
        ram.read(Gpa(gpa), &mut b[..bytes]).unwrap();
        u64::from_le_bytes(b)
    }

    #[test]
    fn a_bzimage_is_loaded_with_everything_around_it() {
        let ram = Ram::new(64 << 20).unwrap();
        let image = linux(bzimage(|_| {}), 5000);
        let entry = load(&image, "console=ttyS0", Gpa(0xe_0000), &ram).unwrap();
        assert_eq!(entry, Gva(0x100_0200));
        assert_eq!(get(&ram, entry.0, 1), 0x90);
        assert_eq!(get(&ram, 0x100_0fff, 2), 0x0090, "ends after its page");
        let zero = pc::ZERO_PAGE_GPA;
        assert_eq!(get(&ram, zero + 0x202, 4), u64::from(u32::from_le_bytes(*b"HdrS")));
        assert_eq!(get(&ram, zero + 0x210, 1), 0xff);
        assert_eq!(get(&ram, zero + 0x70, 8), 0xe_0000);
        let initrd = get(&ram, zero + 0x218, 4);
        assert_eq!((initrd, get(&ram, zero + 0x21c, 4)), ((64 << 20) - 8192, 5000));
        assert_eq!(get(&ram, initrd, 8), 0x0707_0707_0707_0707);
        let cmdline = get(&ram, zero + 0x228, 4);
        let mut text = [0; 14];
        ram.read(Gpa(cmdline), &mut text).unwrap();
        assert_eq!(&text, b"console=ttyS0\0");
        assert_eq!(get(&ram, zero + 0x1e8, 1), 3);
        let pd = pc::PAGE_TABLES_GPA + 2 * PAGE;
        assert_eq!(get(&ram, pd + 8 * 2047, 8), 0xffe0_0083);
    }

    #[test]
    fn the_memory_map_has_a_hole() {
        // Not touched, so no memory is used.
        let ram = Ram::new(5 << 30).unwrap();
        let map: Vec<(u64, u64, u32)> = memory_map(&ram).iter().map(|e| (e.addr, e.size, e.r#type)).collect();
        assert_eq!(map[2], (1 << 20, (3 << 30) - (1 << 20), 1));
        assert_eq!(map[3], (4 << 30, 2 << 30, 1));
        assert_eq!(crate::layout::injected_gpa(5 << 30), 6 << 30);
        assert_eq!(crate::layout::injected_gpa(3 << 30), 4 << 30);
        assert_eq!(crate::layout::injected_gpa((3 << 30) + (2 << 20)), 5 << 30);
        ram.write(Gpa((6 << 30) - 1), &[1]).unwrap();
        for gpa in [(3 << 30) - 1, (4 << 30) - 1, (6 << 30) - 1] {
            assert!(ram.write(Gpa(gpa), &[1, 2]).is_err(), "{gpa:#x}");
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let ram = Ram::new(64 << 20).unwrap();
        let err = |image: LinuxImage| match load(&image, "", Gpa(0), &ram).unwrap_err() {
            Error::Image(e) => e.to_string(),
            e => panic!("{e:?}"),
        };
        assert!(err(linux(vec![0; 100], 0)).contains("too short"));
        assert!(err(linux(vec![0; 4096], 0)).contains("HdrS"));
        assert!(err(linux(bzimage(|h| h.version = 0x20b), 0)).contains("no 64-bit entry"));
        assert!(err(linux(bzimage(|h| h.xloadflags = 0), 0)).contains("no 64-bit entry"));
        assert!(err(linux(bzimage(|h| h.init_size = u32::MAX), 0)).contains("the kernel (4294967295 bytes)"));
        assert!(err(linux(bzimage(|h| h.pref_address = u64::MAX), 0)).contains("preferred address"));
        assert!(err(linux(bzimage(|h| h.pref_address = 0x1000), 0)).contains("preferred address"));
        assert!(err(linux(bzimage(|_| {}), 60 << 20)).contains("the initial RAM disk"));
        assert!(err(linux(bzimage(|h| h.initrd_addr_max = 10), 5)).contains("the initial RAM disk"));
        assert!(err(linux(bzimage(|h| h.setup_sects = 255), 0)).contains("Loader"));
        let image = LinuxImage { entry: Entry::Vmlinux, ..linux(bzimage(|_| {}), 0) };
        assert!(err(image.clone()).contains("not given"));
        assert!(err(LinuxImage { vmlinux: Some(vec![1; 100].into()), ..image }).contains("not an ELF"));
        let long = "x".repeat(2048);
        let e = load(&linux(bzimage(|_| {}), 0), &long, Gpa(0), &ram).unwrap_err();
        assert!(matches!(e, Error::Image(ImageError::Cmdline { len: 2048, max: 2047 })), "{e:?}");
    }
}
