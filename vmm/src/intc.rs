//! What is pending for a vCPU: the embedded guest's whole interrupt controller.
//!
//! There are few vectors and no priorities beyond "lower first", an interrupt counts as acknowledged when it is
//! injected, and one that is already pending is not made pending twice: a tick that comes late is coalesced.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The lowest vector that can be raised: those below are exceptions.
const FIRST: u8 = 0x20;

/// Pending interrupts and NMI of one vCPU. Anyone raises, only the vCPU's thread takes.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Bit n: vector `FIRST + n`.
    vectors: AtomicU64,
    nmi: AtomicBool,
}

impl Pending {
    /// Makes a vector pending. False when it was so already (or is no vector that can be raised).
    pub(crate) fn raise(&self, vector: u8) -> bool {
        let Some(bit) = vector.checked_sub(FIRST).filter(|b| *b < 64) else { return false };
        self.vectors.fetch_or(1 << bit, Ordering::AcqRel) & 1 << bit == 0
    }

    /// Makes the NMI pending. False when it was so already.
    pub(crate) fn raise_nmi(&self) -> bool {
        !self.nmi.swap(true, Ordering::AcqRel)
    }

    /// The lowest pending vector; it stays pending.
    pub(crate) fn next(&self) -> Option<u8> {
        match self.vectors.load(Ordering::Acquire) {
            0 => None,
            bits => Some(FIRST + bits.trailing_zeros() as u8),
        }
    }

    /// A vector was injected.
    pub(crate) fn clear(&self, vector: u8) {
        if let Some(bit) = vector.checked_sub(FIRST).filter(|b| *b < 64) {
            self.vectors.fetch_and(!(1 << bit), Ordering::AcqRel);
        }
    }

    /// Takes the NMI, if it is pending.
    pub(crate) fn take_nmi(&self) -> bool {
        self.nmi.load(Ordering::Acquire) && self.nmi.swap(false, Ordering::AcqRel)
    }

    /// Whether the NMI is pending.
    pub(crate) fn nmi(&self) -> bool {
        self.nmi.load(Ordering::Acquire)
    }

    /// Whether anything is pending.
    pub(crate) fn any(&self) -> bool {
        self.next().is_some() || self.nmi()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_first_and_coalesced() {
        let p = Pending::default();
        assert!(!p.any());
        assert!(p.raise(0x24));
        assert!(p.raise(0x20));
        assert!(!p.raise(0x20), "coalesced");
        assert_eq!(p.next(), Some(0x20));
        p.clear(0x20);
        assert_eq!(p.next(), Some(0x24));
        p.clear(0x24);
        assert_eq!(p.next(), None);
        assert!(p.raise_nmi());
        assert!(!p.raise_nmi());
        assert!(p.any());
        assert!(p.take_nmi());
        assert!(!p.take_nmi());
    }

    #[test]
    fn exceptions_and_high_vectors_are_refused() {
        let p = Pending::default();
        for v in [0, 0x1f, 0x60, 0xff] {
            assert!(!p.raise(v));
        }
        assert!(!p.any());
        assert!(p.raise(0x5f));
        assert_eq!(p.next(), Some(0x5f));
    }
}
