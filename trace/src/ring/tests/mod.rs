//! The consumer against a mock of the guest's side, and against garbage.
#![allow(clippy::unwrap_used)]

mod hostile;
pub(crate) mod mock;
mod protocol;
