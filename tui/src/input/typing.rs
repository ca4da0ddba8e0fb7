//! The modes in which keys are text: a filter, a file name, the guest's console.

use std::path::Path;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use exotrace_patcher::control::Command;

use crate::layout::Pane;
use crate::state::edit::LineEdit;
use crate::state::{App, Mode};
use crate::theme::Severity;

/// Pasted bytes that go to the guest at most, at once.
const MAX_PASTE: usize = 64 * 1024;

/// `exotrace-<n>.exo` with the first number that is not taken in the working directory.
pub(super) fn free_file_name() -> String {
    let name = |n: u32| format!("exotrace-{n}.exo");
    (1..1000).map(name).find(|f| !Path::new(f).exists()).unwrap_or_else(|| name(1000))
}

fn is_ctrl_c(key: &KeyEvent) -> bool {
    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL)
}

impl App {
    pub(super) fn filter_key(&mut self, mut edit: LineEdit, key: &KeyEvent) {
        match key.code {
            _ if is_ctrl_c(key) => self.quit = true,
            KeyCode::Esc => self.with_functions(|f, n| f.set_filter("", n)),
            KeyCode::Enter | KeyCode::Tab => {}
            KeyCode::Up | KeyCode::Down => {
                self.functions.step(if key.code == KeyCode::Up { -1 } else { 1 });
                self.mode = Mode::Filter(edit);
            }
            _ => {
                edit.key(key);
                self.filter_edited(edit);
            }
        }
    }

    fn filter_edited(&mut self, edit: LineEdit) {
        let text = edit.text();
        self.with_functions(|f, n| f.set_filter(&text, n));
        self.mode = Mode::Filter(edit);
    }

    pub(super) fn file_name_key(&mut self, mut edit: LineEdit, key: &KeyEvent) {
        match key.code {
            _ if is_ctrl_c(key) => self.quit = true,
            KeyCode::Esc => self.say(Severity::Info, "no file written"),
            KeyCode::Enter => {
                let name = edit.text();
                if name.trim().is_empty() {
                    self.say(Severity::Warn, "a file needs a name; no file written");
                } else {
                    self.send(Command::StartFile { path: name.into() });
                }
            }
            _ => {
                edit.key(key);
                self.mode = Mode::FileName(edit);
            }
        }
    }

    pub(super) fn start_console_input(&mut self) {
        if self.latest.ended.is_some() {
            self.say(Severity::Warn, "the guest has ended; its console takes no input");
            return;
        }
        self.focus(Pane::Console);
        self.console.follow();
        self.mode = Mode::ConsoleInput;
    }

    pub(super) fn console_key(&mut self, key: &KeyEvent) {
        if key.code == KeyCode::Esc {
            return;
        }
        if self.latest.ended.is_some() {
            self.start_console_input();
            return;
        }
        self.mode = Mode::ConsoleInput;
        if let Some(bytes) = console_bytes(key) {
            self.send(Command::ConsoleInput(bytes));
        }
    }

    /// Pasted text goes where typed text would.
    pub(super) fn paste(&mut self, text: &str) -> bool {
        match std::mem::replace(&mut self.mode, Mode::Normal) {
            Mode::Filter(mut edit) => {
                edit.insert(text);
                self.filter_edited(edit);
            }
            Mode::FileName(mut edit) => {
                edit.insert(text);
                self.mode = Mode::FileName(edit);
            }
            Mode::ConsoleInput => {
                let bytes = &text.as_bytes()[..text.len().min(MAX_PASTE)];
                self.mode = Mode::ConsoleInput;
                self.send(Command::ConsoleInput(bytes.to_vec()));
            }
            other => {
                self.mode = other;
                return false;
            }
        }
        true
    }
}

/// The bytes that a terminal would send for a key.
fn console_bytes(key: &KeyEvent) -> Option<Vec<u8>> {
    let bytes: &[u8] = match key.code {
        KeyCode::Char(c) if key.modifiers.contains(KeyModifiers::CONTROL) => {
            let upper = c.to_ascii_uppercase();
            // Control turns `@`..`_` into 0..31.
            return (('@'..='_').contains(&upper)).then(|| vec![upper as u8 - b'@']);
        }
        KeyCode::Char(c) => return Some(c.encode_utf8(&mut [0; 4]).as_bytes().to_vec()),
        KeyCode::Enter => b"\r",
        KeyCode::Tab => b"\t",
        KeyCode::Backspace => b"\x7f",
        KeyCode::Delete => b"\x1b[3~",
        KeyCode::Up => b"\x1b[A",
        KeyCode::Down => b"\x1b[B",
        KeyCode::Right => b"\x1b[C",
        KeyCode::Left => b"\x1b[D",
        KeyCode::Home => b"\x1b[H",
        KeyCode::End => b"\x1b[F",
        _ => return None,
    };
    Some(bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_the_bytes_of_a_terminal() {
        let bytes = |code, modifiers| console_bytes(&KeyEvent::new(code, modifiers));
        assert_eq!(bytes(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(vec![3]));
        assert_eq!(bytes(KeyCode::Char('é'), KeyModifiers::NONE), Some("é".as_bytes().to_vec()));
        assert_eq!(bytes(KeyCode::Char('é'), KeyModifiers::CONTROL), None);
        assert_eq!(bytes(KeyCode::Enter, KeyModifiers::NONE), Some(vec![b'\r']));
        assert_eq!(bytes(KeyCode::F(5), KeyModifiers::NONE), None);
    }
}
