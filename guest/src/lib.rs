//! The embedded guest: a small instrumented kernel (C and assembly) compiled by the build script.
//!
//! The kernel is in `kernel/`. It is a guest worth tracing, with several hundred instrumented functions that do real
//! work, and it keeps a count of its own for each of them (`.gt_table` in the image): the ground truth that traces are
//! compared with.
//!
//! # Command line
//!
//! `key=value`, separated by spaces:
//!
//! | key | meaning | default |
//! | --- | --- | --- |
//! | `workload` | see below | `mix` |
//! | `seed` | seed of everything random | 1 |
//! | `iters` | steps of each worker, 0 for no end | 0 |
//! | `threads` | workers, up to 64 | 2 x CPUs + 2; CPUs for `flood` |
//! | `hz` | tick, up to 10,000; 0: no tick, threads give way by themselves | 250 |
//! | `nmi_hz` | NMIs a second on each CPU, up to 10,000 | 0 |
//! | `load` | percent of the time that each worker works | 100 |
//! | `rounds` | rounds of `bench`, up to 64 | 31 |
//! | `quiet` | (no value) only what matters on the console | |
//!
//! Workloads: `fs`, `alloc`, `sched`, `syscall`, `pipe` (pairs of workers) exercise one layer each and `mix` all of them;
//! `flood` calls small functions as fast as each CPU can; `bench` measures what a call costs; `selftest` tests the kernel's
//! library; `idle` sleeps (`iters` in milliseconds). `panic`, `hang` and `triplefault` do a mix and come to grief after
//! 50 ms.
//!
//! A workload that ends is checked: file contents, shared counters, leaks, the allocators' own structures. The sum that is
//! printed (`selfcheck: ok sum=…`, also the u64 symbol `selfcheck_sum`) depends only on workload, seed, `iters` and
//! `threads`, never on CPUs or timing. At `EXIT_POWEROFF` the counters of `.gt_table` are exact: no CPU and no thread is left
//! between a site and its counter. When a panic ends the run, each CPU that was stopped may be one call short.
//!
//! The console understands a few commands, `help` lists them; `poweroff` ends an endless workload in order.

/// Numbers that the guest and the VMM agree on.
pub mod abi {
    include!("abi.rs");
}

/// The guest kernel, a static x86-64 ELF executable with its symbol table.
///
/// Load each `PT_LOAD` segment at its physical address (the per-CPU template's virtual address is 0) and zero what
/// `p_memsz` exceeds `p_filesz` by; every vCPU starts at the entry point in 64-bit mode as [`abi`] describes.
pub static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest.elf"));
