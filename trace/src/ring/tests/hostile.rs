//! Garbage in the ring at any time: the consumer stays in bounds, comes to an end and delivers no more than fits.

use std::cell::RefCell;
use std::rc::Rc;

use proptest::prelude::*;

use super::mock::{Mem, place};
use crate::ids::VcpuId;
use crate::ring::layout::{Cursor, FullPolicy, RECORD_BYTES, RawRecord, ctrl};
use crate::ring::{Consumer, RingMemory};

const RECORDS: u32 = 64;
const LEN: usize = ctrl::BYTES + RECORDS as usize * RECORD_BYTES;

/// Memory that another party scribbles over between any two accesses; counts accesses and fails those outside.
#[derive(Clone)]
struct Scribbled {
    mem: Mem,
    script: Rc<RefCell<Vec<(u16, u64)>>>,
    accesses: Rc<RefCell<u64>>,
}

impl Scribbled {
    fn tick(&self, offset: usize, len: usize) {
        assert!(offset + len <= LEN, "access outside: {offset:#x} + {len}");
        *self.accesses.borrow_mut() += 1;
        if let Some((at, value)) = self.script.borrow_mut().pop() {
            // Half of the garbage goes to the cursor words, where it hurts most.
            let words = [ctrl::HEAD, ctrl::LOST, ctrl::SOFT_LAST, ctrl::HARD_LAST];
            let at = usize::from(at);
            let offset = if at % 2 == 0 { words[at / 2 % 4] } else { ((ctrl::BYTES + at * 8) % LEN) & !7 };
            self.mem.store_u64(offset, value);
        }
    }
}

impl RingMemory for Scribbled {
    fn load_u32(&self, offset: usize) -> u32 {
        self.tick(offset, 4);
        self.mem.load_u32(offset)
    }
    fn load_u64(&self, offset: usize) -> u64 {
        self.tick(offset, 8);
        self.mem.load_u64(offset)
    }
    fn store_u64(&self, offset: usize, value: u64) {
        self.tick(offset, 8);
        self.mem.store_u64(offset, value);
    }
    fn copy_out(&self, offset: usize, buf: &mut [u8]) {
        self.tick(offset, buf.len());
        self.mem.copy_out(offset, buf);
    }
    fn copy_in(&self, offset: usize, bytes: &[u8]) {
        self.tick(offset, bytes.len());
        self.mem.copy_in(offset, bytes);
    }
    fn len(&self) -> usize {
        LEN
    }
}

/// Words that are nearly right are more dangerous than random ones.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0u64..400).prop_map(|index| Cursor { ring: VcpuId(0), index }.to_raw()),
        (0u64..400, 0u64..400).prop_map(|(hi, lo)| hi << 32 | lo),
        Just(u64::MAX),
        Just(0),
    ]
}

fn policy() -> impl Strategy<Value = FullPolicy> {
    prop_oneof![Just(FullPolicy::Drop), Just(FullPolicy::Block), Just(FullPolicy::Overwrite)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn never_panics_spins_or_leaves_the_ring(
        policy in policy(),
        script in prop::collection::vec((any::<u16>(), word()), 0..600),
        drains in prop::collection::vec(any::<bool>(), 1..20),
    ) {
        let mem = Scribbled { mem: Mem::new(LEN), script: Rc::default(), accesses: Rc::default() };
        let mut c = Consumer::new(mem.clone(), place(0, 1, RECORDS), policy);
        *mem.script.borrow_mut() = script;
        for full in drains {
            *mem.accesses.borrow_mut() = 0;
            let mut delivered = 0u64;
            let mut sink = |_: VcpuId, _: u64, r: &[RawRecord]| delivered += r.len() as u64;
            let rounds = if full {
                c.drain_full(&mut sink);
                65
            } else {
                c.drain(&mut sink);
                1
            };
            // A drain looks at each slot a bounded number of times and delivers at most what the ring and the
            // remembered slots hold.
            prop_assert!(delivered <= rounds * 2 * u64::from(RECORDS));
            prop_assert!(*mem.accesses.borrow() <= rounds * 8 * u64::from(RECORDS) + 1000);
            let t = c.totals();
            prop_assert!(t.used <= RECORDS);
            prop_assert!(t.unfinished <= u64::from(RECORDS));
        }
    }
}
