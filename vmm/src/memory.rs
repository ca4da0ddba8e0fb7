//! Guest memory: RAM, which only this crate can write, and the injected memslot, which belongs to the host.
//!
//! No Rust reference into either is ever made: the guest writes them at any time, so bytes are copied out and judged
//! afterwards.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use exotrace_patcher::machine::MemoryError;
use exotrace_trace::ids::Gpa;
use exotrace_trace::ring::RingMemory;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, MmapRegion};

use crate::error::Error;
use crate::layout::{HIGH_RAM_GPA, HOLE_GPA};

/// Guest RAM, from GPA 0 up; what does not fit below the hole for devices goes above 4 GiB. Private to the crate: writes
/// go through a guard that exists while the vCPUs stand.
#[derive(Debug)]
pub(crate) struct Ram {
    mem: GuestMemoryMmap<()>,
    len: u64,
}

impl Ram {
    /// Maps `len` bytes, all zero.
    pub(crate) fn new(len: u64) -> Result<Ram, Error> {
        let low = len.min(HOLE_GPA);
        let mut ranges = vec![(GuestAddress(0), low as usize)];
        if len > low {
            ranges.push((GuestAddress(HIGH_RAM_GPA), (len - low) as usize));
        }
        let mem = GuestMemoryMmap::from_ranges(&ranges)
            .map_err(|e| Error::Map { bytes: len, source: std::io::Error::other(e) })?;
        Ok(Ram { mem, len })
    }

    /// Its size in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// What loaders write to.
    pub(crate) fn backend(&self) -> &GuestMemoryMmap<()> {
        &self.mem
    }

    /// Its contiguous parts, lowest first: GPA, bytes, where it lies in this process.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        self.mem.iter().map(|r| (r.start_addr().0, r.len(), r.as_ptr() as u64))
    }

    /// First GPA after the RAM below the hole.
    pub(crate) fn low_end(&self) -> u64 {
        self.len.min(HOLE_GPA)
    }

    /// Copies out.
    pub(crate) fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), MemoryError> {
        let len = buf.len();
        self.check(gpa, len)?;
        self.mem.read_slice(buf, GuestAddress(gpa.0)).map_err(|_| MemoryError { gpa, len })
    }

    /// Copies in.
    pub(crate) fn write(&self, gpa: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        let len = bytes.len();
        self.check(gpa, len)?;
        self.mem.write_slice(bytes, GuestAddress(gpa.0)).map_err(|_| MemoryError { gpa, len })
    }

    /// Checked as a whole before the first byte is copied, so a copy never ends halfway.
    fn check(&self, gpa: Gpa, len: usize) -> Result<(), MemoryError> {
        let end = gpa.checked_add(len as u64).ok_or(MemoryError { gpa, len })?;
        // The parts never touch, so an access lies in one of them or not in RAM.
        let inside = self.parts().any(|(start, bytes, _)| gpa.0 >= start && end.0 <= start + bytes);
        if inside { Ok(()) } else { Err(MemoryError { gpa, len }) }
    }
}

/// The injected memslot: host-owned memory that the guest does not know of. Handles are cheap to clone and keep the
/// memory mapped, also after the VM is gone.
///
/// All accesses are atomic (relaxed for copies), so they are defined whatever the guest writes meanwhile.
#[derive(Clone, Debug)]
pub struct InjectedMemory {
    // The address is cached: loads are on the hot path of the ring's consumer.
    base: NonNull<u8>,
    len: usize,
    _keep: Arc<MmapRegion<()>>,
}

// SAFETY: the pointer is to shared memory that lives as long as `_keep`, and every access through it is atomic.
unsafe impl Send for InjectedMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for InjectedMemory {}

