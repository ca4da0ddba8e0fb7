//! What can go wrong while the UI owns the terminal.

use std::io;

/// Why the UI could not start or go on. The terminal has been restored when one of these is returned.
#[derive(Debug, thiserror::Error)]
pub enum TuiError {
    /// Standard input or output is not a terminal.
    #[error("standard input and output must be a terminal to show the UI; run with --headless instead")]
    NoTerminal,
    /// The terminal could not be prepared.
    #[error("the terminal could not be set up for the UI")]
    Setup(#[source] io::Error),
    /// Reading keys or drawing failed in the middle.
    #[error("the terminal stopped working")]
    Terminal(#[source] io::Error),
    /// The handlers for SIGTERM and SIGINT could not be installed.
    #[error("signal handlers for the UI could not be installed")]
    Signals(#[source] io::Error),
    /// A second UI in the same process.
    #[error("a terminal UI is already running in this process")]
    Busy,
    /// Another thread panicked; its message was printed after the terminal had been restored.
    #[error("a thread of the program panicked while the UI ran; its message is above")]
    Panicked,
}
