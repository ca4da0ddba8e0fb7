//! Symbols: address to name and name to address.

use std::sync::Arc;

use exotrace_trace::ids::Gva;

use super::slide::Slide;

/// Symbols at most (a distribution's vmlinux has about 250,000).
pub const MAX_SYMBOLS: usize = 1 << 20;
/// Longest name kept, in bytes; the rest is cut off. Linux's own limit (KSYM_NAME_LEN).
pub const MAX_NAME_BYTES: usize = 512;
/// All names together, in bytes, at most.
pub const MAX_NAMES_TOTAL: usize = 64 << 20;
/// How many symbols before an address are looked at to find one that encloses it.
const ENCLOSING_STEPS: usize = 16;

/// What a symbol names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SymbolKind {
    /// A function.
    Function,
    /// A label in code without a type (assembly).
    CodeLabel,
    /// A variable.
    Object,
    /// A label elsewhere (linker scripts).
    DataLabel,
}

impl SymbolKind {
    pub(super) fn is_code(self) -> bool {
        matches!(self, SymbolKind::Function | SymbolKind::CodeLabel)
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    addr: u64,
    size: u64,
    name_at: u32,
    name_len: u16,
    kind: SymbolKind,
    global: bool,
}

/// One symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Its name, made printable.
    pub name: &'a str,
    /// Its address.
    pub addr: Gva,
    /// Its size in bytes; 0 when the image doesn't say.
    pub size: u64,
    /// What it names.
    pub kind: SymbolKind,
}

/// The symbols of one image. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    table: Arc<Table>,
    slide: Slide,
}

/// Everything at link addresses.
#[derive(Debug, Default)]
struct Table {
    names: String,
    /// Sorted by address.
    entries: Vec<Entry>,
    /// Indices into `entries`, sorted by name.
    by_name: Vec<u32>,
    /// Addresses of code symbols, sorted, each once.
    code_addr: Vec<u64>,
    /// The best symbol for the address with the same index.
    code_entry: Vec<u32>,
}

impl Symbols {
    /// The symbol whose code holds an address, and how far into it the address lies.
    ///
    /// A symbol without a size reaches up to the next one.
    #[must_use]
    pub fn resolve(&self, addr: Gva) -> Option<(Symbol<'_>, u64)> {
        let t = &*self.table;
        let addr = self.slide.link_address(addr)?;
        let after = t.code_addr.partition_point(|&a| a <= addr.0);
        for at in (after.saturating_sub(ENCLOSING_STEPS)..after).rev() {
            let entry = t.entries.get(*t.code_entry.get(at)? as usize)?;
            let offset = addr.0 - entry.addr;
            if offset < entry.size || (entry.size == 0 && at + 1 == after) {
                return Some((self.symbol(entry), offset));
            }
        }
        None
    }

    /// All symbols of that name, by address.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Symbol<'a>> + 'a {
        let t = &*self.table;
        let from = t.by_name.partition_point(|&i| t.name_at(i) < name);
        t.by_name[from..]
            .iter()
            .take_while(move |&&i| t.name_at(i) == name)
            .map(|&i| self.symbol(&t.entries[i as usize]))
    }

    /// The variable (or linker script label) of that name, the first if there are several.
    #[must_use]
    pub fn object(&self, name: &str) -> Option<Symbol<'_>> {
        let t = &*self.table;
        let from = t.by_name.partition_point(|&i| t.name_at(i) < name);
        t.by_name[from..]
            .iter()
            .take_while(|&&i| t.name_at(i) == name)
            .map(|&i| self.symbol(&t.entries[i as usize]))
            .find(|s| !s.kind.is_code())
    }

    /// All symbols, by address.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Symbol<'_>> {
        self.table.entries.iter().map(|e| self.symbol(e))
    }

    /// All functions and code labels, one per address (aliases left out), by address.
    pub fn code(&self) -> impl ExactSizeIterator<Item = Symbol<'_>> {
        self.table.code_entry.iter().map(|&i| self.symbol(&self.table.entries[i as usize]))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.entries.is_empty()
    }

    /// The same symbols in a kernel that runs `slide` away from where it was linked.
    pub(super) fn slid(&self, slide: Slide) -> Symbols {
        Symbols { table: Arc::clone(&self.table), slide }
    }

    fn symbol(&self, e: &Entry) -> Symbol<'_> {
        let addr = self.slide.run_address(Gva(e.addr));
        Symbol { name: self.table.name_of(e), addr, size: e.size, kind: e.kind }
    }
}

