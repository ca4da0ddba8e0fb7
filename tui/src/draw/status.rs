//! The lines around the panes: header, banner, status and key hints.

use std::path::Path;

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;

use super::paint::{put, put_all};
use crate::keys::BINDINGS;
use crate::state::edit::LineEdit;
use crate::state::messages::is_bad;
use crate::state::{App, Mode};
use crate::text;

/// What runs, how fast, and what is not as usual.
pub(super) fn header(app: &App, buf: &mut Buffer) {
    let theme = app.theme;
    let r = app.layout.header;
    let snapshot = app.shown();
    let (state, style) = match (&app.latest.ended, app.latest.paused) {
        (Some(_), _) => ("ended", theme.bad()),
        (None, true) => ("PAUSED", theme.warn()),
        (None, false) => ("running", theme.traced()),
    };
    let uptime = format!(" {}", text::clock(snapshot.uptime));
    let traced = format!("  {}/{} traced", app.active, app.functions.len());
    let rate = text::rate(app.vcpu_rates.sum());
    let rate = format!("  {} calls/s", if rate.is_empty() { "0" } else { &rate });
    let lost: u64 = snapshot.vcpus.iter().fold(0, |sum, v| sum.saturating_add(v.lost));
    let lost_text = format!("  lost {}", text::count(lost));
    let frozen = if app.frozen.is_some() { " FROZEN" } else { "" };
    let file = match &snapshot.file {
        Some((_, bytes)) => format!("  writing {}", text::bytes(*bytes)),
        None => String::new(),
    };
    let guest = format!("  {}", app.info.guest);
    let pieces: [(&str, Style); 9] = [
        ("exotrace  ", theme.heading()),
        (state, style),
        (frozen, theme.warn()),
        (&uptime, theme.text()),
        (&traced, theme.text()),
        (&rate, theme.text()),
        (&lost_text, if lost > 0 { theme.bad() } else { theme.dim() }),
        (&file, theme.traced()),
        (&guest, theme.dim()),
    ];
    put_all(buf, (r.x, r.y), r.width, &pieces);
}

/// Why the guest ended.
pub(super) fn banner(app: &App, buf: &mut Buffer) {
    let r = app.layout.banner;
    if r.height == 0 {
        return;
    }
    let style = app.theme.banner(app.latest.ended.as_ref().is_some_and(is_bad));
    buf.set_style(r, style);
    for (y, line) in (r.top()..r.bottom()).zip(app.banner_lines(usize::from(r.width.saturating_sub(2)))) {
        put(buf, (r.x + 1, y), r.width - 2, &line, style);
    }
}

/// The text being typed or the last message. Returns where the cursor belongs.
pub(super) fn status(app: &App, buf: &mut Buffer) -> Option<Position> {
    let theme = app.theme;
    let r = app.layout.status;
    match &app.mode {
        Mode::Filter(edit) => {
            let cursor = line_edit(buf, r, "/", edit, theme.key());
            if let (_, Some(why)) = app.functions.filter() {
                let x =
                    usize::from(cursor.x - r.x) + text::width(&edit.text()) - text::width(&edit.before_cursor()) + 2;
                let x = (x as u16).min(r.width);
                put(buf, (r.x + x, r.y), r.width - x, why, theme.bad());
            }
            return Some(cursor);
        }
        Mode::FileName(edit) => return Some(line_edit(buf, r, "write trace file: ", edit, theme.key())),
        Mode::ConfirmDetach => {
            put(
                buf,
                (r.x, r.y),
                r.width,
                "Detach: switch everything off and restore the guest's bytes? (y/n)",
                theme.warn(),
            );
            return None;
        }
        Mode::Normal | Mode::ConsoleInput | Mode::Help(_) | Mode::Messages(_) | Mode::Details(_) => {}
    }
    let message = app.log.last()?;
    let columns = usize::from(r.width.saturating_sub(2));
    let lines = app.status_lines(columns);
    let cut = lines.len() > usize::from(r.height);
    for (y, line) in (r.top()..r.bottom()).zip(&lines) {
        put(buf, (r.x, y), r.width, line, theme.message(message.severity));
    }
    if cut {
        let more = " … (m shows all)";
        let x = r.width.saturating_sub(more.chars().count() as u16);
        put(buf, (r.x + x, r.bottom() - 1), r.width - x, more, theme.dim());
    }
    None
}

/// A line of typed text, scrolled so that the cursor is in sight.
fn line_edit(buf: &mut Buffer, r: Rect, prompt: &str, edit: &LineEdit, style: Style) -> Position {
    let used = put(buf, (r.x, r.y), r.width, prompt, style);
    let room = usize::from(r.width.saturating_sub(used + 1));
    let before = edit.before_cursor();
    let mut hidden = 0;
    let mut left = text::width(&before);
    for c in before.chars() {
        if left <= room {
            break;
        }
        hidden += c.len_utf8();
        left -= text::width(c.encode_utf8(&mut [0; 4]));
    }
    let all = edit.text();
    put(buf, (r.x + used, r.y), r.width.saturating_sub(used), all.get(hidden..).unwrap_or(""), Style::new());
    Position::new((r.x + used + left as u16).min(r.right().saturating_sub(1)), r.y)
}

/// The keys that matter now.
pub(super) fn hints(app: &App, buf: &mut Buffer) {
    let theme = app.theme;
    let r = app.layout.hints;
    let fixed: &[(&str, &str)] = match &app.mode {
        Mode::Filter(_) => &[
            ("Enter", "keep"),
            ("Esc", "clear"),
            ("Up/Down", "move"),
            ("text", "contains"),
            ("a*b?", "glob"),
            ("!x", "without x"),
        ],
        Mode::FileName(edit) if Path::new(&edit.text()).exists() => {
            &[("Enter", "REPLACE THE EXISTING FILE"), ("Esc", "cancel")]
        }
        Mode::FileName(_) => &[("Enter", "start"), ("Esc", "cancel"), ("Ctrl-U", "clear")],
        Mode::ConsoleInput => &[("Esc", "leave"), ("all other keys", "go to the guest")],
        Mode::ConfirmDetach => &[("y", "detach"), ("any other key", "leave as it is")],
        Mode::Help(_) | Mode::Messages(_) => &[("Up/Down/PgUp/PgDn", "scroll"), ("any other key", "close")],
        Mode::Details(_) => &[("Space", "trace"), ("Up/Down", "other function"), ("any other key", "close")],
        Mode::Normal => &[],
    };
    let table = BINDINGS.iter().filter(|b| app.mode == Mode::Normal && (b.pane.is_none() || b.pane == Some(app.focus)));
    // Help and quit come first: they must be in sight on a narrow screen.
    let (mut last, mut first): (Vec<_>, Vec<_>) =
        table.filter_map(|b| b.hint.map(|h| (b.label, h))).partition(|(_, h)| !matches!(*h, "help" | "quit"));
    first.append(&mut last);
    let mut x = 0;
    for (key, what) in fixed.iter().chain(&first) {
        let needs = (text::width(key) + 1 + text::width(what)) as u16;
        if x + needs > r.width {
            break;
        }
        x += put_all(buf, (r.x + x, r.y), r.width - x, &[(key, theme.key()), (" ", Style::new()), (what, theme.dim())])
            + 2;
        x = x.min(r.width);
    }
}