impl InjectedMemory {
    /// Maps `len` bytes, all zero, in memory by the time this returns: a page that the guest's first record touches
    /// would cost thousands of cycles. Large pages make the host's own tables, which follow, cheap as well.
    pub(crate) fn new(len: u64) -> Result<InjectedMemory, Error> {
        let map = |e| Error::Map { bytes: len, source: std::io::Error::other(e) };
        let region = MmapRegion::<()>::new(len as usize).map_err(map)?;
        for advice in [libc::MADV_HUGEPAGE, libc::MADV_POPULATE_WRITE] {
            // SAFETY: the range is a mapping of our own that nobody uses yet, and neither advice changes what it holds.
            // Neither is needed for it to work: kernels that don't know them leave the pages to the first touch.
            let _ = unsafe { libc::madvise(region.as_ptr().cast(), region.size(), advice) };
        }
        let base = NonNull::new(region.as_ptr())
            .ok_or_else(|| Error::Map { bytes: len, source: std::io::Error::other("mapped at address 0") })?;
        Ok(InjectedMemory { base, len: region.size(), _keep: Arc::new(region) })
    }

    /// Where it lies in this process.
    pub(crate) fn host_address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// The address of `size` bytes at `offset`, if they lie inside.
    #[inline]
    fn at(&self, offset: usize, size: usize) -> Option<*mut u8> {
        let end = offset.checked_add(size)?;
        if end > self.len {
            return None;
        }
        Some(self.base.as_ptr().wrapping_add(offset))
    }

    /// An aligned address of `size` bytes; the base is page aligned.
    #[inline]
    fn aligned(&self, offset: usize, size: usize) -> Option<*mut u8> {
        if offset.is_multiple_of(size) { self.at(offset, size) } else { None }
    }

    #[inline]
    fn word32(&self, offset: usize) -> Option<&AtomicU32> {
        let p = self.aligned(offset, 4)?.cast::<u32>();
        // SAFETY: `aligned` checked bounds and alignment; the mapping lives as long as `self`; all accesses are atomic.
        Some(unsafe { AtomicU32::from_ptr(p) })
    }

    #[inline]
    fn word64(&self, offset: usize) -> Option<&AtomicU64> {
        let p = self.aligned(offset, 8)?.cast::<u64>();
        // SAFETY: `aligned` checked bounds and alignment; the mapping lives as long as `self`; all accesses are atomic.
        Some(unsafe { AtomicU64::from_ptr(p) })
    }

    #[inline]
    fn byte(&self, offset: usize) -> Option<&AtomicU8> {
        let p = self.at(offset, 1)?;
        // SAFETY: `at` checked bounds; the mapping lives as long as `self`; all accesses are atomic.
        Some(unsafe { AtomicU8::from_ptr(p) })
    }
}

impl RingMemory for InjectedMemory {
    #[inline]
    fn load_u32(&self, offset: usize) -> u32 {
        self.word32(offset).map_or(0, |w| w.load(Ordering::Acquire))
    }

    #[inline]
    fn load_u64(&self, offset: usize) -> u64 {
        self.word64(offset).map_or(0, |w| w.load(Ordering::Acquire))
    }

    #[inline]
    fn store_u64(&self, offset: usize, value: u64) {
        if let Some(w) = self.word64(offset) {
            w.store(value, Ordering::Release);
        }
    }

    #[inline]
    fn copy_out(&self, offset: usize, buf: &mut [u8]) {
        if self.at(offset, buf.len()).is_none() {
            buf.fill(0);
            return;
        }
        let mut at = offset;
        // Word by word while both sides allow it; records are 32 bytes and aligned, so that is the whole of them.
        let whole = if at.is_multiple_of(8) { buf.len() & !7 } else { 0 };
        let (words, rest) = buf.split_at_mut(whole);
        for chunk in words.chunks_exact_mut(8) {
            let word = self.word64(at).map_or(0, |w| w.load(Ordering::Relaxed));
            chunk.copy_from_slice(&word.to_le_bytes());
            at += 8;
        }
        for b in rest {
            *b = self.byte(at).map_or(0, |a| a.load(Ordering::Relaxed));
            at += 1;
        }
    }

