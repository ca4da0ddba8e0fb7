#![allow(clippy::unwrap_used)]
use std::sync::Arc;

use iced_x86::{Code, Decoder, DecoderOptions};
use proptest::prelude::*;

use super::*;
use crate::image::{KernelImage, SiteTable};
use crate::machine::Machine;
use crate::mock::{MockMachine, linux_like};
use crate::plan::{NOP, SiteState, Text};

const GVA: u64 = 0x4010_0000;
const GPA: u64 = 0x1000;
const TRAMPOLINE: u64 = 0x6000_0000;

/// A machine with an image of that many functions loaded.
fn machine(functions: usize, stride: usize) -> (MockMachine, Text) {
    let image = KernelImage::from_elf(linux_like(GVA, GPA, functions, stride).to_bytes()).unwrap();
    let segment = &image.segments()[0];
    let mut ram = vec![0; GPA as usize];
    ram.extend_from_slice(image.bytes_of(segment));
    let text = Text::resolve(Arc::new(SiteTable::build(&image)), |gva| Ok(image.gpa_of(gva).unwrap()));
    (MockMachine::new(ram, Vec::new(), 0), text)
}

fn run(machine: &MockMachine, plan: &Plan) -> Result<Applied, Refused> {
    apply(plan, &mut machine.stop().unwrap())
}

fn state() -> impl Strategy<Value = SiteState> {
    prop_oneof![
        Just(SiteState::Original),
        Just(SiteState::Nop),
        (0u64..4).prop_map(|n| SiteState::Call(Gva(TRAMPOLINE + n * 64))),
    ]
}

fn wishes(sites: u32) -> impl Strategy<Value = Vec<(SiteId, SiteState)>> {
    proptest::collection::vec(((0..sites).prop_map(SiteId), state()), 0..60)
}

