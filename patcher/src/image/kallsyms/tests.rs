#![allow(clippy::unwrap_used)]
use exotrace_trace::ids::Gpa;
use proptest::prelude::*;

use super::oracle::{Form, Order, Sym, encode};
use super::*;

const BASE: u64 = 0xffff_ffff_8100_0000;
const DATA: u64 = BASE + 0x100_0000;
const ORDERS: [Order; 3] = [Order::Old, Order::Seqs, Order::New];
const FORMS: [Form; 3] = [Form::Absolute, Form::Relative, Form::AbsolutePercpu];

fn segments() -> Vec<Segment> {
    let segment = |gva: u64, mem_size, executable| Segment {
        gva: Gva(gva),
        gpa: Gpa(gva & 0xfff_ffff),
        file: 0..0,
        mem_size,
        executable,
        writable: !executable,
    };
    vec![segment(0, 0x10_0000, false), segment(BASE, 0x100_0000, true), segment(DATA, 0x1000_0000, false)]
}

/// Symbols the way a kernel has them: per-CPU variables at 0, text with aliases, data.
fn symbols(count: usize, percpu: bool) -> Vec<Sym> {
    let word = ["vfs", "read", "tcp", "sched", "__x64_sys", "alloc", "ext4", "irq", "mm", "lock"];
    let name = |i: usize| format!("{}_{}_{}", word[i % 10], word[i / 10 % 10], i);
    let sym = |addr, letter, name| Sym { addr, letter, name };
    let mut all = Vec::new();
    if percpu {
        all.extend((0..count / 20).map(|i| sym(i as u64 * 64, b'A', format!("pcpu_{}", name(i)))));
    }
    all.push(sym(BASE, b'T', "startup_64".into()));
    all.push(sym(BASE, b'T', "_stext".into()));
    let text = count - count / 4 - all.len();
    // Every 16th address has two names.
    let addr = |i: usize| BASE + 0x1000 + (i - usize::from(i % 16 == 1)) as u64 * 48;
    all.extend((0..text).map(|i| sym(addr(i), if i % 3 == 0 { b'T' } else { b't' }, name(i))));
    let data = count - all.len();
    let letters = b"dDbBrRV";
    all.extend((0..data).map(|i| sym(DATA + i as u64 * 8, letters[i % 7], format!("data_{}", name(i)))));
    all
}

fn find(bytes: &[u8], gva: u64) -> Result<Symbols, Error> {
    decode(&[Region { gva, bytes }], &segments())
}

/// Tables with other data around them.
fn embedded(tables: &[u8]) -> Vec<u8> {
    let junk = |n: u64| (0..n).flat_map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    junk(700).chain(tables.iter().copied()).chain(junk(900)).collect()
}

fn check(syms: &[Sym], symbols: &Symbols) {
    assert_eq!(symbols.len(), syms.len());
    let mut sorted: Vec<(u64, &str)> = syms.iter().map(|s| (s.addr, &*s.name)).collect();
    let mut found: Vec<(u64, &str)> = symbols.iter().map(|s| (s.addr.0, s.name)).collect();
    sorted.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, sorted);
}

#[test]
fn every_layout_decodes() {
    for order in ORDERS {
        for form in FORMS {
            for count in [257, 511, 512, 513, 3000] {
                let syms = symbols(count, form == Form::AbsolutePercpu);
                let tables = encode(&syms, order, form, BASE, true);
                for (bytes, gva) in [(embedded(&tables.bytes), DATA), (tables.bytes, DATA + 8)] {
                    let found = find(&bytes, gva);
                    let found = found.unwrap_or_else(|e| panic!("{order:?} {form:?} {count}: {e:?}"));
                    check(&syms, &found);
                }
            }
        }
    }
}

#[test]
fn kinds_sizes_and_aliases() {
    let syms = symbols(400, true);
    let found = find(&encode(&syms, Order::New, Form::AbsolutePercpu, BASE, true).bytes, DATA).unwrap();
    let (first, _) = found.resolve(Gva(BASE + 0x20)).unwrap();
    assert_eq!((first.name, first.kind, first.size), ("startup_64", SymbolKind::Function, 0x1000));
    // The first of two aliases is the one that is shown, as Linux does it; its size ends at the next other address.
    let (shown, offset) = found.resolve(Gva(BASE + 0x1000 + 47)).unwrap();
    assert_eq!((shown.name, shown.size, offset), ("vfs_vfs_0", 96, 47));
    assert_eq!(found.named("read_vfs_1").next().unwrap().addr, shown.addr);
    let kind = |name| found.named(name).next().unwrap().kind;
    assert_eq!(kind("data_vfs_vfs_0"), SymbolKind::Object);
    assert_eq!(kind("pcpu_read_vfs_1"), SymbolKind::DataLabel);
    assert!(found.resolve(Gva(DATA + 8)).is_none());
}

