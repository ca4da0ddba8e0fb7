//! exotrace's terminal UI: shows a run and sends commands, and knows nothing of how either is done.
//!
//! The rooms: [`state`] is what the UI knows and where the user looks, [`layout`] where things are on the screen,
//! [`draw`] puts the state on the screen (one file a pane), `input` changes the state and sends commands, [`keys`] is
//! the key table that input, help and hints share, [`text`] makes foreign text harmless. [`run`] ties them to a terminal.

pub mod draw;
mod error;
mod input;
pub mod keys;
pub mod layout;
#[cfg(any(test, feature = "mock"))]
pub mod mock;
pub mod state;
mod terminal;
pub mod text;
pub mod theme;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossterm::event;
use exotrace_patcher::control::Control;

pub use error::TuiError;
use state::App;
use terminal::Screen;
use theme::Theme;

/// Time between two frames (input is drawn at once).
const FRAME: Duration = Duration::from_millis(50);
/// Events of the terminal handled between two frames at most, so that a flood can't stop the display.
const MAX_EVENTS: usize = 64;

/// How the UI runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Colours on or off; `None` asks the environment (`NO_COLOR`).
    pub color: Option<bool>,
    /// Whether to take the mouse.
    pub mouse: bool,
    /// Ends the UI when it becomes true.
    pub stop: Option<Arc<AtomicBool>>,
}

impl Default for Options {
    fn default() -> Options {
        Options { color: None, mouse: true, stop: None }
    }
}

/// Why the UI ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The user quit.
    User,
    /// A signal (its number) asked the process to end.
    Signal(i32),
    /// [`Options::stop`] became true.
    Stopped,
}

/// Shows the run until the user quits. Owns the terminal meanwhile and gives it back in every case. It sends no
/// [`exotrace_patcher::control::Command::Quit`]: what happens to the VM afterwards is the caller's business.
///
/// # Errors
///
/// There is no terminal, it could not be set up or broke, or another thread panicked; see [`TuiError`].
pub fn run(control: Arc<dyn Control>, options: Options) -> Result<Outcome, TuiError> {
    let theme = options.color.map_or_else(Theme::from_env, Theme::new);
    let mut app = App::new(control, theme);
    let mut screen = Screen::open(options.mouse)?;
    event_loop(&mut app, &mut screen, options.stop.as_deref())
}

fn event_loop(app: &mut App, screen: &mut Screen, stop: Option<&AtomicBool>) -> Result<Outcome, TuiError> {
    let start = Instant::now();
    let mut next = Duration::ZERO;
    let mut dirty = true;
    loop {
        if screen.panicked() {
            return Err(TuiError::Panicked);
        }
        if let Some(signal) = screen.signal() {
            return Ok(Outcome::Signal(signal));
        }
        if stop.is_some_and(|s| s.load(Ordering::Relaxed)) {
            return Ok(Outcome::Stopped);
        }
        if start.elapsed() >= next {
            app.tick(start.elapsed());
            // Counted from now: after a slow frame the next one is not due at once.
            next = start.elapsed() + FRAME;
            dirty = true;
        }
        if dirty {
            screen.draw(|frame| {
                app.prepare(frame.area());
                if let Some(cursor) = draw::draw(app, frame.buffer_mut()) {
                    frame.set_cursor_position(cursor);
                }
            })?;
        }
        dirty = read_input(app, next.saturating_sub(start.elapsed()))?;
        if app.quit {
            return Ok(Outcome::User);
        }
    }
}

/// Waits for input, handles what there is, and says whether the screen must be drawn anew.
fn read_input(app: &mut App, wait: Duration) -> Result<bool, TuiError> {
    let mut dirty = false;
    // What crossterm has read already does not show on the terminal any more.
    terminal::wait_input(Duration::ZERO).map_err(TuiError::Terminal)?;
    if !event::poll(Duration::ZERO).map_err(TuiError::Terminal)? {
        terminal::wait_input(wait).map_err(TuiError::Terminal)?;
    }
    for _ in 0..MAX_EVENTS {
        if app.quit || !event::poll(Duration::ZERO).map_err(TuiError::Terminal)? {
            break;
        }
        dirty |= app.input(&event::read().map_err(TuiError::Terminal)?);
        terminal::wait_input(Duration::ZERO).map_err(TuiError::Terminal)?;
    }
    Ok(dirty)
}
