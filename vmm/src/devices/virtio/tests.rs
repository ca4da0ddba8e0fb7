//! The devices, driven as a guest drives them: through their registers and queues in memory.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::PathBuf;

use exotrace_trace::ids::Gpa;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::*;
use crate::config::{Disk, DiskMode};
use crate::memory::Ram;

const DESC: u64 = 0x1000;
const AVAIL: u64 = 0x2000;
const USED: u64 = 0x3000;
const DATA: u64 = 0x10_0000;
/// Descriptor flags.
const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// A guest's driver for one queue.
struct Driver {
    ram: Ram,
    device: MmioDevice,
    irq: EventFd,
    queue: u32,
    avail: u16,
}

impl Driver {
    fn new(device: impl Device + 'static, queue: u32) -> Driver {
        let irq = EventFd::new(EFD_NONBLOCK).unwrap();
        let device = MmioDevice::new(Box::new(device), irq.try_clone().unwrap()).unwrap();
        let d = Driver { ram: Ram::new(4 << 20).unwrap(), device, irq, queue, avail: 0 };
        for (register, value) in [(0x70, 1), (0x70, 3), (0x24, 1), (0x20, 1), (0x70, 0xb), (0x30, queue), (0x38, 8)] {
            d.set(register, value);
        }
        assert_eq!(d.get(0x70), 0xb, "the features were taken");
        for (register, value) in [(0x80, DESC), (0x90, AVAIL), (0xa0, USED), (0x44, 1), (0x70, 0xf)] {
            d.set(register, value as u32);
        }
        assert_eq!((d.get(0x44), d.get(0x70)), (1, 0xf));
        d
    }

    fn get(&self, register: u64) -> u32 {
        let mut b = [0; 4];
        self.device.read(register, &mut b);
        u32::from_le_bytes(b)
    }

    fn set(&self, register: u64, value: u32) {
        self.device.write(register, &value.to_le_bytes(), &self.ram);
    }

    fn put(&self, gpa: u64, bytes: &[u8]) {
        self.ram.write(Gpa(gpa), bytes).unwrap();
    }

    fn bytes(&self, gpa: u64, len: usize) -> Vec<u8> {
        let mut b = vec![0; len];
        self.ram.read(Gpa(gpa), &mut b).unwrap();
        b
    }

