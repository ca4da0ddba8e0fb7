//! Every key of the table does what its help says; typing modes take keys as text.

use exotrace_patcher::control::{Event as RunEvent, GuestEnd, Selection};
use exotrace_trace::ids::SiteId;

use super::*;
use crate::keys::{Action, BINDINGS};
use crate::layout::Pane;
use crate::state::Mode;
use crate::state::functions::SortBy;
use crossterm::event::{KeyEventKind, KeyEventState};

fn desk() -> Desk {
    let mut desk = Desk::new((80, 24), MockOptions::default());
    desk.key(KeyCode::Char('A'));
    desk.pass(3000);
    desk.mock.sent();
    desk
}

/// What a press of a table key did, with no wildcard: a new action wants a new check.
fn check(desk: &mut Desk, action: Action, press: &mut dyn FnMut(&mut Desk)) {
    let selected = desk.app.functions.selected().unwrap();
    let view = desk.app.functions.view().to_vec();
    press(desk);
    let app = &desk.app;
    match action {
        Action::Quit => assert!(app.quit),
        Action::Help => assert_eq!(app.mode, Mode::Help(0)),
        Action::Messages => assert_eq!(app.mode, Mode::Messages(0)),
        Action::NextPane => assert_eq!(app.focus, Pane::Stream),
        Action::PrevPane => assert_eq!(app.focus, Pane::Console),
        Action::Focus(pane) => assert_eq!(app.focus, pane),
        Action::Zoom => assert!(app.zoom),
        Action::Freeze => assert!(app.frozen.is_some()),
        Action::PauseGuest => assert_eq!(desk.sent(), Some(Command::Pause)),
        Action::File => assert!(matches!(app.mode, Mode::FileName(_))),
        Action::Detach => assert_eq!(app.mode, Mode::ConfirmDetach),
        Action::Cancel => assert_eq!(app.mode, Mode::Normal),
        Action::Up => assert_eq!(app.functions.position().0, 0),
        Action::Down => assert_eq!(app.functions.position().0, 1),
        Action::PageUp => assert_eq!(app.functions.position().0, 0),
        Action::PageDown => assert!(app.functions.position().0 > 5),
        Action::Home => assert_eq!(app.functions.position(), (0, 0)),
        Action::End => assert_eq!(app.functions.position().0, 339),
        Action::Filter => assert!(matches!(app.mode, Mode::Filter(_))),
        Action::OnlyTraced => assert_eq!(app.functions.view().len(), 336),
        Action::Toggle => {
            let what = Selection::Sites(vec![SiteId(selected)]);
            assert_eq!(desk.sent(), Some(Command::Switch { what, on: false }));
        }
        Action::ToggleShown | Action::AllOff => {
            assert_eq!(desk.sent(), Some(Command::Switch { what: Selection::All, on: false }));
        }
        Action::ExactlyShown => assert_eq!(desk.sent(), Some(Command::SwitchExactly { what: Selection::All })),
        Action::AllOn => assert_eq!(desk.sent(), Some(Command::Switch { what: Selection::All, on: true })),
        Action::SortNext => assert_eq!(app.functions.order(), (SortBy::Total, false)),
        Action::Reverse => {
            assert_eq!(app.functions.order(), (SortBy::Rate, true));
            assert_ne!(app.functions.view(), view);
        }
        Action::Details => assert_eq!(app.mode, Mode::Details(selected)),
        Action::HoldStream => assert!(app.stream.is_held()),
        Action::ConsoleInput => assert_eq!(app.mode, Mode::ConsoleInput),
    }
}

#[test]
fn every_key_of_the_table_does_what_it_says() {
    for binding in BINDINGS {
        for (code, modifiers) in binding.keys {
            let mut desk = desk();
            desk.app.focus(binding.pane.unwrap_or(Pane::Functions));
            let event = Event::Key(KeyEvent::new(*code, *modifiers));
            check(&mut desk, binding.action, &mut |d| d.event(&event));
            desk.text();
        }
    }
}

#[test]
fn releases_are_ignored_and_repeats_count() {
    let mut desk = desk();
    let key = |kind| {
        Event::Key(KeyEvent { code: KeyCode::Down, modifiers: KeyModifiers::NONE, kind, state: KeyEventState::NONE })
    };
    desk.event(&key(KeyEventKind::Release));
    assert_eq!(desk.app.functions.position().0, 0);
    desk.event(&key(KeyEventKind::Repeat));
    assert_eq!(desk.app.functions.position().0, 1);
}

