//! The machine: [`crate::machine::Machine`] over plain memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use exotrace_trace::ids::{Gpa, VcpuId};
use exotrace_trace::ring::RingMemory;

use crate::machine::{GuestRead, Machine, MemoryError, StopError, Stopped, VcpuState};

/// Injected memory: shared words.
#[derive(Clone, Debug)]
pub struct InjectedMemory {
    words: Arc<[AtomicU64]>,
}

impl InjectedMemory {
    /// Zeroed memory of `len` bytes (rounded up to words).
    #[must_use]
    pub fn new(len: usize) -> InjectedMemory {
        InjectedMemory { words: (0..len.div_ceil(8)).map(|_| AtomicU64::new(0)).collect() }
    }

    fn byte(&self, offset: usize) -> Option<(&AtomicU64, u32)> {
        let word = self.words.get(offset / 8)?;
        Some((word, (offset % 8) as u32 * 8))
    }
}

impl RingMemory for InjectedMemory {
    fn load_u32(&self, offset: usize) -> u32 {
        self.byte(offset & !3).map_or(0, |(w, shift)| (w.load(Ordering::Acquire) >> shift) as u32)
    }

    fn load_u64(&self, offset: usize) -> u64 {
        self.words.get(offset / 8).map_or(0, |w| w.load(Ordering::Acquire))
    }

    fn store_u64(&self, offset: usize, value: u64) {
        if let Some(word) = self.words.get(offset / 8) {
            word.store(value, Ordering::Release);
        }
    }

    fn copy_out(&self, offset: usize, buf: &mut [u8]) {
        for (i, b) in buf.iter_mut().enumerate() {
            *b = self.byte(offset + i).map_or(0, |(w, shift)| (w.load(Ordering::Relaxed) >> shift) as u8);
        }
    }

    fn copy_in(&self, offset: usize, bytes: &[u8]) {
        for (i, &b) in bytes.iter().enumerate() {
            if let Some((w, shift)) = self.byte(offset + i) {
                let old = w.load(Ordering::Relaxed) & !(0xff << shift);
                w.store(old | u64::from(b) << shift, Ordering::Relaxed);
            }
        }
    }

    fn len(&self) -> usize {
        self.words.len() * 8
    }
}

#[derive(Debug)]
struct Ram {
    bytes: Vec<u8>,
    /// Writes that succeed before one fails, if any shall fail.
    writes_left: Option<usize>,
    /// Failed writes before they succeed again.
    failures_left: usize,
    writes: usize,
}

/// A machine of plain memory. RAM begins at GPA 0; the injected memslot is readable as guest memory too, so that
/// walks of the resulting page tables can be tested.
#[derive(Debug)]
pub struct MockMachine {
    ram: Mutex<Ram>,
    stop: Mutex<()>,
    vcpus: Vec<VcpuState>,
    injected: InjectedMemory,
    injected_gpa: Gpa,
}

impl MockMachine {
    /// A machine with that RAM, those vCPUs and `injected_len` bytes of injected memory.
    #[must_use]
    pub fn new(ram: Vec<u8>, vcpus: Vec<VcpuState>, injected_len: usize) -> MockMachine {
        let two_mib = 2u64 << 20;
        let injected_gpa = Gpa((ram.len() as u64).next_multiple_of(two_mib) + two_mib);
        MockMachine {
            ram: Mutex::new(Ram { bytes: ram, writes_left: None, failures_left: 0, writes: 0 }),
            stop: Mutex::new(()),
            vcpus,
            injected: InjectedMemory::new(injected_len),
            injected_gpa,
        }
    }

    /// Lets `after` writes succeed, the next `failures` fail, and all later ones succeed again.
    pub fn fail_writes(&self, after: usize, failures: usize) {
        let mut ram = self.ram();
        ram.writes_left = Some(after);
        ram.failures_left = failures;
    }

    /// How many writes succeeded so far.
    #[must_use]
    pub fn writes(&self) -> usize {
        self.ram().writes
    }

    /// A copy of all RAM.
    #[must_use]
    pub fn ram_copy(&self) -> Vec<u8> {
        self.ram().bytes.clone()
    }

    /// Changes RAM behind everybody's back, as a guest does. Outside RAM it does nothing.
    pub fn poke(&self, gpa: Gpa, bytes: &[u8]) {
        if let Some(place) = slice(&mut self.ram().bytes, gpa, bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    fn ram(&self) -> MutexGuard<'_, Ram> {
        self.ram.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn slice(bytes: &mut [u8], gpa: Gpa, len: usize) -> Option<&mut [u8]> {
    let from = usize::try_from(gpa.0).ok()?;
    bytes.get_mut(from..from.checked_add(len)?)
}

impl GuestRead for MockMachine {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), MemoryError> {
        let len = buf.len();
        if let Some(from) = slice(&mut self.ram().bytes, gpa, len) {
            buf.copy_from_slice(from);
            return Ok(());
        }
        let offset = gpa.0.checked_sub(self.injected_gpa.0);
        match offset.and_then(|o| o.checked_add(len as u64)) {
            Some(end) if end <= self.injected.len() as u64 => {
                self.injected.copy_out(end as usize - len, buf);
                Ok(())
            }
            _ => Err(MemoryError { gpa, len }),
        }
    }
}

impl Machine for MockMachine {
    type Stopped<'a> = MockStopped<'a>;
    type Injected = InjectedMemory;

    fn vcpus(&self) -> u8 {
        self.vcpus.len() as u8
    }

    fn stop(&self) -> Result<MockStopped<'_>, StopError> {
        Ok(MockStopped { machine: self, _only: self.stop.lock().unwrap_or_else(PoisonError::into_inner) })
    }

    fn injected(&self) -> InjectedMemory {
        self.injected.clone()
    }

    fn injected_gpa(&self) -> Gpa {
        self.injected_gpa
    }

    fn injected_len(&self) -> u64 {
        self.injected.len() as u64
    }
}

/// The guard over a [`MockMachine`].
#[derive(Debug)]
pub struct MockStopped<'a> {
    machine: &'a MockMachine,
    _only: MutexGuard<'a, ()>,
}

impl GuestRead for MockStopped<'_> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), MemoryError> {
        self.machine.read(gpa, buf)
    }
}

impl Stopped for MockStopped<'_> {
    fn write(&mut self, gpa: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        let error = MemoryError { gpa, len: bytes.len() };
        let mut ram = self.machine.ram();
        match (ram.writes_left, ram.failures_left) {
            (Some(0), 1..) => {
                ram.failures_left -= 1;
                return Err(error);
            }
            (Some(n @ 1..), _) => ram.writes_left = Some(n - 1),
            _ => {}
        }
        slice(&mut ram.bytes, gpa, bytes.len()).ok_or(error)?.copy_from_slice(bytes);
        ram.writes += 1;
        Ok(())
    }

    fn vcpu(&self, vcpu: VcpuId) -> Option<VcpuState> {
        self.machine.vcpus.get(vcpu.index()).copied()
    }

    fn stop_time(&self) -> Duration {
        Duration::ZERO
    }
}
