#![allow(clippy::unwrap_used)]
use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::mock::{MockMachine, TableBuilder, flags};

const TABLES: std::ops::Range<u64> = 0x1000..0x40_0000;

fn state(cr3: u64, la57: bool, nxe: bool) -> VcpuState {
    VcpuState {
        cr3,
        cr4: if la57 { CR4_LA57 } else { 0 },
        efer: EFER_LMA | if nxe { EFER_NXE } else { 0 },
        ..VcpuState::default()
    }
}

fn setup(ram: Vec<u8>, root: Gpa, la57: bool, nxe: bool) -> (MockMachine, Paging) {
    let state = state(root.0, la57, nxe);
    (MockMachine::new(ram, vec![state], 0), Paging::of(&state).unwrap())
}

/// A page of an address space that only has room for few, so that random pages meet.
#[derive(Clone, Debug)]
struct Random {
    slot: u64,
    page: PageSize,
    gpa: u64,
    flags: u64,
}

fn random() -> impl Strategy<Value = Random> {
    let page = prop_oneof![Just(PageSize::Kib4), Just(PageSize::Mib2), Just(PageSize::Gib1)];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(w, u, nx)| {
        bits::PRESENT
            | if w { bits::WRITABLE } else { 0 }
            | if u { bits::USER } else { 0 }
            | if nx { bits::NX } else { 0 }
    });
    (0u64..64, page, any::<u64>(), flags).prop_map(|(slot, page, gpa, flags)| Random { slot, page, gpa, flags })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// The oracle knows which page was mapped where and computes nothing from tables. Pages of different sizes are kept
    /// in different gigabytes, tables on the way allow everything.
    #[test]
    fn walks_like_the_oracle(pages in proptest::collection::vec(random(), 1..40), la57: bool, upper: bool) {
        let mut ram = vec![0; TABLES.end as usize];
        let mut tables = TableBuilder::new(TABLES, if la57 { 5 } else { 4 });
        let base = match (upper, la57) {
            (true, _) => 0xffff_ffff_0000_0000u64 - (256 << 30),
            (false, true) => 1 << 50,
            (false, false) => 1 << 40,
        };
        let mut oracle: HashMap<u64, (u64, Random)> = HashMap::new();
        let all = flags::USER;
        for p in pages {
            let gib = match p.page { PageSize::Kib4 => 0, PageSize::Mib2 => 1, PageSize::Gib1 => 2 + p.slot };
            let within = if p.page == PageSize::Gib1 { 0 } else { p.slot * p.page.bytes() };
            let gva = base + (gib << 30) + within;
            let gpa = p.gpa & bits::ADDR & !(p.page.bytes() - 1) & ((1 << 51) - 1);
            // Makes the tables on the way, with all rights; the page then gets its own.
            tables.map(&mut ram, Gva(gva), Gpa(gpa), p.page, all);
            tables.map(&mut ram, Gva(gva), Gpa(gpa), p.page, p.flags);
            oracle.insert(gva, (gpa, p));
        }
        let (machine, paging) = setup(ram, tables.root(), la57, true);
        for (&gva, (gpa, p)) in &oracle {
            for offset in [0, 1, p.page.bytes() / 2, p.page.bytes() - 1] {
                let m = paging.walk(&machine, Gva(gva + offset)).unwrap();
                prop_assert_eq!(m, Mapping {
                    gpa: Gpa(gpa + offset),
                    page: p.page,
                    writable: p.flags & bits::WRITABLE != 0,
                    user: p.flags & bits::USER != 0,
                    executable: p.flags & bits::NX == 0,
                });
            }
            for outside in [gva.wrapping_sub(1), gva + p.page.bytes()] {
                let holds = |(&a, (_, q)): (&u64, &(u64, Random))| outside.wrapping_sub(a) < q.page.bytes();
                let mapped = paging.walk(&machine, Gva(outside)).is_ok();
                prop_assert_eq!(mapped, oracle.iter().any(holds), "{:#x}", outside);
            }
        }
    }

    #[test]
    fn any_bytes_are_walked_in_bounded_time(
        words in proptest::collection::vec(prop_oneof![
            any::<u64>(),
            // Plausible entries that lead into the same few pages.
            (0u64..8, any::<u16>()).prop_map(|(p, f)| p << 12 | u64::from(f) & 0xfff | 1),
        ], 64),
        gva: u64, cr3 in 0u64..0x9000, la57: bool, nxe: bool,
    ) {
        let ram: Vec<u8> = words.iter().cycle().take(0x8000 / 8).flat_map(|w| w.to_le_bytes()).collect();
        let (machine, paging) = setup(ram, Gpa(cr3), la57, nxe);
        let _ = paging.walk(&machine, Gva(gva));
    }
}

