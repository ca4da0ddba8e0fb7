#![allow(clippy::unwrap_used)]
use std::io::Write;

use lzma_rust2::{FilterType, LzmaOptions, LzmaWriter, XzOptions, XzWriter};
use proptest::prelude::*;

use super::*;
use crate::image::bzimage::testing::bzimage;
use crate::image::{KernelImage, SiteTable, Unpacked};
use crate::mock::linux_like;

const COMPRESSED: [Codec; 6] = [Codec::Gzip, Codec::Xz, Codec::Lzma, Codec::Bzip2, Codec::Lz4, Codec::Zstd];

/// Data the way Linux's build packs it, the size at the end included.
fn pack(codec: Codec, data: &[u8]) -> Vec<u8> {
    let mut out = match codec {
        Codec::None => return data.to_vec(),
        Codec::Gzip => {
            // gzip's own last field is the size already.
            let mut w = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            w.write_all(data).unwrap();
            return w.finish().unwrap();
        }
        Codec::Xz => {
            let mut options = XzOptions::with_preset(1);
            options.prepend_pre_filter(FilterType::BcjX86, 0);
            let mut w = XzWriter::new(Vec::new(), options).unwrap();
            w.write_all(data).unwrap();
            w.finish().unwrap()
        }
        Codec::Lzma => {
            let mut w = LzmaWriter::new_use_header(Vec::new(), &LzmaOptions::with_preset(1), None).unwrap();
            w.write_all(data).unwrap();
            w.finish().unwrap()
        }
        Codec::Bzip2 => {
            let mut w = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
            w.write_all(data).unwrap();
            w.finish().unwrap()
        }
        Codec::Lz4 => {
            let mut out = LZ4_MAGIC.to_vec();
            for block in data.chunks(LZ4_BLOCK_BYTES) {
                let packed = lz4_flex::block::compress(block);
                out.extend_from_slice(&(packed.len() as u32).to_le_bytes());
                out.extend_from_slice(&packed);
            }
            out
        }
        Codec::Zstd => ruzstd::encoding::compress_to_vec(data, ruzstd::encoding::CompressionLevel::Fastest),
    };
    out.extend_from_slice(&(data.len() as u32).to_le_bytes());
    out
}

/// Text with calls in it, so that the x86 filter has something to do.
fn sample(len: usize) -> Vec<u8> {
    let calls = (0..len as u32 / 8 + 1).flat_map(|i| {
        let target = 0x4000u32.wrapping_sub(i * 8).to_le_bytes();
        [0xe8, target[0], target[1], target[2], target[3], 0x90, (i >> 3) as u8, 0xc3]
    });
    calls.take(len).collect()
}

#[test]
fn every_format_unpacks() {
    for codec in COMPRESSED {
        for len in [1, 1000, 300_000] {
            let data = sample(len);
            let packed = pack(codec, &data);
            assert_eq!(Codec::detect(&packed), Some(codec));
            assert_eq!(codec.decompress(&packed, 1 << 20).unwrap(), data, "{codec} of {len}");
            assert_eq!(codec.decompress(&packed, len).unwrap().len(), len, "{codec} at the limit");
            let over = codec.decompress(&packed, len - 1).unwrap_err();
            assert_eq!(over, ImageError::Inflated { codec, limit: len - 1 });
        }
    }
}

#[test]
fn lz4_of_several_blocks() {
    let data = sample(LZ4_BLOCK_BYTES * 2 + 5);
    assert_eq!(Codec::Lz4.decompress(&pack(Codec::Lz4, &data), 1 << 25).unwrap(), data);
}

#[test]
fn truncated_data_is_an_error() {
    let data = sample(100_000);
    for codec in COMPRESSED {
        let packed = pack(codec, &data);
        for len in [4, 8, packed.len() / 2, packed.len() - 40] {
            let e = codec.decompress(&packed[..len], 1 << 20);
            // LZ4's frames have no end mark: cut between blocks they are whole, only shorter.
            let cut_between = codec == Codec::Lz4 && len <= 8;
            assert!(matches!(e, Err(ImageError::Decompress { .. })) || cut_between, "{codec} {len}");
        }
    }
}

