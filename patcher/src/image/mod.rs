//! Kernel images: what is in a `vmlinux` that a tracer needs.
//!
//! An image is a file from anywhere and therefore hostile: everything read from it is bounded and checked, and names
//! are made harmless for terminals. Only the ELF decoder lives here today; other containers end in the same
//! [`KernelImage`], so nothing behind this module knows what kind of file it was.

mod elf;
mod ip_index;
mod sites;
mod symbols;

use std::borrow::Cow;
use std::ops::Range;

use exotrace_trace::ids::{Gpa, Gva};

pub use elf::{ImageError, MAX_SEGMENTS, MAX_SITES};
pub use ip_index::IpIndex;
pub(crate) use sites::HexBytes;
pub use sites::{SITE_BYTES, Site, SiteForm, SiteTable, Skip, SkipReason};
pub use symbols::{MAX_NAME_BYTES, MAX_NAMES_TOTAL, MAX_SYMBOLS, Symbol, SymbolKind, Symbols};

/// One piece of the image that is loaded into guest memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it is linked to run.
    pub gva: Gva,
    /// Where it is loaded.
    pub gpa: Gpa,
    /// Its bytes in the file. What [`Segment::mem_size`] is longer than this is zero.
    pub file: Range<usize>,
    /// Its size in memory, in bytes.
    pub mem_size: u64,
    /// Whether it holds code.
    pub executable: bool,
    /// Whether it may be written.
    pub writable: bool,
}

/// The table of instrumented places as the linker wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct McountTable {
    /// Addresses of the 5-byte sites, in the file's order.
    pub entries: Vec<Gva>,
    /// Entries that were zero (functions that the linker dropped) and left out.
    pub zeros: usize,
}

/// A decoded kernel image.
#[derive(Clone, Debug)]
pub struct KernelImage {
    data: Cow<'static, [u8]>,
    entry: Gva,
    segments: Vec<Segment>,
    symbols: Symbols,
    mcount: McountTable,
}

impl KernelImage {
    /// Decodes an ELF `vmlinux`.
    ///
    /// # Errors
    /// Says what is wrong with the file, or what is missing in it to be traced.
    pub fn from_elf(data: impl Into<Cow<'static, [u8]>>) -> Result<KernelImage, ImageError> {
        let data = data.into();
        let parts = elf::decode(&data)?;
        Ok(KernelImage {
            entry: parts.entry,
            segments: parts.segments,
            symbols: parts.symbols,
            mcount: parts.mcount,
            data,
        })
    }

    /// The entry point, as the file's header gives it.
    #[must_use]
    pub fn entry(&self) -> Gva {
        self.entry
    }

    /// The loadable segments, sorted by GVA; neither their GVAs nor their GPAs overlap.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The bytes that a segment has in the file.
    #[must_use]
    pub fn bytes_of(&self, segment: &Segment) -> &[u8] {
        self.data.get(segment.file.clone()).unwrap_or_default()
    }

    /// The symbols.
    #[must_use]
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// The table of instrumented places.
    #[must_use]
    pub fn mcount(&self) -> &McountTable {
        &self.mcount
    }

    /// Where an address of the image is loaded; `None` when no segment holds it.
    #[must_use]
    pub fn gpa_of(&self, gva: Gva) -> Option<Gpa> {
        let segment = segment_at(&self.segments, gva)?;
        segment.gpa.checked_add(gva.0 - segment.gva.0)
    }

    /// The image's bytes at an address, if all of them come from the file.
    #[must_use]
    pub fn bytes_at(&self, gva: Gva, len: usize) -> Option<&[u8]> {
        let segment = segment_at(&self.segments, gva)?;
        slice_of(&self.data, segment, gva, len)
    }

    /// The 5 bytes at a site, if it lies in code.
    fn site_bytes(&self, gva: Gva) -> Option<[u8; SITE_BYTES]> {
        let segment = segment_at(&self.segments, gva).filter(|s| s.executable)?;
        slice_of(&self.data, segment, gva, SITE_BYTES)?.try_into().ok()
    }
}

/// The segment that holds an address, among segments sorted by GVA.
fn segment_at(segments: &[Segment], gva: Gva) -> Option<&Segment> {
    let after = segments.partition_point(|s| s.gva <= gva);
    let segment = segments.get(after.checked_sub(1)?)?;
    (gva.0 - segment.gva.0 < segment.mem_size).then_some(segment)
}

fn slice_of<'a>(data: &'a [u8], segment: &Segment, gva: Gva, len: usize) -> Option<&'a [u8]> {
    let from = usize::try_from(gva.0.checked_sub(segment.gva.0)?).ok()?;
    let bytes = data.get(segment.file.clone())?;
    bytes.get(from..from.checked_add(len)?)
}

#[cfg(test)]
mod tests;
