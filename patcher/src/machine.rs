//! What the patcher needs of a virtual machine: memory, a way to stop the vCPUs, and a piece of host-owned memory
//! that the guest doesn't know of.
//!
//! # The contract of stopping
//!
//! * [`Machine::stop`] returns when every vCPU has left guest mode, with any pending port or MMIO access completed, so
//!   registers and memory are those between two instructions. No vCPU runs again before the guard is dropped.
//! * Guest RAM can be written only through the guard, so "text was written while a vCPU ran" does not type-check.
//! * Dropping the guard resumes exactly the vCPUs that ran before.

use std::time::Duration;

use exotrace_trace::ids::{Gpa, Gva, VcpuId};
use exotrace_trace::ring::RingMemory;

/// Memory could not be accessed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("guest physical memory {gpa} + {len} bytes is not RAM of this VM")]
pub struct MemoryError {
    /// Where the access began.
    pub gpa: Gpa,
    /// How long it was, in bytes.
    pub len: usize,
}

/// The vCPUs could not be stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// A vCPU did not leave guest mode in time.
    #[error("vCPU {vcpu} did not leave guest mode within {waited:?}")]
    Timeout {
        /// The vCPU.
        vcpu: VcpuId,
        /// How long we waited.
        waited: Duration,
    },
    /// The VM is gone.
    #[error("the VM has ended")]
    Ended,
}

/// The registers of a stopped vCPU that the patcher looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct VcpuState {
    /// Next instruction.
    pub rip: Gva,
    /// Stack pointer.
    pub rsp: Gva,
    /// Page table root and flags.
    pub cr3: u64,
    /// CR4 (LA57).
    pub cr4: u64,
    /// EFER (NXE).
    pub efer: u64,
    /// GS base.
    pub gs_base: Gva,
    /// Current privilege level, 0 to 3.
    pub cpl: u8,
    /// The GS base that `swapgs` exchanges with: that of the kernel while the vCPU is in user mode. 0 where a VMM doesn't
    /// read it.
    pub kernel_gs_base: Gva,
    /// Where `syscall` enters the kernel (MSR LSTAR). 0 where a VMM doesn't read it, or before the kernel has set it.
    pub lstar: Gva,
}

/// Read access to guest RAM, at any time.
pub trait GuestRead {
    /// Copies guest physical memory out.
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), MemoryError>;
}

/// A VM whose vCPUs can be stopped.
pub trait Machine: GuestRead + Send + Sync {
    /// The guard over the stopped vCPUs.
    type Stopped<'a>: Stopped
    where
        Self: 'a;
    /// The host-owned memory (see [`Machine::injected`]).
    type Injected: RingMemory + Clone + Send + Sync + 'static;

    /// How many vCPUs there are, started or not.
    fn vcpus(&self) -> u8;
    /// Stops all vCPUs.
    fn stop(&self) -> Result<Self::Stopped<'_>, StopError>;
    /// The memslot reserved for page tables, trampolines and rings: host-owned, zeroed, above RAM, not in any memory map of the guest.
    /// Offsets into it count from [`Machine::injected_gpa`].
    fn injected(&self) -> Self::Injected;
    /// GPA of the start of the injected memslot (2 MiB aligned).
    fn injected_gpa(&self) -> Gpa;
    /// Its length in bytes.
    fn injected_len(&self) -> u64;
}

/// All vCPUs of a VM, stopped. See the module's docs for the contract.
pub trait Stopped: GuestRead {
    /// Writes guest RAM.
    fn write(&mut self, gpa: Gpa, bytes: &[u8]) -> Result<(), MemoryError>;
    /// Registers of one vCPU. One that has not been started has the state it will start with.
    fn vcpu(&self, vcpu: VcpuId) -> Option<VcpuState>;
    /// How long it took from the request until all vCPUs stood.
    fn stop_time(&self) -> Duration;
}
