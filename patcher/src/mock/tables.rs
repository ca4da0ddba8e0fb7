//! Guest page tables, written the way a guest kernel would.

use std::ops::Range;

use exotrace_trace::ids::{Gpa, Gva};

use crate::paging::{PageSize, bits, entry_shift};

/// Flags for [`TableBuilder::map`].
pub mod flags {
    use crate::paging::bits;

    /// Kernel memory, writable.
    pub const KERNEL: u64 = bits::PRESENT | bits::WRITABLE;
    /// Memory of a kernel that runs at CPL 3, writable.
    pub const USER: u64 = KERNEL | bits::USER;
}

/// Writes page tables into a machine's RAM, taking table pages from a given range of it.
#[derive(Clone, Debug)]
pub struct TableBuilder {
    root: u64,
    next: u64,
    end: u64,
    levels: u8,
}

impl TableBuilder {
    /// Tables at `pages` (page aligned GPAs, inside RAM); the first page is the root.
    #[must_use]
    pub fn new(pages: Range<u64>, levels: u8) -> TableBuilder {
        TableBuilder { root: pages.start, next: pages.start + 4096, end: pages.end, levels }
    }

    /// The root table.
    #[must_use]
    pub fn root(&self) -> Gpa {
        Gpa(self.root)
    }

    /// Maps one page. Tables on the way get the same flags except NX.
    ///
    /// # Panics
    /// When the table pages are used up or RAM is too small: a broken test.
    pub fn map(&mut self, ram: &mut [u8], gva: Gva, gpa: Gpa, page: PageSize, flags: u64) {
        let mut table = self.root;
        for level in (page.level() + 1..=self.levels).rev() {
            let at = table + ((gva.0 >> entry_shift(level)) & 0x1ff) * 8;
            let entry = get(ram, at);
            table = if entry & bits::PRESENT == 0 {
                let new = self.next;
                assert!(new < self.end, "out of table pages");
                self.next += 4096;
                put(ram, at, new | (flags & !bits::NX));
                new
            } else {
                entry & bits::ADDR
            };
        }
        let large = if page.level() > 1 { bits::LARGE } else { 0 };
        let at = table + ((gva.0 >> entry_shift(page.level())) & 0x1ff) * 8;
        put(ram, at, gpa.0 | flags | large);
    }

    /// Maps `len` bytes in pages of one size.
    pub fn map_range(&mut self, ram: &mut [u8], (gva, gpa): (Gva, Gpa), len: u64, page: PageSize, flags: u64) {
        for at in (0..len).step_by(page.bytes() as usize) {
            self.map(ram, gva.offset(at), Gpa(gpa.0 + at), page, flags);
        }
    }
}

fn get(ram: &[u8], at: u64) -> u64 {
    let at = at as usize;
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&ram[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn put(ram: &mut [u8], at: u64, value: u64) {
    let at = at as usize;
    ram[at..at + 8].copy_from_slice(&value.to_le_bytes());
}
