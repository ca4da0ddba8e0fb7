//! A line of text being typed.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Text with a cursor. Holds printable characters only, up to a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineEdit {
    text: Vec<char>,
    cursor: usize,
    limit: usize,
}

impl LineEdit {
    /// A line that starts as `text`, cursor behind it.
    #[must_use]
    pub fn new(text: &str, limit: usize) -> LineEdit {
        let mut edit = LineEdit { text: Vec::new(), cursor: 0, limit };
        edit.insert(text);
        edit
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> String {
        self.text.iter().collect()
    }

    /// The text before the cursor.
    #[must_use]
    pub fn before_cursor(&self) -> String {
        self.text[..self.cursor].iter().collect()
    }

    /// Types text; what is not printable is left out.
    pub fn insert(&mut self, text: &str) {
        for c in text.chars() {
            if self.text.len() < self.limit && crate::text::sanitize_char(c) == Some(c) {
                self.text.insert(self.cursor, c);
                self.cursor += 1;
            }
        }
    }

    /// Handles an editing key. Returns whether it was one.
    pub fn key(&mut self, key: &KeyEvent) -> bool {
        let ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('u') if ctrl => {
                self.text.drain(..self.cursor);
                self.cursor = 0;
            }
            KeyCode::Char('w') if ctrl => {
                let mut start = self.cursor;
                while start > 0 && self.text[start - 1] == ' ' {
                    start -= 1;
                }
                while start > 0 && self.text[start - 1] != ' ' {
                    start -= 1;
                }
                self.text.drain(start..self.cursor);
                self.cursor = start;
            }
            KeyCode::Char('a') if ctrl => self.cursor = 0,
            KeyCode::Char('e') if ctrl => self.cursor = self.text.len(),
            KeyCode::Char(_) if ctrl || key.modifiers.contains(KeyModifiers::ALT) => return false,
            KeyCode::Char(c) => self.insert(c.encode_utf8(&mut [0; 4])),
            KeyCode::Backspace if self.cursor > 0 => {
                self.cursor -= 1;
                self.text.remove(self.cursor);
            }
            KeyCode::Delete if self.cursor < self.text.len() => {
                self.text.remove(self.cursor);
            }
            KeyCode::Backspace | KeyCode::Delete => {}
            KeyCode::Left => self.cursor = self.cursor.saturating_sub(1),
            KeyCode::Right => self.cursor = (self.cursor + 1).min(self.text.len()),
            KeyCode::Home => self.cursor = 0,
            KeyCode::End => self.cursor = self.text.len(),
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_where_the_cursor_is() {
        let mut e = LineEdit::new("ab\x1bc", 6);
        assert_eq!(e.text(), "abc");
        let mut press = |code, modifiers| e.key(&KeyEvent::new(code, modifiers));
        press(KeyCode::Left, KeyModifiers::NONE);
        press(KeyCode::Char('X'), KeyModifiers::SHIFT);
        press(KeyCode::Home, KeyModifiers::NONE);
        press(KeyCode::Backspace, KeyModifiers::NONE);
        press(KeyCode::Delete, KeyModifiers::NONE);
        assert_eq!(e.text(), "bXc");
        e.insert("12345678");
        assert_eq!((e.text().as_str(), e.before_cursor().as_str()), ("123bXc", "123"));
        assert!(e.key(&KeyEvent::new(KeyCode::Char('u'), KeyModifiers::CONTROL)));
        assert_eq!(e.text(), "bXc");
        assert!(!e.key(&KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }
}