#[test]
fn errors_name_the_level() {
    let mut ram = vec![0; TABLES.end as usize];
    let mut tables = TableBuilder::new(TABLES, 4);
    let gva = Gva(0x4000_0000);
    tables.map(&mut ram, gva, Gpa(0), PageSize::Mib2, flags::KERNEL | bits::NX);
    // Bits below a large page's size are reserved, except for bit 12.
    tables.map(&mut ram, gva.offset(2 << 20), Gpa(0x1000), PageSize::Mib2, flags::KERNEL);
    tables.map(&mut ram, gva.offset(4 << 20), Gpa(0x2000), PageSize::Mib2, flags::KERNEL);
    let (machine, paging) = setup(ram, tables.root(), false, false);
    let walk = |a: Gva| paging.walk(&machine, a).unwrap_err();
    assert!(matches!(walk(gva), WalkError::Reserved { level: 2, .. }), "NX without NXE");
    assert_eq!(paging.walk(&machine, gva.offset(2 << 20)).unwrap().gpa, Gpa(0));
    assert!(matches!(walk(gva.offset(4 << 20)), WalkError::Reserved { level: 2, .. }));
    assert!(matches!(walk(gva.offset(6 << 20)), WalkError::NotPresent { level: 2, .. }));
    assert!(matches!(walk(Gva(0)), WalkError::NotPresent { level: 3, .. }));
    assert_eq!(walk(Gva(1 << 47)), WalkError::NotCanonical { gva: Gva(1 << 47) });
    let (machine, paging) = setup(vec![0xff; 0x2000], Gpa(0x1000), false, true);
    assert!(matches!(paging.walk(&machine, Gva(0)).unwrap_err(), WalkError::Reserved { level: 4, .. }));
    let (machine, paging) = setup(vec![0; 0x1000], Gpa(0x9000), false, true);
    assert!(matches!(paging.walk(&machine, Gva(0)).unwrap_err(), WalkError::TableOutside { level: 4, .. }));
    let real_mode = VcpuState::default();
    assert_eq!(Paging::of(&real_mode).unwrap_err(), WalkError::NotLongMode { efer: 0 });
}

#[test]
fn rights_are_those_that_every_level_grants() {
    let mut ram = vec![0; TABLES.end as usize];
    let mut tables = TableBuilder::new(TABLES, 4);
    let gva = Gva(0x4000_0000);
    tables.map(&mut ram, gva, Gpa(0), PageSize::Kib4, flags::USER);
    let (machine, paging) = setup(ram, tables.root(), false, true);
    let rights = || paging.walk(&machine, gva).map(|m| (m.writable, m.user, m.executable)).unwrap();
    assert_eq!(rights(), (true, true, true));
    let mut table = paging.root();
    for level in (1..=4).rev() {
        let at = entry_at(table, gva, level);
        let entry = read_entry(&machine, at).unwrap();
        for (change, expected) in [
            (entry & !bits::WRITABLE, (false, true, true)),
            (entry & !bits::USER, (true, false, true)),
            (entry | bits::NX, (true, true, false)),
        ] {
            machine.poke(at, &change.to_le_bytes());
            assert_eq!(rights(), expected, "level {level}");
        }
        machine.poke(at, &entry.to_le_bytes());
        table = Gpa(entry & bits::ADDR);
    }
}
