//! Tests over the whole UI: a made-up run, keys and mouse in, the screen and the commands out.
#![allow(clippy::unwrap_used)]

mod actions;
mod mouse;
mod properties;
mod screens;
mod speed;

use std::sync::Arc;
use std::time::Duration;

use crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};
use exotrace_patcher::control::Command;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::Rect;

use crate::mock::{MockControl, MockOptions};
use crate::state::App;
use crate::theme::Theme;

/// The UI on a desk: no terminal, no clock.
struct Desk {
    mock: Arc<MockControl>,
    app: App,
    now: Duration,
    size: (u16, u16),
}

impl Desk {
    fn new(size: (u16, u16), options: MockOptions) -> Desk {
        let mock = Arc::new(MockControl::new(options));
        let app = App::new(mock.clone(), Theme::new(true));
        let mut desk = Desk { mock, app, now: Duration::ZERO, size };
        desk.pass(0);
        desk
    }

    /// Lets time pass and the UI notice it.
    fn pass(&mut self, ms: u64) {
        let mut left = ms;
        loop {
            let step = left.min(50);
            self.mock.advance(Duration::from_millis(step));
            self.now += Duration::from_millis(step);
            self.app.tick(self.now);
            left -= step;
            if left == 0 {
                break;
            }
        }
        self.app.prepare(Rect::new(0, 0, self.size.0, self.size.1));
    }

    fn event(&mut self, event: &Event) {
        self.app.input(event);
        self.app.prepare(Rect::new(0, 0, self.size.0, self.size.1));
    }

    fn key(&mut self, code: KeyCode) {
        self.event(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)));
    }

    fn ctrl(&mut self, c: char) {
        self.event(&Event::Key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL)));
    }

    fn type_text(&mut self, text: &str) {
        for c in text.chars() {
            self.key(KeyCode::Char(c));
        }
    }

    /// The command that was sent since the last look, if it was one.
    fn sent(&self) -> Option<Command> {
        let mut sent = self.mock.sent();
        assert!(sent.len() <= 1, "{sent:?}");
        sent.pop()
    }

    fn screen(&mut self) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(self.size.0, self.size.1)).unwrap();
        terminal
            .draw(|frame| {
                self.app.prepare(frame.area());
                if let Some(at) = crate::draw::draw(&self.app, frame.buffer_mut()) {
                    frame.set_cursor_position(at);
                }
            })
            .unwrap();
        terminal
    }

    /// The screen as text, a line each.
    fn text(&mut self) -> String {
        self.screen().backend().to_string()
    }
}
