//! A frame's own work stays far below its 50 ms with 50,000 functions that all change. `--nocapture` shows the times.

use std::time::Instant;

use super::*;

/// What a frame may take, of the 50 ms between two frames.
const BUDGET: Duration = Duration::from_millis(50);

fn median(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    (times[times.len() / 2], times[times.len() - 1])
}

#[test]
fn a_frame_over_50_000_functions() {
    let mut desk = Desk::new((200, 60), MockOptions { functions: 50_000, vcpus: 16, ..MockOptions::default() });
    desk.key(KeyCode::Char('A'));
    desk.pass(1500);
    let mut terminal = Terminal::new(TestBackend::new(200, 60)).unwrap();
    let mut times = Vec::new();
    for _ in 0..60 {
        desk.mock.advance(Duration::from_millis(50));
        desk.now += Duration::from_millis(50);
        let start = Instant::now();
        desk.app.tick(desk.now);
        terminal
            .draw(|frame| {
                desk.app.prepare(frame.area());
                crate::draw::draw(&desk.app, frame.buffer_mut());
            })
            .unwrap();
        times.push(start.elapsed());
    }
    let (median, worst) = median(times);
    println!("frame over 50,000 functions at 200x60: median {median:?}, worst {worst:?}");
    assert!(median < BUDGET, "{median:?}");
}

#[test]
fn a_key_of_a_filter_over_50_000_functions() {
    let mut desk = Desk::new((200, 60), MockOptions { functions: 50_000, ..MockOptions::default() });
    desk.pass(50);
    desk.type_text("/");
    let mut times = Vec::new();
    for c in "*a*o*c*_*s*".chars().chain("\u{8}".repeat(11).chars()).chain("sched_read !slow".chars()) {
        let start = Instant::now();
        desk.key(if c == '\u{8}' { KeyCode::Backspace } else { KeyCode::Char(c) });
        times.push(start.elapsed());
    }
    let (median, worst) = median(times);
    println!("filter key over 50,000 functions: median {median:?}, worst {worst:?}");
    assert!(median < BUDGET, "{median:?}");
}
