//! vCPUs and their rings: how full, how fast, what was lost; and the facts of the run.

use exotrace_patcher::control::VcpuGauge;
use exotrace_trace::ring::layout::FullPolicy;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::paint::{put, put_all, put_right, scroll_bar, title};
use crate::layout::Pane;
use crate::state::App;
use crate::text;

/// A counter that gets a column when there is room and a place among the facts when not.
struct Counter {
    name: &'static str,
    width: u16,
    value: fn(&VcpuGauge) -> u64,
    /// Anything but 0 is bad news.
    bad: bool,
}

const COUNTERS: [Counter; 5] = [
    Counter { name: "delivered", width: 10, value: |v| v.delivered, bad: false },
    Counter { name: "pending", width: 8, value: |v| v.pending as u64, bad: false },
    Counter { name: "blocked", width: 8, value: |v| v.blocked, bad: false },
    Counter { name: "inverted", width: 9, value: |v| v.inverted, bad: false },
    Counter { name: "corrupt", width: 8, value: |v| v.corrupt, bad: true },
];

const CPU: u16 = 4;
const FILL: u16 = 5;
const RATE: u16 = 8;
const LOST: u16 = 8;
const MIN_BAR: u16 = 7;
const MAX_BAR: u16 = 24;

/// Which columns a pane of some width has.
struct Columns {
    bar: u16,
    counters: usize,
}

impl Columns {
    fn new(width: u16) -> Columns {
        let mut room = width.saturating_sub(1 + CPU + FILL + RATE + LOST + MIN_BAR);
        let mut counters = 0;
        while let Some(c) = COUNTERS.get(counters).filter(|c| c.width <= room) {
            room -= c.width;
            counters += 1;
        }
        Columns { bar: (MIN_BAR + room).min(MAX_BAR), counters }
    }
}

pub(super) fn draw(app: &App, buf: &mut Buffer) {
    title(app, buf, Pane::Rings, &[]);
    let r = app.layout.body(Pane::Rings);
    if r.height == 0 {
        return;
    }
    let columns = Columns::new(r.width);
    heads(app, buf, r, &columns);
    let vcpus = &app.shown().vcpus;
    let facts = facts(app, &columns);
    let fact_rows = flow(&facts, r.width.saturating_sub(1)).last().map_or(0, |at| at.1 + 1);
    // The sum and the facts stay in sight, however many vCPUs there are.
    let below = (fact_rows + 1).min((r.height / 2).max(2));
    let rows = usize::from(r.height.saturating_sub(1 + below)).min(vcpus.len());
    let first = app.rings_offset.min(vcpus.len() - rows);
    for (row, (index, gauge)) in vcpus.iter().enumerate().skip(first).take(rows).enumerate() {
        let line = Rect { y: r.y + 1 + row as u16, height: 1, ..r };
        draw_vcpu(app, buf, line, &columns, index, gauge);
    }
    scroll_bar(app, buf, Rect { y: r.y + 1, height: rows as u16, ..r }, first, vcpus.len());
    let y = r.y + 1 + rows as u16;
    sum(app, buf, Rect { y, height: 1, ..r }, &columns);
    let rest = Rect { y: y + 1, height: r.bottom().saturating_sub(y + 1), ..r };
    draw_facts(app, buf, rest, &facts);
}

fn heads(app: &App, buf: &mut Buffer, r: Rect, columns: &Columns) {
    let dim = app.theme.dim();
    put(buf, (r.x, r.y), CPU + columns.bar, "cpu ring", dim);
    let mut x = r.x + CPU + columns.bar;
    let fixed = [("", FILL), ("rec/s", RATE), ("lost", LOST)];
    for (name, width) in fixed.into_iter().chain(COUNTERS[..columns.counters].iter().map(|c| (c.name, c.width))) {
        put_right(buf, (x, r.y), width, name, dim);
        x += width;
    }
}

fn draw_vcpu(app: &App, buf: &mut Buffer, r: Rect, columns: &Columns, index: usize, v: &VcpuGauge) {
    let theme = app.theme;
    put_right(buf, (r.x, r.y), CPU - 1, &index.to_string(), if v.online { theme.text() } else { theme.dim() });
    let fill = if v.capacity == 0 { 0.0 } else { (f64::from(v.used) / f64::from(v.capacity)).min(1.0) };
    // Anything in the ring shows; full means full.
    let cells = (fill * f64::from(columns.bar)).ceil() as u16;
    let x = r.x + CPU;
    if v.online {
        for i in 0..columns.bar {
            let (what, style) = if i < cells { ("█", theme.gauge(fill)) } else { ("░", theme.dim()) };
            put(buf, (x + i, r.y), 1, what, style);
        }
        put_right(buf, (x + columns.bar, r.y), FILL, &format!("{:.0}%", fill * 100.0), theme.text());
    } else {
        put(buf, (x, r.y), columns.bar, "offline", theme.dim());
    }
    numbers(app, buf, (x + columns.bar + FILL, r.y), columns, app.vcpu_rates.get(index), v);
}

