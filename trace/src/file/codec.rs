//! Payloads to bytes and back. Decoders take any bytes: they return `None` for a payload that breaks its rules.
//!
//! A payload may be longer than its fields need: later versions append fields, and readers ignore what they don't know.

use super::format::{MAX_JSON_BYTES, MAX_NAME_BYTES, RECORDS_HEADER_BYTES};
use super::model::{Event, EventKind, Loss, LossReason, Meta, VcpuTotals, printable};
use super::tables::{SiteTable, SymbolTable};
use crate::clock::Clock;
use crate::ids::{Gva, SiteId, Tsc, VcpuId};
use crate::ring::layout::{CURSOR_INDEX_MASK, MAX_RINGS, RECORD_BYTES, RawRecord};

/// Reads little-endian numbers off the front of a slice; every read is checked.
pub(super) struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[b]| b)
    }
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    /// A vCPU that a ring can have.
    fn vcpu(&mut self) -> Option<VcpuId> {
        self.u8().filter(|&v| usize::from(v) < MAX_RINGS).map(VcpuId)
    }
    /// A name: u16 length and UTF-8. Bytes that are not UTF-8 and control characters are replaced.
    fn name(&mut self) -> Option<String> {
        let len = usize::from(self.u16()?);
        if len > MAX_NAME_BYTES {
            return None;
        }
        let text = String::from_utf8_lossy(self.take(len)?);
        Some(printable(&text).into_owned())
    }
}

/// Appends a name, cut to what readers accept.
pub(super) fn put_name(out: &mut Vec<u8>, name: &str) {
    let end = (0..=name.len().min(MAX_NAME_BYTES)).rev().find(|&n| name.is_char_boundary(n)).unwrap_or(0);
    let name = &name[..end];
    let len = u16::try_from(name.len()).expect("MAX_NAME_BYTES fits");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(name.as_bytes());
}

pub(super) fn put_symbol(out: &mut Vec<u8>, s: &super::Symbol<'_>) {
    out.extend_from_slice(&s.addr.0.to_le_bytes());
    out.extend_from_slice(&s.size.to_le_bytes());
    put_name(out, s.name);
}

pub(super) fn put_site(out: &mut Vec<u8>, s: &super::Site<'_>) {
    out.extend_from_slice(&s.id.0.to_le_bytes());
    out.extend_from_slice(&s.addr.0.to_le_bytes());
    put_name(out, s.function);
}

/// Reads a count and that many symbols. Those before a mistake are kept; false if there was one.
pub(super) fn get_symbols(payload: &[u8], into: &mut SymbolTable) -> bool {
    entries(payload, |b| {
        let (addr, size) = (Gva(b.u64()?), b.u32()?);
        into.push(&super::Symbol { addr, size, name: &b.name()? }).then_some(())
    })
}

/// Reads a count and that many sites. Those before a mistake are kept; false if there was one.
pub(super) fn get_sites(payload: &[u8], into: &mut SiteTable) -> bool {
    entries(payload, |b| {
        let (id, addr) = (SiteId(b.u32()?), Gva(b.u64()?));
        into.push(&super::Site { id, addr, function: &b.name()? }).then_some(())
    })
}

