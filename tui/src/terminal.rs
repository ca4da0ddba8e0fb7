//! The terminal, from taking it over to giving it back: whatever happens in between (an error, a panic in any thread,
//! SIGTERM), it is given back as it was.

mod signals;

use std::io::{self, BufWriter, IsTerminal, Stdout, Write as _};
use std::panic::PanicHookInfo;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossterm::cursor::Show;
use crossterm::event::{DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste, EnableMouseCapture};
use crossterm::terminal::{
    BeginSynchronizedUpdate, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode,
};
use crossterm::{execute, queue};
use ratatui::backend::CrosstermBackend;
use ratatui::{Frame, Terminal};

use crate::error::TuiError;
use signals::Signals;

/// Whether the terminal is taken over now.
static TAKEN: AtomicBool = AtomicBool::new(false);
/// Whether a thread panicked since it was taken over.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Output kept back so that a frame is one write.
const WRITE_BUFFER_BYTES: usize = 64 * 1024;

type Hook = Arc<Box<dyn Fn(&PanicHookInfo<'_>) + Send + Sync + 'static>>;

/// The terminal while the UI owns it. Dropping it gives the terminal back.
pub(crate) struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    previous_hook: Option<Hook>,
    signals: Signals,
}

impl Screen {
    /// Takes the terminal over.
    pub(crate) fn open(mouse: bool) -> Result<Screen, TuiError> {
        if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            return Err(TuiError::NoTerminal);
        }
        if TAKEN.swap(true, Ordering::SeqCst) {
            return Err(TuiError::Busy);
        }
        PANICKED.store(false, Ordering::SeqCst);
        Screen::set_up(mouse).inspect_err(|_| restore())
    }

    fn set_up(mouse: bool) -> Result<Screen, TuiError> {
        // Signals first: from here on nothing ends the process without the terminal being restored.
        let signals = Signals::install().map_err(TuiError::Signals)?;
        enable_raw_mode().map_err(TuiError::Setup)?;
        execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste).map_err(TuiError::Setup)?;
        if mouse {
            execute!(io::stdout(), EnableMouseCapture).map_err(TuiError::Setup)?;
        }
        let writer = BufWriter::with_capacity(WRITE_BUFFER_BYTES, io::stdout());
        let mut terminal = Terminal::new(CrosstermBackend::new(writer)).map_err(TuiError::Setup)?;
        terminal.clear().map_err(TuiError::Setup)?;
        let previous: Hook = Arc::new(std::panic::take_hook());
        let chained = previous.clone();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            PANICKED.store(true, Ordering::SeqCst);
            chained(info);
        }));
        Ok(Screen { terminal, previous_hook: Some(previous), signals })
    }

    /// Draws a frame, as one synchronized update where the terminal knows that.
    pub(crate) fn draw(&mut self, render: impl FnOnce(&mut Frame<'_>)) -> Result<(), TuiError> {
        queue!(self.terminal.backend_mut(), BeginSynchronizedUpdate).map_err(TuiError::Terminal)?;
        self.terminal.draw(render).map_err(|e| TuiError::Terminal(io::Error::other(e)))?;
        queue!(self.terminal.backend_mut(), EndSynchronizedUpdate).map_err(TuiError::Terminal)?;
        self.terminal.backend_mut().flush().map_err(TuiError::Terminal)
    }

    /// The signal that asked the process to end, if one did.
    pub(crate) fn signal(&self) -> Option<i32> {
        self.signals.received()
    }

    /// Whether a thread panicked (the terminal has been given back then).
    pub(crate) fn panicked(&self) -> bool {
        PANICKED.load(Ordering::SeqCst)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
        // The hook can't be changed while this thread panics; ours does no harm then.
        if let Some(previous) = self.previous_hook.take().filter(|_| !std::thread::panicking()) {
            std::panic::set_hook(Box::new(move |info| previous(info)));
        }
    }
}

/// Waits until the terminal has input or `wait` has passed; a signal (a resize, too) ends the wait early.
///
/// crossterm reads a terminal that was hung up for ever, inside one call; so nothing is read before this has looked.
///
/// # Errors
/// The terminal is gone.
pub(crate) fn wait_input(wait: Duration) -> io::Result<()> {
    let mut fd = libc::pollfd { fd: libc::STDIN_FILENO, events: libc::POLLIN, revents: 0 };
    // A little late rather than early: else the caller would go round and round through the last millisecond.
    let ms = i32::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: `fd` is one pollfd, and the count says so.
    let found = unsafe { libc::poll(&raw mut fd, 1, ms) };
    if found < 0 {
        let e = io::Error::last_os_error();
        return if e.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(e) };
    }
    if fd.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the terminal was closed"));
    }
    Ok(())
}

/// Gives the terminal back, once. Errors are of no use any more: there is nowhere to show them.
fn restore() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let _ = execute!(
            io::stdout(),
            EndSynchronizedUpdate,
            DisableMouseCapture,
            DisableBracketedPaste,
            LeaveAlternateScreen,
            Show
        );
        let _ = disable_raw_mode();
    }
}