fn numbers(app: &App, buf: &mut Buffer, (x, y): (u16, u16), columns: &Columns, rate: f32, v: &VcpuGauge) {
    put_right(buf, (x, y), RATE, &text::rate(rate), app.theme.text());
    put_right(buf, (x + RATE, y), LOST, &text::count(v.lost), value_style(app, v.lost, true));
    let mut x = x + RATE + LOST;
    for c in &COUNTERS[..columns.counters] {
        let n = (c.value)(v);
        put_right(buf, (x, y), c.width, &text::count(n), value_style(app, n, c.bad));
        x += c.width;
    }
}

fn value_style(app: &App, n: u64, bad: bool) -> Style {
    match (n, bad) {
        (0, _) => app.theme.dim(),
        (_, true) => app.theme.bad(),
        (_, false) => app.theme.text(),
    }
}

fn total(app: &App) -> VcpuGauge {
    let mut sum = VcpuGauge::default();
    for v in &app.shown().vcpus {
        // The guest has a hand in some of these numbers: they may be anything.
        sum.delivered = sum.delivered.saturating_add(v.delivered);
        sum.lost = sum.lost.saturating_add(v.lost);
        sum.corrupt = sum.corrupt.saturating_add(v.corrupt);
        sum.inverted = sum.inverted.saturating_add(v.inverted);
        sum.pending = sum.pending.saturating_add(v.pending);
        sum.blocked = sum.blocked.saturating_add(v.blocked);
    }
    sum
}

fn sum(app: &App, buf: &mut Buffer, r: Rect, columns: &Columns) {
    put(buf, (r.x, r.y), CPU + columns.bar, "sum", app.theme.heading());
    numbers(app, buf, (r.x + CPU + columns.bar + FILL, r.y), columns, app.vcpu_rates.sum(), &total(app));
}

/// A label, its value and how it looks.
type Fact = (&'static str, String, Style);

/// What there is to say besides the columns.
fn facts(app: &App, columns: &Columns) -> Vec<Fact> {
    let theme = app.theme;
    let snapshot = app.shown();
    let sum = total(app);
    let mut facts: Vec<Fact> = Vec::new();
    let policy = match app.info.policy {
        FullPolicy::Drop => "drop newest",
        FullPolicy::Overwrite => "overwrite oldest",
        FullPolicy::Block => "block vCPU",
    };
    for c in &COUNTERS[columns.counters..] {
        let n = (c.value)(&sum);
        facts.push((c.name, text::count(n), value_style(app, n, c.bad)));
    }
    facts.push(("when full", policy.to_owned(), theme.text()));
    facts.push(("pauses", text::count(snapshot.pauses), theme.text()));
    if let Some(p) = &snapshot.last_pause {
        facts.push(("last pause", text::duration(p.total()), theme.text()));
        facts.push(("kick", text::duration(p.kick), theme.text()));
        facts.push(("work", text::duration(p.work), theme.text()));
        facts.push(("resume", text::duration(p.resume), theme.text()));
    }
    match &snapshot.file {
        Some((path, bytes)) => facts.push((
            "file",
            text::sanitize(&format!("{} {}", path.display(), text::bytes(*bytes))).into_owned(),
            theme.traced(),
        )),
        None => facts.push(("file", "none (w)".to_owned(), theme.dim())),
    }
    facts.push(("guest", text::sanitize(&app.info.guest).into_owned(), theme.text()));
    facts.push(("host", text::sanitize(&app.info.host).into_owned(), theme.text()));
    facts
}

/// Where each fact goes (column and line), from left to right and line to line.
fn flow(facts: &[Fact], width: u16) -> Vec<(u16, u16)> {
    let (mut x, mut y) = (0u16, 0u16);
    let mut places = Vec::with_capacity(facts.len());
    for (label, value, _) in facts {
        let needs = (label.len() + 1 + text::width(value)).min(usize::from(width)) as u16;
        if x > 0 && x.saturating_add(needs) > width {
            (x, y) = (0, y + 1);
        }
        places.push((x, y));
        x = x.saturating_add(needs + 2);
    }
    places
}

fn draw_facts(app: &App, buf: &mut Buffer, r: Rect, facts: &[Fact]) {
    let width = r.width.saturating_sub(1);
    for ((label, value, style), (x, y)) in facts.iter().zip(flow(facts, width)) {
        if y >= r.height {
            return;
        }
        let pieces = [(*label, app.theme.dim()), (" ", *style), (value.as_str(), *style)];
        put_all(buf, (r.x + x, r.y + y), width.saturating_sub(x), &pieces);
    }
}
