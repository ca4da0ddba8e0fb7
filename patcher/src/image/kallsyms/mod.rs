//! Linux's own symbol table, from the data of an image that was stripped of the ELF one.
//!
//! `scripts/kallsyms.c` writes a handful of arrays without anything that says where they are, and their order changed
//! over time. What never changed is how they hang together, so they are found by that, from the inside out:
//!
//! 1. **Tokens.** 256 strings, one behind the other, and directly behind them 256 offsets that say where each begins.
//!    Nothing else in a kernel fits this by accident.
//! 2. **Markers and names.** Before the tokens lie the names (each a length and that many token numbers) and for every
//!    256th of them its offset, the marker. Walking the names must meet every marker exactly. Between the markers and
//!    the tokens Linux 6.2 and 6.3 have an index of 3 bytes per name.
//! 3. **Addresses.** Before the names (up to 6.3) or behind the tokens (from 6.4 on); 32-bit offsets from a base or 64-bit
//!    addresses. They must ascend.
//!
//! Every step gives candidates, and a candidate counts only if all of its numbers fit together.

mod addresses;
mod names;
#[cfg(any(test, feature = "mock"))]
pub(super) mod oracle;
#[cfg(test)]
mod tests;
mod tokens;

use exotrace_trace::ids::Gva;

use self::names::{Budget, Names};
use self::tokens::Tokens;
use super::error::NoKallsyms;
use super::symbols::{Full, MAX_NAME_BYTES, SymbolKind, Symbols, SymbolsBuilder};
use super::{Segment, segment_at};

/// A piece of the image's data and the address of its first byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region<'a> {
    pub gva: u64,
    pub bytes: &'a [u8],
}

impl Region<'_> {
    /// `at` rounded up so that its address is a multiple of `align`.
    fn align_up(&self, at: usize, align: u64) -> usize {
        let rest = self.gva.wrapping_add(at as u64) % align;
        if rest == 0 { at } else { at + (align - rest) as usize }
    }

    /// `at` rounded down likewise; `None` before the beginning.
    fn align_down(&self, at: usize, align: u64) -> Option<usize> {
        at.checked_sub((self.gva.wrapping_add(at as u64) % align) as usize)
    }

    fn u32(&self, at: usize) -> Option<u32> {
        self.bytes.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
    }

    fn u64(&self, at: usize) -> Option<u64> {
        self.bytes.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b))
    }
}

/// Why there are no symbols.
#[derive(Debug)]
pub(super) enum Error {
    /// Not found.
    Missing(NoKallsyms),
    /// More than anything real has.
    Full(Full),
}

/// Finds the tables in one of the regions and decodes them.
pub(super) fn decode(regions: &[Region<'_>], segments: &[Segment]) -> Result<Symbols, Error> {
    let mut missing = NoKallsyms::NoTokens;
    let mut budget = Budget::default();
    let mut tries = tokens::MAX_TRIES;
    for region in regions {
        let mut from = 0;
        while let Some(tokens) = tokens::find(region.bytes, from, &mut tries) {
            from = tokens.index_at + 2;
            let Some(names) = names::find(region, &tokens, &mut budget) else {
                let at = region.gva.wrapping_add(tokens.at as u64);
                missing = missing.or(NoKallsyms::NoNames { tokens: Gva(at) });
                continue;
            };
            for addresses in addresses::candidates(region, &tokens, &names) {
                let symbols = symbols(region, &tokens, &names, &addresses, segments).map_err(Error::Full)?;
                if plausible(&symbols, segments) {
                    return Ok(symbols);
                }
            }
            missing = NoKallsyms::NoAddresses { names: names.count };
        }
    }
    Err(Error::Missing(missing))
}

impl NoKallsyms {
    /// The one of the two that came further.
    fn or(self, other: NoKallsyms) -> NoKallsyms {
        if self == NoKallsyms::NoTokens { other } else { self }
    }
}

/// Whether a symbol that every kernel has lies where it must.
fn plausible(symbols: &Symbols, segments: &[Segment]) -> bool {
    let text = ["_stext", "_text", "startup_64"].iter().flat_map(|name| symbols.named(name)).next();
    text.is_some_and(|s| segment_at(segments, s.addr).is_some_and(|s| s.executable))
}

/// Spells the names out and puts everything into a symbol table.
fn symbols(
    region: &Region<'_>,
    tokens: &Tokens<'_>,
    names: &Names,
    addresses: &[u64],
    segments: &[Segment],
) -> Result<Symbols, Full> {
    let mut builder = SymbolsBuilder::in_given_order();
    builder.reserve(addresses.len());
    let mut text = Vec::with_capacity(2 * MAX_NAME_BYTES);
    // The table is sorted, so a symbol reaches up to the next other address.
    let mut next_other = 0;
    for (i, (name, &addr)) in names.iter(region).zip(addresses).enumerate() {
        text.clear();
        for &token in name {
            text.extend_from_slice(tokens.text(token));
            if text.len() > MAX_NAME_BYTES {
                break;
            }
        }
        let Some((&letter, name)) = text.split_first() else { continue };
        next_other = next_other.max(i + 1);
        while addresses.get(next_other) == Some(&addr) {
            next_other += 1;
        }
        let segment = segment_at(segments, Gva(addr));
        let end = segment.map(|s| s.gva.0 + s.mem_size);
        let next = addresses.get(next_other).copied();
        let size = end.map_or(0, |end| next.map_or(end, |n| n.min(end)) - addr);
        let kind = kind(letter, segment.is_some_and(|s| s.executable));
        builder.add(name, Gva(addr), size, kind, letter.is_ascii_uppercase())?;
    }
    Ok(builder.build())
}

/// What a symbol of `nm`'s letter is.
fn kind(letter: u8, in_code: bool) -> SymbolKind {
    match letter.to_ascii_lowercase() {
        b't' | b'i' => SymbolKind::Function,
        b'w' if in_code => SymbolKind::Function,
        b'a' | b'n' | b'?' => SymbolKind::DataLabel,
        _ => SymbolKind::Object,
    }
}
