//! What is where in the injected memslot. Offsets count from its start.
//!
//! | offset | what | in the guest |
//! | --- | --- | --- |
//! | 0 | page tables, [`TABLES_BYTES`] | not mapped |
//! | 1 MiB | one control page per vCPU ([`Layout::new`]) | 4 KiB pages at GS base + `head_off`, writable |
//! | 2 MiB | trampolines, 2 MiB | a 2 MiB page, executable |
//! | 4 MiB | slot arrays, one after another | 2 MiB pages, writable |
//! | behind them | control pages as far apart as the GS bases ([`Layout::spread`]) | large pages at GS base + `head_off`, writable |

use std::ops::Range;

use exotrace_trace::ids::{Gva, VcpuId};
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
    /// Where control pages are, counted from the control area; `None` for packed ones.
    spread: Option<Spread>,
}

/// Control pages at the same distances from each other as the GS bases, so that large pages can map them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spread {
    /// The 2 MiB that the lowest GS base lies in.
    from: Gva,
    offsets: [u64; MAX_RINGS],
    /// A multiple of 2 MiB.
    len: u64,
}

const LARGE: u64 = PageSize::Mib2.bytes();

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
        Ok(Layout { rings: vcpus, records, spread: None })
    }

    /// The layout for vCPUs with these GS bases when only large pages will do.
    ///
    /// # Errors
    /// As [`Layout::new`]; GS bases further apart than per-CPU areas are.
    pub fn spread(gs: &[Gva], records: u32) -> Result<Layout, InjectError> {
        let mut layout = Layout::new(gs.len(), records)?;
        let (low, high) = (gs.iter().min().map_or(0, |g| g.0), gs.iter().max().map_or(0, |g| g.0));
        let from = low & !(LARGE - 1);
        let end = high.checked_add(ctrl::BYTES as u64).and_then(|e| e.checked_next_multiple_of(LARGE));
        let len = end.map_or(u64::MAX, |e| e - from);
        if len > Layout::spread_bytes(gs.len()) {
            return Err(InjectError::GsFarApart { low: Gva(low), high: Gva(high) });
        }
        let mut offsets = [0; MAX_RINGS];
        gs.iter().zip(&mut offsets).for_each(|(g, o)| *o = g.0 - from);
        layout.spread = Some(Spread { from: Gva(from), offsets, len });
        Ok(layout)
    }

    /// Bytes that spread control pages take at the most: per-CPU areas lie side by side, each at most 2 MiB long.
    const fn spread_bytes(vcpus: usize) -> u64 {
        (vcpus as u64 + 2) * LARGE
    }

    /// Length of the memslot that is enough for [`Layout::spread`], whatever the GS bases.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub fn spread_len(vcpus: usize, records: u32) -> Result<u64, InjectError> {
        Ok(Layout::new(vcpus, records)?.control_area().start + Layout::spread_bytes(vcpus))
    }

    /// Where spread control pages are, as offsets; empty for packed ones.
    pub(super) fn control_area(&self) -> Range<u64> {
        let start = self.slots().end.next_multiple_of(LARGE);
        start..start + self.spread.map_or(0, |s| s.len)
    }

    /// The address that the control area's start has the distance `head_off` from, for spread control pages.
    pub(super) fn control_from(&self) -> Option<Gva> {
        self.spread.map(|s| s.from)
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
        match &self.spread {
            None => CONTROL_AT + (vcpu.index() * ctrl::BYTES) as u64,
            Some(s) => self.control_area().start + s.offsets[vcpu.index()],
        }
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
        self.control_area().end
    }

    /// Bytes of code and slots together, which are mapped in one piece.
    pub(super) fn mapped_len(&self) -> u64 {
        self.control_area().start - CODE_AT
    }

    fn ring_bytes(&self) -> u64 {
        u64::from(self.records) << RECORD_SHIFT
    }
}
