//! The controller: the one place that changes a running guest. UIs and sockets send it [`Command`]s, read
//! [`Event`]s and draw [`Snapshot`]s; they know nothing else of it.

mod api;
mod controller;
mod guard;
mod linux;
mod live;
mod output;
mod session;
mod target;
mod worker;

pub use api::*;
pub use controller::{Boot, Controller, Setup, StartError};
pub use session::{Change, Lookup, MachineCollector, RingOptions, Session, SessionError, Tables};
pub use target::{FullHook, PatchHook, Target, TargetEvent};

/// An error with its causes in one line, for events and messages.
#[must_use]
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(c) = cause {
        text = format!("{text}: {c}");
        cause = c.source();
    }
    text
}
