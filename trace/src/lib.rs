//! Records, rings, trace files and reports. Knows nothing of KVM and builds on any OS.

pub mod ids;
pub mod ring;
