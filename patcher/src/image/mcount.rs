//! The table of instrumented places, wherever it is.
//!
//! A small kernel has a section of its own for it. Linux's linker script puts it into `.init.data` between two labels; they
//! are data, so a kernel without CONFIG_KALLSYMS_ALL doesn't list them. Then the table is found by what its entries point
//! to: nothing else is a long row of addresses that all hold a call of `__fentry__`.

use exotrace_trace::ids::Gva;

use super::sites::{SITE_BYTES, fentry_targets};
use super::symbols::Symbols;
use super::{ImageError, McountTable, Segment, segment_at, slice_of};
use crate::plan::{NOP, make_call};

/// Entries of the mcount table at most (a distribution's vmlinux has about 60,000).
pub const MAX_SITES: usize = 1 << 20;
/// Size of an entry of the mcount table, in bytes.
const ENTRY_BYTES: usize = 8;
/// Where Linux's linker script puts the table.
const LABELS: (&str, &str) = ("__start_mcount_loc", "__stop_mcount_loc");
/// Shortest row of addresses that is taken for the table when nothing names it.
const MIN_FOUND: usize = 16;

/// Reads the table from its section, if there is one, or finds it.
pub(super) fn read(
    section: Option<&[u8]>,
    segments: &[Segment],
    symbols: &Symbols,
    data: &[u8],
) -> Result<McountTable, ImageError> {
    if let Some(bytes) = section {
        return parse(bytes);
    }
    let label = |name| symbols.named(name).next().map(|s| s.addr);
    let (Some(start), Some(stop)) = (label(LABELS.0), label(LABELS.1)) else {
        return parse(search(segments, symbols, data).ok_or(ImageError::NoMcountLoc)?);
    };
    let len = stop.0.checked_sub(start.0).and_then(|l| usize::try_from(l).ok());
    let bytes = len.and_then(|len| slice_of(data, segment_at(segments, start)?, start, len));
    parse(bytes.ok_or_else(|| ImageError::BadMcountLoc {
        why: format!("{} ({start}) to {} ({stop}) is not inside one segment", LABELS.0, LABELS.1),
    })?)
}

fn parse(bytes: &[u8]) -> Result<McountTable, ImageError> {
    let (entries, rest) = bytes.as_chunks::<ENTRY_BYTES>();
    if !rest.is_empty() {
        return Err(ImageError::BadMcountLoc {
            why: format!("its {} bytes are not a whole number of 8-byte addresses", bytes.len()),
        });
    }
    if entries.len() > MAX_SITES {
        return Err(ImageError::TooMany { what: "sites", limit: MAX_SITES });
    }
    let all = entries.iter().map(|e| u64::from_le_bytes(*e));
    let zeros = all.clone().filter(|&a| a == 0).count();
    if zeros == entries.len() {
        return Err(ImageError::BadMcountLoc {
            why: "it has no address at all (are they applied by relocation, which is not supported?)".into(),
        });
    }
    Ok(McountTable { entries: all.filter(|&a| a != 0).map(Gva).collect(), zeros })
}

/// The longest row of addresses of calls of the fentry function, zeros among them allowed.
fn search<'a>(segments: &[Segment], symbols: &Symbols, data: &'a [u8]) -> Option<&'a [u8]> {
    let fentry = fentry_targets(symbols);
    let lowest = segments.iter().filter(|s| s.executable).map(|s| s.gva.0).min()?;
    let is_site = |addr: u64| {
        if addr < lowest || fentry.is_empty() {
            return false;
        }
        let segment = segment_at(segments, Gva(addr)).filter(|s| s.executable);
        let found = segment.and_then(|s| slice_of(data, s, Gva(addr), SITE_BYTES));
        let call = |&target: &Gva| make_call(Gva(addr), target).is_ok_and(|call| found == Some(&call));
        found == Some(&NOP) || fentry.iter().any(call)
    };
    let mut best: &[u8] = &[];
    for segment in segments {
        let bytes = data.get(segment.file.clone())?;
        // The table is aligned in memory.
        let skip = (segment.gva.0.wrapping_neg() % ENTRY_BYTES as u64) as usize;
        let words = bytes.get(skip..).unwrap_or_default().as_chunks::<ENTRY_BYTES>().0;
        let mut at = 0;
        while at < words.len() {
            let value = |i: usize| words.get(i).map(|w| u64::from_le_bytes(*w));
            let (from, mut end) = (at, at);
            while let Some(word) = value(at).filter(|&w| w == 0 && end > from || is_site(w)) {
                at += 1;
                if word != 0 {
                    end = at;
                }
            }
            if (end - from) * ENTRY_BYTES > best.len() {
                best = words[from..end].as_flattened();
            }
            at += 1;
        }
    }
    (best.len() >= MIN_FOUND * ENTRY_BYTES).then_some(best)
}
