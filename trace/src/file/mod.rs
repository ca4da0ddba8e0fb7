//! The trace file: one self-contained file that says what was traced, how time runs, what was recorded and what was
//! lost. `trace/FORMAT.md` describes its bytes.
//!
//! [`TraceWriter`] puts blocks into a file (or any [`Destination`]) so that a killed process or a full disk leaves a
//! readable file. [`TraceReader`] opens such a file, which may come from anyone and be damaged in any way, and
//! [`Merge`] reads it in order of time with little memory.

mod codec;
mod dest;
mod error;
pub mod format;
mod merge;
mod model;
mod reader;
mod tables;
mod writer;

#[cfg(test)]
mod tests;

pub use dest::Destination;
pub use error::{ReadError, WriteError};
pub use merge::{Item, Merge, Record, Tally, Vcpus};
pub use model::{
    Ending, Event, EventKind, Loss, LossReason, Meta, Pause, Site, Symbol, VcpuTotals, policy_name, printable,
};
pub use reader::{Damage, Trace, TraceReader};
pub use tables::{SiteTable, SymbolTable};
pub use writer::{TraceWriter, Written};
