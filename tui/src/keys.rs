//! The keys, as data: what a key does, where, and the text that the help screen and the hint line are made from.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::layout::Pane;

/// What a key asks for when no text is being typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Leave the UI.
    Quit,
    /// Show the keys.
    Help,
    /// Show the message history.
    Messages,
    /// Focus the next pane.
    NextPane,
    /// Focus the previous pane.
    PrevPane,
    /// Focus a pane.
    Focus(Pane),
    /// Give the focused pane the whole screen, or take it back.
    Zoom,
    /// Hold the display still.
    Freeze,
    /// Pause or resume the guest.
    PauseGuest,
    /// Start or stop writing a file.
    File,
    /// Restore the original bytes.
    Detach,
    /// Close, clear or leave whatever is in the way.
    Cancel,
    /// Move by one line up.
    Up,
    /// Move by one line down.
    Down,
    /// Move by one page up.
    PageUp,
    /// Move by one page down.
    PageDown,
    /// To the first line.
    Home,
    /// To the last line.
    End,
    /// Start typing a filter.
    Filter,
    /// Show only what is traced, or everything.
    OnlyTraced,
    /// Switch the selected function.
    Toggle,
    /// Switch all functions that the list shows.
    ToggleShown,
    /// Trace exactly the functions that the list shows.
    ExactlyShown,
    /// Switch everything on.
    AllOn,
    /// Switch everything off.
    AllOff,
    /// Sort by the next column.
    SortNext,
    /// Turn the order around.
    Reverse,
    /// Show all about the selected function.
    Details,
    /// Hold the record stream, or follow it again.
    HoldStream,
    /// Keys go to the guest's console.
    ConsoleInput,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// Where it works: in this pane, or everywhere.
    pub pane: Option<Pane>,
    /// The keys, any of them.
    pub keys: &'static [(KeyCode, KeyModifiers)],
    /// What it does.
    pub action: Action,
    /// The keys as the user reads them.
    pub label: &'static str,
    /// What it does, for the help screen.
    pub help: &'static str,
    /// A word for the hint line, if it belongs there.
    pub hint: Option<&'static str>,
}

const NONE: KeyModifiers = KeyModifiers::NONE;
const CTRL: KeyModifiers = KeyModifiers::CONTROL;

const fn ch(c: char) -> (KeyCode, KeyModifiers) {
    (KeyCode::Char(c), NONE)
}

const fn key(code: KeyCode) -> (KeyCode, KeyModifiers) {
    (code, NONE)
}

macro_rules! bind {
    ($pane:expr, $keys:expr, $action:expr, $label:literal, $help:literal) => {
        Binding { pane: $pane, keys: &$keys, action: $action, label: $label, help: $help, hint: None }
    };
    ($pane:expr, $keys:expr, $action:expr, $label:literal, $help:literal, $hint:literal) => {
        Binding { pane: $pane, keys: &$keys, action: $action, label: $label, help: $help, hint: Some($hint) }
    };
}

const FUNCTIONS: Option<Pane> = Some(Pane::Functions);
const STREAM: Option<Pane> = Some(Pane::Stream);
const CONSOLE: Option<Pane> = Some(Pane::Console);