impl Table {
    fn name_of(&self, e: &Entry) -> &str {
        let at = e.name_at as usize;
        &self.names[at..at + usize::from(e.name_len)]
    }

    fn name_at(&self, i: u32) -> &str {
        self.name_of(&self.entries[i as usize])
    }
}

/// Collects symbols in any order; [`SymbolsBuilder::build`] sorts them once.
#[derive(Debug, Default)]
pub(super) struct SymbolsBuilder {
    names: String,
    entries: Vec<Entry>,
    given_order: bool,
}

/// A limit was passed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full {
    pub what: &'static str,
    pub limit: usize,
}

impl SymbolsBuilder {
    /// A builder for symbols that come in an order that says which of several aliases is to be shown: the first.
    pub fn in_given_order() -> SymbolsBuilder {
        SymbolsBuilder { given_order: true, ..SymbolsBuilder::default() }
    }

    /// Makes room for more symbols.
    pub fn reserve(&mut self, more: usize) {
        self.entries.reserve(more.min(MAX_SYMBOLS));
    }

    /// Adds one symbol. `name` may hold any bytes: what is not printable ASCII becomes `?`, so that an image can't
    /// send escape sequences to a terminal.
    pub fn add(&mut self, name: &[u8], addr: Gva, size: u64, kind: SymbolKind, global: bool) -> Result<(), Full> {
        let name = &name[..name.len().min(MAX_NAME_BYTES)];
        if self.entries.len() >= MAX_SYMBOLS {
            return Err(Full { what: "symbols", limit: MAX_SYMBOLS });
        }
        if self.names.len() + name.len() > MAX_NAMES_TOTAL {
            return Err(Full { what: "bytes of symbol names", limit: MAX_NAMES_TOTAL });
        }
        let name_at = self.names.len() as u32;
        self.names.extend(name.iter().map(|&b| if b.is_ascii_graphic() { b as char } else { '?' }));
        self.entries.push(Entry {
            addr: addr.0,
            // A size that runs past the end of the address space is a lie; 0 means "not known".
            size: if addr.0.checked_add(size).is_some() { size } else { 0 },
            name_at,
            name_len: name.len() as u16,
            kind,
            global,
        });
        Ok(())
    }

