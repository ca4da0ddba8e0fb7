#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::oracle::{BASE, DATA, Form, Order, Sym, encode, symbols};
use super::*;
use crate::image::checks::{check_kallsyms, segments};

const ORDERS: [Order; 3] = [Order::Old, Order::Seqs, Order::New];
const FORMS: [Form; 3] = [Form::Absolute, Form::Relative, Form::AbsolutePercpu];

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
        layout in any::<u8>(),
        edits in prop::collection::vec((any::<u32>(), any::<u8>(), any::<u64>()), 1..8),
    ) {
        check_kallsyms(layout, &edits);
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
