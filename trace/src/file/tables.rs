//! The names of a trace: symbols by address, sites by what a record holds of them.
//!
//! Names lie one after another in a single string, so that a table of hundreds of thousands takes little memory and a
//! hostile file can't make it take much more than the file's own size.

use super::format::{MAX_TABLE_ENTRIES, MAX_TABLE_NAME_BYTES};
use super::model::{Site, Symbol};
use crate::ids::{Gva, SiteId};

/// Length of a site's instruction; a record holds the address right after it.
const SITE_BYTES: u64 = 5;

/// Names in one string, each at a range of it.
#[derive(Clone, Debug, Default)]
struct Names(String);

impl Names {
    /// Adds a name; `None` when the names of a table become too many bytes.
    fn push(&mut self, name: &str) -> Option<(u32, u32)> {
        if self.0.len() + name.len() > MAX_TABLE_NAME_BYTES {
            return None;
        }
        let at = (u32::try_from(self.0.len()).ok()?, u32::try_from(name.len()).ok()?);
        self.0.push_str(name);
        Some(at)
    }
    fn get(&self, (start, len): (u32, u32)) -> &str {
        &self.0[start as usize..start as usize + len as usize]
    }
}

#[derive(Clone, Copy, Debug)]
struct SymbolEntry {
    addr: u64,
    size: u32,
    name: (u32, u32),
}

/// The symbols of a guest kernel, by address.
#[derive(Clone, Debug, Default)]
pub struct SymbolTable {
    entries: Vec<SymbolEntry>,
    names: Names,
}

impl SymbolTable {
    /// Adds a symbol; false when the table is full. Call `SymbolTable::sort` before looking anything up.
    pub(super) fn push(&mut self, s: &Symbol<'_>) -> bool {
        if self.entries.len() >= MAX_TABLE_ENTRIES {
            return false;
        }
        let Some(name) = self.names.push(s.name) else { return false };
        self.entries.push(SymbolEntry { addr: s.addr.0, size: s.size, name });
        true
    }

    pub(super) fn sort(&mut self) {
        // Stable: of symbols with one address the file's first is found.
        self.entries.sort_by_key(|e| e.addr);
        self.entries.dedup_by_key(|e| e.addr);
    }

    /// How many symbols there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All symbols in order of address, one per address.
    pub fn iter(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.entries.iter().map(|e| self.symbol(e))
    }

    fn symbol(&self, e: &SymbolEntry) -> Symbol<'_> {
        Symbol { addr: Gva(e.addr), size: e.size, name: self.names.get(e.name) }
    }

    /// The symbol that `addr` lies in.
    #[must_use]
    pub fn at(&self, addr: Gva) -> Option<Symbol<'_>> {
        let after = self.entries.partition_point(|e| e.addr <= addr.0);
        let e = &self.entries[after.checked_sub(1)?];
        let inside = e.size == 0 || addr.0 - e.addr < u64::from(e.size);
        inside.then(|| self.symbol(e))
    }

    /// The function that called, for a return address, and the offset of that address from its start.
    ///
    /// Looked up is the byte before: a call that never returns can be a function's last instruction, its return
    /// address then belongs to the function behind. (The kernel's `%pB` does the same.)
    #[must_use]
    pub fn caller(&self, return_address: Gva) -> Option<(Symbol<'_>, u64)> {
        let symbol = self.at(Gva(return_address.0.checked_sub(1)?))?;
        Some((symbol, return_address.0 - symbol.addr.0))
    }
}

#[derive(Clone, Copy, Debug)]
struct SiteEntry {
    addr: u64,
    id: SiteId,
    function: (u32, u32),
}

/// The sites of a trace, found by the `ip` of a record.
#[derive(Clone, Debug, Default)]
pub struct SiteTable {
    entries: Vec<SiteEntry>,
    names: Names,
    /// (low half of the address after the site, place in `entries`), sorted.
    by_ip: Vec<(u32, u32)>,
}

impl SiteTable {
    /// Adds a site; false when the table is full. Call `SiteTable::sort` before looking anything up.
    pub(super) fn push(&mut self, s: &Site<'_>) -> bool {
        if self.entries.len() >= MAX_TABLE_ENTRIES {
            return false;
        }
        let Some(function) = self.names.push(s.function) else { return false };
        self.entries.push(SiteEntry { addr: s.addr.0, id: s.id, function });
        true
    }

