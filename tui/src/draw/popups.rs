//! What is laid over the panes: help, message history, a function's details.

use std::collections::HashMap;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::paint::{popup, put, put_all, scroll_bar};
use crate::keys::{BINDINGS, MOUSE};
use crate::layout::Pane;
use crate::state::{App, Mode};
use crate::text;

const HELP_COLUMNS: u16 = 74;
const DETAIL_COLUMNS: u16 = 72;
const DETAIL_ROWS: u16 = 20;

pub(super) fn draw(app: &App, buf: &mut Buffer) {
    match app.mode {
        Mode::Help(top) => help(app, buf, top),
        Mode::Messages(back) => messages(app, buf, back),
        Mode::Details(index) => details(app, buf, index),
        Mode::Normal | Mode::Filter(_) | Mode::FileName(_) | Mode::ConsoleInput | Mode::ConfirmDetach => {}
    }
}

/// The popups that scroll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Popup {
    /// The keys, from the first on.
    Help,
    /// The messages, from the last on.
    Messages,
}

/// How far a popup can be scrolled.
pub(crate) fn scroll_limit(app: &App, popup: Popup) -> usize {
    let screen = app.layout.screen;
    let rows = usize::from(screen.height.saturating_sub(2));
    let lines = match popup {
        Popup::Messages => message_lines(app, message_columns(screen), usize::MAX).len(),
        Popup::Help => help_lines(app).len(),
    };
    lines.saturating_sub(rows)
}

fn help_lines(app: &App) -> Vec<(String, String, Style)> {
    let theme = app.theme;
    let mut lines = Vec::new();
    let groups = std::iter::once(None).chain(Pane::ALL.map(Some));
    for pane in groups {
        let mut bindings = BINDINGS.iter().filter(|b| b.pane == pane).peekable();
        if bindings.peek().is_none() {
            continue;
        }
        if !lines.is_empty() {
            lines.push((String::new(), String::new(), theme.text()));
        }
        let heading = pane.map_or("everywhere".to_owned(), |p| format!("in {}", p.title()));
        lines.push((heading, String::new(), theme.heading()));
        lines.extend(bindings.map(|b| (format!("  {}", b.label), b.help.to_owned(), theme.key())));
    }
    lines.push((String::new(), String::new(), theme.text()));
    lines.push(("mouse".to_owned(), String::new(), theme.heading()));
    lines.extend(MOUSE.iter().map(|(what, does)| (format!("  {what}"), (*does).to_owned(), theme.key())));
    lines
}

fn help(app: &App, buf: &mut Buffer, top: usize) {
    let lines = help_lines(app);
    let r = popup(app, buf, HELP_COLUMNS, lines.len() as u16 + 2, "keys");
    let rows = usize::from(r.height);
    let top = top.min(lines.len().saturating_sub(rows));
    for (y, (key, what, style)) in (r.top()..r.bottom()).zip(lines.iter().skip(top)) {
        put(buf, (r.x, y), r.width, key, *style);
        put(buf, (r.x + 15, y), r.width.saturating_sub(16), what, app.theme.text());
    }
    scroll_bar(app, buf, r, top, lines.len());
}

fn message_columns(screen: Rect) -> usize {
    // Border, margin, scroll bar and the time before the text.
    usize::from(screen.width.saturating_sub(5)).saturating_sub(9).max(1)
}

/// The last `limit` lines of the log, the last one first.
fn message_lines(app: &App, columns: usize, limit: usize) -> Vec<(String, String, Style)> {
    let mut lines = Vec::new();
    for m in app.log.iter().rev() {
        let wrapped = text::wrap(&m.text, columns);
        let last = wrapped.len() - 1;
        for (i, line) in wrapped.into_iter().rev().enumerate() {
            let time = if i == last { text::clock(m.at) } else { String::new() };
            lines.push((time, line, app.theme.message(m.severity)));
        }
        if lines.len() >= limit {
            break;
        }
    }
    lines
}

fn messages(app: &App, buf: &mut Buffer, back: usize) {
    let screen = app.layout.screen;
    let r = popup(app, buf, screen.width, screen.height, "messages");
    let rows = usize::from(r.height);
    let lines = message_lines(app, message_columns(screen), back.saturating_add(rows));
    let back = back.min(lines.len().saturating_sub(rows));
    let shown: Vec<_> = lines.iter().skip(back).take(rows).collect();
    for (y, (time, line, style)) in (r.top()..r.bottom()).zip(shown.into_iter().rev()) {
        put(buf, (r.x, y), 8, time, app.theme.dim());
        put(buf, (r.x + 9, y), r.width.saturating_sub(9), line, *style);
    }
    if lines.is_empty() {
        put(buf, (r.x, r.y), r.width, "nothing has happened yet", app.theme.dim());
    }
}

fn details(app: &App, buf: &mut Buffer, index: u32) {
    let theme = app.theme;
    let Some(info) = app.functions.info(index) else { return };
    let r = popup(app, buf, DETAIL_COLUMNS, DETAIL_ROWS, "function");
    let numbers = app.numbers();
    let rate = text::rate(numbers.rate(index));
    let sum = app.vcpu_rates.sum();
    let share = if sum > 0.0 { 100.0 * numbers.rate(index) / sum } else { 0.0 };
    let state = match (&info.skipped, numbers.active(index)) {
        (Some(why), _) => format!("can't be traced: {why}"),
        (None, true) => "traced".to_owned(),
        (None, false) => "not traced".to_owned(),
    };
    let mut lines: Vec<(&str, String)> = Vec::new();
    let width = usize::from(r.width.saturating_sub(10)).max(1);
    for (i, part) in text::wrap(&info.name, width).into_iter().take(4).enumerate() {
        lines.push((if i == 0 { "name" } else { "" }, part));
    }
    lines.push(("address", format!("{}, site {}", info.addr, info.site)));
    for (i, part) in text::wrap(&state, width).into_iter().take(3).enumerate() {
        lines.push((if i == 0 { "state" } else { "" }, part));
    }
    lines.push(("calls", format!("{} in all", numbers.total(index))));
    lines.push(("rate", format!("{} calls/s, {share:.1}% of all", if rate.is_empty() { "0" } else { &rate })));
    lines.push(("", String::new()));
    let callers = callers(app, index);
    if callers.is_empty() {
        lines.push(("callers", "none among the last records".to_owned()));
    }
    for (i, (parent, n)) in callers.into_iter().enumerate() {
        lines.push((if i == 0 { "callers" } else { "" }, format!("{n:>6} x {parent}")));
    }
    for (y, (label, value)) in (r.top()..r.bottom()).zip(&lines) {
        put(buf, (r.x, y), 9, label, theme.dim());
        put_all(buf, (r.x + 10, y), r.width.saturating_sub(10), &[(value, theme.text())]);
    }
}

/// Who called a function among the live records, most frequent first.
fn callers(app: &App, index: u32) -> Vec<(&str, usize)> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let live = app.stream.records(&app.shown().live);
    for record in live.iter().filter(|r| r.site.is_some_and(|s| s.0 == index)) {
        *counts.entry(&record.parent).or_default() += 1;
    }
    let mut callers: Vec<_> = counts.into_iter().collect();
    callers.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    callers.truncate(12);
    callers
}
