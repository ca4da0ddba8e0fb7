//! What is where in the injected memslot. Offsets count from its start.
//!
//! | offset | what | in the guest |
//! | --- | --- | --- |
//! | 0 | page tables, [`TABLES_BYTES`] | not mapped |
//! | 1 MiB | one control page per vCPU | 4 KiB pages at GS base + `head_off`, writable |
//! | 2 MiB | trampolines, 2 MiB | a 2 MiB page, executable |
//! | 4 MiB | slot arrays, one after another | 2 MiB pages, writable |

use std::ops::Range;

use exotrace_trace::ids::VcpuId;
use exotrace_trace::ring::layout::{MAX_RECORDS, MAX_RINGS, MIN_RECORDS, RECORD_SHIFT, ctrl};

use super::InjectError;
use crate::paging::PageSize;

/// Room for page tables, in bytes.
pub const TABLES_BYTES: u64 = 1 << 20;
const CONTROL_AT: u64 = TABLES_BYTES;
const CODE_AT: u64 = 2 << 20;
const SLOTS_AT: u64 = 4 << 20;

// Control pages must end before the code begins.
const _: () = assert!(CONTROL_AT + (MAX_RINGS * ctrl::BYTES) as u64 <= CODE_AT);

/// Where things are in the memslot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    rings: usize,
    records: u32,
}

impl Layout {
    /// The layout for that many vCPUs with rings of that many records.
    ///
    /// # Errors
    /// [`InjectError::BadShape`]: 1 to [`MAX_RINGS`] rings, a power of two from [`MIN_RECORDS`] to [`MAX_RECORDS`]
    /// records.
    pub fn new(vcpus: usize, records: u32) -> Result<Layout, InjectError> {
        let fits = (MIN_RECORDS..=MAX_RECORDS).contains(&records) && records.is_power_of_two();
        if !fits || !(1..=MAX_RINGS).contains(&vcpus) {
            return Err(InjectError::BadShape { vcpus, records });
        }
        Ok(Layout { rings: vcpus, records })
    }

    /// How many rings there are.
    #[must_use]
    pub fn rings(&self) -> usize {
        self.rings
    }

    /// Slots of each ring.
    #[must_use]
    pub fn records(&self) -> u32 {
        self.records
    }

    /// The control page of a vCPU.
    #[must_use]
    pub fn control(&self, vcpu: VcpuId) -> u64 {
        CONTROL_AT + (vcpu.index() * ctrl::BYTES) as u64
    }

    /// The code area.
    #[must_use]
    pub fn code(&self) -> Range<u64> {
        CODE_AT..SLOTS_AT
    }

    /// All slot arrays.
    #[must_use]
    pub fn slots(&self) -> Range<u64> {
        SLOTS_AT..SLOTS_AT + self.rings as u64 * self.ring_bytes()
    }

    /// The slot array of a vCPU.
    #[must_use]
    pub fn slots_of(&self, vcpu: VcpuId) -> Range<u64> {
        let start = SLOTS_AT + vcpu.index() as u64 * self.ring_bytes();
        start..start + self.ring_bytes()
    }

    /// Length of the memslot that is needed, in bytes: a multiple of 2 MiB.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a layout is never empty")]
    pub fn len(&self) -> u64 {
        self.slots().end.next_multiple_of(PageSize::Mib2.bytes())
    }

    /// Bytes of code and slots together, which are mapped in one piece.
    pub(super) fn mapped_len(&self) -> u64 {
        self.len() - CODE_AT
    }

    fn ring_bytes(&self) -> u64 {
        u64::from(self.records) << RECORD_SHIFT
    }
}
