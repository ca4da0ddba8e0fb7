#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::*;
use crate::machine::Machine;
use crate::mock::{InjectedMemory, MockMachine, TableBuilder, flags};

const LONG_MODE: u64 = 1 << 10;
const NXE: u64 = 1 << 11;
const MIB: u64 = 1 << 20;

/// What a guest looks like to an injection.
struct Guest {
    machine: MockMachine,
    vcpus: Vec<VcpuState>,
    text: Range<Gva>,
}

impl Guest {
    fn request(&self) -> Request<'_> {
        Request {
            vcpus: &self.vcpus,
            records: 1 << 12,
            text: self.text.clone(),
            memslot: self.machine.injected_gpa(),
            memslot_len: self.machine.injected_len(),
            new_tables: true,
        }
    }

    fn plan(&self) -> Result<Injection, InjectError> {
        Injection::plan(&self.machine, &self.request())
    }

    fn apply(&self, injection: &Injection) -> Result<(), InjectError> {
        injection.apply(&mut self.machine.stop().unwrap(), &self.machine.injected())
    }
}

/// The embedded guest: RAM at 1 GiB in 2 MiB pages, at CPL 3, per-CPU areas 64 KiB apart.
fn embedded(vcpus: u64, ram_mib: u64, efer: u64, levels: u8) -> Guest {
    let mut ram = vec![0; (ram_mib * MIB) as usize];
    let mut tables = TableBuilder::new(0x1000..0x10_0000, levels);
    tables.map_range(&mut ram, (Gva(0x4000_0000), Gpa(0)), ram_mib * MIB, PageSize::Mib2, flags::USER);
    let state = |n| VcpuState {
        cr3: tables.root().0 | 0x18,
        cr4: if levels == 5 { 1 << 12 } else { 0 },
        efer,
        gs_base: Gva(0x4080_0000 + n * 0x1_0000),
        ..VcpuState::default()
    };
    let states: Vec<VcpuState> = (0..vcpus).map(state).collect();
    let machine = MockMachine::new(ram, states.clone(), 24 << 20);
    Guest { machine, vcpus: states, text: Gva(0x4010_0000)..Gva(0x4014_0000) }
}

/// As Linux: text at -2 GiB, RAM in a direct map, per-CPU areas there, and a root table for each vCPU, which share
/// those of the kernel's half.
fn linux_like(vcpus: u64) -> Guest {
    let mut ram = vec![0; (64 * MIB) as usize];
    let mut tables = TableBuilder::new(0x2000..0x10_0000, 4);
    let direct = Gva(0xffff_8880_0000_0000);
    let text = Gva(0xffff_ffff_8100_0000);
    tables.map_range(&mut ram, (direct, Gpa(0)), 64 * MIB, PageSize::Mib2, flags::KERNEL | bits::NX);
    tables.map_range(&mut ram, (text, Gpa(16 * MIB)), 16 * MIB, PageSize::Mib2, flags::KERNEL);
    let roots: Vec<u64> = (0..vcpus).map(|n| 0x30_0000 + n * 0x1000).collect();
    let first = tables.root().0 as usize;
    for &root in &roots {
        ram.copy_within(first + 2048..first + 4096, root as usize + 2048);
    }
    let state = |(n, &root): (usize, &u64)| VcpuState {
        cr3: root | n as u64,
        efer: LONG_MODE | NXE,
        gs_base: direct.offset(60 * MIB + n as u64 * 0x3_2000),
        ..VcpuState::default()
    };
    let states: Vec<VcpuState> = roots.iter().enumerate().map(state).collect();
    let machine = MockMachine::new(ram, states.clone(), 24 << 20);
    Guest { machine, vcpus: states, text: text..text.offset(12 * MIB) }
}

