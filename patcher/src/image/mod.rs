//! Kernel images: what is in a `vmlinux` that a tracer needs.
//!
//! An image is a file from anywhere and therefore hostile: everything read from it is bounded and checked, and names
//! are made harmless for terminals. Containers and compressions are opened in [`container`](Unpacked), symbols come
//! from the ELF table or, in a stripped image, from Linux's own ([`kallsyms`]); all of it ends in the same
//! [`KernelImage`], so nothing behind this module knows what kind of file it was.

pub mod btf;
mod bzimage;
#[cfg(any(test, feature = "mock"))]
pub mod checks;
mod codec;
mod container;
mod elf;
mod error;
mod ip_index;
mod kallsyms;
mod mcount;
mod sites;
mod slide;
mod symbols;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use exotrace_trace::ids::{Gpa, Gva};

use self::btf::{Btf, BtfError};
use self::slide::Slide;

pub use bzimage::SetupHeader;
pub use codec::{Codec, MAX_VMLINUX_BYTES};
pub use container::Unpacked;
pub use elf::MAX_SEGMENTS;
pub use error::{ImageError, NoKallsyms};
pub use ip_index::IpIndex;
pub use mcount::MAX_SITES;
pub(crate) use sites::HexBytes;
pub use sites::{SITE_BYTES, Site, SiteForm, SiteTable, Skip, SkipReason};
pub use symbols::{MAX_NAME_BYTES, MAX_NAMES_TOTAL, MAX_SYMBOLS, Symbol, SymbolKind, Symbols};

/// What Linux's banner begins with.
const BANNER_START: &[u8] = b"Linux version ";
/// Longest banner, in bytes.
const MAX_BANNER_BYTES: usize = 512;

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

/// A decoded kernel image. Its addresses are those it was linked to, unless it comes from [`KernelImage::slid`].
#[derive(Clone, Debug)]
pub struct KernelImage {
    data: Arc<Cow<'static, [u8]>>,
    setup: Option<Arc<SetupHeader>>,
    codec: Codec,
    entry: Gva,
    segments: Vec<Segment>,
    symbols: Symbols,
    mcount: McountTable,
    returns: Vec<Gva>,
    btf: Option<Range<usize>>,
    slide: Slide,
}

impl KernelImage {
    /// Decodes a kernel's file, whatever it is: a bzImage, an ELF `vmlinux` or a compressed one, with or without an ELF
    /// symbol table.
    ///
    /// # Errors
    /// Says what is wrong with the file, or what is missing in it to be traced.
    pub fn decode(file: impl Into<Cow<'static, [u8]>>) -> Result<KernelImage, ImageError> {
        KernelImage::from_unpacked(Unpacked::open(file)?)
    }

    /// Decodes an ELF `vmlinux`.
    ///
    /// # Errors
    /// Says what is wrong with the file, or what is missing in it to be traced.
    pub fn from_elf(data: impl Into<Cow<'static, [u8]>>) -> Result<KernelImage, ImageError> {
        KernelImage::from_unpacked(Unpacked { vmlinux: data.into(), setup: None, codec: Codec::None })
    }

    /// Decodes what was in a container.
    ///
    /// # Errors
    /// Says what is wrong with the file, or what is missing in it to be traced.
    pub fn from_unpacked(unpacked: Unpacked) -> Result<KernelImage, ImageError> {
        let Unpacked { vmlinux, setup, codec } = unpacked;
        let parts = elf::decode(&vmlinux)?;
        Ok(KernelImage {
            data: Arc::new(vmlinux),
            setup: setup.map(Arc::new),
            codec,
            entry: parts.entry,
            segments: parts.segments,
            symbols: parts.symbols,
            mcount: parts.mcount,
            returns: parts.returns,
            btf: parts.btf,
            slide: Slide::default(),
        })
    }

    /// The same image as it looks from inside a guest that runs it `slide` bytes above where it was linked (KASLR).
    /// Replaces an earlier slide. Text and data still have the bytes of the file, in which absolute addresses are those
    /// of the link; GPAs don't change either, as the two have nothing to do with each other. Cheap.
    ///
    /// # Errors
    /// A slide that is not a whole number of pages below 1 GiB.
    pub fn slid(&self, slide: u64) -> Result<KernelImage, ImageError> {
        let slide = Slide::new(slide)?;
        let moved = |gva| self.slide.link_address(gva).map_or(gva, |link| slide.run_address(link));
        let mut image = self.clone();
        image.symbols = self.symbols.slid(slide);
        image.segments.iter_mut().for_each(|s| s.gva = moved(s.gva));
        image.segments.sort_by_key(|s| s.gva);
        image.mcount.entries.iter_mut().for_each(|e| *e = moved(*e));
        image.returns.iter_mut().for_each(|e| *e = moved(*e));
        image.slide = slide;
        Ok(image)
    }

    /// How far above its link addresses the image is, in bytes; see [`KernelImage::slid`].
    #[must_use]
    pub fn slide(&self) -> u64 {
        self.slide.bytes()
    }

    /// The ELF file, decompressed: what a VMM loads.
    #[must_use]
    pub fn vmlinux(&self) -> &[u8] {
        &self.data
    }

    /// The setup header, if the file was a bzImage.
    #[must_use]
    pub fn setup(&self) -> Option<&SetupHeader> {
        self.setup.as_deref()
    }

    /// How the file was compressed.
    #[must_use]
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Linux's banner (`Linux version 6.12 …`, without the newline) and where it is. Found in a guest's memory it tells
    /// which kernel runs there and how far it was moved. `None` for a kernel that isn't Linux.
    #[must_use]
    pub fn banner(&self) -> Option<(Gva, &[u8])> {
        let named = self.symbols.named("linux_banner").find_map(|s| self.banner_at(s.addr));
        named.or_else(|| {
            self.segments.iter().find_map(|segment| {
                let bytes = self.bytes_of(segment);
                let at = bytes.windows(BANNER_START.len()).position(|w| w == BANNER_START)?;
                self.banner_at(segment.gva.offset(at as u64))
            })
        })
    }

    fn banner_at(&self, gva: Gva) -> Option<(Gva, &[u8])> {
        let segment = segment_at(&self.segments, gva)?;
        let rest = self.bytes_of(segment).get(usize::try_from(gva.0 - segment.gva.0).ok()?..)?;
        let rest = &rest[..rest.len().min(MAX_BANNER_BYTES)];
        let len = rest.iter().position(|&b| b == 0 || b == b'\n')?;
        rest.starts_with(BANNER_START).then_some((gva, &rest[..len]))
    }

    /// Where functions leave through a return thunk (`.return_sites`), ascending; empty for kernels without. Nothing
    /// about them is checked yet.
    #[must_use]
    pub fn return_sites(&self) -> &[Gva] {
        &self.returns
    }

    /// The type information (BTF); `None` for kernels without. Finding all types takes some milliseconds: keep it.
    ///
    /// # Errors
    /// The type information is damaged, or of a newer format.
    pub fn btf(&self) -> Option<Result<Btf<'_>, BtfError>> {
        self.data.get(self.btf.clone()?).map(Btf::parse)
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
mod real_kernels;
#[cfg(test)]
mod tests;
