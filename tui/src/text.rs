//! Text that came from the guest, its image or a path is hostile: it may hold escape sequences, control characters,
//! direction overrides or wide characters. Everything that is drawn goes through here first.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use unicode_width::UnicodeWidthChar;

/// What stands for a character that must not reach the terminal.
const REPLACEMENT: char = '\u{fffd}';

/// Whether a character may be drawn as it is, given its width.
fn is_harmless(c: char) -> bool {
    // Bidi overrides and isolates reorder their surroundings; the rest of the non-printing ones have width 0 or none.
    !c.is_control() && !matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}')
}

/// Text without anything that a terminal could act on: control and direction characters become U+FFFD, characters of
/// no width (joiners, combining marks) are left out, so that widths add up character by character.
#[must_use]
pub fn sanitize(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|b| (0x20..0x7f).contains(&b)) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().filter_map(sanitize_char).collect())
}

/// One character made harmless; `None` leaves it out.
#[must_use]
pub fn sanitize_char(c: char) -> Option<char> {
    if !is_harmless(c) {
        return Some(REPLACEMENT);
    }
    match c.width() {
        None | Some(0) => None,
        Some(_) => Some(c),
    }
}

/// Columns that sanitized text takes.
#[must_use]
pub fn width(text: &str) -> usize {
    if text.is_ascii() {
        return text.len();
    }
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// Sanitized text cut to `columns`, with an ellipsis when something is missing. Looks at no more characters than fit.
#[must_use]
pub fn fit(text: &str, columns: usize) -> Cow<'_, str> {
    if text.len() <= columns && text.bytes().all(|b| (0x20..0x7f).contains(&b)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    let mut used = 0;
    // Where the text must be cut if it turns out too long: the ellipsis needs a column.
    let mut cut = 0;
    for c in text.chars().filter_map(sanitize_char) {
        let w = c.width().unwrap_or(0);
        if used + w > columns {
            out.truncate(cut);
            if columns > 0 {
                out.push('…');
            }
            return Cow::Owned(out);
        }
        out.push(c);
        used += w;
        if used < columns {
            cut = out.len();
        }
    }
    Cow::Owned(out)
}

/// Sanitized text broken into lines of at most `columns`, at spaces where possible. Always at least one line.
#[must_use]
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut used = 0;
    for word in text.split_whitespace() {
        let word: String = word.chars().filter_map(sanitize_char).collect();
        let w = width(&word);
        if used > 0 && used + 1 + w > columns {
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        if used > 0 {
            line.push(' ');
            used += 1;
        }
        for c in word.chars() {
            let w = c.width().unwrap_or(0);
            if w > columns {
                continue;
            }
            if used + w > columns {
                lines.push(std::mem::take(&mut line));
                used = 0;
            }
            line.push(c);
            used += w;
        }
    }
    if !line.is_empty() || lines.is_empty() {
        lines.push(line);
    }
    lines
}

/// A count in at most 6 columns: `999999`, `1.23M`, `45.6G`.
#[must_use]
pub fn count(n: u64) -> String {
    const UNITS: [&str; 5] = ["k", "M", "G", "T", "P"];
    if n < 100_000 {
        return n.to_string();
    }
    let mut value = n as f64 / 1e3;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1e3;
        unit += 1;
    }
    format!("{}{}", three_digits(value), UNITS[unit])
}

/// A rate per second in at most 6 columns; `0` is an empty text, so that what moves stands out.
#[must_use]
pub fn rate(per_second: f32) -> String {
    if !per_second.is_finite() || per_second < 0.05 {
        return String::new();
    }
    if per_second < 9.95 {
        return format!("{per_second:.1}");
    }
    count(per_second.round() as u64)
}

/// Bytes: `512 B`, `12.3 MiB`.
#[must_use]
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", three_digits(value), UNITS[unit])
}

/// A short time: `85 us`, `1.24 ms`, `2.50 s`.
#[must_use]
pub fn duration(d: Duration) -> String {
    let us = d.as_secs_f64() * 1e6;
    if us < 999.5 {
        format!("{} us", us.round())
    } else if us < 999_500.0 {
        format!("{} ms", three_digits(us / 1e3))
    } else {
        format!("{} s", three_digits(us / 1e6))
    }
}

/// A running time: `1:02:03`.
#[must_use]
pub fn clock(d: Duration) -> String {
    let s = d.as_secs();
    format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
}

/// A time stamp of a record, in seconds with microseconds.
pub fn push_stamp(out: &mut String, ns: u64) {
    // Writing to a String does not fail.
    let _ = write!(out, "{:>4}.{:06}", ns / 1_000_000_000, ns / 1_000 % 1_000_000);
}

fn three_digits(value: f64) -> String {
    if value < 9.995 {
        format!("{value:.2}")
    } else if value < 99.95 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_bidi_characters_never_pass() {
        assert_eq!(sanitize("a\x1b[31mb\u{202e}c\u{9b}d"), "a\u{fffd}[31mb\u{fffd}c\u{fffd}d");
        assert_eq!(sanitize("e\u{301}\u{200d}x"), "ex");
        assert!(matches!(sanitize("vfs_read"), Cow::Borrowed(_)));
    }

    #[test]
    fn fit_counts_columns_not_characters() {
        assert_eq!(fit("vfs_read", 8), "vfs_read");
        assert_eq!(fit("vfs_read", 7), "vfs_re…");
        assert_eq!(fit("漢字漢字", 8), "漢字漢字");
        assert_eq!(fit("漢字漢字", 7), "漢字漢…");
        assert_eq!(fit("漢字漢字", 6), "漢字…");
        assert_eq!(fit("漢字", 1), "…");
        assert_eq!(fit("x", 0), "");
        assert!(width(&fit(&"長".repeat(10_000), 33)) <= 33);
    }

    #[test]
    fn wrap_breaks_at_spaces_and_inside_long_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("abcdefghij k", 4), ["abcd", "efgh", "ij k"]);
        assert_eq!(wrap("", 4), [""]);
        assert_eq!(wrap("漢字", 1), [""]);
    }

    #[test]
    fn numbers_stay_within_six_columns() {
        let mut n = 1u64;
        while n < u64::MAX / 10 {
            for m in [n, n * 10 - 1] {
                assert!(count(m).len() <= 6, "{m}: {}", count(m));
                assert!(rate(m as f32).len() <= 6, "{m}");
            }
            n *= 10;
        }
        assert_eq!(count(99_999), "99999");
        assert_eq!(count(123_456), "123k");
        assert_eq!(count(999_999), "1.00M");
        assert_eq!(rate(0.0), "");
        assert_eq!(rate(f32::NAN), "");
        assert_eq!(rate(3.12), "3.1");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(duration(Duration::from_micros(85)), "85 us");
        assert_eq!(duration(Duration::from_millis(1240)), "1.24 s");
        assert_eq!(clock(Duration::from_secs(3723)), "1:02:03");
    }
}
