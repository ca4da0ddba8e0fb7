#![allow(clippy::unwrap_used)]
use iced_x86::{Code, Decoder, DecoderOptions, Mnemonic};
use proptest::prelude::*;

use super::*;
use crate::image::KernelImage;
use crate::mock::linux_like;

fn text(functions: usize) -> Text {
    let image = KernelImage::from_elf(linux_like(0x4010_0000, 0x10_0000, functions, 16).to_bytes()).unwrap();
    let sites = Arc::new(SiteTable::build(&image));
    Text::resolve(sites, |gva| Ok(image.gpa_of(gva).unwrap()))
}

proptest! {
    #[test]
    fn calls_decode_to_their_target(site in any::<u64>(), distance in any::<i64>()) {
        let target = Gva(site.wrapping_add_signed(distance >> 30));
        let real = i128::from(target.0) - i128::from(site) - 5;
        match make_call(Gva(site), target) {
            Ok(bytes) => {
                let i = Decoder::with_ip(64, &bytes, site, DecoderOptions::NONE).decode();
                prop_assert_eq!((i.code(), i.len()), (Code::Call_rel32_64, 5));
                prop_assert_eq!(i.near_branch_target(), target.0);
            }
            Err(e) => {
                prop_assert!(i32::try_from(real).is_err());
                prop_assert_eq!(e, OutOfReach { site: Gva(site), target });
            }
        }
    }
}

#[test]
fn the_reach_of_a_call_is_exact() {
    let site = 0x1_0000_0000u64;
    let next = site + 5;
    for (target, fits) in [
        (next + 0x7fff_ffff, true),
        (next + 0x8000_0000, false),
        (next - 0x8000_0000, true),
        (next - 0x8000_0001, false),
    ] {
        assert_eq!(make_call(Gva(site), Gva(target)).is_ok(), fits, "{target:#x}");
    }
}

#[test]
fn the_nop_is_one_instruction() {
    let nop = make_nop();
    let i = Decoder::with_ip(64, &nop, 0, DecoderOptions::NONE).decode();
    assert_eq!((i.mnemonic(), i.len()), (Mnemonic::Nop, 5));
}

#[test]
fn the_last_wish_counts_and_outcomes_tell() {
    let mut text = text(4);
    let call = SiteState::Call(Gva(0x6000_0000));
    let plan = text.plan([
        (SiteId(2), SiteState::Nop),
        (SiteId(0), call),
        (SiteId(2), SiteState::Original),
        (SiteId(0), SiteState::Nop),
    ]);
    let plan = plan.unwrap();
    let outcomes: Vec<_> = plan.outcomes().collect();
    assert_eq!(outcomes, [(SiteId(0), Outcome::Patched), (SiteId(2), Outcome::Unchanged)]);
    assert_eq!(plan.patches()[0].wanted, NOP);
    text.commit(&plan);
    assert_eq!(text.state(SiteId(0)), Some(SiteState::Nop));
    assert_eq!(text.state(SiteId(1)), Some(SiteState::Original));
    let back = text.plan_detach().unwrap();
    assert_eq!(back.patches().len(), 1);
    assert_eq!(back.patches()[0].expected, NOP);
    assert_eq!(text.plan([(SiteId(4), call)]).unwrap_err(), PlanError::NoSuchSite { site: SiteId(4), sites: 4 });
    let far = text.plan([(SiteId(1), SiteState::Call(Gva(0x1_6000_0000)))]).unwrap_err();
    assert!(far.to_string().starts_with("function 'fn_1'"), "{far}");
}

#[test]
fn sites_that_can_not_be_placed_are_skipped() {
    let image = KernelImage::from_elf(linux_like(0x4010_0000, 0x10_0000, 3, 16).to_bytes()).unwrap();
    let sites = Arc::new(SiteTable::build(&image));
    let (first, second) = (sites.get(SiteId(0)).unwrap().addr, sites.get(SiteId(1)).unwrap().addr);
    let missing = WalkError::NotPresent { gva: first, level: 1, entry_at: Gpa(0x5000) };
    let text = Text::resolve(sites, |gva| match gva {
        g if g == first => Err(missing),
        // The end of the second site lies in another page.
        g if g == second.offset(4) => Ok(Gpa(0x9000)),
        g => Ok(Gpa(g.0)),
    });
    let plan = text.plan_all(SiteState::Nop).unwrap();
    assert_eq!(
        plan.outcomes().map(|o| o.1).collect::<Vec<_>>(),
        [Outcome::Skipped(Unpatchable::Unmapped(missing)), Outcome::Skipped(Unpatchable::Split), Outcome::Patched]
    );
}
