//! What the controller needs of a VMM beyond memory and stopping: start and end, events, console, clock, doorbell.

use std::sync::Arc;
use std::time::Duration;

use exotrace_trace::clock::Clock;
use exotrace_trace::ids::VcpuId;

use super::GuestEnd;
use crate::machine::Machine;

/// What a VM tells the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetEvent {
    /// The guest reached a phase of its workload.
    Mark(u32),
    /// The guest ended; every vCPU stands and memory stays readable.
    Ended(GuestEnd),
}

/// Called on the thread of a vCPU that stands in its ring-full exit.
pub type FullHook = Arc<dyn Fn(VcpuId) + Send + Sync>;

/// Called on the thread of a vCPU that stands in a stub around the guest's own text patching: true before, false after.
pub type PatchHook = Arc<dyn Fn(bool) + Send + Sync>;

/// A VM that a controller can drive.
pub trait Target: Machine + 'static {
    /// Lets vCPU 0 run. Called once, after the hooks are set.
    ///
    /// # Errors
    /// One sentence that says what failed.
    fn start(&self) -> Result<(), String>;
    /// Waits for the next event.
    fn next_event(&self, timeout: Duration) -> Option<TargetEvent>;
    /// The last bytes that the guest wrote to its console (bounded).
    fn console(&self) -> Vec<u8>;
    /// Types at the guest's console.
    fn console_input(&self, bytes: &[u8]);
    /// Whether a vCPU was started and still runs.
    fn online(&self, vcpu: VcpuId) -> bool;
    /// Sets what happens when a trampoline writes to the ring-full port. Before [`Target::start`].
    ///
    /// # Errors
    /// One sentence that says what failed.
    fn on_ring_full(&self, hook: FullHook) -> Result<(), String>;
    /// Sets what happens when the guest is about to patch its own text, and when it has. The vCPU counts as stopped while
    /// the hook runs. Before [`Target::start`].
    ///
    /// # Errors
    /// One sentence that says what failed.
    fn on_guest_patching(&self, hook: PatchHook) -> Result<(), String>;
    /// Waits until a trampoline rings the doorbell, or for `timeout`. True if it rang.
    fn wait_doorbell(&self, timeout: Duration) -> bool;
    /// How the guest's TSC maps to host time, as of now.
    fn clock(&self) -> Clock;
    /// Ends the VM. An `Ended` event follows if none came before.
    fn quit(&self);
}
