//! Markers and names: found by walking the names and meeting every marker.

use super::Region;
use super::tokens::Tokens;
use crate::image::symbols::MAX_SYMBOLS;

/// Names between two markers.
const GROUP: usize = 256;
/// Markers at most.
const MAX_MARKERS: usize = MAX_SYMBOLS.div_ceil(GROUP);
/// A name takes at least a length and one token, at most this many bytes.
const MAX_ENTRY_BYTES: usize = 2 + 0x3fff;
/// Bytes that 256 names take at most in any real table (KSYM_NAME_LEN is 512); keeps the search short.
const MAX_GROUP_BYTES: usize = GROUP * 514;
/// Padding between two tables at most.
const MAX_PADDING: usize = 7;
/// Bytes per name of the index that 6.2 and 6.3 have between markers and tokens.
const SEQ_BYTES: usize = 3;
/// What a length byte says when a second one follows.
const TWO_BYTES: u8 = 0x80;

/// How much work a search may cost in all: names looked at. A real kernel needs about as many as it has symbols.
#[derive(Debug)]
pub(super) struct Budget(u64);

impl Default for Budget {
    fn default() -> Budget {
        Budget(64 << 20)
    }
}

impl Budget {
    fn spend(&mut self, steps: u64) -> Option<()> {
        self.0 = self.0.checked_sub(steps)?;
        Some(())
    }
}

/// Where the names are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Names {
    /// Where their number stands in the region.
    pub count_at: usize,
    /// How many there are.
    pub count: u32,
    /// Where the first begins in the region.
    at: usize,
    /// Where the last ends.
    end: usize,
    lengths: Lengths,
}

/// How lengths are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lengths {
    /// One byte, and a second one if the first has its top bit set (from 6.1 on).
    Variable,
    /// One byte always.
    Byte,
}

impl Lengths {
    /// Length of the name that `entry` begins with and how many bytes say so.
    fn read(self, entry: &[u8]) -> Option<(usize, usize)> {
        let first = *entry.first()?;
        if self == Lengths::Variable && first & TWO_BYTES != 0 {
            let second = *entry.get(1)?;
            return Some((usize::from(first & !TWO_BYTES) | usize::from(second) << 7, 2));
        }
        Some((usize::from(first), 1))
    }
}

/// The markers: offsets of every 256th name.
#[derive(Clone, Copy, Debug)]
struct Markers {
    at: usize,
    len: usize,
    /// Number of names, if something else than the markers says so: the least and the most.
    counts: (usize, usize),
}

impl Names {
    /// The names' tokens.
    pub fn iter<'a>(&self, region: &Region<'a>) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = region.bytes.get(self.at..self.end).unwrap_or_default();
        let lengths = self.lengths;
        std::iter::from_fn(move || {
            let (len, head) = lengths.read(rest)?;
            let name = rest.get(head..head + len)?;
            rest = &rest[head + len..];
            Some(name)
        })
    }
}

/// The names that belong to a token table.
pub(super) fn find(region: &Region<'_>, tokens: &Tokens<'_>, budget: &mut Budget) -> Option<Names> {
    if let Some(names) = adjacent(region, tokens).into_iter().find_map(|m| before(region, m, budget)) {
        return Some(names);
    }
    behind_seqs(region, tokens, budget)
}

/// Markers that end right before the tokens: the usual case.
fn adjacent(region: &Region<'_>, tokens: &Tokens<'_>) -> Vec<Markers> {
    let Some(last) = region.align_down(tokens.at, 4) else { return Vec::new() };
    // The tokens are aligned to 8 bytes in most versions, so one word of padding may follow the last marker.
    [last, last.saturating_sub(4)].into_iter().filter_map(|end| markers_before(region, end)).collect()
}

fn markers_before(region: &Region<'_>, end: usize) -> Option<Markers> {
    let mut at = end.checked_sub(4)?;
    let mut value = region.u32(at)?;
    let mut len = 1;
    while value > 0 {
        at = at.checked_sub(4)?;
        let lower = region.u32(at)?;
        if !is_group(lower, value) || len >= MAX_MARKERS {
            return None;
        }
        value = lower;
        len += 1;
    }
    (len > 1).then_some(Markers { at, len, counts: ((len - 1) * GROUP + 1, len * GROUP) })
}

