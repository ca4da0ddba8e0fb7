//! The embedded guest: a small instrumented kernel (C and assembly) compiled by the build script.

/// Numbers that the guest and the VMM agree on.
pub mod abi {
    include!("abi.rs");
}
