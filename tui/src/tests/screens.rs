//! What the screen looks like. The snapshots are to be read, not only compared.

use exotrace_patcher::control::{Event, GuestEnd};
use exotrace_trace::ids::{Gva, VcpuId};
use ratatui::style::{Color, Modifier};

use super::*;

fn traced(size: (u16, u16)) -> Desk {
    let mut desk = Desk::new(size, MockOptions::default());
    desk.key(KeyCode::Char('A'));
    desk.pass(2500);
    desk
}

#[test]
fn fresh_80x24() {
    let mut desk = Desk::new((80, 24), MockOptions::default());
    insta::assert_snapshot!(desk.text());
}

#[test]
fn traced_80x24() {
    insta::assert_snapshot!(traced((80, 24)).text());
}

#[test]
fn traced_120x40() {
    insta::assert_snapshot!(traced((120, 40)).text());
}

#[test]
fn sixteen_vcpus_200x50() {
    let mut desk = Desk::new((200, 50), MockOptions { vcpus: 16, ..MockOptions::default() });
    desk.key(KeyCode::Char('A'));
    desk.pass(2000);
    desk.mock.tamper(|s| s.vcpus[15].online = false);
    desk.mock.tamper(|s| s.vcpus[3].corrupt = 7);
    desk.pass(50);
    insta::assert_snapshot!(desk.text());
}

#[test]
fn one_pane_at_50x12() {
    insta::assert_snapshot!(traced((50, 12)).text());
}

#[test]
fn filter_being_typed() {
    let mut desk = traced((80, 24));
    desk.type_text("/vfs_* !slow");
    insta::assert_snapshot!(desk.text());
}

#[test]
fn a_skipped_function_shows_its_reason() {
    let mut desk = traced((80, 24));
    desk.type_text("/slab_write");
    assert!(desk.text().contains("✕ slab_write  site holds e8 10 20 00 "), "{}", desk.text());
}

#[test]
fn help_80x24() {
    let mut desk = traced((80, 24));
    desk.key(KeyCode::Char('?'));
    insta::assert_snapshot!(desk.text());
}

#[test]
fn details_80x24() {
    let mut desk = traced((80, 24));
    desk.key(KeyCode::Enter);
    insta::assert_snapshot!(desk.text());
}

#[test]
fn a_refusal_is_shown_in_full_and_the_history_keeps_it() {
    let mut desk = traced((80, 24));
    let why = "the bytes at 0xffffffff81000040 are e8 10 20 00 00, expected 0f 1f 44 00 00; nothing was written. Reset the guest and attach again";
    desk.mock.happen(Event::Refused { what: "switch on 12 functions".into(), why: why.into() });
    desk.pass(50);
    insta::assert_snapshot!("refused", desk.text());
    desk.key(KeyCode::Char('m'));
    insta::assert_snapshot!("messages", desk.text());
}

#[test]
fn the_guest_ended() {
    let mut desk = traced((80, 24));
    desk.type_text("w");
    desk.key(KeyCode::Enter);
    desk.mock.happen(Event::Ended(GuestEnd::Hang { vcpu: VcpuId(1), rip: Gva(0xffff_ffff_8123_4567) }));
    desk.pass(2000);
    insta::assert_snapshot!(desk.text());
    // Everything can still be looked at, nothing can be changed, and the user is told.
    desk.mock.sent();
    desk.key(KeyCode::Char(' '));
    assert_eq!(desk.sent(), None);
    assert!(desk.text().contains("nothing in it can be changed"));
    desk.key(KeyCode::Char('w'));
    assert_eq!(desk.sent(), Some(Command::StopFile));
}

#[test]
fn every_end_has_its_banner() {
    for end in [
        GuestEnd::PowerOff,
        GuestEnd::Reset,
        GuestEnd::Panic,
        GuestEnd::SelfCheckFailed,
        GuestEnd::TripleFault { vcpu: VcpuId(3) },
        GuestEnd::Failed { why: "KVM_RUN failed: no such device".into() },
        GuestEnd::Quit,
    ] {
        let mut desk = Desk::new((80, 24), MockOptions::default());
        desk.mock.happen(Event::Ended(end.clone()));
        desk.pass(50);
        let text = desk.text();
        assert!(text.contains("GUEST ENDED: ") && text.contains("quits."), "{end:?}\n{text}");
    }
}

#[test]
fn hostile_text_stays_in_its_place() {
    let mut desk = Desk::new((100, 30), MockOptions { hostile: true, ..MockOptions::default() });
    desk.key(KeyCode::Char('A'));
    desk.pass(2000);
    desk.key(KeyCode::Char('4'));
    insta::assert_snapshot!("hostile", desk.text());
    desk.key(KeyCode::Char('1'));
    desk.key(KeyCode::Enter);
    insta::assert_snapshot!("hostile_details", desk.text());
}

#[test]
fn too_small_is_said_and_nothing_panics_at_any_size() {
    let mut desk = traced((30, 5));
    insta::assert_snapshot!(desk.text());
    let modes = ["", "/", "w", "?", "m", "\n", "4i", "D", "z", "3z"];
    for keys in modes {
        for (w, h) in
            [(1, 1), (2, 1), (1, 9), (39, 24), (40, 10), (41, 11), (72, 18), (80, 9), (110, 22), (300, 10), (40, 200)]
        {
            let mut desk = Desk::new((w, h), MockOptions { hostile: true, vcpus: 16, ..MockOptions::default() });
            desk.mock.happen(Event::Refused { what: "長".repeat(300), why: "y".repeat(3000) });
            desk.mock.happen(Event::Ended(GuestEnd::Failed { why: "z".repeat(3000) }));
            desk.pass(50);
            for c in keys.chars() {
                desk.key(if c == '\n' { KeyCode::Enter } else { KeyCode::Char(c) });
            }
            desk.text();
        }
    }
}

#[test]
fn loss_is_red_and_without_colour_nothing_is_coloured() {
    let mut desk = traced((120, 40));
    let red = |desk: &mut Desk| {
        let screen = desk.screen();
        screen.backend().buffer().content.iter().any(|c| c.fg == Color::Red && c.modifier.contains(Modifier::BOLD))
    };
    desk.mock.tamper(|s| s.vcpus.iter_mut().for_each(|v| (v.lost, v.used) = (0, 1)));
    desk.app.tick(desk.now);
    assert!(!red(&mut desk));
    desk.mock.tamper(|s| s.vcpus[0].lost = 1);
    desk.app.tick(desk.now);
    assert!(red(&mut desk));
    desk.app.theme = Theme::new(false);
    let screen = desk.screen();
    assert!(screen.backend().buffer().content.iter().all(|c| c.fg == Color::Reset && c.bg == Color::Reset));
}