#[test]
fn switching_what_a_filter_shows_names_the_sites() {
    let mut desk = desk();
    desk.type_text("/vfs_read");
    desk.key(KeyCode::Enter);
    assert_eq!(desk.app.mode, Mode::Normal);
    let mut sites: Vec<_> = desk.app.functions.view().iter().map(|i| SiteId(*i)).collect();
    assert!(sites.len() > 2 && sites.len() < 20);
    desk.key(KeyCode::Char('a'));
    assert_eq!(desk.sent(), Some(Command::Switch { what: Selection::Sites(sites.clone()), on: false }));
    desk.pass(50);
    // One of them on again: the next press makes all of them on.
    desk.key(KeyCode::Char(' '));
    desk.sent();
    desk.pass(50);
    desk.key(KeyCode::Char('a'));
    let Some(Command::Switch { what: Selection::Sites(mut again), on: true }) = desk.sent() else { panic!() };
    again.sort();
    sites.sort();
    assert_eq!(again, sites);
    desk.key(KeyCode::Char('e'));
    assert!(
        matches!(desk.sent(), Some(Command::SwitchExactly { what: Selection::Sites(s) }) if s.len() == sites.len())
    );
    desk.pass(50);
    assert_eq!(desk.app.active, sites.len());
}

#[test]
fn skipped_functions_are_never_asked_for() {
    let mut desk = desk();
    let (skipped, why) = {
        let f = desk.app.info.functions.iter().find(|f| f.skipped.is_some()).unwrap();
        (f.site, f.skipped.clone().unwrap())
    };
    let position = desk.app.functions.view().iter().position(|i| *i == skipped.0).unwrap();
    desk.app.functions.select(position);
    desk.key(KeyCode::Char(' '));
    assert_eq!(desk.sent(), None);
    assert!(desk.app.log.last().unwrap().text.contains(&*why));
    desk.type_text("/!no_such");
    desk.key(KeyCode::Enter);
    desk.key(KeyCode::Char('a'));
    let Some(Command::Switch { what: Selection::Sites(sites), .. }) = desk.sent() else { panic!() };
    assert_eq!(sites.len(), 336);
    assert!(!sites.contains(&skipped));
    desk.type_text("/ zzz");
    desk.key(KeyCode::Enter);
    desk.key(KeyCode::Char('a'));
    assert_eq!(desk.sent(), None, "an empty list is never everything");
}

#[test]
fn the_filter_is_applied_as_it_is_typed_and_esc_clears_it() {
    let mut desk = desk();
    desk.type_text("/qsk");
    assert_eq!(desk.app.functions.view().len(), 0);
    desk.ctrl('u');
    assert_eq!(desk.app.functions.view().len(), 340);
    desk.type_text("kmem_*");
    let kmem = desk.app.functions.view().len();
    assert!(kmem > 0 && kmem < 60);
    desk.event(&Event::Paste(" !kmem_r*\n\x1b".into()));
    assert!(desk.app.functions.view().len() < kmem);
    desk.key(KeyCode::Esc);
    assert_eq!((desk.app.functions.view().len(), &desk.app.mode), (340, &Mode::Normal));
    desk.type_text("/vfs");
    desk.key(KeyCode::Enter);
    desk.key(KeyCode::Esc);
    assert_eq!(desk.app.functions.view().len(), 340, "Esc clears a kept filter too");
    desk.type_text("/[");
    assert!(desk.app.functions.filter().1.is_some());
    desk.ctrl('c');
    assert!(desk.app.quit);
}

#[test]
fn a_file_is_named_started_and_stopped() {
    let mut desk = desk();
    desk.type_text("w");
    assert!(desk.text().contains("write trace file: exotrace-1.exo"));
    desk.ctrl('u');
    desk.key(KeyCode::Enter);
    assert_eq!(desk.sent(), None, "no name, no file");
    desk.type_text("w");
    desk.ctrl('u');
    desk.type_text("my run.exo");
    desk.key(KeyCode::Enter);
    assert_eq!(desk.sent(), Some(Command::StartFile { path: "my run.exo".into() }));
    desk.pass(50);
    assert!(desk.text().contains("writing"));
    desk.type_text("w");
    assert_eq!(desk.sent(), Some(Command::StopFile));
    desk.pass(50);
    assert!(desk.app.log.last().unwrap().text.contains("complete"));
    desk.type_text("w");
    desk.key(KeyCode::Esc);
    assert_eq!((desk.sent(), &desk.app.mode), (None, &Mode::Normal));
    // A file that exists is pointed out before it is replaced.
    desk.type_text("w");
    desk.ctrl('u');
    desk.type_text("Cargo.toml");
    assert!(desk.text().contains("REPLACE"));
}

