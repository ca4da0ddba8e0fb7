//! The virtual machine: a small KVM VMM that boots exotrace's embedded guest or an unmodified Linux kernel, and can stop
//! all its vCPUs.
//!
//! # Rooms
//!
//! | file | what it owns |
//! | --- | --- |
//! | [`host`] | what kind of `/dev/kvm` this machine has, and what works there |
//! | [`config`] | the plain configuration of a VM and its checks |
//! | `layout` | every guest physical address that the VMM chooses |
//! | [`memory`] | guest RAM (private) and the injected memslot |
//! | `image` | checks of a guest image and loading it |
//! | `boot` | boot structures and registers: of the embedded guest, and of Linux's 64-bit boot protocol |
//! | `acpi`, `cpuid`, `pc` | the PC that Linux guests see: its tables, its processors, its ports |
//! | `builder`, `machine` | configuration to a VM that is ready to start |
//! | [`vm`] | the running VM as its users see it |
//! | [`exit`] | KVM exits as owned values and the pure decision on what to do about them |
//! | `vcpu` | one thread per vCPU, what it shares with the others, and the few unsafe calls into KVM |
//! | `rendezvous` | who may be in guest mode: the lock behind stopping, idling and ending |
//! | [`pause`] | `Machine` and `Stopped` of the patcher, for this VM |
//! | `target` | the VM as the patcher's controller drives it |
//! | `timer` | one thread that makes timer interrupts and NMIs pending |
//! | `intc` | what is pending for a vCPU |
//! | `devices` | the serial port and its bounded console buffer; virtio devices of Linux guests |
//! | [`event`] | what happened, as a bounded stream |
//! | [`histogram`] | how long stops took |

mod acpi;
mod boot;
mod builder;
pub mod config;
mod cpuid;
mod devices;
pub mod error;
pub mod event;
pub mod exit;
pub mod histogram;
pub mod host;
mod image;
mod intc;
mod layout;
mod machine;
pub mod memory;
pub mod pause;
mod pc;
mod rendezvous;
mod shared;
mod target;
mod timer;
mod vcpu;
pub mod vm;

pub use config::{Disk, DiskMode, Entry, Image, LinuxImage, VmConfig};
pub use error::Error;
pub use event::VmEvent;
pub use host::{HostKind, HostReport, detect};
pub use image::ImageError;
pub use layout::INJECTED_GPA;
pub use memory::InjectedMemory;
pub use pause::StoppedVm;
pub use shared::VmCounters;
pub use vm::{ClockFacts, PortHook, Vm};

/// Locks a mutex whether or not a thread panicked while it held it. The data behind every lock of this crate is valid
/// between any two statements, so a poisoned lock is no reason to bring the other threads down.
pub(crate) fn lock<T>(m: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
