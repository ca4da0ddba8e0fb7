//! The engine: verifies a whole plan against guest memory, then writes it, or refuses it whole.
//!
//! This is all that happens while the guest stands. Verifying reads neighbouring sites with one access (a site's
//! cache line is the cost, not the call), writing goes site by site because what lies between sites is not ours.

use std::fmt;
use std::time::{Duration, Instant};

use exotrace_trace::ids::{Gpa, Gva, SiteId};

use crate::image::{HexBytes, SITE_BYTES};
use crate::machine::{GuestRead, MemoryError, Stopped};
use crate::plan::{Patch, Plan, Tally};

/// Sites that a refusal names; the rest is counted.
pub const NAMED_AT_MOST: usize = 8;
/// Longest single read, in bytes.
const READ_BYTES: usize = 16 << 10;
/// Sites closer than this share a read. Larger gaps would read more cache lines than they save calls.
const GAP_BYTES: u64 = 512;

/// A site whose bytes are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The site.
    pub site: SiteId,
    /// The function's name.
    pub name: Box<str>,
    /// The site's address.
    pub addr: Gva,
    /// What should be there.
    pub expected: [u8; SITE_BYTES],
    /// What is there.
    pub found: [u8; SITE_BYTES],
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' at {}: expected {}, found {}",
            self.name,
            self.addr,
            HexBytes(&self.expected),
            HexBytes(&self.found)
        )
    }
}

/// A plan was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The guest's text is not as expected.
    #[error("nothing was written, because {} in the guest's memory: {}", differ(*total), list(first, *total))]
    Mismatch {
        /// The first differing sites, at most [`NAMED_AT_MOST`].
        first: Vec<Difference>,
        /// How many differ.
        total: usize,
    },
    /// A site could not be read.
    #[error("nothing was written: function '{name}' at {addr}: {source}")]
    Unreadable {
        /// The function.
        name: Box<str>,
        /// The site's address.
        addr: Gva,
        /// The access.
        source: MemoryError,
    },
    /// A write failed; what had been written before it was put back.
    #[error("function '{name}' at {addr} could not be written, all {undone} sites before it were put back: {source}")]
    Unwritable {
        /// The function.
        name: Box<str>,
        /// The site's address.
        addr: Gva,
        /// Sites that had been written and are as before again.
        undone: usize,
        /// The access.
        source: MemoryError,
    },
    /// A write failed, and so did putting back what had been written. The guest's text is mixed.
    #[error(
        "function '{name}' at {addr} could not be written ({source}), and {} sites written before it could not be put \
         back either, the first at {}: the guest's text is inconsistent, end the guest", stuck.len(), first_of(stuck)
    )]
    Torn {
        /// The function.
        name: Box<str>,
        /// The site's address.
        addr: Gva,
        /// Sites that still hold the new bytes.
        stuck: Vec<(SiteId, Gva)>,
        /// The access.
        source: MemoryError,
    },
}

fn differ(total: usize) -> String {
    match total {
        1 => "1 site differs".into(),
        n => format!("{n} sites differ"),
    }
}

fn list(first: &[Difference], total: usize) -> String {
    let named: Vec<String> = first.iter().map(Difference::to_string).collect();
    let more = match total - first.len().min(total) {
        0 => String::new(),
        n => format!("; and {n} more"),
    };
    named.join("; ") + &more
}

fn first_of(stuck: &[(SiteId, Gva)]) -> Gva {
    stuck.first().map_or(Gva(0), |s| s.1)
}

/// A plan was carried out.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Applied {
    /// Sites written.
    pub patched: usize,
    /// Sites that were already so.
    pub unchanged: usize,
    /// Sites left alone; [`Plan::outcomes`] says why for each.
    pub skipped: usize,
    /// Time spent on verifying.
    pub verify: Duration,
    /// Time spent on writing.
    pub write: Duration,
}

/// Verifies that guest memory holds what the plan expects and then writes what it wants: all of it or nothing.
///
/// # Errors
/// [`Refused`] says why. Except for [`Refused::Torn`], guest memory is as it was before.
pub fn apply<S: Stopped + ?Sized>(plan: &Plan, stopped: &mut S) -> Result<Applied, Refused> {
    let began = Instant::now();
    verify(plan, stopped)?;
    let verified = Instant::now();
    write(plan, stopped)?;
    let Tally { patched, unchanged, skipped } = plan.tally();
    Ok(Applied { patched, unchanged, skipped, verify: verified - began, write: verified.elapsed() })
}

