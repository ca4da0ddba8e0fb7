//! Why an image can't be used.

use exotrace_trace::ids::Gva;

use super::codec::Codec;
use super::symbols::Full;

/// Why an image can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// No kind of kernel image that is known.
    #[error("not a kernel image (it begins with {found:02x?}): give a bzImage (vmlinuz) or an ELF vmlinux")]
    NotKernel {
        /// The first bytes, at most 4.
        found: Vec<u8>,
    },
    /// Not an ELF file at all.
    #[error("not an ELF file (it begins with {found:02x?}): give the kernel's uncompressed vmlinux")]
    NotElf {
        /// The first bytes, at most 4.
        found: Vec<u8>,
    },
    /// An ELF file of another kind.
    #[error("an ELF file, but {what}: exotrace traces 64-bit x86 kernels")]
    WrongKind {
        /// What kind it is.
        what: String,
    },
    /// The bzImage's setup header is broken.
    #[error("the bzImage's {what} ({why}): the file is truncated or damaged")]
    BadSetup {
        /// Which field or part.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
    /// A bzImage of a kernel before Linux 2.6.26.
    #[error(
        "a bzImage of boot protocol {}.{:02}: the place of its payload is only known from 2.08 on (Linux 2.6.26)",
        .version >> 8, .version & 0xff
    )]
    OldProtocol {
        /// Protocol version, major number in the high byte.
        version: u16,
    },
    /// The payload of a bzImage is in no known format.
    #[error(
        "the bzImage's payload begins with {found:02x?}, which is no known compression (known: {})",
        Codec::known()
    )]
    UnknownCodec {
        /// The first bytes, at most 6.
        found: Vec<u8>,
    },
    /// Decompression failed.
    #[error("the kernel's {codec} data can't be decompressed ({why}): the file is truncated or damaged")]
    Decompress {
        /// The compression.
        codec: Codec,
        /// The decoder's words.
        why: String,
    },
    /// Decompression gives more than any kernel has.
    #[error("the kernel's {codec} data gives more than {} MiB: no real kernel does, so it is refused", limit >> 20)]
    Inflated {
        /// The compression.
        codec: Codec,
        /// The limit, in bytes.
        limit: usize,
    },
    /// A structure of the file is broken.
    #[error("the image's {what} can't be read ({why}): the file is truncated or damaged")]
    Malformed {
        /// Which structure.
        what: &'static str,
        /// The decoder's words.
        why: String,
    },
    /// Nothing to load.
    #[error("the image has no loadable segment: this is not a bootable kernel (an object file or a debug file?)")]
    NoSegments,
    /// A segment's numbers make no sense.
    #[error("loadable segment {index} at {gva}: {why}: the file is truncated or damaged")]
    BadSegment {
        /// Its number among the program headers.
        index: usize,
        /// Its address.
        gva: Gva,
        /// What is wrong.
        why: String,
    },
    /// Two segments claim the same memory.
    #[error("loadable segments at {a} and {b} overlap in {space} memory: the file is damaged")]
    Overlap {
        /// The one.
        a: Gva,
        /// The other.
        b: Gva,
        /// "virtual" or "physical".
        space: &'static str,
    },
    /// Stripped, and not of Linux's own table either.
    #[error(
        "the image has no ELF symbol table (it was stripped), and {0}; give the unstripped vmlinux, or a kernel with \
         CONFIG_KALLSYMS"
    )]
    NoSymbols(NoKallsyms),
    /// Not built for tracing.
    #[error(
        "no __mcount_loc section and no __start_mcount_loc symbol: this kernel was built without \
         CONFIG_FUNCTION_TRACER (gcc -pg -mfentry -mrecord-mcount), so there is nothing to trace"
    )]
    NoMcountLoc,
    /// The table is odd.
    #[error("the image's table of sites is broken: {why}")]
    BadMcountLoc {
        /// What is wrong.
        why: String,
    },
    /// A distance that no kernel is moved by.
    #[error(
        "the kernel can't run {slide:#x} bytes away from where it was linked: not a whole number of pages below 1 GiB"
    )]
    BadSlide {
        /// The distance, in bytes.
        slide: u64,
    },
    /// More than any real kernel has.
    #[error("the image has more than {limit} {what}: no real kernel does, so it is refused")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

/// How far the search for Linux's own symbol tables came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoKallsyms {
    /// Nothing that looks like them.
    #[error("no kallsyms tables were found in its data (built without CONFIG_KALLSYMS?)")]
    NoTokens,
    /// The text tables are there, but not the names.
    #[error("its kallsyms token table at {tokens} has no names and markers around it in a known layout")]
    NoNames {
        /// Where the token table is.
        tokens: Gva,
    },
    /// The names are there, but not their addresses.
    #[error("the {names} names of its kallsyms tables have no table of addresses in a known layout")]
    NoAddresses {
        /// How many names.
        names: u32,
    },
}

impl From<Full> for ImageError {
    fn from(full: Full) -> ImageError {
        ImageError::TooMany { what: full.what, limit: full.limit }
    }
}