fn entries(payload: &[u8], mut one: impl FnMut(&mut Bytes<'_>) -> Option<()>) -> bool {
    let mut b = Bytes(payload);
    let Some(count) = b.u32() else { return false };
    // Each entry takes bytes of the payload or fails, so a false count ends the loop early.
    (0..count).all(|_| one(&mut b).is_some())
}

pub(super) fn clock(c: &Clock) -> Vec<u8> {
    [c.tsc_hz(), c.tsc_start().0, c.wall_start_ns(), c.mono_start_ns()].iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub(super) fn get_clock(payload: &[u8]) -> Option<Clock> {
    let mut b = Bytes(payload);
    Clock::new(b.u64()?, Tsc(b.u64()?), b.u64()?, b.u64()?).ok()
}

pub(super) fn loss(l: &Loss) -> Vec<u8> {
    let mut out = vec![l.vcpu.0, l.reason.code(), 0, 0, 0, 0, 0, 0];
    out.extend_from_slice(&l.count.to_le_bytes());
    out.extend_from_slice(&l.before_index.to_le_bytes());
    out
}

pub(super) fn get_loss(payload: &[u8]) -> Option<Loss> {
    let mut b = Bytes(payload);
    let (vcpu, reason) = (b.vcpu()?, LossReason::from_code(b.u8()?));
    b.take(6)?;
    Some(Loss { vcpu, reason, count: b.u64()?, before_index: b.u64()? })
}

pub(super) fn get_meta(payload: &[u8]) -> Option<Meta> {
    (payload.len() <= MAX_JSON_BYTES).then(|| serde_json::from_slice(payload).ok())?
}

pub(super) fn event(e: &Event) -> Vec<u8> {
    let mut out = e.tsc.0.to_le_bytes().to_vec();
    serde_json::to_writer(&mut out, &e.kind).expect("an event is plain data and a Vec takes it");
    out
}

pub(super) fn get_event(payload: &[u8]) -> Option<Event> {
    let mut b = Bytes(payload);
    let tsc = Tsc(b.u64()?);
    let kind = (b.0.len() <= MAX_JSON_BYTES).then(|| serde_json::from_slice::<EventKind>(b.0).ok())??;
    Some(Event { tsc, kind })
}

pub(super) fn end(totals: &[VcpuTotals]) -> Vec<u8> {
    let count = u32::try_from(totals.len()).expect("totals are at most MAX_RINGS");
    let mut out = count.to_le_bytes().to_vec();
    for t in totals {
        out.extend_from_slice(&[t.vcpu.0, 0, 0, 0, 0, 0, 0, 0]);
        for v in [t.delivered, t.lost, t.corrupt, t.inverted, t.pending] {
            out.extend_from_slice(&v.to_le_bytes());
        }
    }
    out
}

pub(super) fn get_end(payload: &[u8]) -> Option<Vec<VcpuTotals>> {
    let mut b = Bytes(payload);
    let count = b.u32()? as usize;
    if count > MAX_RINGS {
        return None;
    }
    let mut one = || {
        let vcpu = b.vcpu()?;
        b.take(7)?;
        Some(VcpuTotals {
            vcpu,
            delivered: b.u64()?,
            lost: b.u64()?,
            corrupt: b.u64()?,
            inverted: b.u64()?,
            pending: b.u64()?,
        })
    };
    (0..count).map(|_| one()).collect()
}

/// What precedes the records of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordsHeader {
    pub vcpu: VcpuId,
    pub count: u32,
    pub first_index: u64,
}

impl RecordsHeader {
    pub fn to_bytes(self) -> [u8; RECORDS_HEADER_BYTES] {
        let mut h = [0; RECORDS_HEADER_BYTES];
        h[0] = self.vcpu.0;
        h[4..8].copy_from_slice(&self.count.to_le_bytes());
        h[8..].copy_from_slice(&self.first_index.to_le_bytes());
        h
    }

    /// Reads one; `payload_len` is the block's, which the count must match.
    pub fn from_bytes(h: &[u8; RECORDS_HEADER_BYTES], payload_len: u32) -> Option<RecordsHeader> {
        let mut b = Bytes(h);
        let vcpu = b.vcpu()?;
        b.take(3)?;
        let (count, first_index) = (b.u32()?, b.u64()?);
        let fits = count > 0
            && count as usize <= super::format::MAX_BLOCK_RECORDS
            && payload_len as usize == RECORDS_HEADER_BYTES + count as usize * RECORD_BYTES
            && first_index <= CURSOR_INDEX_MASK;
        fits.then_some(RecordsHeader { vcpu, count, first_index })
    }
}

/// Turns records from the file's byte order into this machine's, or back. Nothing to do on a little-endian machine.
pub(super) fn swap_if_big_endian(records: &mut [RawRecord]) {
    if cfg!(target_endian = "big") {
        for r in records {
            r.tsc = r.tsc.swap_bytes();
            r.parent = r.parent.swap_bytes();
            for half in [&mut r.sp, &mut r.meta, &mut r.ip, &mut r.tag] {
                *half = half.swap_bytes();
            }
        }
    }
}
