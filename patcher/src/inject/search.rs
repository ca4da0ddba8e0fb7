//! The search for free guest addresses.

use std::collections::HashMap;
use std::ops::Range;

use exotrace_trace::ids::Gva;
use exotrace_trace::ring::layout::ctrl;

use super::InjectError;
use super::tables::Overlay;
use crate::image::SITE_BYTES;
use crate::machine::GuestRead;
use crate::paging::{PageSize, Paging};

const STEP: u64 = PageSize::Mib2.bytes();
/// 2 MiB pages within the reach of a 32-bit displacement, to each side.
const STEPS: i64 = (1 << 31) / STEP as i64;
/// 4 KiB pages that are tried to each side when no whole 2 MiB is free.
const SMALL_STEPS: i64 = 16 << 10;

/// What the code range has to be.
pub(super) struct Ask<'a> {
    pub text: &'a Range<Gva>,
    pub user: bool,
    /// Bytes; the first 2 MiB are code.
    pub len: u64,
    /// Whether page-table pages may be added.
    pub new_tables: bool,
}

/// Finds address space for code and slots: as near to the text as possible, above it if possible (a kernel keeps its
/// image and the hole behind it in all of its address spaces), with 2 MiB of nothing around it, so that what runs past
/// a neighbour's end still faults.
pub(super) fn code_range<M: GuestRead + ?Sized>(
    overlay: &Overlay<'_, M>,
    spaces: &[Paging],
    ask: &Ask<'_>,
) -> Result<Gva, InjectError> {
    let up = ask.text.end.0.next_multiple_of(STEP);
    let above = (0..STEPS as u64).map(|n| up.wrapping_add(n * STEP));
    let below = (1..STEPS as u64).map(|n| (ask.text.start.0 & !(STEP - 1)).wrapping_sub(n * STEP));
    let candidates: Vec<Gva> = above.chain(below).map(Gva).filter(|&c| in_reach(ask, c)).collect();
    if !ask.new_tables {
        let fits = |c: &&Gva| {
            let pages = (0..ask.len).step_by(STEP as usize).map(|o| c.offset(o));
            let guarded = [Gva(c.0.wrapping_sub(STEP)), c.offset(ask.len)];
            spaces.iter().all(|p| {
                pages.clone().all(|g| overlay.free_level(p, g, 2, ask.user) == Some(2))
                    && guarded.iter().all(|g| overlay.is_free(p, *g, 2, ask.user))
            })
        };
        let found = candidates.iter().find(fits).copied();
        return found.ok_or(InjectError::NoRoomForCode { len: ask.len, text: ask.text.start });
    }
    let mut map = FreeMap { overlay, spaces, user: ask.user, known: HashMap::new() };
    // First those under a top-level entry that exists; only then, if there is no other way, a new one.
    for least in [Free::Shared, Free::Alone] {
        if let Some(found) = candidates.iter().find(|c| map.is_hole(**c, ask.len, least)) {
            return Ok(*found);
        }
    }
    Err(InjectError::NoRoomForCode { len: ask.len, text: ask.text.start })
}

/// How free 2 MiB of address space are, in all address spaces together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Free {
    /// In use.
    No,
    /// Free, but a new top-level entry would be needed.
    Alone,
    /// Free, under a top-level entry that exists.
    Shared,
}

/// What is known of the address space: each page is looked up once, however the guest has scattered its mappings.
struct FreeMap<'a, M: ?Sized> {
    overlay: &'a Overlay<'a, M>,
    spaces: &'a [Paging],
    user: bool,
    known: HashMap<u64, Free>,
}

impl<M: GuestRead + ?Sized> FreeMap<'_, M> {
    fn free(&mut self, at: u64) -> Free {
        let (overlay, user) = (self.overlay, self.user);
        let look = |paging: &Paging| match (overlay.is_free(paging, Gva(at), 2, user), overlay.has_top(paging, Gva(at)))
        {
            (false, _) => Free::No,
            (true, false) => Free::Alone,
            (true, true) => Free::Shared,
        };
        let spaces = self.spaces;
        *self.known.entry(at).or_insert_with(|| spaces.iter().map(look).min().unwrap_or(Free::No))
    }

    /// Whether there is room for `len` bytes, and 2 MiB of nothing before and behind.
    fn is_hole(&mut self, code: Gva, len: u64, least: Free) -> bool {
        let (Some(from), Some(to)) = (code.0.checked_sub(STEP), code.0.checked_add(len + STEP)) else {
            return false;
        };
        (from..to).step_by(STEP as usize).all(|at| self.free(at) >= least)
    }
}

/// Whether every site reaches the code area at an address and every slot fits a sign-extended disp32.
fn in_reach(ask: &Ask<'_>, code: Gva) -> bool {
    let reach = |from: Gva, to: u64| {
        let next = i128::from(from.0) + SITE_BYTES as i128;
        i32::try_from(i128::from(to) - next).is_ok()
    };
    let Some(end) = code.0.checked_add(ask.len) else { return false };
    let last_site = Gva(ask.text.end.0.saturating_sub(SITE_BYTES as u64));
    let is_disp32 = |a: u64| i32::try_from(a as i64).is_ok();
    [ask.text.start, last_site].iter().all(|&s| reach(s, code.0) && reach(s, code.0 + STEP))
        && is_disp32(code.0)
        && is_disp32(end - 1)
}