/// Applies a plan and looks at the result through every vCPU's page tables.
fn check(guest: &Guest, plan: &Injection, kernel_user: bool) {
    let before = guest.machine.ram_copy();
    guest.apply(plan).unwrap();
    let layout = plan.layout;
    let base = guest.machine.injected_gpa().0;
    let nx = plan.nx;
    for (n, state) in guest.vcpus.iter().enumerate() {
        let paging = Paging::of(state).unwrap();
        let walk = |gva: Gva| paging.walk(&guest.machine, gva).unwrap();
        for offset in (layout.code().start..layout.len()).step_by(4096) {
            let m = walk(plan.code_gva.offset(offset - layout.code().start));
            assert_eq!(m.gpa.0, base + offset);
            let is_code = layout.code().contains(&offset);
            assert_eq!((m.writable, m.executable, m.user), (!is_code, is_code || !nx, kernel_user), "{offset:#x}");
        }
        for (v, other) in guest.vcpus.iter().enumerate() {
            let page = Gva(other.gs_base.0.wrapping_add_signed(i64::from(plan.head_off)));
            let m = walk(page);
            assert_eq!(m.gpa.0, base + layout.control(VcpuId(v as u8)), "vCPU {v} seen by {n}");
            assert_eq!((m.writable, m.executable, m.user), (true, !nx, kernel_user));
        }
        // The text and the RAM are where they were.
        assert!(walk(guest.text.start).executable);
    }
    let after = guest.machine.ram_copy();
    for at in (0..before.len()).step_by(8) {
        if before[at..at + 8] != after[at..at + 8] {
            assert_eq!(before[at..at + 8], [0; 8], "a used entry was changed");
            assert!(plan.writes.iter().any(|w| w.at.0 as usize == at), "{at:#x}");
        }
    }
    assert!(i32::try_from(plan.slots_gva.0 as i64).is_ok());
    assert!(i32::try_from((plan.slots_gva.0 + layout.len() - layout.slots().start - 1) as i64).is_ok());
    guest.machine.stop().map(|mut s| plan.remove(&mut s).unwrap()).unwrap();
    assert!(guest.machine.ram_copy() == before, "removing left something behind");
}

#[test]
fn the_embedded_guest() {
    for vcpus in [1, 2, 4, 16] {
        for levels in [4, 5] {
            let guest = embedded(vcpus, 64, LONG_MODE, levels);
            let plan = guest.plan().unwrap();
            assert!(plan.user && !plan.nx);
            // Above RAM, with 2 MiB of nothing in between.
            assert_eq!(plan.code_gva, Gva(0x4400_0000 + 2 * MIB));
            check(&guest, &plan, true);
        }
    }
}

#[test]
fn a_linux_like_guest() {
    for vcpus in [1, 2, 4] {
        let guest = linux_like(vcpus);
        let plan = guest.plan().unwrap();
        assert!(!plan.user && plan.nx);
        assert_eq!(plan.code_gva, Gva(0xffff_ffff_8200_0000 + 2 * MIB));
        check(&guest, &plan, false);
    }
}

#[test]
fn nx_only_if_every_vcpu_has_it() {
    let mut guest = embedded(2, 32, LONG_MODE | NXE, 4);
    let plan = guest.plan().unwrap();
    assert!(plan.nx);
    check(&guest, &plan, true);
    guest.vcpus[1].efer = LONG_MODE;
    let plan = guest.plan().unwrap();
    assert!(!plan.nx && plan.writes.iter().all(|w| w.value & bits::NX == 0));
    check(&guest, &plan, true);
}

#[test]
fn gs_bases_must_make_sense() {
    let mut guest = embedded(3, 32, LONG_MODE, 4);
    guest.vcpus[2].gs_base = guest.vcpus[1].gs_base;
    let same = InjectError::SameGsBase { a: VcpuId(1), b: VcpuId(2), gs_base: guest.vcpus[1].gs_base };
    assert_eq!(guest.plan().unwrap_err(), same);
    guest.vcpus[2].gs_base = guest.vcpus[1].gs_base.offset(64);
    assert!(matches!(guest.plan().unwrap_err(), InjectError::GsUnaligned { vcpu: VcpuId(2), .. }));
    // An offset that all share is no problem: the distance makes up for it.
    for (n, v) in guest.vcpus.iter_mut().enumerate() {
        v.gs_base = Gva(0x4080_0040 + n as u64 * 0x1_0000);
    }
    let plan = guest.plan().unwrap();
    assert_eq!(plan.head_off & 0xfff, 0xfc0);
    check(&guest, &plan, true);
}