#[test]
fn bombs_stop_at_the_limit() {
    let zeros = vec![0; 32 << 20];
    for codec in COMPRESSED {
        let packed = pack(codec, &zeros);
        let e = codec.decompress(&packed, 1 << 20).unwrap_err();
        assert_eq!(e, ImageError::Inflated { codec, limit: 1 << 20 });
    }
}

#[test]
fn huge_windows_are_refused_before_they_are_allocated() {
    // LZMA: a dictionary of 4 GiB - 1. Zstandard: a window of 2 GiB.
    let lzma = [0x5d, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0];
    assert!(matches!(Codec::Lzma.decompress(&lzma, 1 << 20), Err(ImageError::Decompress { .. })));
    let zstd = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 21 << 3, 0x01, 0, 0];
    let e = Codec::Zstd.decompress(&zstd, 1 << 20).unwrap_err().to_string();
    assert!(e.contains("indow"), "{e}");
}

#[test]
fn many_tiny_blocks_cost_little() {
    // Blocks of a single literal byte each, a million of them.
    let mut data = LZ4_MAGIC.to_vec();
    for _ in 0..1_000_000 {
        data.extend_from_slice(&[2, 0, 0, 0, 0x10, b'x']);
    }
    let began = std::time::Instant::now();
    assert_eq!(Codec::Lz4.decompress(&data, 1 << 20).unwrap(), vec![b'x'; 1_000_000]);
    assert!(began.elapsed().as_secs() < 10);
}

#[test]
fn a_kernel_in_every_container_decodes_alike() {
    let elf = linux_like(0xffff_ffff_8100_0000, 0x100_0000, 50, 32).to_bytes();
    for codec in COMPRESSED.into_iter().chain([Codec::None]) {
        let packed = pack(codec, &elf);
        let image = KernelImage::decode(bzimage(&packed)).unwrap();
        assert_eq!((image.codec(), image.vmlinux()), (codec, &elf[..]));
        assert_eq!(SiteTable::build(&image).patchable_len(), 50);
        let setup = image.setup().unwrap();
        assert_eq!(setup.payload.len(), packed.len());
        let bare = KernelImage::decode(packed).unwrap();
        assert_eq!((bare.setup(), bare.vmlinux()), (None, &elf[..]));
    }
}

#[test]
fn other_files_are_named() {
    let e = KernelImage::decode(b"#!/bin/sh\n".to_vec()).unwrap_err();
    assert_eq!(e, ImageError::NotKernel { found: b"#!/b".to_vec() });
    assert!(matches!(KernelImage::decode(vec![]), Err(ImageError::NotKernel { .. })));
    let e = KernelImage::decode(bzimage(b"LZIP\x01 what")).unwrap_err();
    assert_eq!(e, ImageError::UnknownCodec { found: b"LZIP\x01 ".to_vec() });
    assert!(e.to_string().contains("gzip, xz, lzma, bzip2, lz4, zstd"), "{e}");
    let inside = KernelImage::decode(bzimage(&pack(Codec::Gzip, b"no kernel"))).unwrap_err();
    assert_eq!(inside, ImageError::NotElf { found: b"no k".to_vec() });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn damaged_data_never_panics(
        codec in prop::sample::select(&COMPRESSED),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut packed = pack(codec, &sample(20_000));
        for (at, value) in changes {
            let at = at.index(packed.len());
            packed[at] = value;
        }
        packed.truncate(packed.len().max(1) - cut.index(packed.len()) / 4);
        for file in [bzimage(&packed), packed] {
            if let Ok(unpacked) = Unpacked::open(file) {
                prop_assert!(unpacked.vmlinux.len() <= MAX_VMLINUX_BYTES);
            }
        }
    }
}
