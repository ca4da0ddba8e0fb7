//! The mouse: click selects, click on a mark switches, click on a column head sorts, the wheel scrolls what it is over.

use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::Position;

use crate::draw::Popup;
use crate::layout::{FunctionColumns, Pane};
use crate::state::functions::SortBy;
use crate::state::{App, Mode};

/// Lines a turn of the wheel scrolls by.
const WHEEL: isize = 3;

impl App {
    pub(super) fn mouse(&mut self, event: &MouseEvent) -> bool {
        let at = Position::new(event.column, event.row);
        match event.kind {
            MouseEventKind::ScrollUp => self.wheel(at, -WHEEL),
            MouseEventKind::ScrollDown => self.wheel(at, WHEEL),
            MouseEventKind::Down(MouseButton::Left) => self.click(at),
            _ => return false,
        }
        true
    }

    fn wheel(&mut self, at: Position, lines: isize) {
        match self.mode {
            Mode::Help(top) => self.scroll_popup(Popup::Help, top, lines),
            Mode::Messages(back) => self.scroll_popup(Popup::Messages, back, lines),
            Mode::Details(_) | Mode::ConfirmDetach => {}
            Mode::Normal | Mode::Filter(_) | Mode::FileName(_) | Mode::ConsoleInput => {
                if let Some(pane) = self.layout.pane_at(at) {
                    self.scroll(pane, lines);
                }
            }
        }
    }

    fn click(&mut self, at: Position) {
        match self.mode {
            Mode::Help(_) | Mode::Messages(_) | Mode::Details(_) | Mode::ConfirmDetach => {
                self.mode = Mode::Normal;
                return;
            }
            // A half-typed name is not thrown away by a slip of the mouse.
            Mode::FileName(_) => return,
            Mode::Filter(_) | Mode::ConsoleInput => self.mode = Mode::Normal,
            Mode::Normal => {}
        }
        let Some(mut pane) = self.layout.pane_at(at) else { return };
        let rect = self.layout.pane(pane);
        if self.layout.tabs && at.y == rect.y && matches!(pane, Pane::Stream | Pane::Console) {
            // The title line of the bottom holds two tabs, the left half is the stream's.
            pane = if at.x - rect.x < crate::draw::TAB_COLUMNS { Pane::Stream } else { Pane::Console };
        }
        self.focus(pane);
        if pane == Pane::Functions {
            self.click_functions(at);
        }
    }

    fn click_functions(&mut self, at: Position) {
        let rows = self.layout.function_rows();
        let columns = FunctionColumns::new(rows.width);
        let x = at.x.saturating_sub(rows.x);
        if at.y + 1 == rows.y {
            let by = match columns.address {
                Some(address) if x >= address => SortBy::Address,
                _ if x >= columns.total => SortBy::Total,
                _ if x >= columns.rate => SortBy::Rate,
                _ => SortBy::Name,
            };
            self.with_functions(|f, n| f.sort_by(by, n));
        } else if rows.contains(at) {
            let position = self.functions.position().1 + usize::from(at.y - rows.y);
            let Some(index) = self.functions.view().get(position).copied() else { return };
            self.functions.select(position);
            if x < columns.name {
                self.switch_one(index);
            }
        }
    }
}