#[test]
fn bad_requests_are_refused() {
    let guest = embedded(1, 32, LONG_MODE, 4);
    let with = |change: &dyn Fn(&mut Request<'_>)| {
        let mut r = guest.request();
        change(&mut r);
        Injection::plan(&guest.machine, &r).unwrap_err()
    };
    assert!(matches!(with(&|r| r.records = 100), InjectError::BadShape { .. }));
    assert!(matches!(with(&|r| r.vcpus = &[]), InjectError::BadShape { .. }));
    assert!(matches!(with(&|r| r.memslot_len = 4 * MIB), InjectError::MemslotTooSmall { .. }));
    assert!(matches!(with(&|r| r.memslot.0 += 4096), InjectError::MemslotUnaligned { .. }));
    let elsewhere = with(&|r| r.text = Gva(0x9000_0000)..Gva(0x9000_1000));
    assert!(matches!(elsewhere, InjectError::TextUnmapped { .. }), "{elsewhere}");
}

#[test]
fn a_full_address_space_is_refused() {
    let mut ram = vec![0; (32 * MIB) as usize];
    let mut tables = TableBuilder::new(0x1000..0x10_0000, 4);
    // The whole reach of a disp32, in use.
    tables.map_range(&mut ram, (Gva(0), Gpa(0)), 8 << 30, PageSize::Gib1, flags::USER);
    let state = VcpuState { cr3: 0x1000, efer: LONG_MODE, gs_base: Gva(0x4080_0000), ..VcpuState::default() };
    let machine = MockMachine::new(ram, vec![state], 24 << 20);
    let guest = Guest { machine, vcpus: vec![state], text: Gva(0x4010_0000)..Gva(0x4014_0000) };
    assert!(matches!(guest.plan().unwrap_err(), InjectError::NoRoomForCode { .. }));
}

#[test]
fn holes_in_existing_tables_are_the_last_resort() {
    let mut ram = vec![0; (32 * MIB) as usize];
    let mut tables = TableBuilder::new(0x1000..0x10_0000, 4);
    tables.map_range(&mut ram, (Gva(0x4000_0000), Gpa(0)), 32 * MIB, PageSize::Mib2, flags::USER);
    // Around the per-CPU area everything that a disp32 reaches is in use, except for one 4 KiB page.
    let gs = Gva(0x100_0000_0000);
    tables.map_range(&mut ram, (gs, Gpa(0)), 2 * MIB, PageSize::Kib4, flags::USER);
    let hole = gs.offset(0x5000);
    tables.map(&mut ram, hole, Gpa(0), PageSize::Kib4, flags::USER);
    tables.map_range(&mut ram, (Gva(gs.0 - (2 << 30)), Gpa(0)), 2 << 30, PageSize::Mib2, flags::USER);
    tables.map_range(&mut ram, (gs.offset(2 * MIB), Gpa(0)), (2 << 30) - 2 * MIB, PageSize::Mib2, flags::USER);
    let state = VcpuState { cr3: 0x1000, efer: LONG_MODE, gs_base: gs, ..VcpuState::default() };
    let paging = Paging::of(&state).unwrap();
    let text = Gva(0x4010_0000)..Gva(0x4014_0000);
    let full = MockMachine::new(ram.clone(), vec![state], 24 << 20);
    let guest = Guest { machine: full, vcpus: vec![state], text: text.clone() };
    assert_eq!(guest.plan().unwrap_err(), InjectError::NoRoomForControl { vcpus: 1 });
    // Clear the entry of the hole: it is the one that maps it at level 1.
    let machine = MockMachine::new(ram, vec![state], 24 << 20);
    let mut table = paging.root();
    for level in (2..=4).rev() {
        let entry = read_entry(&machine, crate::paging::entry_at(table, hole, level)).unwrap();
        table = Gpa(entry & bits::ADDR);
    }
    machine.poke(crate::paging::entry_at(table, hole, 1), &[0; 8]);
    let guest = Guest { machine, vcpus: vec![state], text };
    let plan = guest.plan().unwrap();
    assert_eq!(plan.head_off, 0x5000);
    check(&guest, &plan, true);
}