#[test]
fn long_names_in_both_ways_of_writing_lengths() {
    let mut syms = symbols(600, false);
    // No pairs to merge in the second: as many tokens as characters.
    for (i, len) in [(300, 400), (301, 127), (302, 128), (303, 129), (304, 250)] {
        syms[i].name = (0..len).map(|n| char::from(b'!' + (n * 7 % 90) as u8)).collect();
    }
    for variable in [true, false] {
        if !variable {
            syms[300].name.truncate(200);
        }
        let tables = encode(&syms, Order::Old, Form::Relative, BASE, variable);
        check(&syms, &find(&tables.bytes, DATA).unwrap());
    }
}

#[test]
fn what_is_missing_is_named() {
    let syms = symbols(1000, true);
    let tables = encode(&syms, Order::New, Form::AbsolutePercpu, BASE, true);
    let why = |bytes: &[u8]| match find(bytes, DATA) {
        Err(Error::Missing(why)) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(why(&[]), NoKallsyms::NoTokens);
    assert_eq!(why(&[0; 4096]), NoKallsyms::NoTokens);
    assert_eq!(why(&tables.bytes[..tables.tokens_at + 500]), NoKallsyms::NoTokens);
    let tokens = Gva(DATA);
    assert_eq!(why(&tables.bytes[tables.tokens_at..]), NoKallsyms::NoNames { tokens });
    let mut no_count = tables.bytes.clone();
    no_count[0] ^= 1;
    let tokens = Gva(DATA + tables.tokens_at as u64);
    assert_eq!(why(&no_count), NoKallsyms::NoNames { tokens });
    assert_eq!(why(&tables.bytes[..tables.bytes.len() - 3 * 1000 - 8]), NoKallsyms::NoAddresses { names: 1000 });
    // Addresses that don't ascend.
    let at = tables.bytes.len() - 3000 - 8 - 100;
    let mut wild = tables.bytes.clone();
    wild[at..at + 8].copy_from_slice(&[0, 0, 0, 0x80, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(why(&wild), NoKallsyms::NoAddresses { names: 1000 });
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![20 => "[a-z_][a-z0-9_.]{0,24}", 1 => "[A-Za-z0-9_$]{100,300}"]
}

fn random_symbols() -> impl Strategy<Value = Vec<Sym>> {
    let one = (0u64..200, prop::sample::select(b"tTwdDbBrRVA".to_vec()), name());
    (prop::collection::vec(one, 257..900), any::<bool>()).prop_map(|(list, percpu)| {
        let mut addr = if percpu { 0 } else { BASE };
        let half = list.len() / 2;
        let mut all = vec![];
        for (i, (step, letter, name)) in list.into_iter().enumerate() {
            if percpu && i == half / 4 {
                addr = BASE;
            }
            if addr == BASE && !all.iter().any(|s: &Sym| s.name == "_stext") {
                all.push(Sym { addr, letter: b'T', name: "_stext".into() });
            }
            all.push(Sym { addr, letter, name });
            addr += step;
        }
        all
    })
}

fn layout() -> impl Strategy<Value = (Order, Form)> {
    (prop::sample::select(&ORDERS), prop::sample::select(&FORMS))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn whatever_is_encoded_decodes(syms in random_symbols(), (order, form) in layout()) {
        // Offsets without a sign can't express per-CPU symbols.
        let form = if form == Form::Relative && syms[0].addr == 0 { Form::AbsolutePercpu } else { form };
        let tables = encode(&syms, order, form, BASE, true);
        check(&syms, &find(&embedded(&tables.bytes), DATA).unwrap());
    }

    #[test]
    fn damaged_tables_never_panic(
        (order, form) in layout(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0u32..4, any::<u64>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = encode(&symbols(800, form == Form::AbsolutePercpu), order, form, BASE, true).bytes;
        for (at, width, value) in changes {
            let at = at.index(bytes.len());
            let end = (at + (1 << width)).min(bytes.len());
            bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
        }
        bytes.truncate(bytes.len() - cut.index(bytes.len()) / 8);
        if let Ok(found) = find(&bytes, DATA) {
            for s in found.iter() {
                let _ = found.resolve(s.addr);
                prop_assert!(s.name.len() <= MAX_NAME_BYTES);
            }
        }
    }
}

#[test]
fn hostile_tables_cost_little() {
    let tables = encode(&symbols(800, true), Order::New, Form::AbsolutePercpu, BASE, true);
    let began = std::time::Instant::now();
    // Token tables without names, many of them; then endless candidates for markers before one.
    let tokens = &tables.bytes[tables.tokens_at..];
    assert!(find(&tokens.repeat(2000), DATA).is_err());
    let rising: Vec<u8> = (0..2_000_000u32).flat_map(|i| ((i % 4000) * 600).to_le_bytes()).collect();
    assert!(find(&[&rising, tokens].concat(), DATA).is_err());
    let index: Vec<u8> = (0..256u32).flat_map(|i| ((i * 2) as u16).to_le_bytes()).collect();
    assert!(find(&index.repeat(20_000), DATA).is_err());
    assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
}
