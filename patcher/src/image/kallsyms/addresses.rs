//! The names' addresses: where they are and how they are written.
//!
//! | kernel | place | form |
//! | --- | --- | --- |
//! | up to 6.3 | before the number of names | offsets, base; or addresses |
//! | 6.4 to 6.10 | behind the token index | offsets, base; or addresses |
//! | from 6.11 on | behind the token index | offsets, base |
//!
//! Offsets are of 32 bits. Up to 6.14 those of kernels with more than one CPU are signed: not negative ones are
//! absolute values (the per-CPU area is linked at 0), negative ones count down from just below the base.

use super::Region;
use super::names::Names;
use super::tokens::Tokens;

/// Lowest address of the kernel's image.
const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;
/// An offset that is negative.
const NEGATIVE: u32 = 1 << 31;

/// Where a table may be.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// 32-bit offsets at the first, their base at the second place.
    Offsets(usize, usize),
    /// 64-bit addresses.
    Addresses(usize),
}

/// All readings of the data around the names that give ascending addresses, the most probable first.
pub(super) fn candidates<'a>(
    region: &'a Region<'a>,
    tokens: &Tokens<'_>,
    names: &Names,
) -> impl Iterator<Item = Vec<u64>> + 'a {
    let count = names.count as usize;
    places(region, tokens.end(), names.count_at, count).into_iter().filter_map(move |place| match place {
        Place::Offsets(at, base) => offsets(region, at, base, count),
        Place::Addresses(at) => addresses(region, at, count),
    })
}

fn places(region: &Region<'_>, tokens_end: usize, count_at: usize, count: usize) -> Vec<Place> {
    let mut places = Vec::new();
    for align in [8, 4] {
        let at = region.align_up(tokens_end, align);
        places.push(Place::Offsets(at, region.align_up(at + 4 * count, 8)));
        places.push(Place::Offsets(at, at + 4 * count));
    }
    let base = region.align_down(count_at, 8).and_then(|at| at.checked_sub(8));
    if let Some(base) = base {
        let last = base.checked_sub(4 * count);
        let aligned = last.and_then(|at| region.align_down(at, 8));
        places.extend([aligned, last].into_iter().flatten().map(|at| Place::Offsets(at, base)));
    }
    places.push(Place::Addresses(region.align_up(tokens_end, 8)));
    let before = region.align_down(count_at, 8).and_then(|at| at.checked_sub(8 * count));
    places.extend(before.map(Place::Addresses));
    places
}

fn offsets(region: &Region<'_>, at: usize, base_at: usize, count: usize) -> Option<Vec<u64>> {
    let base = region.u64(base_at).filter(|&b| b >= KERNEL_BASE)?;
    let raw = region.bytes.get(at..at.checked_add(4 * count)?)?;
    let offsets = || raw.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b));
    // No kernel is 2 GiB long, so an offset with the top bit set is a negative number.
    let signed = offsets().any(|o| o >= NEGATIVE);
    let address = |o: u32| match (signed, o >= NEGATIVE) {
        (true, true) => (base - 1).wrapping_sub(i64::from(o.cast_signed()).cast_unsigned()),
        (true, false) => u64::from(o),
        (false, _) => base.wrapping_add(u64::from(o)),
    };
    ascending(offsets().map(address), count)
}

fn addresses(region: &Region<'_>, at: usize, count: usize) -> Option<Vec<u64>> {
    let raw = region.bytes.get(at..at.checked_add(8 * count)?)?;
    let all = ascending(raw.as_chunks().0.iter().map(|b| u64::from_le_bytes(*b)), count)?;
    all.last().is_some_and(|&last| last >= KERNEL_BASE).then_some(all)
}

fn ascending(values: impl Iterator<Item = u64>, count: usize) -> Option<Vec<u64>> {
    let mut all = Vec::with_capacity(count);
    for value in values {
        if all.last().is_some_and(|&before| before > value) {
            return None;
        }
        all.push(value);
    }
    Some(all)
}
