//! The function list. Only the rows on the screen are formatted.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::paint::{put, put_right, scroll_bar, title};
use crate::layout::{FunctionColumns, Pane};
use crate::state::App;
use crate::state::functions::SortBy;
use crate::text;

pub(super) fn draw(app: &App, buf: &mut Buffer) {
    let theme = app.theme;
    let (filter, error) = app.functions.filter();
    let number = if app.functions.shows_all() {
        format!("{} ", app.functions.len())
    } else {
        format!("{} of {} ", app.functions.view().len(), app.functions.len())
    };
    let traced = if app.functions.only_traced() { "traced " } else { "" };
    let filter = if filter.is_empty() { String::new() } else { format!("/{filter} ") };
    let filter_style = if error.is_some() { theme.bad() } else { theme.key() };
    title(app, buf, Pane::Functions, &[(&number, theme.text()), (traced, theme.key()), (&filter, filter_style)]);
    heads(app, buf);
    rows(app, buf);
}

fn heads(app: &App, buf: &mut Buffer) {
    let r = app.layout.body(Pane::Functions);
    if r.height == 0 {
        return;
    }
    let columns = FunctionColumns::new(r.width);
    let (sort, reverse) = app.functions.order();
    let head = |by: SortBy, name: &str| {
        let falling = matches!(by, SortBy::Rate | SortBy::Total) != reverse;
        let arrow = if by != sort {
            ""
        } else if falling {
            "▼"
        } else {
            "▲"
        };
        let style = if by == sort { app.theme.heading() } else { app.theme.dim() };
        (format!("{arrow}{name}"), style)
    };
    let (name, style) = head(SortBy::Name, "function");
    put(buf, (r.x + columns.name, r.y), columns.name_width, &name, style);
    let (rate, style) = head(SortBy::Rate, "calls/s");
    put_right(buf, (r.x + columns.rate, r.y), FunctionColumns::NUMBER, &rate, style);
    let (total, style) = head(SortBy::Total, "total");
    put_right(buf, (r.x + columns.total, r.y), FunctionColumns::NUMBER, &total, style);
    if let Some(x) = columns.address {
        let (address, style) = head(SortBy::Address, "address");
        put_right(buf, (r.x + x, r.y), FunctionColumns::ADDRESS, &address, style);
    }
}

fn rows(app: &App, buf: &mut Buffer) {
    let r = app.layout.function_rows();
    let view = app.functions.view();
    let (cursor, offset) = app.functions.position();
    for (row, (position, index)) in view.iter().enumerate().skip(offset).take(usize::from(r.height)).enumerate() {
        let line = Rect { y: r.y + row as u16, height: 1, ..r };
        draw_row(app, buf, line, *index);
        if position == cursor {
            let inner = Rect { width: r.width.saturating_sub(1), ..line };
            buf.set_style(inner, app.theme.cursor(app.focus == Pane::Functions));
        }
    }
    if view.is_empty() {
        let why = if app.functions.is_empty() {
            "this image has no traceable functions"
        } else {
            "nothing matches the filter (Esc clears it)"
        };
        put(buf, (r.x + 2, r.y), r.width.saturating_sub(2), why, app.theme.dim());
    }
    scroll_bar(app, buf, r, offset, view.len());
}

fn draw_row(app: &App, buf: &mut Buffer, r: Rect, index: u32) {
    let theme = app.theme;
    let Some(info) = app.functions.info(index) else { return };
    let columns = FunctionColumns::new(r.width);
    let numbers = app.numbers();
    let name_at = (r.x + columns.name, r.y);
    if let Some(why) = &info.skipped {
        put(buf, (r.x, r.y), 1, "✕", theme.dim());
        let used = put(buf, name_at, columns.name_width, &info.name, theme.dim());
        let room = r.width.saturating_sub(columns.name + used + 3);
        put(buf, (name_at.0 + used + 2, r.y), room, why, theme.dim());
        return;
    }
    let active = numbers.active(index);
    let (mark, style) = if active { ("●", theme.traced()) } else { ("·", theme.dim()) };
    put(buf, (r.x, r.y), 1, mark, style);
    put(buf, name_at, columns.name_width, &info.name, if active { style } else { theme.text() });
    put_right(buf, (r.x + columns.rate, r.y), FunctionColumns::NUMBER, &text::rate(numbers.rate(index)), theme.text());
    let total = numbers.total(index);
    let style = if total == 0 { theme.dim() } else { theme.text() };
    put_right(buf, (r.x + columns.total, r.y), FunctionColumns::NUMBER, &text::count(total), style);
    if let Some(x) = columns.address {
        put_right(buf, (r.x + x, r.y), FunctionColumns::ADDRESS, &info.addr.to_string(), theme.dim());
    }
}