/// Finds a distance from the GS bases at which every vCPU has a free page.
pub(super) fn head_offset<M: GuestRead + ?Sized>(
    overlay: &Overlay<'_, M>,
    spaces: &[Paging],
    gs: &[Gva],
    user: bool,
) -> Result<i32, InjectError> {
    // Makes the page's address a multiple of its size; the same for all, as `check_gs` has seen.
    let align = gs.first().map_or(0, |g| g.0.wrapping_neg() & (PageSize::Kib4.bytes() - 1)) as i64;
    let fits = |offset: i64, least: u8, shared: bool| {
        spaces.iter().all(|p| {
            gs.iter().all(|g| {
                let page = Gva(g.0.wrapping_add_signed(offset));
                // Both ends in the same half: an address that wraps around is not one a kernel should use.
                g.0 >> 63 == page.0 >> 63
                    && overlay.is_free(p, page, least, user)
                    && (!shared || overlay.has_top(p, page))
            })
        })
    };
    let large = |n: i64| align + n * STEP as i64;
    let small = |n: i64| align + n * PageSize::Kib4.bytes() as i64;
    let both = |n: i64| (1..n).chain((1..=n).map(|n| -n));
    let in_range = |o: &i64| i32::try_from(*o).is_ok() && i32::try_from(*o + ctrl::BYTES as i64).is_ok();
    // Whole free 2 MiB first: a hole between used pages may be one that the guest is about to fill.
    let found = both(STEPS)
        .map(large)
        .filter(in_range)
        .find(|&o| fits(o, 2, true))
        .or_else(|| both(STEPS).map(large).filter(in_range).find(|&o| fits(o, 2, false)))
        .or_else(|| both(SMALL_STEPS).map(small).filter(in_range).find(|&o| fits(o, 1, true)));
    let none = InjectError::NoRoomForControl { vcpus: gs.len() };
    found.and_then(|o| i32::try_from(o).ok()).ok_or(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_must_be_in_reach_and_slots_must_fit_a_disp32() {
        let fits = |text: Range<u64>, code: u64, len: u64| {
            in_reach(&Ask { text: &(Gva(text.start)..Gva(text.end)), user: false, len, new_tables: true }, Gva(code))
        };
        let low = 0x4010_0000..0x4014_0000;
        assert!(fits(low.clone(), 0x8000_0000 - 2 * STEP, 2 * STEP));
        assert!(!fits(low.clone(), 0x8000_0000 - STEP, 2 * STEP), "slots past 2 GiB");
        assert!(!fits(low, 0x8000_0000, STEP));
        let high = 0xffff_ffff_8100_0000..0xffff_ffff_8200_0000;
        assert!(fits(high.clone(), 0xffff_ffff_8000_0000, STEP));
        assert!(!fits(high.clone(), 0xffff_ffff_8000_0000 - STEP, STEP));
        assert!(!fits(high.clone(), 0x4000_0000, STEP), "half an address space away");
        assert!(!fits(high, 0u64.wrapping_sub(STEP), 2 * STEP), "wraps around");
        let between = 0xf000_0000..0xffff_0000;
        assert!(fits(0xf000_0000..0xf010_0000, 0x7fe0_0000, STEP));
        assert!(!fits(between, 0x7fe0_0000, STEP), "the last site can't reach it");
    }
}

/// Where large pages can map the control area: 2 MiB pages, or one page of 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LargeControl {
    /// 2 MiB pages from here on.
    Mib2(Gva),
    /// One page of 1 GiB here; it maps the memslot from its start.
    Gib1(Gva),
}

/// Finds a place for `len` bytes of control area near `from`, in entries of tables that exist: the guest may look into
/// all of its own tables, and those of ours would not be in its memory.
pub(super) fn large_control<M: GuestRead + ?Sized>(
    overlay: &Overlay<'_, M>,
    spaces: &[Paging],
    from: Gva,
    len: u64,
    user: bool,
) -> Option<LargeControl> {
    const GIB: u64 = PageSize::Gib1.bytes();
    let level = |gva: Gva, level: u8| spaces.iter().all(|p| overlay.free_level(p, gva, level, user) == Some(level));
    let near = |step: u64, n: i64| Gva((from.0 & !(step - 1)).wrapping_add_signed(n * step as i64));
    let same_half = |g: &Gva| g.0 >> 63 == from.0 >> 63;
    let outwards = |most: i64| (1..most).flat_map(|n| [n, -n]);
    // A page less on each side than a displacement reaches, for the area itself.
    let steps = STEPS - (len / STEP) as i64 - 1;
    let small = outwards(steps)
        .map(|n| near(STEP, n))
        .filter(same_half)
        .find(|g| (0..len).step_by(STEP as usize).all(|o| level(g.offset(o), 2)));
    small
        .map(LargeControl::Mib2)
        .or_else(|| outwards(2).map(|n| near(GIB, n)).filter(same_half).find(|g| level(*g, 3)).map(LargeControl::Gib1))
}
