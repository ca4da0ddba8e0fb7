//! Decompression: every format that Linux's build offers for its image, all by decoders in safe-by-default Rust.
//!
//! The input is hostile: output and window sizes are bounded, whatever the input's headers promise.

use std::fmt;
use std::io::Read;

use super::ImageError;

/// A decompressed kernel has this many bytes at most. A distribution's has 60 MiB, one with KASAN about 200.
pub const MAX_VMLINUX_BYTES: usize = 512 << 20;
/// The most that a decoder may take for its window or dictionary, in KiB. Linux's build uses 128 MiB at most.
const MAX_WINDOW_KIB: u32 = 256 << 10;
/// Largest block of the LZ4 legacy format, decompressed.
const LZ4_BLOCK_BYTES: usize = 8 << 20;
const LZ4_MAGIC: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];
/// First allocation for the output; it grows from here.
const FIRST_OUTPUT_BYTES: usize = 64 << 20;

/// A compression format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Not compressed.
    None,
    /// gzip.
    Gzip,
    /// xz, with or without the x86 filter.
    Xz,
    /// LZMA as `lzma` writes it.
    Lzma,
    /// bzip2.
    Bzip2,
    /// LZ4, legacy frames.
    Lz4,
    /// Zstandard.
    Zstd,
}

impl Codec {
    const ALL: [(Codec, &'static str, &'static [u8]); 7] = [
        (Codec::None, "uncompressed", b"\x7fELF"),
        (Codec::Gzip, "gzip", &[0x1f, 0x8b]),
        (Codec::Xz, "xz", b"\xfd7zXZ\0"),
        (Codec::Lzma, "lzma", &[0x5d, 0, 0]),
        (Codec::Bzip2, "bzip2", b"BZh"),
        (Codec::Lz4, "lz4", &LZ4_MAGIC),
        (Codec::Zstd, "zstd", &[0x28, 0xb5, 0x2f, 0xfd]),
    ];

    /// The format that data is in, by its first bytes.
    #[must_use]
    pub fn detect(data: &[u8]) -> Option<Codec> {
        Codec::ALL.iter().find(|(_, _, magic)| data.starts_with(magic)).map(|&(codec, _, _)| codec)
    }

    /// The names of all formats, for error texts.
    pub(super) fn known() -> String {
        let names: Vec<&str> = Codec::ALL.iter().map(|&(_, name, _)| name).collect();
        names.join(", ")
    }

    /// Decompresses `data`, which may go on behind the compressed part (Linux's build appends the size there).
    ///
    /// # Errors
    /// Damaged data, or more output than `limit` bytes.
    pub fn decompress(self, data: &[u8], limit: usize) -> Result<Vec<u8>, ImageError> {
        let failed = |why: String| ImageError::Decompress { codec: self, why };
        let read = |reader: &mut dyn Read| -> Result<Vec<u8>, ImageError> {
            let mut out = Vec::with_capacity(limit.min(FIRST_OUTPUT_BYTES));
            // One byte more than allowed tells "exactly the limit" from "too much".
            reader.take(limit as u64 + 1).read_to_end(&mut out).map_err(|e| failed(e.to_string()))?;
            Ok(out)
        };
        let out = match self {
            Codec::None => data.to_vec(),
            Codec::Gzip => read(&mut flate2::read::GzDecoder::new(data))?,
            Codec::Bzip2 => read(&mut bzip2::read::BzDecoder::new(data))?,
            Codec::Xz => read(&mut lzma_rust2::XzReader::new_mem_limit(data, false, MAX_WINDOW_KIB))?,
            Codec::Lzma => {
                let reader = lzma_rust2::LzmaReader::new_mem_limit(data, MAX_WINDOW_KIB, None);
                read(&mut reader.map_err(|e| failed(e.to_string()))?)?
            }
            Codec::Zstd => {
                let reader =
                    ruzstd::decoding::StreamingDecoder::new_with_max_window_size(data, u64::from(MAX_WINDOW_KIB) << 10);
                read(&mut reader.map_err(|e| failed(e.to_string()))?)?
            }
            Codec::Lz4 => lz4_legacy(data, limit).map_err(failed)?,
        };
        if out.len() > limit { Err(ImageError::Inflated { codec: self, limit }) } else { Ok(out) }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Codec::ALL.iter().find(|(codec, _, _)| codec == self).map_or("", |&(_, name, _)| name);
        f.write_str(name)
    }
}

/// LZ4's legacy frames: the magic number, then blocks of 8 MiB, each behind its compressed size. There is no mark at
/// the end; what follows the last block in a kernel image is the total size, which can't be a block's.
fn lz4_legacy(data: &[u8], limit: usize) -> Result<Vec<u8>, String> {
    let mut rest = data.strip_prefix(&LZ4_MAGIC).ok_or("no LZ4 magic number")?;
    let mut out = Vec::with_capacity(limit.min(FIRST_OUTPUT_BYTES));
    // Blocks go through a buffer of their own: making room for a whole one at the end of `out` each time would let a
    // file of many tiny blocks cost any amount of time.
    let mut buffer = vec![0; LZ4_BLOCK_BYTES];
    while let Some((size, after)) = rest.split_first_chunk::<4>() {
        if *size == LZ4_MAGIC {
            rest = after;
            continue;
        }
        let size = u32::from_le_bytes(*size) as usize;
        if after.is_empty() {
            break;
        }
        let block = after.get(..size).ok_or_else(|| format!("a block of {size} bytes, {} are left", after.len()))?;
        if out.len() > limit {
            break;
        }
        let n = lz4_flex::block::decompress_into(block, &mut buffer).map_err(|e| e.to_string())?;
        out.extend_from_slice(&buffer[..n]);
        rest = &after[size..];
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
