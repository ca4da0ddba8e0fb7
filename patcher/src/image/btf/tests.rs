#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::*;
use crate::image::checks::check_btf;

/// Writes BTF.
#[derive(Default)]
struct Maker {
    types: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
}

impl Maker {
    fn string(&mut self, s: &str) -> u32 {
        if s.is_empty() {
            return 0;
        }
        if self.strings.is_empty() {
            self.strings.push(0);
        }
        let at = self.strings.len() as u32;
        self.strings.extend_from_slice(s.as_bytes());
        self.strings.push(0);
        at
    }

    /// Adds a type: its kind's number, name, third word, whatever follows, how many members that is and the flag.
    fn add(&mut self, kind: u32, name: &str, third: u32, rest: &[u32], members: u32, flag: bool) -> u32 {
        let name = self.string(name);
        let info = kind << 24 | members | u32::from(flag) << 31;
        for w in [name, info, third].iter().chain(rest) {
            self.types.extend_from_slice(&w.to_le_bytes());
        }
        self.count += 1;
        self.count
    }

    fn bytes(&self) -> Vec<u8> {
        let strings = if self.strings.is_empty() { &[0][..] } else { &self.strings };
        let mut out = vec![0x9f, 0xeb, 1, 0];
        for w in [24, 0, self.types.len() as u32, self.types.len() as u32, strings.len() as u32] {
            out.extend_from_slice(&w.to_le_bytes());
        }
        [&out, &self.types, strings].concat()
    }
}

/// `struct file { const int flags; union { struct list { .. } l; long x:3; }; char name[16]; }`,
/// `typedef struct file file_t`, `long vfs_read(file_t *f, ...)`.
fn sample() -> Vec<u8> {
    let mut m = Maker::default();
    let int = m.add(1, "int", 4, &[0x20], 0, false);
    let long = m.add(1, "long", 8, &[0x40], 0, false);
    let char = m.add(1, "char", 1, &[8], 0, false);
    let constant = m.add(10, "", int, &[], 0, false);
    let list = {
        let (next, prev) = (m.string("next"), m.string("prev"));
        m.add(4, "list", 16, &[next, long, 0, prev, long, 64], 2, false)
    };
    let l = m.string("l");
    let x = m.string("x");
    let union = m.add(5, "", 16, &[l, list, 0, x, long, 3 << 24 | 5], 2, true);
    let array = m.add(3, "", 0, &[char, int, 16], 0, false);
    let (flags, name) = (m.string("flags"), m.string("name"));
    let file = m.add(4, "file", 40, &[flags, constant, 0, 0, union, 64, name, array, 192], 3, false);
    let typedef = m.add(8, "file_t", file, &[], 0, false);
    let pointer = m.add(2, "", typedef, &[], 0, false);
    let f = m.string("f");
    let proto = m.add(13, "", long, &[f, pointer, 0, 0], 2, false);
    m.add(12, "vfs_read", proto, &[], 1, false);
    m.bytes()
}

#[test]
fn reads_types_fields_and_functions() {
    let bytes = sample();
    let btf = Btf::parse(&bytes).unwrap();
    assert_eq!(btf.len(), 12);
    let file = btf.named(Kind::Struct, "file").unwrap();
    let typedef = btf.named(Kind::Typedef, "file_t").unwrap();
    assert_eq!(btf.named(Kind::Union, "file"), None);
    assert_eq!((btf.size_of(file), btf.size_of(typedef)), (Some(40), Some(40)));
    let offset = |path| btf.field(typedef, path).map(|f| (f.bit_offset, f.bits));
    assert_eq!(offset("flags"), Some((0, None)));
    assert_eq!(offset("l.prev"), Some((128, None)));
    assert_eq!(offset("x"), Some((69, Some(3))));
    assert_eq!(offset("name"), Some((192, None)));
    assert_eq!((offset("l.nothing"), offset("flags.x"), offset("")), (None, None, None));
    assert_eq!(btf.field(file, "x").unwrap().offset(), None);
    assert_eq!(btf.field(file, "name").unwrap().offset(), Some(24));
    assert_eq!(btf.size_of(btf.field(file, "name").unwrap().ty), Some(16));
    let read = btf.function(btf.named(Kind::Func, "vfs_read").unwrap()).unwrap();
    assert!(read.variadic);
    let params: Vec<String> = read.params.iter().map(|p| format!("{} {}", btf.spell(p.ty), p.name)).collect();
    assert_eq!((params, btf.spell(read.returns)), (vec!["file_t * f".to_owned()], "long".to_owned()));
    assert_eq!(btf.spell(btf.field(file, "flags").unwrap().ty), "const int");
    assert_eq!(btf.spell(btf.field(file, "name").unwrap().ty), "char[16]");
    assert_eq!((btf.spell(TypeId(0)), btf.spell(TypeId(99))), ("void".into(), "?".into()));
}

#[test]
fn circles_end() {
    let mut m = Maker::default();
    m.add(8, "a", 2, &[], 0, false);
    m.add(8, "b", 1, &[], 0, false);
    m.add(3, "", 0, &[3, 3, 2], 0, false);
    // A union of two anonymous members of its own type: 2^32 ways down.
    m.add(5, "", 8, &[0, 4, 0, 0, 4, 0], 2, false);
    m.add(2, "", 5, &[], 0, false);
    let bytes = m.bytes();
    let btf = Btf::parse(&bytes).unwrap();
    assert!(btf.resolve(TypeId(1)).is_none());
    assert_eq!((btf.size_of(TypeId(1)), btf.size_of(TypeId(3))), (None, None));
    assert_eq!(btf.field(TypeId(4), "x"), None);
    assert_eq!(btf.spell(TypeId(5)), "?");
}

#[test]
fn what_is_wrong_is_named() {
    let good = sample();
    let with = |at: usize, value: u8| {
        let mut b = good.clone();
        b[at] = value;
        Btf::parse(&b).unwrap_err()
    };
    assert_eq!(with(0, 0xeb), BtfError::NotBtf { found: vec![0xeb, 0xeb, 1, 0] });
    assert!(matches!(with(2, 2), BtfError::NotBtf { .. }));
    assert!(matches!(with(11, 0x7f), BtfError::Outside { what: "types", .. }));
    assert!(matches!(with(23, 0x7f), BtfError::Outside { what: "strings", .. }));
    assert_eq!(with(24 + 7, 30), BtfError::UnknownKind { id: 1, kind: 30 });
    assert!(with(24 + 7, 30).to_string().contains("newer"));
    assert_eq!(Btf::parse(&[]).unwrap_err(), BtfError::NotBtf { found: vec![] });
    // The types end in the middle of one.
    let types = u32::from_le_bytes([good[12], good[13], good[14], good[15]]) as u8;
    assert_eq!(with(12, types - 4), BtfError::Cut { id: 12 });
    let mut many = Maker { types: vec![], ..Maker::default() };
    many.types = [0, 2 << 24, 0].iter().flat_map(|w: &u32| w.to_le_bytes()).collect::<Vec<u8>>().repeat(MAX_TYPES + 1);
    assert_eq!(Btf::parse(&many.bytes()).unwrap_err(), BtfError::TooMany);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn damage_never_panics(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12)) {
        let mut bytes = sample();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        check_btf(&bytes);
    }
}
