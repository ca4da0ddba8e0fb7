//! The embedded guest: a small instrumented kernel (C and assembly) compiled by the build script.
//!
//! The kernel is in `kernel/`. It is a guest worth tracing, with several hundred instrumented functions that do real
//! work, and it keeps a count of its own for each of them (`.gt_table` in the image): the ground truth that traces are
//! compared with. `docs` of its command line: see the guest's `core/params.c` and `work/main.c`.

/// Numbers that the guest and the VMM agree on.
pub mod abi {
    include!("abi.rs");
}

/// The guest kernel, a static x86-64 ELF executable with its symbol table.
///
/// Load each `PT_LOAD` segment at its physical address (the per-CPU template's virtual address is 0) and zero what
/// `p_memsz` exceeds `p_filesz` by; every vCPU starts at the entry point in 64-bit mode as [`abi`] describes.
pub static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest.elf"));
