//! bzImage: the file that distributions ship, a boot sector, set-up code and the compressed kernel.
//!
//! Fields and their offsets are those of Linux's boot protocol (`Documentation/arch/x86/boot.rst`).

use std::ops::Range;

use super::ImageError;

/// Protocol version that introduced `payload_offset`.
const FIRST_WITH_PAYLOAD: u16 = 0x208;
/// Protocol version that introduced `xloadflags`.
const FIRST_WITH_XLOADFLAGS: u16 = 0x20c;
const SECTOR_BYTES: usize = 512;
/// Where the setup header begins in the file.
const HEADER_AT: usize = 0x1f1;
const MAGIC_AT: usize = 0x202;
const MAGIC: &[u8] = b"HdrS";
/// The header reaches at most up to here: the byte at 0x201 is the operand of a short jump over it.
const HEADER_END_MAX: usize = 0x202 + 0xff;
/// `loadflags`: protected-mode code is loaded at 1 MiB, so it's a bzImage and not a zImage.
const LOADED_HIGH: u8 = 1;

/// A bzImage's setup header, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupHeader {
    /// Boot protocol version, major number in the high byte.
    pub version: u16,
    /// `loadflags`.
    pub loadflags: u8,
    /// `xloadflags`: bit 0 says that there is a 64-bit entry at 0x200, bit 1 that it may be loaded above 4 GiB.
    pub xloadflags: u16,
    /// Whether it may be loaded elsewhere than at [`SetupHeader::pref_address`].
    pub relocatable: bool,
    /// Alignment of the load address, in bytes.
    pub alignment: u32,
    /// Preferred load address (GPA).
    pub pref_address: u64,
    /// Memory that it needs from its load address on until it runs, in bytes.
    pub init_size: u32,
    /// Longest command line, in bytes without the final zero.
    pub cmdline_size: u32,
    /// The header itself in the file, for the copy that goes into `boot_params`.
    pub header: Range<usize>,
    /// The protected-mode part in the file: what is loaded when it boots through its own entry.
    pub protected: Range<usize>,
    /// The compressed kernel in the file.
    pub payload: Range<usize>,
}

/// Whether a file begins like a bzImage (or zImage).
#[must_use]
pub fn is_bzimage(file: &[u8]) -> bool {
    file.get(MAGIC_AT..).is_some_and(|f| f.starts_with(MAGIC))
}

impl SetupHeader {
    /// Reads and checks the header of a bzImage.
    ///
    /// # Errors
    /// Not a bzImage, one that is too old, or fields that contradict the file.
    pub fn parse(file: &[u8]) -> Result<SetupHeader, ImageError> {
        if !is_bzimage(file) {
            return Err(ImageError::NotKernel { found: file[..file.len().min(4)].to_vec() });
        }
        let raw = Raw(file);
        let version = u16::from_le_bytes(raw.bytes(0x206)?);
        if version < FIRST_WITH_PAYLOAD {
            return Err(ImageError::OldProtocol { version });
        }
        let loadflags = raw.bytes::<1>(0x211)?[0];
        if loadflags & LOADED_HIGH == 0 {
            return Err(bad("loadflags", "it says zImage, which no 64-bit kernel is"));
        }
        let [jump] = raw.bytes(0x201)?;
        let header = HEADER_AT..(MAGIC_AT + usize::from(jump)).min(HEADER_END_MAX);
        if file.len() < header.end {
            return Err(bad("setup header", format!("it ends at {}, the file at {}", header.end, file.len())));
        }
        let protected = protected(file)?;
        let payload = raw.payload(&protected)?;
        let xloadflags = u16::from_le_bytes(raw.bytes(0x236)?);
        Ok(SetupHeader {
            version,
            loadflags,
            xloadflags: if version < FIRST_WITH_XLOADFLAGS { 0 } else { xloadflags },
            relocatable: raw.bytes::<1>(0x234)?[0] != 0,
            alignment: raw.u32(0x230)?,
            pref_address: u64::from_le_bytes(raw.bytes(0x258)?),
            init_size: raw.u32(0x260)?,
            cmdline_size: raw.u32(0x238)?,
            header,
            protected,
            payload,
        })
    }
}

fn bad(what: &'static str, why: impl Into<String>) -> ImageError {
    ImageError::BadSetup { what, why: why.into() }
}

/// Everything behind the boot sector and the set-up sectors.
fn protected(file: &[u8]) -> Result<Range<usize>, ImageError> {
    // The protocol says that 0 stands for 4.
    let sectors = match file.get(HEADER_AT) {
        Some(&0) | None => 4,
        Some(&n) => usize::from(n),
    };
    let from = (sectors + 1) * SECTOR_BYTES;
    if from >= file.len() {
        return Err(bad("setup_sects", format!("its {sectors} sectors are all of the file's {} bytes", file.len())));
    }
    Ok(from..file.len())
}

struct Raw<'a>(&'a [u8]);

impl Raw<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> Result<[u8; N], ImageError> {
        let field = self.0.get(at..).and_then(|f| f.first_chunk()).copied();
        field.ok_or_else(|| bad("setup header", format!("the file ends before offset {:#x}", at + N)))
    }

    fn u32(&self, at: usize) -> Result<u32, ImageError> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    fn payload(&self, protected: &Range<usize>) -> Result<Range<usize>, ImageError> {
        let (offset, len) = (self.u32(0x248)? as usize, self.u32(0x24c)? as usize);
        let from = protected.start + offset;
        let to = from + len;
        if len == 0 || to > self.0.len() {
            let file = self.0.len();
            return Err(bad("payload", format!("{len} bytes from offset {from} on, in a file of {file} bytes")));
        }
        Ok(from..to)
    }
}
