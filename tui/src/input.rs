//! Keys, pasted text and the mouse: what they change and which commands they send.

mod mouse;
mod typing;

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use exotrace_patcher::control::{Command, Selection};

use crate::draw::{Popup, popup_scroll_limit};
use crate::keys::{self, Action};
use crate::layout::Pane;
use crate::state::edit::LineEdit;
use crate::state::filter;
use crate::state::functions::SortBy;
use crate::state::{App, Mode};
use crate::theme::Severity;

/// The longest file name that can be typed, in characters.
const MAX_PATH_CHARS: usize = 1000;

impl App {
    /// Handles one event of the terminal. Returns whether the screen must be drawn anew.
    pub fn input(&mut self, event: &Event) -> bool {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                self.key(key);
                true
            }
            Event::Mouse(mouse) => self.mouse(mouse),
            Event::Paste(text) => self.paste(text),
            Event::Resize(..) => true,
            Event::Key(_) | Event::FocusGained | Event::FocusLost => false,
        }
    }

    fn key(&mut self, key: &KeyEvent) {
        match std::mem::replace(&mut self.mode, Mode::Normal) {
            Mode::Normal => {
                if let Some(action) = keys::lookup(self.focus, key) {
                    self.act(action);
                }
            }
            Mode::Filter(edit) => self.filter_key(edit, key),
            Mode::FileName(edit) => self.file_name_key(edit, key),
            Mode::ConsoleInput => self.console_key(key),
            Mode::Help(at) => self.popup_key(key, Popup::Help, at),
            Mode::Messages(back) => self.popup_key(key, Popup::Messages, back),
            Mode::Details(index) => self.details_key(index, key),
            Mode::ConfirmDetach => match key.code {
                KeyCode::Char('y' | 'Y') => self.send(Command::Detach),
                _ => self.say(Severity::Info, "not detached"),
            },
        }
    }

    /// Keys of a popup with lines: moving stays, everything else closes it, and quitting quits.
    fn popup_key(&mut self, key: &KeyEvent, popup: Popup, at: usize) {
        let page = isize::try_from(self.layout.screen.height / 2).unwrap_or(1);
        let step = match keys::lookup(self.focus, key) {
            Some(Action::Up) => -1,
            Some(Action::Down) => 1,
            Some(Action::PageUp) => -page,
            Some(Action::PageDown) => page,
            Some(Action::Home) => -100_000,
            Some(Action::End) => 100_000,
            Some(Action::Quit) if key.modifiers.contains(KeyModifiers::CONTROL) => {
                self.quit = true;
                return;
            }
            _ => return,
        };
        self.scroll_popup(popup, at, step);
    }

    /// Scrolls a popup, negative is up, and leaves it open.
    fn scroll_popup(&mut self, popup: Popup, at: usize, step: isize) {
        let limit = popup_scroll_limit(self, popup);
        self.mode = match popup {
            Popup::Help => Mode::Help(at.saturating_add_signed(step).min(limit)),
            Popup::Messages => Mode::Messages(at.saturating_add_signed(-step).min(limit)),
        };
    }

    fn details_key(&mut self, index: u32, key: &KeyEvent) {
        match keys::lookup(Pane::Functions, key) {
            Some(Action::Toggle) => {
                self.switch_one(index);
                self.mode = Mode::Details(index);
            }
            Some(step @ (Action::Up | Action::Down)) => {
                self.functions.step(if step == Action::Up { -1 } else { 1 });
                self.mode = self.functions.selected().map_or(Mode::Normal, Mode::Details);
            }
            Some(Action::Quit) if key.modifiers.contains(KeyModifiers::CONTROL) => self.quit = true,
            _ => {}
        }
    }

    /// Does what a key of the table asks for.
    pub(crate) fn act(&mut self, action: Action) {
        match action {
            Action::Quit => self.quit = true,
            Action::Help => self.mode = Mode::Help(0),
            Action::Messages => self.mode = Mode::Messages(0),
            Action::NextPane => self.focus_by(1),
            Action::PrevPane => self.focus_by(Pane::ALL.len() - 1),
            Action::Focus(pane) => self.focus(pane),
            Action::Zoom => self.zoom = !self.zoom,
            Action::Freeze => self.toggle_freeze(),
            Action::PauseGuest => self.send(if self.latest.paused { Command::Resume } else { Command::Pause }),
            Action::File => self.file(),
            Action::Detach => self.mode = Mode::ConfirmDetach,
            Action::Cancel => self.cancel(),
            Action::Up => self.step(-1),
            Action::Down => self.step(1),
            Action::PageUp => self.page(-1),
            Action::PageDown => self.page(1),
            Action::Home => self.home(),
            Action::End => self.end(),
            Action::Filter => {
                self.focus(Pane::Functions);
                self.mode = Mode::Filter(LineEdit::new(self.functions.filter().0, filter::MAX_CHARS));
            }
            Action::OnlyTraced => self.with_functions(|f, n| f.toggle_only_traced(n)),
            Action::Toggle => {
                if let Some(index) = self.functions.selected() {
                    self.functions.choose();
                    self.switch_one(index);
                }
            }
            Action::ToggleShown => self.switch_shown(),
            Action::ExactlyShown => self.trace_exactly_shown(),
            Action::AllOn => self.send(Command::Switch { what: Selection::All, on: true }),
            Action::AllOff => self.send(Command::Switch { what: Selection::All, on: false }),
            Action::SortNext => self.sort(self.functions.order().0.next()),
            Action::Reverse => self.with_functions(|f, n| f.reverse(n)),
            Action::Details => {
                if let Some(index) = self.functions.selected() {
                    self.functions.choose();
                    self.mode = Mode::Details(index);
                }
            }
            Action::HoldStream => {
                let live = self.shown().live.clone();
                self.stream.toggle(&live);
            }
            Action::ConsoleInput => self.start_console_input(),
        }
    }

    fn sort(&mut self, by: SortBy) {
        self.with_functions(|f, n| f.sort_by(by, n));
    }

    fn focus_by(&mut self, steps: usize) {
        self.focus(Pane::ALL[(self.focus.index() + steps) % Pane::ALL.len()]);
    }

    fn cancel(&mut self) {
        if self.focus == Pane::Stream && self.stream.is_held() {
            self.stream.follow();
        } else if self.focus == Pane::Console && self.console.is_held() {
            self.console.follow();
        } else if !self.functions.filter().0.is_empty() {
            self.with_functions(|f, n| f.set_filter("", n));
        } else {
            self.zoom = false;
        }
    }

    /// Moves by lines in the focused pane.
    fn step(&mut self, lines: isize) {
        match self.focus {
            Pane::Functions => self.functions.step(lines),
            Pane::Stream | Pane::Rings | Pane::Console => self.scroll(self.focus, lines),
        }
    }

    fn page(&mut self, direction: isize) {
        let body =
            if self.focus == Pane::Functions { self.layout.function_rows() } else { self.layout.body(self.focus) };
        self.step(direction * isize::from(i16::try_from(body.height).unwrap_or(1)).saturating_sub(1).max(1));
    }

    /// Scrolls a pane, negative is up.
    pub(crate) fn scroll(&mut self, pane: Pane, lines: isize) {
        let snapshot = self.shown().clone();
        match pane {
            Pane::Functions => self.functions.scroll(lines),
            Pane::Stream => self.stream.scroll(lines, &snapshot.live),
            Pane::Rings => {
                let last = snapshot.vcpus.len().saturating_sub(1);
                self.rings_offset = self.rings_offset.saturating_add_signed(lines).min(last);
            }
            Pane::Console => self.console.scroll(lines, &snapshot.console),
        }
    }

    fn home(&mut self) {
        match self.focus {
            Pane::Functions => self.functions.home(),
            Pane::Stream | Pane::Rings | Pane::Console => self.scroll(self.focus, -1_000_000_000),
        }
    }

    fn end(&mut self) {
        match self.focus {
            Pane::Functions => self.functions.end(),
            Pane::Stream => self.stream.follow(),
            Pane::Rings => self.scroll(Pane::Rings, 1_000_000_000),
            Pane::Console => self.console.follow(),
        }
    }

    /// Whether a function is traced now (a frozen display may show otherwise).
    fn is_active(&self, index: usize) -> bool {
        self.latest.active.get(index).copied().unwrap_or(false)
    }

    /// Switches one function.
    pub(crate) fn switch_one(&mut self, index: u32) {
        let Some(function) = self.functions.info(index) else { return };
        let site = function.site;
        if let Some(why) = &function.skipped {
            let text = format!("{} can't be traced: {why}", function.name);
            self.say(Severity::Warn, text);
            return;
        }
        let on = !self.is_active(site.index());
        self.send(Command::Switch { what: Selection::Sites(vec![site]), on });
    }

    /// What the list shows, as a command names it; `None` (and a word to the user) when nothing of it can be traced.
    fn shown_selection(&mut self) -> Option<Selection> {
        let sites = self.functions.traceable();
        if sites.is_empty() {
            self.say(Severity::Warn, "the list shows no function that can be traced");
            return None;
        }
        Some(if self.functions.shows_all() { Selection::All } else { Selection::Sites(sites) })
    }

    /// On, if any of them is off; else off.
    fn switch_shown(&mut self) {
        let on = self.functions.traceable().iter().any(|s| !self.is_active(s.index()));
        if let Some(what) = self.shown_selection() {
            self.send(Command::Switch { what, on });
        }
    }

    fn trace_exactly_shown(&mut self) {
        if let Some(what) = self.shown_selection() {
            self.send(Command::SwitchExactly { what });
        }
    }

    fn file(&mut self) {
        if self.latest.file.is_some() {
            self.send(Command::StopFile);
        } else {
            self.mode = Mode::FileName(LineEdit::new(&typing::free_file_name(), MAX_PATH_CHARS));
        }
    }
}