/// Memory holds what the text says it does, site by site, and nothing else has changed.
fn check(machine: &MockMachine, text: &Text, original: &[u8]) {
    let mut expected = original.to_vec();
    let ram = machine.ram_copy();
    for (id, site) in text.sites().iter() {
        let at = text.place(id).unwrap().unwrap().0 as usize;
        let bytes = &ram[at..at + 5];
        let i = Decoder::with_ip(64, bytes, site.addr.0, DecoderOptions::NONE).decode();
        match text.state(id).unwrap() {
            SiteState::Original => assert_eq!(bytes, site.original),
            SiteState::Nop => assert_eq!(bytes, NOP),
            SiteState::Call(target) => {
                assert_eq!((i.code(), i.near_branch_target()), (Code::Call_rel32_64, target.0));
            }
        }
        expected[at..at + 5].copy_from_slice(bytes);
    }
    assert!(ram == expected, "something between the sites was written");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn any_series_of_plans_and_back(
        series in proptest::collection::vec(wishes(40), 1..8),
        stride in prop_oneof![Just(16usize), Just(500), Just(700), Just(5000)],
    ) {
        let (machine, mut text) = machine(40, stride);
        let original = machine.ram_copy();
        for wanted in series {
            let plan = text.plan(wanted).unwrap();
            let applied = run(&machine, &plan).unwrap();
            prop_assert_eq!(applied.patched, plan.patches().len());
            prop_assert_eq!(applied.patched + applied.unchanged, plan.outcomes().len());
            text.commit(&plan);
            check(&machine, &text, &original);
        }
        run(&machine, &text.plan_detach().unwrap()).unwrap();
        prop_assert!(machine.ram_copy() == original);
    }

    #[test]
    fn corruption_means_nothing_is_written(
        before in wishes(40),
        wanted in wishes(40),
        corrupt in proptest::collection::vec((0u32..40, 0usize..5, 1u8..), 1..4),
    ) {
        let (machine, mut text) = machine(40, 100);
        let plan = text.plan(before).unwrap();
        run(&machine, &plan).unwrap();
        text.commit(&plan);
        let plan = text.plan(wanted).unwrap();
        let mut hit = Vec::new();
        for (site, byte, change) in corrupt {
            let at = text.place(SiteId(site)).unwrap().unwrap().0 as usize + byte;
            let old = machine.ram_copy()[at];
            machine.poke(Gpa(at as u64), &[old ^ change]);
            hit.push(SiteId(site));
        }
        let expect_refusal: Vec<SiteId> = plan.patches().iter().map(|p| p.site).filter(|s| {
            let p = plan.patches().iter().find(|p| p.site == *s).unwrap();
            hit.contains(s) && machine.ram_copy()[p.gpa.0 as usize..][..5] != p.expected
        }).collect();
        let ram = machine.ram_copy();
        let writes = machine.writes();
        match run(&machine, &plan) {
            Ok(_) => prop_assert!(expect_refusal.is_empty()),
            Err(Refused::Mismatch { first, total }) => {
                prop_assert_eq!(total, expect_refusal.len());
                prop_assert_eq!(first.iter().map(|d| d.site).collect::<Vec<_>>(), expect_refusal);
                prop_assert!(machine.ram_copy() == ram);
                prop_assert_eq!(machine.writes(), writes);
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn a_failing_write_is_undone(after in 0usize..30) {
        let (machine, text) = machine(30, 64);
        let original = machine.ram_copy();
        let plan = text.plan_all(SiteState::Nop).unwrap();
        // The write and the attempt to repair the same place fail, the undo works.
        machine.fail_writes(after, 2);
        let refused = run(&machine, &plan).unwrap_err();
        prop_assert!(matches!(refused, Refused::Unwritable { undone, .. } if undone == after), "{}", refused);
        prop_assert!(machine.ram_copy() == original);
        prop_assert!(run(&machine, &plan).is_ok());
    }
}

#[test]
fn a_refusal_names_sites_and_bytes() {
    let (machine, text) = machine(20, 32);
    let plan = text.plan_all(SiteState::Nop).unwrap();
    let at = text.place(SiteId(7)).unwrap().unwrap();
    machine.poke(at, &[0xcc]);
    let refused = run(&machine, &plan).unwrap_err();
    insta::assert_snapshot!(refused.to_string(), @"nothing was written, because 1 site differs in the guest's memory: 'fn_7' at 0x40100160: expected e8 db fe ff ff, found cc db fe ff ff");
    for n in 0..20 {
        machine.poke(text.place(SiteId(n)).unwrap().unwrap(), &[0xcc]);
    }
    let Err(Refused::Mismatch { first, total }) = run(&machine, &plan) else { panic!("not refused") };
    assert_eq!((first.len(), total), (NAMED_AT_MOST, 20));
    let text = Refused::Mismatch { first, total }.to_string();
    assert!(text.contains("20 sites differ") && text.ends_with("and 12 more"), "{text}");
}

#[test]
fn a_torn_text_is_not_hidden() {
    let (machine, text) = machine(10, 32);
    machine.fail_writes(4, 4);
    let refused = run(&machine, &text.plan_all(SiteState::Nop).unwrap()).unwrap_err();
    // Of four failures one is the write, one its repair, two hit the undo of the last two.
    let Refused::Torn { stuck, .. } = &refused else { panic!("{refused}") };
    assert_eq!(stuck.iter().map(|s| s.0.0).collect::<Vec<_>>(), [2, 3]);
    assert!(refused.to_string().contains("2 sites"), "{refused}");
}

#[test]
fn a_site_outside_ram_is_named() {
    let image = KernelImage::from_elf(linux_like(GVA, GPA, 3, 32).to_bytes()).unwrap();
    let sites = Arc::new(SiteTable::build(&image));
    let last = sites.get(SiteId(2)).unwrap().addr;
    let cut = image.gpa_of(last).unwrap().0 as usize + 3;
    let mut ram = vec![0; GPA as usize];
    ram.extend_from_slice(image.bytes_of(&image.segments()[0]));
    ram.truncate(cut);
    let machine = MockMachine::new(ram, Vec::new(), 0);
    let text = Text::resolve(sites, |gva| Ok(image.gpa_of(gva).unwrap()));
    let refused = run(&machine, &text.plan_all(SiteState::Nop).unwrap()).unwrap_err();
    assert!(matches!(&refused, Refused::Unreadable { name, .. } if &**name == "fn_2"), "{refused}");
    assert_eq!(machine.writes(), 0);
}

#[test]
fn an_empty_plan_does_nothing() {
    let (machine, text) = machine(3, 32);
    let applied = run(&machine, &text.plan([]).unwrap()).unwrap();
    assert_eq!((applied.patched, machine.writes()), (0, 0));
}
