//! Any bytes as parts of an image: what the tests and the fuzz targets ask of the decoders. Each check panics when what
//! a decoder made of them contradicts itself; errors are fine.

use std::sync::OnceLock;

use exotrace_trace::ids::{Gpa, Gva};

use super::btf::Btf;
use super::kallsyms::oracle::{self, BASE, DATA, Form, Order};
use super::kallsyms::{self, Region};
use super::{Codec, ImageError, MAX_NAME_BYTES, Segment, SetupHeader};

/// Most that a check lets data unpack to, in bytes.
const MAX_UNPACKED: usize = 1 << 20;
/// Symbols in [`check_kallsyms`].
const SYMBOLS: usize = 700;

/// One change of a table: where (modulo its size), how many bytes (modulo 4, a power of two), and to what.
pub type Edit = (u32, u8, u64);

/// Carries out changes.
pub(super) fn edit(bytes: &mut [u8], edits: &[Edit]) {
    for &(at, width, value) in edits {
        let at = at as usize % bytes.len().max(1);
        let end = (at + (1 << (width % 4))).min(bytes.len());
        bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
    }
}

/// Opens any bytes as a bzImage or compressed data.
///
/// # Panics
/// When ranges lie outside the file or more comes out than was allowed.
pub fn check_packed(bytes: &[u8]) {
    let mut packed = bytes;
    if let Ok(setup) = SetupHeader::parse(bytes) {
        for range in [&setup.header, &setup.protected, &setup.payload] {
            assert!(range.start < range.end && range.end <= bytes.len(), "{range:?} of {}", bytes.len());
        }
        packed = &bytes[setup.payload];
    }
    let Some(codec) = Codec::detect(packed) else { return };
    match codec.decompress(packed, MAX_UNPACKED) {
        Ok(out) => assert!(out.len() <= MAX_UNPACKED),
        Err(e) => assert!(matches!(e, ImageError::Decompress { .. } | ImageError::Inflated { .. }), "{e}"),
    }
}

/// The segments that the tables of [`oracle`] are made for.
pub(super) fn segments() -> Vec<Segment> {
    let segment = |gva: u64, mem_size, executable| Segment {
        gva: Gva(gva),
        gpa: Gpa(gva & 0xfff_ffff),
        file: 0..0,
        mem_size,
        executable,
        writable: !executable,
    };
    vec![segment(0, 0x10_0000, false), segment(BASE, DATA - BASE, true), segment(DATA, 0x1000_0000, false)]
}

/// Changes good kallsyms tables (of the layout that a number stands for) and decodes what is left of them.
///
/// # Panics
/// When symbols come out that contradict each other.
pub fn check_kallsyms(layout: u8, edits: &[Edit]) {
    let orders = [Order::Old, Order::Seqs, Order::New];
    let forms = [Form::Absolute, Form::Relative, Form::AbsolutePercpu];
    let (order, form) = (orders[usize::from(layout) % 9 % 3], forms[usize::from(layout) % 9 / 3]);
    static GOOD: [OnceLock<Vec<u8>>; 9] = [const { OnceLock::new() }; 9];
    let good = GOOD[usize::from(layout) % 9].get_or_init(|| {
        let syms = oracle::symbols(SYMBOLS, form == Form::AbsolutePercpu);
        oracle::encode(&syms, order, form, BASE, true).bytes
    });
    let mut bytes = good.clone();
    edit(&mut bytes, edits);
    let Ok(symbols) = kallsyms::decode(&[Region { gva: DATA, bytes: &bytes }], &segments()) else {
        assert!(!edits.is_empty(), "good tables of {order:?} {form:?} don't decode");
        return;
    };
    let mut before = 0;
    for s in symbols.iter() {
        assert!(s.addr.0 >= before && s.addr.0.checked_add(s.size).is_some());
        assert!(s.name.len() <= MAX_NAME_BYTES && s.name.bytes().all(|b| b.is_ascii_graphic()));
        before = s.addr.0;
        if let Some((found, offset)) = symbols.resolve(s.addr) {
            assert_eq!(found.addr.0 + offset, s.addr.0);
        }
    }
}

/// Uses everything that the BTF reader offers on any bytes.
///
/// # Panics
/// When a name or a description is longer than it may be.
pub fn check_btf(bytes: &[u8]) {
    let Ok(btf) = Btf::parse(bytes) else { return };
    for (id, ty) in btf.iter() {
        let _ = (ty.name(), btf.size_of(id), btf.function(id), btf.field(id, "x"), btf.field(id, "l.prev"));
        assert!(btf.spell(id).len() < 64 << 10, "an endless description");
    }
}
