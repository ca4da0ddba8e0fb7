//! Records, rings, trace files and reports. Knows nothing of KVM and builds on any OS.

pub mod clock;
pub mod collect;
pub mod file;
pub mod ids;
pub mod report;
pub mod ring;
