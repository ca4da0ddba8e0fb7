//! The types of the numbers that everything else passes around.
//!
//! An address, a vCPU, a site and a time stamp are all integers on the wire; giving each its own type makes it
//! impossible to hand one where another is meant.

use std::fmt;

/// A guest virtual address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Gva(pub u64);

/// A guest physical address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Gpa(pub u64);

/// The number of a vCPU, counted from 0. It also names the vCPU's ring.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct VcpuId(pub u8);

/// The index of a site in the site table of one kernel image (sorted by address).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct SiteId(pub u32);

/// A time stamp counter value as the guest read it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Tsc(pub u64);

impl Gva {
    /// The address `bytes` further on, wrapping like the machine does.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Gva {
        Gva(self.0.wrapping_add(bytes))
    }
}

impl Gpa {
    /// The address `bytes` further on, or `None` past the end of the address space.
    #[must_use]
    pub const fn checked_add(self, bytes: u64) -> Option<Gpa> {
        match self.0.checked_add(bytes) {
            Some(a) => Some(Gpa(a)),
            None => None,
        }
    }
}

impl VcpuId {
    /// The vCPU number as an index into per-vCPU tables.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl SiteId {
    /// The site number as an index into per-site tables.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

macro_rules! hex_fmt {
    ($t:ident) => {
        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($t), "({:#x})"), self.0)
            }
        }
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}
macro_rules! dec_fmt {
    ($t:ident) => {
        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($t), "({})"), self.0)
            }
        }
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}
hex_fmt!(Gva);
hex_fmt!(Gpa);
dec_fmt!(VcpuId);
dec_fmt!(SiteId);
dec_fmt!(Tsc);
