//! A guest in Rust: contexts (threads, interrupts) that execute the trampoline one instruction at a time on some
//! CPU, and can be stopped, interleaved and migrated between any two of them.

use std::cell::Cell;
use std::rc::Rc;

use crate::ids::VcpuId;
use crate::ring::layout::{Cursor, FullPolicy, RECORD_BYTES, ctrl, rec};
use crate::ring::{Consumer, RingMemory, RingPlace};

/// Memory of words, single-threaded: interleaving is the test's, not the machine's.
#[derive(Clone)]
pub struct Mem(Rc<Vec<Cell<u64>>>);

impl Mem {
    pub fn new(bytes: usize) -> Mem {
        Mem(Rc::new(vec![Cell::new(0); bytes / 8]))
    }
    pub fn store_u32(&self, offset: usize, v: u32) {
        let c = &self.0[offset / 8];
        let shift = (offset % 8) * 8;
        c.set(c.get() & !(0xffff_ffff << shift) | u64::from(v) << shift);
    }
}

impl RingMemory for Mem {
    fn load_u32(&self, offset: usize) -> u32 {
        (self.0[offset / 8].get() >> ((offset % 8) * 8)) as u32
    }
    fn load_u64(&self, offset: usize) -> u64 {
        self.0[offset / 8].get()
    }
    fn store_u64(&self, offset: usize, value: u64) {
        self.0[offset / 8].set(value);
    }
    fn copy_out(&self, offset: usize, buf: &mut [u8]) {
        for (i, b) in buf.iter_mut().enumerate() {
            *b = (self.0[(offset + i) / 8].get() >> (((offset + i) % 8) * 8)) as u8;
        }
    }
    fn copy_in(&self, offset: usize, bytes: &[u8]) {
        for (i, b) in bytes.iter().enumerate() {
            let c = &self.0[(offset + i) / 8];
            let shift = ((offset + i) % 8) * 8;
            c.set(c.get() & !(0xff << shift) | u64::from(*b) << shift);
        }
    }
    fn len(&self) -> usize {
        self.0.len() * 8
    }
}

pub fn place(cpu: u8, cpus: u8, records: u32) -> RingPlace {
    let slots = usize::from(cpus) * ctrl::BYTES + usize::from(cpu) * records as usize * RECORD_BYTES;
    RingPlace { vcpu: VcpuId(cpu), ctrl: usize::from(cpu) * ctrl::BYTES, slots, records }
}

pub fn machine(cpus: u8, records: u32, policy: FullPolicy) -> (Mem, Vec<Consumer<Mem>>) {
    let mem = Mem::new(usize::from(cpus) * (ctrl::BYTES + records as usize * RECORD_BYTES));
    let consumers = (0..cpus).map(|c| Consumer::new(mem.clone(), place(c, cpus, records), policy)).collect();
    (mem, consumers)
}

/// Where a context stands in the trampoline. One step is one instruction (or a few that touch no shared memory).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    LoadHead,
    LoadSoft,
    Cmpxchg,
    SlowHard,
    SlowHead,
    SlowCmpxchg,
    Doorbell,
    Full,
    Xadd,
    Write(u8),
    Done(Outcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Written,
    Dropped,
}

/// What a step asks of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    Nothing,
    Doorbell,
    Full,
}

/// One execution of the trampoline.
#[derive(Clone, Debug)]
pub struct Context {
    pub id: u64,
    at: At,
    rax: u64,
    r11: u64,
    policy: FullPolicy,
    cpus: u8,
    records: u32,
}

impl Context {
    pub fn new(id: u64, policy: FullPolicy, cpus: u8, records: u32) -> Context {
        let at = if policy == FullPolicy::Overwrite { At::Xadd } else { At::LoadHead };
        Context { id, at, rax: 0, r11: 0, policy, cpus, records }
    }

    pub fn outcome(&self) -> Option<Outcome> {
        if let At::Done(o) = self.at { Some(o) } else { None }
    }

    fn over(&self) -> bool {
        self.r11.wrapping_sub(self.rax) > u64::from(self.records) - 1
    }

    fn cmpxchg(&mut self, mem: &Mem, word: usize, won: At) {
        let now = mem.load_u64(word);
        self.at = if now == self.rax {
            mem.store_u64(word, self.rax.wrapping_add(1));
            won
        } else {
            At::LoadHead
        };
    }

    /// Executes the next instruction on `cpu`.
    pub fn step(&mut self, mem: &Mem, cpu: u8) -> Ask {
        let gs = |word| usize::from(cpu) * ctrl::BYTES + word;
        match self.at {
            At::LoadHead => {
                self.rax = mem.load_u64(gs(ctrl::HEAD));
                self.at = At::LoadSoft;
            }
            At::LoadSoft => {
                self.r11 = mem.load_u64(gs(ctrl::SOFT_LAST));
                self.at = if self.over() { At::SlowHard } else { At::Cmpxchg };
            }
            At::Cmpxchg => self.cmpxchg(mem, gs(ctrl::HEAD), At::Write(0)),
            At::SlowHard => {
                self.r11 = mem.load_u64(gs(ctrl::HARD_LAST));
                self.at = At::SlowHead;
            }
            At::SlowHead => {
                self.rax = mem.load_u64(gs(ctrl::HEAD));
                self.at = match self.r11.wrapping_sub(self.rax) {
                    _ if !self.over() => At::SlowCmpxchg,
                    u64::MAX => At::Full,
                    _ => At::LoadHead,
                };
            }
            At::SlowCmpxchg => self.cmpxchg(mem, gs(ctrl::HEAD), At::Doorbell),
            At::Doorbell => {
                self.at = At::Write(0);
                if self.rax.wrapping_sub(mem.load_u64(gs(ctrl::SOFT_LAST))) == 1 {
                    return Ask::Doorbell;
                }
            }
            At::Full if self.policy == FullPolicy::Drop => {
                mem.store_u64(gs(ctrl::LOST), mem.load_u64(gs(ctrl::LOST)) + 1);
                self.at = At::Done(Outcome::Dropped);
            }
            At::Full => {
                self.at = At::LoadHead;
                return Ask::Full;
            }
            At::Xadd => {
                self.rax = mem.load_u64(gs(ctrl::HEAD));
                mem.store_u64(gs(ctrl::HEAD), self.rax + 1);
                self.at = At::Write(0);
            }
            At::Write(n) => self.write(mem, n),
            At::Done(_) => {}
        }
        Ask::Nothing
    }

    fn write(&mut self, mem: &Mem, n: u8) {
        let c = Cursor::from_raw(self.rax);
        let p = place(c.ring.0, self.cpus, self.records);
        let slot = p.slots + (c.index & u64::from(self.records - 1)) as usize * RECORD_BYTES;
        self.at = At::Write(n + 1);
        match n {
            0 => mem.store_u64(slot + rec::TSC, self.id),
            1 => mem.store_u32(slot + rec::IP, self.id as u32),
            2 => mem.store_u64(slot + rec::PARENT, !self.id),
            3 => mem.store_u32(slot + rec::SP, self.id as u32 ^ 0x5555),
            4 => mem.store_u32(slot + rec::META, 1),
            _ => {
                mem.store_u32(slot + rec::TAG, self.rax as u32);
                self.at = At::Done(Outcome::Written);
            }
        }
    }
}