#[test]
fn entries_taken_meanwhile_are_not_touched() {
    let guest = embedded(2, 32, LONG_MODE, 4);
    let plan = guest.plan().unwrap();
    let last = plan.writes.last().unwrap().at;
    guest.machine.poke(last, &[2]);
    let before = guest.machine.ram_copy();
    assert_eq!(guest.apply(&plan).unwrap_err(), InjectError::EntryTaken { at: last, found: 2 });
    assert!(guest.machine.ram_copy() == before);
    // Not present but not zero is in use, too: the next plan goes elsewhere.
    let again = guest.plan().unwrap();
    assert!(again.writes.iter().all(|w| w.at != last));
    check(&guest, &again, true);
}

#[test]
fn a_failing_write_is_taken_back() {
    let guest = embedded(2, 32, LONG_MODE, 4);
    let plan = guest.plan().unwrap();
    let before = guest.machine.ram_copy();
    guest.machine.fail_writes(plan.writes.len() - 1, 1);
    assert!(matches!(guest.apply(&plan).unwrap_err(), InjectError::Memory(_)));
    assert!(guest.machine.ram_copy() == before);
    check(&guest, &plan, true);
}

#[test]
fn tables_that_contain_themselves_do_no_harm() {
    // A root whose every second entry leads to itself, as a hostile guest might have it.
    let guest = embedded(2, 32, LONG_MODE, 4);
    for n in 1..512u64 {
        guest.machine.poke(Gpa(0x1000 + n * 8), &(0x1000u64 | flags::USER).to_le_bytes());
    }
    match guest.plan() {
        Ok(plan) => check(&guest, &plan, true),
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Random words all over the tables: a plan, if there is one, keeps its promises.
    #[test]
    fn hostile_tables(
        words in proptest::collection::vec((0u64..0x3000 / 8, prop_oneof![
            any::<u64>(),
            (0u64..16, 0u64..256).prop_map(|(p, f)| p << 12 | f),
            Just(0),
        ]), 1..200),
    ) {
        let guest = embedded(2, 4, LONG_MODE, 4);
        for (word, value) in words {
            guest.machine.poke(Gpa(0x1000 + word * 8), &value.to_le_bytes());
        }
        if let Ok(plan) = guest.plan() {
            let mut before = guest.machine.ram_copy();
            guest.apply(&plan).unwrap();
            for write in &plan.writes {
                let at = write.at.0 as usize;
                prop_assert_eq!(&before[at..at + 8], &[0; 8]);
                before[at..at + 8].copy_from_slice(&write.value.to_le_bytes());
            }
            prop_assert!(before == guest.machine.ram_copy());
            let paging = Paging::of(&guest.vcpus[0]).unwrap();
            let m = paging.walk(&guest.machine, plan.code_gva).unwrap();
            prop_assert_eq!(m.gpa.0, guest.machine.injected_gpa().0 + plan.layout.code().start);
        }
    }
}

#[test]
fn table_pages_lie_in_their_area_only() {
    let guest = embedded(16, 64, LONG_MODE, 5);
    let plan = guest.plan().unwrap();
    assert!(plan.tables.len() as u64 <= TABLES_BYTES);
    let memory = InjectedMemory::new(guest.machine.injected_len() as usize);
    plan.apply(&mut guest.machine.stop().unwrap(), &memory).unwrap();
    let mut rest = vec![0; memory.len() - plan.tables.len()];
    memory.copy_out(plan.tables.len(), &mut rest);
    assert!(rest.iter().all(|&b| b == 0));
}
