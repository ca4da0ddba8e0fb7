//! Colours: few, from the 16 that every terminal's own theme defines, never a background, so that dark and light
//! terminals both work. Without colour (`NO_COLOR`) bold, dim and reverse say the same.

use ratatui::style::{Color, Modifier, Style};

/// How loud a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// For the record.
    Info,
    /// Something good ended.
    Good,
    /// Worth a look.
    Warn,
    /// A command was refused or something broke.
    Error,
}

/// The styles of one run.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    color: bool,
}

impl Theme {
    /// With or without colours.
    #[must_use]
    pub fn new(color: bool) -> Theme {
        Theme { color }
    }

    /// What the environment asks for: <https://no-color.org>.
    #[must_use]
    pub fn from_env() -> Theme {
        Theme::new(std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()))
    }

    fn fg(self, color: Color) -> Style {
        if self.color { Style::new().fg(color) } else { Style::new() }
    }

    /// Ordinary text.
    #[must_use]
    pub fn text(self) -> Style {
        Style::new()
    }
    /// Secondary text.
    #[must_use]
    pub fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }
    /// Headings.
    #[must_use]
    pub fn heading(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }
    /// The title of a pane.
    #[must_use]
    pub fn title(self, focused: bool) -> Style {
        if focused { self.fg(Color::Cyan).add_modifier(Modifier::BOLD) } else { self.dim() }
    }
    /// The mark and name of a traced function.
    #[must_use]
    pub fn traced(self) -> Style {
        self.fg(Color::Green).add_modifier(Modifier::BOLD)
    }
    /// The row under the cursor.
    #[must_use]
    pub fn cursor(self, focused: bool) -> Style {
        if focused {
            Style::new().add_modifier(Modifier::REVERSED)
        } else {
            Style::new().add_modifier(Modifier::UNDERLINED)
        }
    }
    /// Loss and errors.
    #[must_use]
    pub fn bad(self) -> Style {
        self.fg(Color::Red).add_modifier(Modifier::BOLD)
    }
    /// Paused, frozen, waiting.
    #[must_use]
    pub fn warn(self) -> Style {
        self.fg(Color::Magenta).add_modifier(Modifier::BOLD)
    }
    /// A key in the hint line.
    #[must_use]
    pub fn key(self) -> Style {
        self.fg(Color::Cyan).add_modifier(Modifier::BOLD)
    }
    /// A line that must be seen.
    #[must_use]
    pub fn banner(self, bad: bool) -> Style {
        let style = if bad { self.bad() } else { self.warn() };
        style.add_modifier(Modifier::REVERSED)
    }
    /// A message.
    #[must_use]
    pub fn message(self, severity: Severity) -> Style {
        match severity {
            Severity::Info => self.text(),
            Severity::Good => self.fg(Color::Green),
            Severity::Warn => self.warn(),
            Severity::Error => self.bad(),
        }
    }
    /// The filled part of a gauge.
    #[must_use]
    pub fn gauge(self, fill: f64) -> Style {
        if fill > 0.9 { self.bad() } else { self.fg(Color::Cyan) }
    }
}
