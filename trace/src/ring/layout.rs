//! The record and ring layout: the contract between the trampolines that run in the guest and the consumer here.
//!
//! Every number that both sides must agree on lives in this file. `docs/ring.md` explains the protocol and argues
//! why it is safe against interrupts, NMIs, preemption and migration.
//!
//! # Memory
//!
//! One control page per vCPU, mapped in the guest at `gs_base(vcpu) + HEAD_OFF` (one constant for all vCPUs), and one
//! array of [`RECORD_BYTES`]-sized slots per vCPU; the slot arrays of all vCPUs lie one after another, each
//! `records << RECORD_SHIFT` bytes long.
//!
//! # Cursor words
//!
//! A cursor is a 64-bit word: the ring number in the top 8 bits, a 56-bit index below that only grows. A slot's
//! position is `index & (records - 1)`. All cursors start at `index = records` (not 0), so that the tag of the first
//! lap differs from the zero bytes of fresh memory.

use crate::ids::{Gva, Tsc, VcpuId};

/// Size of a record and of a slot, in bytes.
pub const RECORD_BYTES: usize = 32;
/// `log2` of [`RECORD_BYTES`].
pub const RECORD_SHIFT: u32 = 5;
/// Where the ring number starts in a cursor word.
pub const CURSOR_RING_SHIFT: u32 = 56;
/// The index part of a cursor word.
pub const CURSOR_INDEX_MASK: u64 = (1 << CURSOR_RING_SHIFT) - 1;
/// Rings (vCPUs) at most.
pub const MAX_RINGS: usize = 16;
/// The smallest ring, in records.
pub const MIN_RECORDS: u32 = 1 << 6;
/// The largest ring, in records (32 MiB of slots).
pub const MAX_RECORDS: u32 = 1 << 20;

/// Offsets in a control page, in bytes. Words the guest writes and words the host writes are on separate cache lines.
pub mod ctrl {
    /// Size of a control page.
    pub const BYTES: usize = 4096;
    /// u64, guest: cursor of the next slot to reserve.
    pub const HEAD: usize = 0;
    /// u64, guest: records dropped because the ring was full (`drop` policy only).
    pub const LOST: usize = 8;
    /// u64, host: cursor of the last slot (inclusive) that the fast path may reserve. Reserving the slot right after
    /// it rings the doorbell; host sets it to [`HARD_LAST`] when it wants no doorbell.
    pub const SOFT_LAST: usize = 64;
    /// u64, host: cursor of the last slot (inclusive) that may be reserved at all.
    pub const HARD_LAST: usize = 72;
}

/// Port that a trampoline writes to when it reserves the first slot past `SOFT_LAST` (an ioeventfd; no VM exit).
pub const DOORBELL_PORT: u16 = 0xe70;
/// Port that a trampoline writes to when its ring is full in `block` policy. The VMM drains and lets it retry.
pub const FULL_PORT: u16 = 0xe74;

/// Port that a Linux guest writes to, by a stub in the way of its return, when it is about to patch its own text …
pub const PATCH_BEGIN_PORT: u16 = 0xe78;
/// … and when it has done so.
pub const PATCH_END_PORT: u16 = 0xe7c;

/// What happens when a ring is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FullPolicy {
    /// The newest record is dropped and counted, per vCPU.
    Drop,
    /// The oldest record is overwritten: the ring always holds the last `records` ones (flight recorder).
    Overwrite,
    /// The vCPU waits until the host has made room: nothing is lost.
    Block,
}

/// A cursor word taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The ring that the cursor belongs to.
    pub ring: VcpuId,
    /// The index, below 2^56.
    pub index: u64,
}

impl Cursor {
    /// Takes a raw word apart. Any word is some cursor; whether it makes sense is for the caller to check.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Cursor {
        Cursor { ring: VcpuId((raw >> CURSOR_RING_SHIFT) as u8), index: raw & CURSOR_INDEX_MASK }
    }

    /// The word as it lies in memory.
    #[must_use]
    pub const fn to_raw(self) -> u64 {
        ((self.ring.0 as u64) << CURSOR_RING_SHIFT) | (self.index & CURSOR_INDEX_MASK)
    }
}

/// Offsets in a record, in bytes. Little-endian.
pub mod rec {
    /// u64: TSC.
    pub const TSC: usize = 0;
    /// u64: return address of the traced function, the place it was called from.
    pub const PARENT: usize = 8;
    /// u32: low half of RSP in the trampoline, [`super::SP_BELOW_ENTRY`] below what it was at the function's first
    /// instruction.
    pub const SP: usize = 16;
    /// u32: kind (bits 0..8), reserved (8..16), tracer mask id (16..32); an immediate of the trampoline.
    pub const META: usize = 20;
    /// u32: low half of the address right after the 5-byte site.
    pub const IP: usize = 24;
    /// u32: low half of the slot's index; stored last, says that the record is complete.
    pub const TAG: usize = 28;
}

/// How far [`rec::SP`] lies below RSP at the function's first instruction (which points at the function's return address):
/// the trampoline's return address and two saved registers.
pub const SP_BELOW_ENTRY: u32 = 24;

/// Kind of a record: a function was entered.
pub const KIND_ENTRY: u8 = 1;

/// A record, copied out of the ring. All of it was written by the guest: any bit pattern can turn up.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Default,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::Immutable,
    zerocopy::KnownLayout,
)]
#[repr(C)]
pub struct RawRecord {
    /// See [`rec::TSC`].
    pub tsc: u64,
    /// See [`rec::PARENT`].
    pub parent: u64,
    /// See [`rec::SP`].
    pub sp: u32,
    /// See [`rec::META`].
    pub meta: u32,
    /// See [`rec::IP`].
    pub ip: u32,
    /// See [`rec::TAG`].
    pub tag: u32,
}

const _: () = assert!(std::mem::size_of::<RawRecord>() == RECORD_BYTES);

impl RawRecord {
    /// The time stamp.
    #[must_use]
    pub const fn tsc(&self) -> Tsc {
        Tsc(self.tsc)
    }
    /// The caller's address.
    #[must_use]
    pub const fn parent(&self) -> Gva {
        Gva(self.parent)
    }
    /// Low half of RSP at the function's first instruction.
    #[must_use]
    pub const fn entry_sp(&self) -> u32 {
        self.sp.wrapping_add(SP_BELOW_ENTRY)
    }
    /// The kind byte.
    #[must_use]
    pub const fn kind(&self) -> u8 {
        self.meta as u8
    }
    /// The tracer mask id.
    #[must_use]
    pub const fn mask_id(&self) -> u16 {
        (self.meta >> 16) as u16
    }
}
