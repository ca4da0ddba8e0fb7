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

#[cfg(test)]
pub(super) mod testing {
    /// A bzImage of boot protocol 2.15 with two set-up sectors and a payload 0x20 bytes into its protected-mode part.
    pub fn bzimage(payload: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 3 * 512 + 0x20];
        let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        put(0x1f1, &[2]);
        put(0x200, &[0xeb, 0x6a]);
        put(0x202, b"HdrS");
        put(0x206, &0x20fu16.to_le_bytes());
        put(0x211, &[1]);
        put(0x230, &0x20_0000u32.to_le_bytes());
        put(0x234, &[1]);
        put(0x236, &0x7fu16.to_le_bytes());
        put(0x238, &2047u32.to_le_bytes());
        put(0x248, &0x20u32.to_le_bytes());
        put(0x24c, &(payload.len() as u32).to_le_bytes());
        put(0x258, &0x100_0000u64.to_le_bytes());
        put(0x260, &0x300_0000u32.to_le_bytes());
        file.extend_from_slice(payload);
        file
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::testing::bzimage;
    use super::*;

    fn changed(at: usize, bytes: &[u8]) -> Result<SetupHeader, ImageError> {
        let mut file = bzimage(&[7; 100]);
        file[at..at + bytes.len()].copy_from_slice(bytes);
        SetupHeader::parse(&file)
    }

    #[test]
    fn reads_the_header() {
        let file = bzimage(&[7; 100]);
        let setup = SetupHeader::parse(&file).unwrap();
        assert_eq!((setup.version, setup.loadflags, setup.xloadflags), (0x20f, 1, 0x7f));
        assert_eq!((setup.relocatable, setup.alignment, setup.cmdline_size), (true, 0x20_0000, 2047));
        assert_eq!((setup.pref_address, setup.init_size), (0x100_0000, 0x300_0000));
        assert_eq!(setup.header, 0x1f1..0x26c);
        assert_eq!(setup.protected, 0x600..file.len());
        assert_eq!(&file[setup.payload], &[7; 100]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let text = |r: Result<SetupHeader, ImageError>| r.unwrap_err().to_string();
        assert_eq!(changed(0x206, &[7, 2]).unwrap_err(), ImageError::OldProtocol { version: 0x207 });
        assert!(text(changed(0x206, &[7, 2])).contains("2.07"));
        assert!(text(changed(0x211, &[0])).contains("zImage"));
        assert!(text(changed(0x1f1, &[200])).contains("setup_sects"));
        assert!(text(changed(0x248, &[0xff; 4])).contains("payload"));
        assert!(text(changed(0x24c, &[0; 4])).contains("payload"));
        assert!(text(changed(0x24c, &[101, 0, 0, 0])).contains("payload"));
        assert!(matches!(changed(0x202, b"Hdrs"), Err(ImageError::NotKernel { .. })));
        let whole = bzimage(&[7; 100]);
        for len in 0..whole.len() {
            assert!(SetupHeader::parse(&whole[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn zero_setup_sectors_stand_for_four() {
        let mut file = bzimage(&[7; 4096]);
        file[0x1f1] = 0;
        file[0x24c..0x250].copy_from_slice(&100u32.to_le_bytes());
        assert_eq!(SetupHeader::parse(&file).unwrap().protected.start, 5 * 512);
    }
}