    /// Sorts what was collected.
    pub fn build(self) -> Symbols {
        let SymbolsBuilder { names, mut entries, given_order } = self;
        let text = |e: &Entry| {
            let at = e.name_at as usize;
            &names[at..at + usize::from(e.name_len)]
        };
        // Among aliases the first is the one that is shown: functions before labels, sized and global ones first.
        if given_order {
            entries.sort_by_key(|e| (e.addr, e.kind));
        } else {
            entries.sort_unstable_by(|a, b| {
                let rank = |e: &Entry| (e.addr, e.kind, e.size == 0, !e.global);
                rank(a).cmp(&rank(b)).then_with(|| text(a).cmp(text(b)))
            });
        }
        let mut by_name: Vec<u32> = (0..entries.len() as u32).collect();
        by_name.sort_unstable_by(|&a, &b| {
            let (x, y) = (&entries[a as usize], &entries[b as usize]);
            text(x).cmp(text(y)).then(a.cmp(&b))
        });
        let mut code_addr = Vec::new();
        let mut code_entry = Vec::new();
        for (i, e) in entries.iter().enumerate() {
            if e.kind.is_code() && code_addr.last() != Some(&e.addr) {
                code_addr.push(e.addr);
                code_entry.push(i as u32);
            }
        }
        let table = Arc::new(Table { names, entries, by_name, code_addr, code_entry });
        Symbols { table, slide: Slide::default() }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn table(list: &[(&str, u64, u64, SymbolKind, bool)]) -> Symbols {
        let mut b = SymbolsBuilder::default();
        for &(name, addr, size, kind, global) in list {
            b.add(name.as_bytes(), Gva(addr), size, kind, global).unwrap();
        }
        b.build()
    }

    #[test]
    fn resolves_inside_between_and_nested() {
        use SymbolKind::{CodeLabel, Function, Object};
        let s = table(&[
            ("outer", 0x1000, 0x100, Function, true),
            ("inner", 0x1010, 0x10, Function, false),
            ("label", 0x2000, 0, CodeLabel, false),
            ("data", 0x2008, 8, Object, false),
            ("next", 0x3000, 0x10, Function, true),
        ]);
        let at = |a| s.resolve(Gva(a)).map(|(s, o)| (s.name.to_owned(), o));
        assert_eq!(at(0xfff), None);
        assert_eq!(at(0x1000), Some(("outer".into(), 0)));
        assert_eq!(at(0x1018), Some(("inner".into(), 8)));
        assert_eq!(at(0x1020), Some(("outer".into(), 0x20)));
        assert_eq!(at(0x1100), None);
        assert_eq!(at(0x2fff), Some(("label".into(), 0xfff)));
        assert_eq!(at(0x3010), None);
        assert_eq!(at(u64::MAX), None);
    }

    #[test]
    fn aliases_and_static_namesakes() {
        use SymbolKind::{CodeLabel, Function, Object};
        let s = table(&[
            ("alias_label", 0x1000, 0, CodeLabel, true),
            ("zz_local", 0x1000, 4, Function, false),
            ("read", 0x1000, 4, Function, true),
            ("same", 0x2000, 4, Function, false),
            ("same", 0x1800, 4, Function, false),
            ("same", 0x9000, 8, Object, false),
        ]);
        assert_eq!(s.resolve(Gva(0x1002)).unwrap().0.name, "read");
        let same: Vec<u64> = s.named("same").map(|x| x.addr.0).collect();
        assert_eq!(same, [0x1800, 0x2000, 0x9000]);
        assert_eq!(s.object("same").unwrap().addr, Gva(0x9000));
        assert_eq!(s.object("read"), None);
        assert_eq!(s.code().count(), 3);
        assert_eq!(s.named("nothing").count(), 0);
    }

    #[test]
    fn names_are_harmless_and_bounded() {
        let mut b = SymbolsBuilder::default();
        b.add(b"a\x1b[31m\xff b", Gva(1), u64::MAX, SymbolKind::Function, true).unwrap();
        b.add(&[b'x'; 5000], Gva(2), 1, SymbolKind::Function, true).unwrap();
        let s = b.build();
        let names: Vec<&str> = s.iter().map(|x| x.name).collect();
        assert_eq!(names[0], "a?[31m??b");
        assert_eq!(names[1].len(), MAX_NAME_BYTES);
        assert_eq!(s.iter().next().unwrap().size, 0);
    }

    #[test]
    fn too_many_name_bytes_are_refused() {
        let mut b = SymbolsBuilder::default();
        let long = [b'x'; MAX_NAME_BYTES];
        let fit = MAX_NAMES_TOTAL / MAX_NAME_BYTES;
        for i in 0..fit {
            b.add(&long, Gva(i as u64), 1, SymbolKind::Function, true).unwrap();
        }
        let full = b.add(b"y", Gva(0), 1, SymbolKind::Function, true).unwrap_err();
        assert_eq!(full.limit, MAX_NAMES_TOTAL);
    }
}