    fn descriptor(&self, n: u16, gpa: u64, len: u32, flags: u16, next: u16) {
        let b = [&gpa.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
        self.put(DESC + 16 * u64::from(n), &b);
    }

    /// Offers the chain that begins with descriptor 0, without ringing.
    fn offer(&mut self) {
        self.put(AVAIL + 4 + 2 * u64::from(self.avail % 8), &[0, 0]);
        self.avail += 1;
        self.put(AVAIL + 2, &self.avail.to_le_bytes());
    }

    fn ring(&self) {
        self.set(0x50, self.queue);
    }

    /// Used entries so far, and the length in the last.
    fn used(&self) -> (u16, u32) {
        let idx = u16::from_le_bytes(self.bytes(USED + 2, 2).try_into().unwrap());
        let last = USED + 4 + 8 * u64::from(idx.wrapping_sub(1) % 8);
        (idx, u32::from_le_bytes(self.bytes(last + 4, 4).try_into().unwrap()))
    }

    /// A block request of `len` bytes at DATA; the result is its status.
    fn block(&mut self, kind: u32, sector: u64, len: u32) -> u8 {
        self.put(0x4000, &[&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat());
        self.put(0x5000, &[0xee]);
        self.descriptor(0, 0x4000, 16, NEXT, 1);
        self.descriptor(1, DATA, len, NEXT | if kind == 1 { 0 } else { WRITE }, 2);
        self.descriptor(2, 0x5000, 1, WRITE, 0);
        self.offer();
        self.ring();
        self.bytes(0x5000, 1)[0]
    }
}

/// A disk of four sectors, the n-th full of n, whose file is gone when this is.
struct DiskFile(PathBuf);

impl DiskFile {
    fn new(name: &str) -> DiskFile {
        let path = std::env::temp_dir().join(format!("exotrace-{name}-{}.img", std::process::id()));
        let mut f = std::fs::File::create(&path).unwrap();
        (0..4).for_each(|n| f.write_all(&[n; 512]).unwrap());
        DiskFile(path)
    }

    fn open(&self, mode: DiskMode) -> Result<Block, crate::Error> {
        Block::open(&Disk { path: self.0.clone(), mode })
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_disk_is_read_and_its_changes_are_kept_aside() {
    let file = DiskFile::new("cow");
    let mut d = Driver::new(file.open(DiskMode::CopyOnWrite).unwrap(), 0);
    assert_eq!((d.get(0x0), d.get(0x4), d.get(0x8)), (0x7472_6976, 2, 2));
    assert_eq!(d.get(0x100), 4, "capacity");
    assert_eq!(d.block(0, 1, 1024), 0);
    assert_eq!(d.bytes(DATA, 1024), [[1; 512], [2; 512]].concat());
    assert_eq!(d.used(), (1, 1025));
    assert_eq!((d.irq.read().unwrap(), d.get(0x60)), (1, 1));
    d.set(0x64, 1);
    assert_eq!(d.get(0x60), 0);
    d.put(DATA, &[9; 512]);
    assert_eq!(d.block(1, 2, 512), 0);
    assert_eq!(d.block(0, 1, 3 * 512), 0);
    assert_eq!(d.bytes(DATA, 3 * 512), [[1; 512], [9; 512], [3; 512]].concat());
    assert_eq!(d.block(4, 0, 512), 0, "flush");
    assert_eq!(d.block(8, 0, 20), 0, "name");
    assert_eq!(d.bytes(DATA, 9), b"exotrace\0");
    let on_disk = std::fs::read(&file.0).unwrap();
    assert_eq!(on_disk[1024..1536], [2; 512], "the file was changed");
}

#[test]
fn nonsense_requests_fail_and_the_next_ones_work() {
    let file = DiskFile::new("bad");
    let mut d = Driver::new(file.open(DiskMode::ReadOnly).unwrap(), 0);
    d.put(DATA, &[9; 512]);
    for (kind, sector, len) in [
        (1, 0, 512),        // a write to a read-only disk
        (0, 4, 512),        // beyond the end
        (0, 3, 1024),       // partly beyond the end
        (0, u64::MAX, 512), // overflow
        (0, u64::MAX / 512, 512),
        (0, 0, 100), // no whole sector
    ] {
        assert_eq!(d.block(kind, sector, len), 1, "{kind} {sector} {len}");
    }
    assert_eq!(d.block(77, 0, 512), 2, "unsupported");
    let used = d.used().0;
    // A chain without room for the status, one that loops, one outside RAM: given back with nothing in it, or dropped.
    d.descriptor(0, 0x4000, 16, 0, 0);
    d.offer();
    d.descriptor(0, 0x4000, 16, NEXT, 0);
    d.ring();
    assert_eq!(d.used(), (used + 1, 0));
    d.offer();
    d.ring();
    d.descriptor(0, u64::MAX - 4, 16, NEXT, 1);
    d.offer();
    d.ring();
    d.descriptor(0, 0x4000, u32::MAX, NEXT | WRITE, 1);
    d.offer();
    d.ring();
    assert_eq!(d.block(0, 3, 512), 0);
    assert_eq!(d.bytes(DATA, 512), [3; 512]);
}

#[test]
fn disks_that_are_none() {
    let file = DiskFile::new("odd");
    std::fs::write(&file.0, [0; 700]).unwrap();
    let e = file.open(DiskMode::ReadOnly).err().unwrap();
    assert!(matches!(&e, crate::Error::Disk { source, .. } if source.to_string().contains("700 bytes")), "{e:?}");
    std::fs::write(&file.0, []).unwrap();
    assert!(file.open(DiskMode::ReadOnly).is_err());
    let dir = Disk { path: std::env::temp_dir(), mode: DiskMode::ReadOnly };
    assert!(Block::open(&dir).is_err());
}

#[test]
fn random_numbers_fill_what_is_offered() {
    let mut d = Driver::new(Rng::new().unwrap(), 0);
    d.descriptor(0, DATA, 64, WRITE, 0);
    d.offer();
    d.ring();
    assert_eq!(d.used(), (1, 64));
    assert_ne!(d.bytes(DATA, 64), [0; 64]);
    assert_eq!(d.bytes(DATA + 64, 8), [0; 8]);
}

#[test]
fn the_console_takes_and_gives() {
    let (input, output) = (Input::default(), Output::default());
    let mut d = Driver::new(Console::new(input.clone(), output.clone()), 1);
    d.put(DATA, b"hello");
    d.descriptor(0, DATA, 5, 0, 0);
    d.offer();
    d.ring();
    assert_eq!((output.take(), d.used()), (b"hello".to_vec(), (1, 0)));
    let mut d = Driver::new(Console::new(input.clone(), output), 0);
    d.descriptor(0, DATA, 4, WRITE, 0);
    assert_eq!(input.push(b"typed"), 5);
    d.device.poll(&d.ram);
    assert_eq!(d.used().0, 0, "nothing offered yet");
    d.offer();
    d.ring();
    assert_eq!((d.bytes(DATA, 5), d.used()), (b"type\0".to_vec(), (1, 4)));
    d.offer();
    d.device.poll(&d.ram);
    assert_eq!((d.bytes(DATA, 1), d.used()), (b"d".to_vec(), (2, 1)));
    assert_eq!(input.push(&vec![0; 1 << 20]), 64 << 10, "bounded");
}

#[test]
fn registers_bear_nonsense() {
    let d = Driver::new(Rng::new().unwrap(), 0);
    let mut seed = 1u64;
    for _ in 0..200_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (register, value) = ((seed >> 50) & 0x1ff, (seed >> 16) as u32);
        // Small values often: those mean something.
        let value = if seed & 0x100 == 0 { value } else { value & 0xf };
        d.set(register, value);
        d.get(register);
        let mut odd = [0; 3];
        d.device.read(register, &mut odd);
        d.device.write(register, &odd, &d.ram);
    }
    d.set(0x70, 0);
    assert_eq!((d.get(0x70), d.get(0x60)), (0, 0));
    // A driver that wants what was not offered, or no virtio 1, is refused.
    for (low, high, taken) in [(0, 1, 8), (1 << 7, 1, 0), (0, 0, 0)] {
        d.set(0x70, 0);
        d.set(0x24, 0);
        d.set(0x20, low);
        d.set(0x24, 1);
        d.set(0x20, high);
        d.set(0x70, 0xb);
        assert_eq!(d.get(0x70) & 8, taken);
    }
    // A queue outside RAM: the device stops and says so.
    for (register, value) in [(0x30, 0), (0x38, 8), (0x84, 0xffff), (0x44, 1), (0x70, 4), (0x50, 0)] {
        d.set(register, value);
    }
}
