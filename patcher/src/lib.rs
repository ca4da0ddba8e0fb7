//! Kernel images, filters, trampolines, the patch engine, injection and the controller. Knows nothing of KVM.

pub mod control;
pub mod engine;
pub mod filter;
pub mod image;
pub mod inject;
pub mod machine;
#[cfg(any(test, feature = "mock"))]
pub mod mock;
pub mod paging;
pub mod plan;
pub mod trampoline;
