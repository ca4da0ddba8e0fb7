//! Virtio devices of Linux guests, over MMIO.
//!
//! A device does its work on the thread of the vCPU that rings it (or, for typed input, on vCPU 0's), so guest memory
//! changes only while that vCPU counts as running: a stopped guest's memory stands still. Everything in a queue is
//! written by the guest. virtio-queue bounds chains and checks addresses; what a request may cost is bounded here.

mod block;
mod console;
mod mmio;
mod rng;

pub(crate) use block::Block;
pub(crate) use console::{Console, Input, Output};
pub(crate) use mmio::MmioDevice;
pub(crate) use rng::Rng;

use virtio_queue::Queue;
use vm_memory::GuestMemoryMmap;

/// RAM as virtio-queue sees it.
pub(crate) type Memory = GuestMemoryMmap<()>;

/// What is behind a set of virtio registers.
pub(crate) trait Device: Send {
    /// Virtio's device id.
    fn id(&self) -> u32;
    /// Feature bits of this kind of device.
    fn features(&self) -> u64 {
        0
    }
    /// The longest that each queue may be.
    fn queues(&self) -> &[u16];
    /// The device's configuration space.
    fn config(&self) -> &[u8] {
        &[]
    }
    /// The guest rang a queue, or there is something to do: works on the queues that are ready. True if anything was
    /// given back to the guest, which has to hear of it.
    fn work(&mut self, queues: &mut [Queue], memory: &Memory) -> bool;
}

#[cfg(test)]
mod tests;
