//! The controller: the one place that changes a running guest. UIs and sockets send it [`Command`]s, read
//! [`Event`]s and draw [`Snapshot`]s; they know nothing else of it.

mod api;

pub use api::*;