    pub(super) fn sort(&mut self) {
        self.entries.sort_by_key(|e| e.addr);
        self.entries.dedup_by_key(|e| e.addr);
        self.by_ip = self.entries.iter().zip(0..).map(|(e, n)| (e.addr.wrapping_add(SITE_BYTES) as u32, n)).collect();
        self.by_ip.sort_unstable();
    }

    /// How many sites there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All sites in order of address.
    pub fn iter(&self) -> impl Iterator<Item = Site<'_>> {
        self.entries.iter().map(|e| self.site(e))
    }

    /// The site in place `n` of the order of addresses; `None` past the last.
    #[must_use]
    pub fn get(&self, n: usize) -> Option<Site<'_>> {
        self.entries.get(n).map(|e| self.site(e))
    }

    fn site(&self, e: &SiteEntry) -> Site<'_> {
        Site { id: e.id, addr: Gva(e.addr), function: self.names.get(e.function) }
    }

    /// The place (for [`SiteTable::get`]) of the site that a record with this `ip` comes from.
    #[must_use]
    pub fn place_of_ip(&self, ip: u32) -> Option<usize> {
        let at = self.by_ip.partition_point(|&(low, _)| low < ip);
        self.by_ip.get(at).filter(|&&(low, _)| low == ip).map(|&(_, n)| n as usize)
    }

    /// The whole address that a record's `ip` most likely stands for, if it is no known site's: in the same 4 GiB as
    /// the first site. Without any site there is only the low half.
    #[must_use]
    pub fn guess_address(&self, ip: u32) -> Gva {
        let high = self.entries.first().map_or(0, |e| e.addr & !0xffff_ffff);
        Gva((high | u64::from(ip)).wrapping_sub(SITE_BYTES))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn symbols(list: &[(u64, u32, &str)]) -> SymbolTable {
        let mut t = SymbolTable::default();
        for &(addr, size, name) in list {
            assert!(t.push(&Symbol { addr: Gva(addr), size, name }));
        }
        t.sort();
        t
    }

    #[test]
    fn symbols_by_address() {
        let t =
            symbols(&[(0x300, 0, "open_end"), (0x100, 0x10, "first"), (0x100, 0x10, "alias"), (0x200, 0x10, "second")]);
        assert_eq!(t.len(), 3);
        let name = |a| t.at(Gva(a)).map(|s| s.name);
        assert_eq!(name(0xff), None);
        assert_eq!(name(0x100), Some("first"));
        assert_eq!(name(0x10f), Some("first"));
        assert_eq!(name(0x110), None, "past its size");
        assert_eq!(name(0x20f), Some("second"));
        assert_eq!(name(u64::MAX), Some("open_end"));
    }

    #[test]
    fn a_caller_that_ends_in_its_call_is_still_the_caller() {
        let t = symbols(&[(0x100, 0x10, "noreturn"), (0x110, 0x10, "behind")]);
        let (s, off) = t.caller(Gva(0x110)).unwrap();
        assert_eq!((s.name, off), ("noreturn", 0x10));
        assert_eq!(t.caller(Gva(0)), None);
        assert_eq!(t.caller(Gva(0x100)), None);
    }

    #[test]
    fn sites_by_ip() {
        let mut t = SiteTable::default();
        for (id, addr) in [(7, 0xffff_ffff_8100_0010_u64), (3, 0xffff_ffff_8100_0000), (9, 0xffff_ffff_ffff_fffd)] {
            assert!(t.push(&Site { id: SiteId(id), addr: Gva(addr), function: "f" }));
        }
        t.sort();
        let id = |ip| t.place_of_ip(ip).and_then(|n| t.get(n)).map(|s| s.id.0);
        assert_eq!(id(0x8100_0005), Some(3));
        assert_eq!(id(0x8100_0015), Some(7));
        assert_eq!(id(2), Some(9), "the address after the site wraps");
        assert_eq!(id(0x8100_0006), None);
        assert_eq!(t.guess_address(0x8200_0005), Gva(0xffff_ffff_8200_0000));
        assert_eq!(SiteTable::default().guess_address(0), Gva(u64::MAX - 4));
    }
}
