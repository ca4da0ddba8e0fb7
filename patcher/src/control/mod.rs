//! The controller: the one place that changes a running guest. UIs and sockets send it [`Command`]s, read
//! [`Event`]s and draw [`Snapshot`]s; they know nothing else of it.

mod api;
mod controller;
mod live;
mod output;
mod session;
mod target;

pub use api::*;
pub use controller::{Controller, Setup, StartError};
pub use session::{Change, Lookup, MachineCollector, RingOptions, Session, SessionError};
pub use target::{FullHook, Target, TargetEvent};
