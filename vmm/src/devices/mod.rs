//! Devices of the virtual machine.

pub(crate) mod serial;
pub(crate) mod virtio;