/// Whether two neighbouring markers are a believable distance apart.
fn is_group(lower: u32, upper: u32) -> bool {
    upper.checked_sub(lower).is_some_and(|d| (2 * GROUP..=MAX_GROUP_BYTES).contains(&(d as usize)))
}

/// The table of names before given markers.
fn before(region: &Region<'_>, markers: Markers, budget: &mut Budget) -> Option<Names> {
    let last = region.u32(markers.at + 4 * (markers.len - 1))? as usize;
    // The last, partly filled group begins at `last`, so the names begin within a group's size before `at - last`.
    let latest = markers.at.checked_sub(last)?.checked_sub(4)?;
    let earliest = latest.saturating_sub(MAX_GROUP_BYTES + 2 * MAX_PADDING);
    let counts = markers.counts.0 as u32..=markers.counts.1 as u32;
    let from = region.align_up(earliest, 4);
    for count_at in (from..=latest).step_by(4) {
        let Some(count) = region.u32(count_at).filter(|n| counts.contains(n)) else { continue };
        let padded = region.u32(count_at + 4) == Some(0);
        for at in [padded.then_some(count_at + 8), Some(count_at + 4)].into_iter().flatten() {
            for lengths in [Lengths::Variable, Lengths::Byte] {
                let names = Names { count_at, count, at, end: at, lengths };
                let Some(end) = walk(region, names, markers, budget) else { continue };
                return Some(Names { end, ..names });
            }
        }
    }
    None
}

/// Walks all names; `None` unless each marker is met and the last name ends right before the markers.
fn walk(region: &Region<'_>, names: Names, markers: Markers, budget: &mut Budget) -> Option<usize> {
    let bytes = region.bytes.get(names.at..markers.at)?;
    let mut at = 0;
    for group in 0..markers.len {
        if region.u32(markers.at + 4 * group)? as usize != at {
            return None;
        }
        let left = names.count as usize - group * GROUP;
        budget.spend(left.min(GROUP) as u64)?;
        for _ in 0..left.min(GROUP) {
            let (len, head) = names.lengths.read(bytes.get(at..)?)?;
            if len == 0 || len > MAX_ENTRY_BYTES {
                return None;
            }
            at += head + len;
        }
    }
    let padding = bytes.get(at..)?;
    (padding.len() <= MAX_PADDING && padding.iter().all(|&b| b == 0)).then_some(names.at + at)
}

/// Markers with an index of 3 bytes per name between them and the tokens (6.2 and 6.3). Its size depends on how many
/// names there are, so each number of markers is tried.
fn behind_seqs(region: &Region<'_>, tokens: &Tokens<'_>, budget: &mut Budget) -> Option<Names> {
    for len in 2..=MAX_MARKERS {
        let least = (len - 1) * GROUP + 1;
        let tables = |count: usize| Some(tokens.at.checked_sub(SEQ_BYTES * count)?.checked_sub(4 * len));
        // Not even the smallest index of this many markers fits before the tokens.
        let latest = tables(least)??;
        let earliest = tables(len * GROUP).flatten().unwrap_or(0).saturating_sub(2 * MAX_PADDING);
        budget.spend(((latest - earliest) / 4) as u64)?;
        for at in (region.align_up(earliest, 4)..=latest).step_by(4) {
            if region.u32(at) != Some(0) || !rising(region, at, len, budget)? {
                continue;
            }
            let most = (tokens.at - at - 4 * len) / SEQ_BYTES;
            let counts = (least.max(most.saturating_sub(2 * MAX_PADDING / SEQ_BYTES + 1)), most.min(len * GROUP));
            if let Some(names) = before(region, Markers { at, len, counts }, budget) {
                return Some(names);
            }
        }
    }
    None
}

/// Whether `len` words from `at` on could be markers.
fn rising(region: &Region<'_>, at: usize, len: usize, budget: &mut Budget) -> Option<bool> {
    let word = |i: usize| region.u32(at + 4 * i).unwrap_or(0);
    let fitting = (1..len).take_while(|&i| is_group(word(i - 1), word(i))).count();
    budget.spend(fitting as u64 + 1)?;
    Some(fitting == len - 1)
}
