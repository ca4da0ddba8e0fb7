//! The brushes: text that can't leave its field, titles, scroll bars, popups.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::{Block, BorderType, Clear, Widget};
use unicode_width::UnicodeWidthStr;

use crate::layout::Pane;
use crate::state::App;
use crate::text;

/// Puts text at a place, cut to `width` columns and made harmless. Returns the columns used.
pub(crate) fn put(buf: &mut Buffer, (x, y): (u16, u16), width: u16, what: &str, style: Style) -> u16 {
    let area = buf.area;
    if y >= area.bottom() || x >= area.right() || y < area.y || x < area.x {
        return 0;
    }
    let room = width.min(area.right() - x);
    let (end, _) = buf.set_stringn(x, y, text::fit(what, usize::from(room)), usize::from(room), style);
    end - x
}

/// Puts text at the right end of a field.
pub(crate) fn put_right(buf: &mut Buffer, (x, y): (u16, u16), width: u16, what: &str, style: Style) {
    let what = text::fit(what, usize::from(width));
    let free = width.saturating_sub(text::width(&what) as u16);
    put(buf, (x + free, y), width - free, &what, style);
}

/// Puts pieces of text one after another. Returns the columns used.
pub(crate) fn put_all(buf: &mut Buffer, (x, y): (u16, u16), width: u16, pieces: &[(&str, Style)]) -> u16 {
    let mut used = 0;
    for (what, style) in pieces {
        used += put(buf, (x + used, y), width.saturating_sub(used), what, *style);
    }
    used
}

/// The title line of a pane: its number and name, then `pieces`, then a rule to the edge.
pub(crate) fn title(app: &App, buf: &mut Buffer, pane: Pane, pieces: &[(&str, Style)]) {
    let r = app.layout.pane(pane);
    let theme = app.theme;
    let mut used = tab(app, buf, pane, (r.x, r.y), r.width);
    if app.layout.tabs && matches!(pane, Pane::Stream | Pane::Console) {
        // Both tabs keep their places, whichever is open.
        let other = if pane == Pane::Stream { Pane::Console } else { Pane::Stream };
        let (first, second) = if pane == Pane::Stream { (pane, other) } else { (other, pane) };
        tab(app, buf, first, (r.x, r.y), super::TAB_COLUMNS);
        let at = super::TAB_COLUMNS.min(r.width);
        used = at + tab(app, buf, second, (r.x + at, r.y), r.width - at);
    }
    used += put_all(buf, (r.x + used, r.y), r.width.saturating_sub(used), pieces);
    for x in r.x + used.min(r.width)..r.right() {
        put(buf, (x, r.y), 1, "─", theme.title(app.focus == pane));
    }
}

/// A pane's number and name. Returns the columns used.
fn tab(app: &App, buf: &mut Buffer, pane: Pane, at: (u16, u16), width: u16) -> u16 {
    let open = app.layout.pane(pane).area() > 0;
    let style = app.theme.title(app.focus == pane);
    let name = format!("{} {} ", pane.index() + 1, pane.title());
    let lead = if open { "─ " } else { "  " };
    let used = put_all(buf, at, width, &[(lead, style), (&name, if open { style } else { app.theme.dim() })]);
    if app.layout.tabs && matches!(pane, Pane::Stream) {
        for x in used..width.min(super::TAB_COLUMNS) {
            put(buf, (at.0 + x, at.1), 1, if open { "─" } else { " " }, style);
        }
    }
    used
}

/// A scroll bar on the right edge of `r`, if there is more than fits.
pub(crate) fn scroll_bar(app: &App, buf: &mut Buffer, r: Rect, first: usize, total: usize) {
    let rows = usize::from(r.height);
    if r.width == 0 || rows == 0 || total <= rows {
        return;
    }
    let thumb = (rows * rows / total).max(1);
    // Rows are few and totals bounded by memory: no overflow. The last position is reached only at the very end.
    let start = (rows - thumb) * first.min(total - rows) / (total - rows);
    for row in start..start + thumb {
        put(buf, (r.right() - 1, r.y + row as u16), 1, "┃", app.theme.text());
    }
}

/// Clears a popup's place and draws its box. Returns the inside.
pub(crate) fn popup(app: &App, buf: &mut Buffer, columns: u16, rows: u16, title: &str) -> Rect {
    let screen = app.layout.screen;
    let (width, height) = (columns.min(screen.width), rows.min(screen.height));
    let r = Rect::new(screen.x + (screen.width - width) / 2, screen.y + (screen.height - height) / 2, width, height);
    // A wide character that reaches into the box would push its border aside.
    for y in (r.top()..r.bottom()).filter(|_| r.x > screen.x) {
        if let Some(cell) = buf.cell_mut((r.x - 1, y)).filter(|c| c.symbol().width() > 1) {
            cell.set_symbol(" ");
        }
    }
    Clear.render(r, buf);
    let block = Block::bordered().border_type(BorderType::Rounded).border_style(app.theme.title(true));
    let inner = block.inner(r);
    block.render(r, buf);
    if r.width > 6 {
        put(buf, (r.x + 2, r.y), r.width - 4, &format!(" {title} "), app.theme.title(true));
    }
    Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner }
}
