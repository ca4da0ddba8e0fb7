//! Rings: the layout shared with the guest and the consumer that reads them as hostile memory.

mod consumer;
pub mod layout;
#[cfg(test)]
pub(crate) mod tests;

pub use consumer::{Consumer, Drained, RecordSink, RingPlace, RingTotals};

/// Memory in which rings lie, shared with the guest. Offsets count from the start of the region.
///
/// Implementations never hand out references: everything is copied, bounds are checked by the implementation, and an
/// access outside reads as zero and writes nothing (the caller computes offsets from its own numbers, never the guest's).
pub trait RingMemory {
    /// Loads an aligned u32 with acquire ordering.
    fn load_u32(&self, offset: usize) -> u32;
    /// Loads an aligned u64 with acquire ordering.
    fn load_u64(&self, offset: usize) -> u64;
    /// Stores an aligned u64 with release ordering.
    fn store_u64(&self, offset: usize, value: u64);
    /// Copies bytes out. No ordering among the bytes; ordered after every load before it.
    fn copy_out(&self, offset: usize, buf: &mut [u8]);
    /// Copies bytes in (set-up only).
    fn copy_in(&self, offset: usize, bytes: &[u8]);
    /// Length of the region in bytes.
    fn len(&self) -> usize;
    /// Whether the region has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
