//! The guest's console: raw bytes made into lines of plain text, and where the user looks.

use std::sync::Arc;

use unicode_width::UnicodeWidthChar;

use crate::text::sanitize_char;

/// Bytes looked at, from the end. The controller bounds them too; this bounds the work of a frame.
const MAX_BYTES: usize = 128 * 1024;

/// Where in an escape sequence the reader is.
enum Escape {
    None,
    /// After ESC.
    Start,
    /// After `ESC [`: until a letter.
    Csi,
    /// After `ESC ]`, `ESC P` and the like: until BEL, `ESC \` or the end of the line.
    Text,
}

/// One line as a teletype would leave it, before it is broken to the width of the pane.
#[derive(Default)]
struct Teletype {
    line: Vec<char>,
    column: usize,
    done: Vec<Vec<char>>,
}

impl Teletype {
    fn put(&mut self, c: char) {
        match self.line.get_mut(self.column) {
            Some(slot) => *slot = c,
            None => self.line.push(c),
        }
        self.column += 1;
    }

    fn control(&mut self, c: char) {
        match c {
            '\n' => {
                self.done.push(std::mem::take(&mut self.line));
                self.column = 0;
            }
            '\r' => self.column = 0,
            '\u{8}' => self.column = self.column.saturating_sub(1),
            '\t' => {
                for _ in 0..8 - self.column % 8 {
                    self.put(' ');
                }
            }
            '\u{7}' | '\0' => {}
            other => {
                if let Some(c) = sanitize_char(other) {
                    self.put(c);
                }
            }
        }
    }
}

/// The lines that console bytes make, no wider than `columns`. Escape sequences are dropped whole, other control
/// characters are shown as U+FFFD, carriage return, backspace and tab do what they do on a teletype.
#[must_use]
pub fn lines(bytes: &[u8], columns: usize) -> Vec<String> {
    let tail = &bytes[bytes.len().saturating_sub(MAX_BYTES)..];
    let mut tty = Teletype::default();
    let mut escape = Escape::None;
    for c in String::from_utf8_lossy(tail).chars() {
        escape = match (escape, c) {
            (Escape::None, '\u{1b}') | (Escape::Text, '\u{1b}') => Escape::Start,
            // Nothing swallows more than the line it began in.
            (_, '\n') => {
                tty.control('\n');
                Escape::None
            }
            (Escape::None, c) => {
                tty.control(c);
                Escape::None
            }
            (Escape::Start, '[') => Escape::Csi,
            (Escape::Start, ']' | 'P' | 'X' | '^' | '_') => Escape::Text,
            (Escape::Start, ' '..='/' | '\u{1b}') => Escape::Start,
            (Escape::Start, _) => Escape::None,
            (Escape::Csi, ' '..='?') => Escape::Csi,
            (Escape::Csi, _) => Escape::None,
            (Escape::Text, '\u{7}') => Escape::None,
            (Escape::Text, _) => Escape::Text,
        };
    }
    if !tty.line.is_empty() {
        tty.control('\n');
    }
    let mut out = Vec::with_capacity(tty.done.len());
    for line in &tty.done {
        break_line(line, columns.max(2), &mut out);
    }
    out
}

fn break_line(line: &[char], columns: usize, out: &mut Vec<String>) {
    let mut text = String::new();
    let mut used = 0;
    for &c in line {
        let w = c.width().unwrap_or(0);
        if used + w > columns {
            out.push(std::mem::take(&mut text));
            used = 0;
        }
        text.push(c);
        used += w;
    }
    out.push(text);
}

/// The console pane's state.
#[derive(Debug)]
pub struct ConsoleView {
    /// What is shown while scrolled back; `None` follows the guest.
    held: Option<Arc<[u8]>>,
    /// Lines between the last one shown and the end.
    back: usize,
    cache: Vec<String>,
    /// What the cache was made from. Holding it makes the comparison by address sound.
    cached: (Arc<[u8]>, usize),
}

impl Default for ConsoleView {
    fn default() -> ConsoleView {
        ConsoleView { held: None, back: 0, cache: Vec::new(), cached: (Arc::from([]), 0) }
    }
}

impl ConsoleView {
    /// Brings the lines up to date with the guest's bytes for a pane of this size.
    pub fn prepare(&mut self, bytes: &Arc<[u8]>, columns: usize, rows: usize) {
        let source = self.held.as_ref().unwrap_or(bytes);
        if !Arc::ptr_eq(source, &self.cached.0) || columns != self.cached.1 {
            self.cache = lines(source, columns);
            self.cached = (source.clone(), columns);
        }
        self.back = self.back.min(self.cache.len().saturating_sub(rows));
    }

    /// Scrolls, negative is back in time. The view is held until it is at the end again.
    pub fn scroll(&mut self, lines: isize, bytes: &Arc<[u8]>) {
        self.back = self.back.saturating_add_signed(lines.saturating_neg());
        if self.back == 0 {
            self.held = None;
        } else if self.held.is_none() {
            self.held = Some(bytes.clone());
        }
    }

    /// Follows the guest again.
    pub fn follow(&mut self) {
        self.back = 0;
        self.held = None;
    }

    /// Whether the view is held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// All lines and the range to show in `rows` rows.
    #[must_use]
    pub fn visible(&self, rows: usize) -> (&[String], usize, usize) {
        let end = self.cache.len().saturating_sub(self.back);
        (&self.cache, end.saturating_sub(rows), end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_vanish_and_controls_are_harmless() {
        assert_eq!(lines(b"\x1b[31mred\x1b[0m \x1b]0;title\x07ok\r\n\x1b(Bx\x01y", 80), ["red ok", "x\u{fffd}y"]);
        assert_eq!(lines(b"\x1b]never ends\nnext\x1b[", 80), ["", "next"]);
        assert_eq!(lines("\u{9b}2J\u{202e}z".as_bytes(), 80), ["\u{fffd}2J\u{fffd}z"]);
        assert_eq!(lines(b"\xff\xfe", 80), ["\u{fffd}\u{fffd}"]);
    }

    #[test]
    fn teletype_controls() {
        assert_eq!(lines(b"10%\r20%\r\nab\x08c\n\tx", 80), ["20%", "ac", "        x"]);
    }

    #[test]
    fn long_and_wide_lines_are_broken() {
        let out = lines("漢".repeat(5000).as_bytes(), 33);
        assert_eq!(out.len(), 5000usize.div_ceil(16));
        assert!(out.iter().all(|l| crate::text::width(l) <= 33));
        assert_eq!(lines(&vec![b'x'; 1 << 20], 100).len(), MAX_BYTES.div_ceil(100));
        assert_eq!(lines("漢漢".as_bytes(), 0).len(), 2);
    }

    #[test]
    fn scrolling_back_holds_and_the_end_follows() {
        let mut v = ConsoleView::default();
        let old: Arc<[u8]> = Arc::from(&b"1\n2\n3\n4\n5"[..]);
        v.prepare(&old, 80, 2);
        v.scroll(-2, &old);
        let new: Arc<[u8]> = Arc::from(&b"1\n2\n3\n4\n5\n6\n7"[..]);
        v.prepare(&new, 80, 2);
        let (all, from, to) = v.visible(2);
        assert_eq!(&all[from..to], ["2", "3"]);
        v.scroll(2, &new);
        v.prepare(&new, 80, 2);
        let (all, from, to) = v.visible(2);
        assert_eq!(&all[from..to], ["6", "7"]);
        v.scroll(isize::MIN, &new);
        v.prepare(&new, 80, 2);
        assert_eq!(v.visible(2).1, 0);
    }
}