#[test]
fn pausing_detaching_and_their_opposites() {
    let mut desk = desk();
    desk.type_text("p");
    assert_eq!(desk.sent(), Some(Command::Pause));
    desk.pass(50);
    assert!(desk.text().contains("PAUSED"));
    desk.type_text("p");
    assert_eq!(desk.sent(), Some(Command::Resume));
    desk.pass(50);
    desk.type_text("Dn");
    assert_eq!(desk.sent(), None);
    desk.type_text("Dy");
    assert_eq!(desk.sent(), Some(Command::Detach));
    desk.pass(50);
    assert_eq!(desk.app.active, 0);
}

#[test]
fn freezing_holds_every_number_but_commands_see_the_present() {
    let mut desk = desk();
    desk.type_text("f");
    let frozen = desk.text();
    desk.pass(2000);
    assert_eq!(desk.text(), frozen);
    let selected = desk.app.functions.selected().unwrap();
    desk.type_text(" ");
    assert!(matches!(desk.sent(), Some(Command::Switch { on: false, .. })));
    desk.pass(50);
    desk.type_text(" ");
    assert!(matches!(desk.sent(), Some(Command::Switch { on: true, .. })), "it is off by now, whatever is shown");
    assert_eq!(desk.app.functions.selected(), Some(selected));
    desk.type_text("f");
    desk.pass(50);
    assert_ne!(desk.text(), frozen);
    // The first rate after the freeze covers the time after it only.
    desk.pass(300);
    let (rate, speed) = (desk.app.vcpu_rates.sum(), 8e6);
    assert!(rate < speed, "{rate}");
}

#[test]
fn the_stream_holds_still_while_the_guest_goes_on() {
    let mut desk = desk();
    desk.type_text("2");
    desk.key(KeyCode::Up);
    let pane = |d: &mut Desk| d.text().lines().skip(14).take(8).collect::<Vec<_>>().join("\n");
    let held = pane(&mut desk);
    desk.pass(500);
    assert_eq!(pane(&mut desk), held);
    desk.key(KeyCode::Home);
    assert_ne!(pane(&mut desk), held);
    desk.key(KeyCode::End);
    assert!(!desk.app.stream.is_held());
    desk.key(KeyCode::Down);
    assert!(!desk.app.stream.is_held(), "there is nothing below the newest");
}

#[test]
fn console_input_takes_all_keys_until_esc() {
    let mut desk = desk();
    desk.type_text("4i");
    for (code, bytes) in [(KeyCode::Char('q'), &b"q"[..]), (KeyCode::Enter, b"\r"), (KeyCode::Up, b"\x1b[A")] {
        desk.key(code);
        assert_eq!(desk.sent(), Some(Command::ConsoleInput(bytes.to_vec())));
    }
    desk.ctrl('c');
    assert_eq!(desk.sent(), Some(Command::ConsoleInput(vec![3])), "Ctrl-C is the guest's here");
    assert!(!desk.app.quit);
    desk.event(&Event::Paste("ls\n".into()));
    assert_eq!(desk.sent(), Some(Command::ConsoleInput(b"ls\n".to_vec())));
    desk.key(KeyCode::Esc);
    assert_eq!((desk.sent(), &desk.app.mode), (None, &Mode::Normal));
    desk.type_text("i");
    desk.mock.happen(RunEvent::Ended(GuestEnd::PowerOff));
    desk.pass(50);
    desk.type_text("x");
    assert_eq!((desk.sent(), &desk.app.mode), (None, &Mode::Normal));
}

#[test]
fn popups_scroll_within_their_lines_and_close() {
    let mut desk = desk();
    desk.type_text("?");
    desk.key(KeyCode::End);
    let Mode::Help(end) = desk.app.mode else { panic!() };
    desk.key(KeyCode::PageDown);
    assert_eq!(desk.app.mode, Mode::Help(end));
    assert!(desk.text().contains("wheel"), "the end of the help is in sight");
    desk.key(KeyCode::Up);
    assert_eq!(desk.app.mode, Mode::Help(end - 1));
    desk.key(KeyCode::Esc);
    assert_eq!(desk.app.mode, Mode::Normal);
    for n in 0..100 {
        desk.mock.happen(RunEvent::Refused { what: format!("number {n}"), why: "so".into() });
    }
    desk.pass(50);
    desk.type_text("m");
    assert!(desk.text().contains("number 99"));
    desk.key(KeyCode::Home);
    assert!(desk.text().contains("336 on") && !desk.text().contains("number 99:"));
    desk.key(KeyCode::End);
    assert_eq!(desk.app.mode, Mode::Messages(0));
    desk.type_text("q");
    assert!(!desk.app.quit, "q closes the popup first");
    desk.key(KeyCode::Enter);
    desk.key(KeyCode::Down);
    assert_eq!(desk.app.mode, Mode::Details(desk.app.functions.selected().unwrap()));
    desk.ctrl('c');
    assert!(desk.app.quit);
}
