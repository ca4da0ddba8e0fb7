//! Boot protocols: what lies in memory and in the registers before a guest's first instruction.

pub(crate) mod embedded;
pub(crate) mod linux;
