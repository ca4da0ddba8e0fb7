//! The guest's console.

use ratatui::buffer::Buffer;

use super::paint::{put, scroll_bar, title};
use crate::layout::Pane;
use crate::state::{App, Mode};

pub(super) fn draw(app: &App, buf: &mut Buffer) {
    let theme = app.theme;
    let r = app.layout.body(Pane::Console);
    let state = if app.mode == Mode::ConsoleInput {
        "keys go to the guest, Esc leaves "
    } else if app.console.is_held() {
        "held; End follows "
    } else {
        ""
    };
    title(app, buf, Pane::Console, &[(state, theme.warn())]);
    let (lines, from, to) = app.console.visible(usize::from(r.height));
    for (row, line) in lines[from..to].iter().enumerate() {
        put(buf, (r.x, r.y + row as u16), r.width.saturating_sub(1), line, theme.text());
    }
    if lines.is_empty() {
        put(buf, (r.x + 2, r.y), r.width.saturating_sub(3), "the guest has said nothing yet", theme.dim());
    }
    scroll_bar(app, buf, r, from, lines.len());
}
