//! The live record stream.

use ratatui::buffer::Buffer;

use super::paint::{put, put_all, scroll_bar, title};
use crate::layout::Pane;
use crate::state::App;
use crate::text;

pub(super) fn draw(app: &App, buf: &mut Buffer) {
    let theme = app.theme;
    let r = app.layout.body(Pane::Stream);
    let snapshot = app.shown();
    let rows = usize::from(r.height);
    let (from, to) = app.stream.visible(&snapshot.live, rows);
    let records = app.stream.records(&snapshot.live);
    let held = if app.stream.is_held() {
        format!("held, {} to {} of {}; Space or End follows ", (from + 1).min(to), to, records.len())
    } else {
        String::new()
    };
    title(app, buf, Pane::Stream, &[(&held, theme.warn())]);
    for (row, record) in records[from..to].iter().enumerate() {
        let mut stamp = String::with_capacity(16);
        text::push_stamp(&mut stamp, record.time_ns);
        let vcpu = format!(" {:>3}  ", record.vcpu.0);
        let address;
        let name: &str = match record.site.and_then(|s| app.info.functions.get(s.index())) {
            Some(f) => &f.name,
            None => {
                address = record.ip.to_string();
                &address
            }
        };
        let pieces = [
            (stamp.as_str(), theme.dim()),
            (vcpu.as_str(), theme.text()),
            (name, theme.heading()),
            (" <- ", theme.dim()),
            (&record.parent, theme.text()),
        ];
        put_all(buf, (r.x, r.y + row as u16), r.width.saturating_sub(1), &pieces);
    }
    if records.is_empty() {
        let why = if app.active == 0 {
            "nothing is traced yet: Space traces the selected function, A all of them"
        } else {
            "no records yet"
        };
        put(buf, (r.x + 2, r.y), r.width.saturating_sub(3), why, theme.dim());
    }
    if app.stream.is_held() {
        scroll_bar(app, buf, r, from, records.len());
    }
}
