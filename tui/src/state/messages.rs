//! The message log: what the events said, as the user reads it.

use std::collections::VecDeque;
use std::time::Duration;

use exotrace_patcher::control::{Event, GuestEnd, PauseTimes};

use crate::text;
use crate::theme::Severity;

/// Messages kept.
const MAX_MESSAGES: usize = 500;
/// Characters kept of one message; names and reasons in it can be foreign.
const MAX_CHARS: usize = 4000;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// When, since the UI started.
    pub at: Duration,
    /// How loud.
    pub severity: Severity,
    /// The text, not yet sanitized.
    pub text: String,
    /// Whether a later message of the same kind may take its place.
    replaceable: bool,
}

/// The log, newest last.
#[derive(Debug, Default)]
pub struct Log {
    entries: VecDeque<Message>,
}

impl Log {
    /// Adds a message.
    pub fn push(&mut self, at: Duration, severity: Severity, text: impl Into<String>) {
        self.add(at, severity, text.into(), false);
    }

    fn add(&mut self, at: Duration, severity: Severity, mut text: String, replaceable: bool) {
        if let Some((cut, _)) = text.char_indices().nth(MAX_CHARS) {
            text.truncate(cut);
        }
        if replaceable && self.entries.back().is_some_and(|m| m.replaceable) {
            self.entries.pop_back();
        }
        if self.entries.len() >= MAX_MESSAGES {
            self.entries.pop_front();
        }
        self.entries.push_back(Message { at, severity, text, replaceable });
    }

    /// Adds what an event says. A guest may send marks as fast as it can, so a mark replaces the mark before it.
    pub fn event(&mut self, at: Duration, event: &Event) {
        let (severity, text) = describe(event);
        self.add(at, severity, text, matches!(event, Event::Mark(_)));
    }

    /// The newest message.
    #[must_use]
    pub fn last(&self) -> Option<&Message> {
        self.entries.back()
    }

    /// All messages, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Message> {
        self.entries.iter()
    }
}

/// A stop in a few words.
#[must_use]
pub fn pause_text(p: &PauseTimes) -> String {
    format!(
        "{} (kick {}, work {}, resume {})",
        text::duration(p.total()),
        text::duration(p.kick),
        text::duration(p.work),
        text::duration(p.resume)
    )
}

fn describe(event: &Event) -> (Severity, String) {
    match event {
        Event::Attached { slide, usable, left_out, guarded } => {
            let out: usize = left_out.iter().map(|(_, n)| n).sum();
            let reasons: Vec<String> = left_out.iter().map(|(why, n)| format!("{n} {why}")).collect();
            let why = if out == 0 { String::new() } else { format!(" ({})", reasons.join(", ")) };
            let guard =
                if *guarded { "" } else { "; the guest's own ftrace must not be used while functions are traced" };
            let severity = if *guarded { Severity::Good } else { Severity::Warn };
            (
                severity,
                format!("attached: {usable} sites usable, {out} left out{why}; kernel moved by {slide:#x}{guard}"),
            )
        }
        Event::Switched { on, off, unchanged, skipped, active, pause } => {
            let mut parts = Vec::new();
            for (n, what) in [(on, "on"), (off, "off"), (unchanged, "already so"), (skipped, "left out")] {
                if *n > 0 {
                    parts.push(format!("{n} {what}"));
                }
            }
            if parts.is_empty() {
                parts.push("nothing to switch".to_owned());
            }
            (
                Severity::Good,
                format!("{}; {active} traced; guest stood {}", parts.join(", "), text::duration(pause.total())),
            )
        }
        Event::Refused { what, why } => (Severity::Error, format!("refused: {what}: {why}")),
        Event::FileStarted { path } => (Severity::Good, format!("writing {}", path.display())),
        Event::FileStopped { path, records, bytes } => (
            Severity::Good,
            format!("{} is complete: {} records, {}", path.display(), text::count(*records), text::bytes(*bytes)),
        ),
        Event::FileFailed { path, why } => (
            Severity::Error,
            format!("writing {} failed: {why}; what was written until then is readable", path.display()),
        ),
        Event::Paused(true) => (Severity::Warn, "guest paused; p resumes it".to_owned()),
        Event::Paused(false) => (Severity::Info, "guest resumed".to_owned()),
        Event::Mark(n) => (Severity::Info, format!("guest reached mark {n}")),
        Event::Detached { sites } => {
            (Severity::Good, format!("detached: {sites} sites have their original bytes again"))
        }
        Event::Ended(end) => {
            let severity = if is_bad(end) { Severity::Error } else { Severity::Warn };
            (severity, format!("guest ended: {}", end_text(end)))
        }
    }
}

/// Whether the guest ended in a way that wants a look.
#[must_use]
pub fn is_bad(end: &GuestEnd) -> bool {
    match end {
        GuestEnd::PowerOff | GuestEnd::Reset | GuestEnd::Quit => false,
        GuestEnd::Panic
        | GuestEnd::SelfCheckFailed
        | GuestEnd::TripleFault { .. }
        | GuestEnd::Hang { .. }
        | GuestEnd::Failed { .. } => true,
    }
}

/// Why the guest ended.
#[must_use]
pub fn end_text(end: &GuestEnd) -> String {
    match end {
        GuestEnd::PowerOff => "it powered itself off".to_owned(),
        GuestEnd::Reset => "it asked for a reset".to_owned(),
        GuestEnd::Panic => "it panicked; its console (4) says why".to_owned(),
        GuestEnd::SelfCheckFailed => "its self-check failed; its console (4) says where".to_owned(),
        GuestEnd::TripleFault { vcpu } => format!("triple fault on vCPU {vcpu}"),
        GuestEnd::Hang { vcpu, rip } => format!("vCPU {vcpu} halted for good at {rip} with interrupts off"),
        GuestEnd::Failed { why } => why.clone(),
        GuestEnd::Quit => "you ended it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_log_is_bounded_in_number_and_length() {
        let mut log = Log::default();
        for n in 0..2000u32 {
            log.push(Duration::ZERO, Severity::Info, n.to_string());
        }
        assert_eq!(log.iter().count(), MAX_MESSAGES);
        assert_eq!(log.last().unwrap().text, "1999");
        log.event(Duration::ZERO, &Event::Refused { what: "x".into(), why: "é".repeat(100_000) });
        assert_eq!(log.last().unwrap().text.chars().count(), MAX_CHARS);
    }

    #[test]
    fn marks_replace_marks_only() {
        let mut log = Log::default();
        log.push(Duration::ZERO, Severity::Error, "keep me");
        for n in 0..1000 {
            log.event(Duration::ZERO, &Event::Mark(n));
        }
        let texts: Vec<_> = log.iter().map(|m| m.text.as_str()).collect();
        assert_eq!(texts, ["keep me", "guest reached mark 999"]);
    }
}
