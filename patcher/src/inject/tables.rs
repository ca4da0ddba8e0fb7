//! Guest page tables with planned changes on top: what the guest will see once the plan is applied.

use std::collections::BTreeMap;

use exotrace_trace::ids::{Gpa, Gva};

use super::{EntryWrite, InjectError, TABLES_BYTES};
use crate::machine::{GuestRead, MemoryError};
use crate::paging::{ENTRY_BYTES, Entry, PageSize, Paging, bits, entry_at, read_entry};

const PAGE_BYTES: u64 = 4096;
const PAGES_AT_MOST: usize = (TABLES_BYTES / PAGE_BYTES) as usize;

/// What a mapping allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub writable: bool,
    pub user: bool,
    pub nx: bool,
}

/// A page to be mapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub gva: Gva,
    pub gpa: Gpa,
    pub size: PageSize,
    pub access: Access,
}

impl Page {
    /// Accessed and dirty are set from the start, so that no CPU has to write to the tables.
    fn entry(&self) -> u64 {
        let Access { writable, user, nx } = self.access;
        let flag = |on: bool, bit: u64| if on { bit } else { 0 };
        self.gpa.0
            | bits::PRESENT
            | bits::ACCESSED
            | flag(writable, bits::WRITABLE | bits::DIRTY)
            | flag(user, bits::USER)
            | flag(nx, bits::NX)
            | flag(self.size != PageSize::Kib4, bits::LARGE)
    }
}

/// Guest memory with new tables and changed entries on top.
pub(super) struct Overlay<'a, M: ?Sized> {
    mem: &'a M,
    tables_at: Gpa,
    tables: Vec<u8>,
    writes: BTreeMap<Gpa, u64>,
}

impl<M: GuestRead + ?Sized> GuestRead for Overlay<'_, M> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), MemoryError> {
        let len = buf.len();
        if let Some(offset) = gpa.0.checked_sub(self.tables_at.0).filter(|&o| o < TABLES_BYTES) {
            let offset = offset as usize;
            let from = self.tables.get(offset..offset + len).ok_or(MemoryError { gpa, len })?;
            buf.copy_from_slice(from);
            return Ok(());
        }
        match self.writes.get(&gpa) {
            Some(value) if len == ENTRY_BYTES as usize => buf.copy_from_slice(&value.to_le_bytes()),
            _ => self.mem.read(gpa, buf)?,
        }
        Ok(())
    }
}

impl<'a, M: GuestRead + ?Sized> Overlay<'a, M> {
    pub fn new(mem: &'a M, tables_at: Gpa) -> Self {
        Overlay { mem, tables_at, tables: Vec::new(), writes: BTreeMap::new() }
    }

    /// Whether a page of a level (or more) could be mapped at an address: the level of the first entry on the way that
    /// is zero, if it is at least `least` and the tables above it allow what is wanted.
    pub fn is_free(&self, paging: &Paging, gva: Gva, least: u8, user: bool) -> bool {
        self.free_level(paging, gva, least, user).is_some()
    }

    /// The level of the first entry on the way to an address that is zero, if it is at least `least`.
    pub fn free_level(&self, paging: &Paging, gva: Gva, least: u8, user: bool) -> Option<u8> {
        if !paging.is_canonical(gva) {
            return None;
        }
        let mut table = paging.root();
        for level in (least..=paging.levels()).rev() {
            let entry = read_entry(self, entry_at(table, gva, level)).ok()?;
            match paging.classify(entry, level) {
                Entry::Table(next) if level > 1 && allows(entry, user) => table = next,
                // Not present but not zero is the guest's own note (a swapped page …): not ours to write over.
                Entry::Absent => return (entry == 0).then_some(level),
                _ => return None,
            }
        }
        None
    }

    /// Whether the top-level entry for an address is in use already. Such an entry is shared by all of the kernel's
    /// address spaces, a new one would exist in one of them only.
    pub fn has_top(&self, paging: &Paging, gva: Gva) -> bool {
        let at = entry_at(paging.root(), gva, paging.levels());
        read_entry(self, at).is_ok_and(|e| e & bits::PRESENT != 0)
    }

    /// Plans the mapping of a page.
    pub fn map(&mut self, paging: &Paging, page: &Page) -> Result<(), InjectError> {
        let inconsistent = InjectError::Inconsistent { gva: page.gva };
        let mut table = paging.root();
        for level in (page.size.level() + 1..=paging.levels()).rev() {
            let at = entry_at(table, page.gva, level);
            let entry = read_entry(self, at)?;
            table = match paging.classify(entry, level) {
                Entry::Table(next) if allows(entry, page.access.user) => next,
                Entry::Absent if entry == 0 => self.new_table(at, page.access.user)?,
                _ => return Err(inconsistent),
            };
        }
        let at = entry_at(table, page.gva, page.size.level());
        match read_entry(self, at)? {
            0 => self.put(at, page.entry()),
            // Another vCPU's tables share this one: it is done already.
            same if same == page.entry() => {}
            _ => return Err(inconsistent),
        }
        Ok(())
    }

    /// The planned writes and the contents of the new tables.
    pub fn into_parts(self) -> (Vec<EntryWrite>, Vec<u8>) {
        let writes = self.writes.into_iter().map(|(at, value)| EntryWrite { at, value });
        (writes.collect(), self.tables)
    }

    fn new_table(&mut self, at: Gpa, user: bool) -> Result<Gpa, InjectError> {
        let used = self.tables.len();
        if used / PAGE_BYTES as usize >= PAGES_AT_MOST {
            return Err(InjectError::TooManyTables { limit: PAGES_AT_MOST });
        }
        let table = Gpa(self.tables_at.0 + used as u64);
        self.tables.resize(used + PAGE_BYTES as usize, 0);
        let user = if user { bits::USER } else { 0 };
        self.put(at, table.0 | bits::PRESENT | bits::WRITABLE | bits::ACCESSED | user);
        Ok(table)
    }

    fn put(&mut self, at: Gpa, value: u64) {
        let offset = at.0.checked_sub(self.tables_at.0).map(|o| o as usize);
        let place = offset.and_then(|o| self.tables.get_mut(o..o + ENTRY_BYTES as usize));
        match place {
            Some(place) => place.copy_from_slice(&value.to_le_bytes()),
            None => _ = self.writes.insert(at, value),
        }
    }
}

/// Whether a table entry lets through what injected pages need: writes, code, and CPL 3 if the kernel runs there.
fn allows(entry: u64, user: bool) -> bool {
    entry & bits::WRITABLE != 0 && entry & bits::NX == 0 && (!user || entry & bits::USER != 0)
}