/// Checks a plan against guest memory without writing anything.
///
/// # Errors
/// [`Refused::Mismatch`] or [`Refused::Unreadable`].
pub fn verify<M: GuestRead + ?Sized>(plan: &Plan, memory: &M) -> Result<(), Refused> {
    let mut buf = vec![0u8; READ_BYTES];
    let mut first = Vec::new();
    let mut total = 0;
    let mut rest = plan.patches();
    while let Some(head) = rest.first() {
        let group = &rest[..group_len(rest)];
        rest = &rest[group.len()..];
        let bytes = &mut buf[..span(group)];
        if memory.read(head.gpa, bytes).is_err() {
            // One of the group is not RAM: read one by one, so that the right one is named.
            for patch in group {
                let mut found = [0; SITE_BYTES];
                memory.read(patch.gpa, &mut found).map_err(|source| unreadable(plan, patch, source))?;
                bytes[offset(head.gpa, patch.gpa)..][..SITE_BYTES].copy_from_slice(&found);
            }
        }
        for patch in group {
            let found = &bytes[offset(head.gpa, patch.gpa)..][..SITE_BYTES];
            if found != patch.expected {
                total += 1;
                if first.len() < NAMED_AT_MOST {
                    first.push(difference(plan, patch, found));
                }
            }
        }
    }
    if total == 0 { Ok(()) } else { Err(Refused::Mismatch { first, total }) }
}

/// How many of the patches (sorted by GPA, at least one) are read together.
fn group_len(patches: &[Patch]) -> usize {
    let head = patches[0].gpa.0;
    let mut last = head;
    let mut n = 1;
    for patch in &patches[1..] {
        let end = patch.gpa.0 - head + SITE_BYTES as u64;
        if patch.gpa.0 - last > GAP_BYTES || end > READ_BYTES as u64 {
            break;
        }
        last = patch.gpa.0;
        n += 1;
    }
    n
}

/// Bytes from the first patch of a group to the end of its last.
fn span(group: &[Patch]) -> usize {
    match (group.first(), group.last()) {
        (Some(a), Some(b)) => offset(a.gpa, b.gpa) + SITE_BYTES,
        _ => 0,
    }
}

fn offset(from: Gpa, to: Gpa) -> usize {
    (to.0 - from.0) as usize
}

fn name_of(plan: &Plan, patch: &Patch) -> Box<str> {
    plan.sites().get(patch.site).map_or_else(|| patch.gva.to_string().into(), |s| s.name.clone())
}

fn difference(plan: &Plan, patch: &Patch, found: &[u8]) -> Difference {
    let mut bytes = [0; SITE_BYTES];
    bytes.copy_from_slice(found);
    Difference { site: patch.site, name: name_of(plan, patch), addr: patch.gva, expected: patch.expected, found: bytes }
}

fn unreadable(plan: &Plan, patch: &Patch, source: MemoryError) -> Refused {
    Refused::Unreadable { name: name_of(plan, patch), addr: patch.gva, source }
}

fn write<S: Stopped + ?Sized>(plan: &Plan, stopped: &mut S) -> Result<(), Refused> {
    for (n, patch) in plan.patches().iter().enumerate() {
        if let Err(source) = stopped.write(patch.gpa, &patch.wanted) {
            // A failed write may have written a part: it is put back as well, as far as that goes.
            let _ = stopped.write(patch.gpa, &patch.expected);
            return Err(undo(plan, n, patch, source, stopped));
        }
    }
    Ok(())
}

/// Puts back the first `written` patches.
fn undo<S: Stopped + ?Sized>(
    plan: &Plan,
    written: usize,
    failed: &Patch,
    source: MemoryError,
    stopped: &mut S,
) -> Refused {
    let mut stuck = Vec::new();
    for patch in plan.patches()[..written].iter().rev() {
        if stopped.write(patch.gpa, &patch.expected).is_err() {
            stuck.push((patch.site, patch.gva));
        }
    }
    let (name, addr) = (name_of(plan, failed), failed.gva);
    if stuck.is_empty() {
        Refused::Unwritable { name, addr, undone: written, source }
    } else {
        stuck.reverse();
        Refused::Torn { name, addr, stuck, source }
    }
}

#[cfg(test)]
mod tests;
