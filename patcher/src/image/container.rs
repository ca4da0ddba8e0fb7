//! From a kernel's file to the ELF inside.

use std::borrow::Cow;

use super::bzimage::{SetupHeader, is_bzimage};
use super::codec::{Codec, MAX_VMLINUX_BYTES};
use super::error::ImageError;

/// What was in a kernel's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpacked {
    /// The ELF file, decompressed. Linux's build may have appended its relocations.
    pub vmlinux: Cow<'static, [u8]>,
    /// The setup header, if the file was a bzImage.
    pub setup: Option<SetupHeader>,
    /// How it was compressed.
    pub codec: Codec,
}

impl Unpacked {
    /// Opens a bzImage, an ELF `vmlinux` or a compressed one.
    ///
    /// # Errors
    /// None of these, or a damaged one.
    pub fn open(file: impl Into<Cow<'static, [u8]>>) -> Result<Unpacked, ImageError> {
        let file = file.into();
        let (setup, packed) = if is_bzimage(&file) {
            let setup = SetupHeader::parse(&file)?;
            let payload = setup.payload.clone();
            (Some(setup), &file[payload])
        } else {
            (None, &file[..])
        };
        let start = |n: usize| packed[..packed.len().min(n)].to_vec();
        let codec = Codec::detect(packed).ok_or_else(|| match setup {
            Some(_) => ImageError::UnknownCodec { found: start(6) },
            None => ImageError::NotKernel { found: start(4) },
        })?;
        if setup.is_none() && codec == Codec::None {
            return Ok(Unpacked { vmlinux: file, setup, codec });
        }
        let vmlinux = codec.decompress(packed, MAX_VMLINUX_BYTES)?;
        Ok(Unpacked { vmlinux: vmlinux.into(), setup, codec })
    }
}
