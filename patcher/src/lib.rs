//! Kernel images, filters, trampolines, the patch engine, injection and the controller. Knows nothing of KVM.

pub mod control;
pub mod machine;
pub mod trampoline;