    fn copy_in(&self, offset: usize, bytes: &[u8]) {
        if self.at(offset, bytes.len()).is_none() {
            return;
        }
        let mut at = offset;
        let whole = if at.is_multiple_of(8) { bytes.len() & !7 } else { 0 };
        let (words, rest) = bytes.split_at(whole);
        for chunk in words.chunks_exact(8) {
            let word = chunk.try_into().map_or(0, u64::from_le_bytes);
            if let Some(w) = self.word64(at) {
                w.store(word, Ordering::Relaxed);
            }
            at += 8;
        }
        for b in rest {
            if let Some(a) = self.byte(at) {
                a.store(*b, Ordering::Relaxed);
            }
            at += 1;
        }
    }

    #[inline]
    fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ram_is_bounded() {
        let ram = Ram::new(4 << 20).unwrap();
        ram.write(Gpa((4 << 20) - 2), &[1, 2]).unwrap();
        let err = MemoryError { gpa: Gpa((4 << 20) - 1), len: 2 };
        assert_eq!(ram.write(err.gpa, &[9, 9]), Err(err.clone()));
        assert_eq!(ram.read(err.gpa, &mut [0; 2]), Err(err));
        assert!(ram.read(Gpa(u64::MAX), &mut [0; 2]).is_err());
        let mut b = [0; 2];
        ram.read(Gpa((4 << 20) - 2), &mut b).unwrap();
        assert_eq!(b, [1, 2], "a refused write changed something");
    }

    #[test]
    fn injected_memory_is_bounded_and_copies_are_exact() {
        let m = InjectedMemory::new(2 << 20).unwrap();
        let end = m.len();
        assert_eq!(end, 2 << 20);
        m.store_u64(end - 8, 7);
        m.store_u64(end - 4, u64::MAX);
        m.store_u64(end, u64::MAX);
        m.store_u64(usize::MAX - 7, u64::MAX);
        m.copy_in(end - 7, &[0xff; 8]);
        assert_eq!((m.load_u64(end - 8), m.load_u64(end), m.load_u64(usize::MAX)), (7, 0, 0));
        assert_eq!((m.load_u32(end - 8), m.load_u32(end - 7), m.load_u32(end)), (7, 0, 0));
        let mut buf = [0xaa; 16];
        m.copy_out(end - 8, &mut buf);
        assert_eq!(buf, [0; 16]);
        let text: Vec<u8> = (0..100).collect();
        for offset in [0, 1, 3, 8, 13] {
            for len in [0, 1, 7, 8, 9, 32, 100] {
                m.copy_in(offset, &[0; 120]);
                m.copy_in(offset, &text[..len]);
                let mut out = vec![0xee; len + 2];
                m.copy_out(offset, &mut out);
                assert_eq!(out[..len], text[..len]);
                assert_eq!(out[len..], [0, 0]);
            }
        }
        let handle = m.clone();
        drop(m);
        assert_eq!(handle.load_u64(end - 8), 7);
    }

    /// Prints what the consumer's hot path costs; run it with `--release -- --ignored --nocapture`.
    #[test]
    #[ignore = "a measurement"]
    fn speed() {
        use std::hint::black_box;
        const N: usize = 10_000_000;
        let m = InjectedMemory::new(2 << 20).unwrap();
        let time = |what: &str, f: &dyn Fn(usize)| {
            let start = std::time::Instant::now();
            (0..N).for_each(|i| f((i * 32) & 0x1f_ffe0));
            println!("{what}: {:.2} ns", start.elapsed().as_nanos() as f64 / N as f64);
        };
        time("load_u32", &|at| {
            black_box(m.load_u32(at));
        });
        time("copy_out of a record", &|at| {
            let mut r = [0; 32];
            m.copy_out(at, &mut r);
            black_box(r);
        });
    }
}
