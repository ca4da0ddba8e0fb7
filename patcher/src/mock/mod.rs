//! A virtual machine without KVM: memory in a `Vec`, registers by hand, failures on demand. For tests and benches.

mod elf;
mod machine;
mod tables;

pub use elf::{ElfImage, FENTRY_OFFSET, Placed, check_image, linux_like};
pub use machine::{InjectedMemory, MockMachine, MockStopped};
pub use tables::{TableBuilder, flags};
