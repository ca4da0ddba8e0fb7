//! The mouse.

use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
use exotrace_patcher::control::Selection;
use exotrace_trace::ids::SiteId;

use super::*;
use crate::layout::{FunctionColumns, Pane};
use crate::state::Mode;
use crate::state::functions::SortBy;

fn mouse(desk: &mut Desk, kind: MouseEventKind, column: u16, row: u16) {
    desk.event(&Event::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE }));
}

fn click(desk: &mut Desk, column: u16, row: u16) {
    mouse(desk, MouseEventKind::Down(MouseButton::Left), column, row);
}

fn desk(size: (u16, u16)) -> Desk {
    let mut desk = Desk::new(size, MockOptions::default());
    desk.key(KeyCode::Char('A'));
    desk.pass(3000);
    desk.mock.sent();
    desk
}

#[test]
fn a_click_selects_and_on_the_mark_switches() {
    let mut desk = desk((80, 24));
    let rows = desk.app.layout.function_rows();
    click(&mut desk, rows.x + 5, rows.y + 3);
    assert_eq!(desk.app.functions.position().0, 3);
    assert_eq!(desk.sent(), None);
    click(&mut desk, rows.x, rows.y + 4);
    let index = desk.app.functions.selected().unwrap();
    assert_eq!(desk.app.functions.position().0, 4);
    assert_eq!(desk.sent(), Some(Command::Switch { what: Selection::Sites(vec![SiteId(index)]), on: false }));
    // Below the last function there is nothing to hit.
    desk.type_text("/vfs_read.1");
    desk.key(KeyCode::Enter);
    click(&mut desk, rows.x, rows.y + 5);
    assert_eq!(desk.sent(), None);
}

#[test]
fn a_click_on_a_head_sorts_and_again_reverses() {
    let mut desk = desk((160, 40));
    let rows = desk.app.layout.function_rows();
    let columns = FunctionColumns::new(rows.width);
    for (x, by) in [
        (columns.name, SortBy::Name),
        (columns.total, SortBy::Total),
        (columns.address.unwrap(), SortBy::Address),
        (columns.rate, SortBy::Rate),
    ] {
        click(&mut desk, rows.x + x, rows.y - 1);
        assert_eq!(desk.app.functions.order(), (by, false));
        click(&mut desk, rows.x + x, rows.y - 1);
        assert_eq!(desk.app.functions.order(), (by, true));
    }
}

#[test]
fn panes_and_tabs_are_focused_by_click() {
    let mut desk = desk((80, 24));
    for pane in [Pane::Rings, Pane::Stream, Pane::Functions] {
        let r = desk.app.layout.pane(pane);
        click(&mut desk, r.x + r.width / 2, r.y + 2);
        assert_eq!(desk.app.focus, pane);
    }
    let r = desk.app.layout.pane(Pane::Stream);
    click(&mut desk, r.x + 24, r.y);
    assert_eq!((desk.app.focus, desk.app.layout.pane(Pane::Console).area() > 0), (Pane::Console, true));
    click(&mut desk, r.x + 4, r.y);
    assert_eq!(desk.app.focus, Pane::Stream);
}

#[test]
fn the_wheel_scrolls_what_it_is_over() {
    let mut desk = desk((120, 40));
    let over = |desk: &mut Desk, pane, kind| {
        let r = desk.app.layout.body(pane);
        mouse(desk, kind, r.x + 1, r.y + 1);
    };
    over(&mut desk, Pane::Functions, MouseEventKind::ScrollDown);
    assert_eq!(desk.app.functions.position(), (3, 3), "the selection stays on the screen");
    over(&mut desk, Pane::Functions, MouseEventKind::ScrollUp);
    assert_eq!(desk.app.functions.position(), (3, 0));
    over(&mut desk, Pane::Stream, MouseEventKind::ScrollUp);
    assert!(desk.app.stream.is_held());
    assert_eq!(desk.app.focus, Pane::Functions, "scrolling does not move the focus");
    desk.type_text("?");
    mouse(&mut desk, MouseEventKind::ScrollDown, 1, 1);
    assert!(matches!(desk.app.mode, Mode::Help(_)));
    click(&mut desk, 1, 1);
    assert_eq!(desk.app.mode, Mode::Normal);
}