/// The table. A pane's own binding goes before a global one.
pub const BINDINGS: &[Binding] = &[
    bind!(FUNCTIONS, [ch(' ')], Action::Toggle, "Space", "switch tracing of the selected function", "trace"),
    bind!(FUNCTIONS, [key(KeyCode::Enter)], Action::Details, "Enter", "all about the selected function"),
    bind!(FUNCTIONS, [ch('a')], Action::ToggleShown, "a", "switch all functions that the filter shows", "all shown"),
    bind!(FUNCTIONS, [ch('e')], Action::ExactlyShown, "e", "trace exactly the functions that the filter shows"),
    bind!(None, [ch('A')], Action::AllOn, "A", "trace every function"),
    bind!(None, [ch('O')], Action::AllOff, "O", "trace nothing (all off)", "all off"),
    bind!(None, [ch('/')], Action::Filter, "/", "filter as you type: text, glob*, !without; Esc clears", "filter"),
    bind!(FUNCTIONS, [ch('t')], Action::OnlyTraced, "t", "list only what is traced"),
    bind!(FUNCTIONS, [ch('s')], Action::SortNext, "s", "sort by rate, total, name, address", "sort"),
    bind!(FUNCTIONS, [ch('r')], Action::Reverse, "r", "reverse the order"),
    bind!(STREAM, [ch(' ')], Action::HoldStream, "Space", "hold the stream still, or follow it again", "hold"),
    bind!(
        CONSOLE,
        [ch('i'), key(KeyCode::Enter)],
        Action::ConsoleInput,
        "i",
        "type into the guest's console; Esc leaves",
        "type"
    ),
    bind!(None, [ch('w')], Action::File, "w", "start or stop writing a trace file", "write"),
    bind!(None, [ch('p')], Action::PauseGuest, "p", "pause or resume the guest", "pause"),
    bind!(None, [ch('f')], Action::Freeze, "f", "freeze the display; the guest goes on", "freeze"),
    bind!(None, [ch('D')], Action::Detach, "D", "detach: restore the guest's original bytes"),
    bind!(None, [key(KeyCode::Tab)], Action::NextPane, "Tab", "next pane (Shift-Tab: previous)", "pane"),
    bind!(None, [key(KeyCode::BackTab)], Action::PrevPane, "Shift-Tab", "previous pane"),
    bind!(None, [ch('1')], Action::Focus(Pane::Functions), "1", "functions"),
    bind!(None, [ch('2')], Action::Focus(Pane::Stream), "2", "record stream"),
    bind!(None, [ch('3')], Action::Focus(Pane::Rings), "3", "vCPUs and rings"),
    bind!(None, [ch('4')], Action::Focus(Pane::Console), "4", "guest console"),
    bind!(None, [ch('z')], Action::Zoom, "z", "give the pane the whole screen, or take it back", "zoom"),
    bind!(None, [key(KeyCode::Up), ch('k')], Action::Up, "Up k", "up"),
    bind!(None, [key(KeyCode::Down), ch('j')], Action::Down, "Down j", "down"),
    bind!(None, [key(KeyCode::PageUp), (KeyCode::Char('b'), CTRL)], Action::PageUp, "PgUp", "a page up"),
    bind!(None, [key(KeyCode::PageDown), (KeyCode::Char('f'), CTRL)], Action::PageDown, "PgDn", "a page down"),
    bind!(None, [key(KeyCode::Home), ch('g')], Action::Home, "Home g", "to the first line"),
    bind!(None, [key(KeyCode::End), ch('G')], Action::End, "End G", "to the last line; streams follow again"),
    bind!(None, [ch('m')], Action::Messages, "m", "message history", "log"),
    bind!(None, [key(KeyCode::Esc)], Action::Cancel, "Esc", "close, clear the filter, follow again"),
    bind!(None, [ch('?'), key(KeyCode::F(1))], Action::Help, "?", "this help", "help"),
    bind!(None, [ch('q'), (KeyCode::Char('c'), CTRL)], Action::Quit, "q", "quit (also Ctrl-C)", "quit"),
];

/// What the mouse does, for the help screen.
pub const MOUSE: &[(&str, &str)] = &[
    ("click", "select a pane, a function"),
    ("click mark", "switch that function"),
    ("click header", "sort; again: reverse"),
    ("wheel", "scroll"),
];

/// What a key does in a pane.
#[must_use]
pub fn lookup(pane: Pane, event: &KeyEvent) -> Option<Action> {
    // Shift is part of the character already; terminals differ in whether they report it.
    let modifiers = event.modifiers - KeyModifiers::SHIFT;
    let hit = |b: &&Binding| b.keys.contains(&(event.code, modifiers));
    let own = BINDINGS.iter().filter(|b| b.pane == Some(pane)).find(hit);
    own.or_else(|| BINDINGS.iter().filter(|b| b.pane.is_none()).find(hit)).map(|b| b.action)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_means_two_things_in_one_place() {
        for (i, a) in BINDINGS.iter().enumerate() {
            for b in BINDINGS.iter().skip(i + 1).filter(|b| b.pane == a.pane) {
                for k in a.keys {
                    assert!(!b.keys.contains(k), "{k:?} is bound to {:?} and {:?}", a.action, b.action);
                }
            }
        }
    }

    #[test]
    fn shift_does_not_matter_and_control_does() {
        let press = |code, modifiers| lookup(Pane::Rings, &KeyEvent::new(code, modifiers));
        assert_eq!(press(KeyCode::Char('A'), KeyModifiers::SHIFT), Some(Action::AllOn));
        assert_eq!(press(KeyCode::Char('c'), CTRL), Some(Action::Quit));
        assert_eq!(press(KeyCode::Char('c'), NONE), None);
        assert_eq!(press(KeyCode::Char(' '), NONE), None, "Space belongs to the lists");
    }
}
