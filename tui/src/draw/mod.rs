//! Drawing: the state onto the screen, one file a pane. Nothing here changes anything.

mod console;
mod functions;
pub(crate) mod paint;
mod popups;
mod rings;
mod status;
mod stream;

use ratatui::buffer::Buffer;
use ratatui::layout::Position;

use crate::layout::{MIN_HEIGHT, MIN_WIDTH, Pane};
use crate::state::App;
use paint::put;

pub(crate) use popups::{Popup, scroll_limit as popup_scroll_limit};

/// Columns of the first of the two tabs at the bottom of a split screen.
pub(crate) const TAB_COLUMNS: u16 = 20;

/// Draws the state, which must have been prepared for the buffer's size ([`App::prepare`]). Returns where the
/// cursor belongs while text is typed.
pub fn draw(app: &App, buf: &mut Buffer) -> Option<Position> {
    let l = &app.layout;
    if l.screen.intersection(buf.area) != l.screen {
        return None;
    }
    if l.too_small {
        too_small(app, buf);
        return None;
    }
    status::header(app, buf);
    status::banner(app, buf);
    for y in l.separator.top()..l.separator.bottom() {
        put(buf, (l.separator.x, y), 1, if y == l.separator.top() { "┬" } else { "│" }, app.theme.dim());
    }
    for pane in Pane::ALL {
        if l.pane(pane).area() == 0 {
            continue;
        }
        match pane {
            Pane::Functions => functions::draw(app, buf),
            Pane::Stream => stream::draw(app, buf),
            Pane::Rings => rings::draw(app, buf),
            Pane::Console => console::draw(app, buf),
        }
    }
    let cursor = status::status(app, buf);
    status::hints(app, buf);
    popups::draw(app, buf);
    cursor
}

fn too_small(app: &App, buf: &mut Buffer) {
    let r = app.layout.screen;
    let text = format!("{}x{} is too small: exotrace needs {MIN_WIDTH}x{MIN_HEIGHT} (q quits)", r.width, r.height);
    for (y, line) in (r.top()..r.bottom()).zip(crate::text::wrap(&text, usize::from(r.width))) {
        put(buf, (r.x, y), r.width, &line, app.theme.text());
    }
}
