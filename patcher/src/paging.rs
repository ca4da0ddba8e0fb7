//! The guest's page tables, read from outside: GVA to GPA and permissions.
//!
//! Tables are guest memory and thus hostile: a walk reads at most one entry per level and never follows anything
//! outside the VM's RAM (the memory's own check), so no table makes it loop or read elsewhere.

use exotrace_trace::ids::{Gpa, Gva};

use crate::machine::{GuestRead, MemoryError, VcpuState};

/// Bits of a page-table entry.
pub mod bits {
    /// The entry is used.
    pub const PRESENT: u64 = 1;
    /// Writes are allowed.
    pub const WRITABLE: u64 = 1 << 1;
    /// CPL 3 may use it.
    pub const USER: u64 = 1 << 2;
    /// The CPU has used it.
    pub const ACCESSED: u64 = 1 << 5;
    /// The CPU has written through it.
    pub const DIRTY: u64 = 1 << 6;
    /// The entry maps a page (levels 2 and 3).
    pub const LARGE: u64 = 1 << 7;
    /// No code here. Reserved unless EFER.NXE is set.
    pub const NX: u64 = 1 << 63;
    /// Physical address of the next table or the page.
    pub const ADDR: u64 = 0x000f_ffff_ffff_f000;
}

/// EFER: long mode is active.
const EFER_LMA: u64 = 1 << 10;
/// EFER: the NX bit exists.
const EFER_NXE: u64 = 1 << 11;
/// CR4: five levels.
const CR4_LA57: u64 = 1 << 12;
/// Size of a page table entry, in bytes.
pub const ENTRY_BYTES: u64 = 8;

/// Why an address doesn't translate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WalkError {
    /// The vCPU is not in 64-bit mode.
    #[error("the vCPU is not in 64-bit mode (EFER {efer:#x})")]
    NotLongMode {
        /// EFER.
        efer: u64,
    },
    /// The upper bits are not a sign extension.
    #[error("{gva} is not a canonical address")]
    NotCanonical {
        /// The address.
        gva: Gva,
    },
    /// Not mapped.
    #[error("{gva} is not mapped: the level {level} entry at {entry_at} is not present")]
    NotPresent {
        /// The address.
        gva: Gva,
        /// 1 is the last level (4 KiB pages).
        level: u8,
        /// Where the entry is.
        entry_at: Gpa,
    },
    /// The CPU would fault on the entry.
    #[error("{gva}: the level {level} entry {entry:#x} has reserved bits set")]
    Reserved {
        /// The address.
        gva: Gva,
        /// 1 is the last level.
        level: u8,
        /// The entry.
        entry: u64,
    },
    /// A table lies outside RAM.
    #[error("{gva}: its level {level} page table at {table} is not in the VM's RAM")]
    TableOutside {
        /// The address.
        gva: Gva,
        /// 1 is the last level.
        level: u8,
        /// Where the table would be.
        table: Gpa,
    },
}

/// Size of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageSize {
    /// 4 KiB.
    Kib4,
    /// 2 MiB.
    Mib2,
    /// 1 GiB.
    Gib1,
}

impl PageSize {
    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << entry_shift(self.level())
    }

    /// The level of the entry that maps it.
    #[must_use]
    pub const fn level(self) -> u8 {
        match self {
            PageSize::Kib4 => 1,
            PageSize::Mib2 => 2,
            PageSize::Gib1 => 3,
        }
    }
}

/// What an address translates to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The physical address.
    pub gpa: Gpa,
    /// The page that it lies in.
    pub page: PageSize,
    /// Writes are allowed at every level.
    pub writable: bool,
    /// CPL 3 is allowed at every level.
    pub user: bool,
    /// Code is allowed at every level.
    pub executable: bool,
}

/// One entry, understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Not present.
    Absent,
    /// Leads to a table of the next level.
    Table(Gpa),
    /// Maps a page.
    Page(Gpa),
    /// Faults.
    Reserved,
}

/// A vCPU's paging mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Paging {
    root: Gpa,
    levels: u8,
    nxe: bool,
}

/// How far an address is shifted right to get an entry's index.
pub(crate) const fn entry_shift(level: u8) -> u32 {
    12 + 9 * (level as u32 - 1)
}

impl Paging {
    /// The paging mode of a vCPU.
    ///
    /// # Errors
    /// When it is not in 64-bit mode.
    pub fn of(state: &VcpuState) -> Result<Paging, WalkError> {
        if state.efer & EFER_LMA == 0 {
            return Err(WalkError::NotLongMode { efer: state.efer });
        }
        Ok(Paging {
            root: Gpa(state.cr3 & bits::ADDR),
            levels: if state.cr4 & CR4_LA57 != 0 { 5 } else { 4 },
            nxe: state.efer & EFER_NXE != 0,
        })
    }

    /// The top table.
    #[must_use]
    pub fn root(&self) -> Gpa {
        self.root
    }

    /// Levels of tables, 4 or 5.
    #[must_use]
    pub fn levels(&self) -> u8 {
        self.levels
    }

    /// Whether the NX bit may be used.
    #[must_use]
    pub fn nxe(&self) -> bool {
        self.nxe
    }

    /// Whether the address can exist.
    #[must_use]
    pub fn is_canonical(&self, gva: Gva) -> bool {
        let unused = 64 - (12 + 9 * u32::from(self.levels));
        ((gva.0 << unused) as i64 >> unused) as u64 == gva.0
    }

    /// Translates an address.
    ///
    /// # Errors
    /// See [`WalkError`].
    pub fn walk<M: GuestRead + ?Sized>(&self, mem: &M, gva: Gva) -> Result<Mapping, WalkError> {
        if !self.is_canonical(gva) {
            return Err(WalkError::NotCanonical { gva });
        }
        let (mut writable, mut user, mut executable) = (true, true, true);
        let mut table = self.root;
        let mut level = self.levels;
        loop {
            let entry_at = entry_at(table, gva, level);
            let entry = read_entry(mem, entry_at).map_err(|_| WalkError::TableOutside { gva, level, table })?;
            writable &= entry & bits::WRITABLE != 0;
            user &= entry & bits::USER != 0;
            executable &= entry & bits::NX == 0;
            match self.classify(entry, level) {
                Entry::Absent => {
                    return Err(WalkError::NotPresent { gva, level, entry_at });
                }
                Entry::Reserved => return Err(WalkError::Reserved { gva, level, entry }),
                Entry::Page(base) => {
                    let page = match level {
                        1 => PageSize::Kib4,
                        2 => PageSize::Mib2,
                        _ => PageSize::Gib1,
                    };
                    return Ok(Mapping {
                        gpa: Gpa(base.0 | (gva.0 & (page.bytes() - 1))),
                        page,
                        writable,
                        user,
                        executable,
                    });
                }
                Entry::Table(next) => {
                    table = next;
                    level -= 1;
                }
            }
        }
    }

    /// What the CPU makes of an entry. At level 1 it is never a table, so a walk ends.
    pub(crate) fn classify(&self, entry: u64, level: u8) -> Entry {
        if entry & bits::PRESENT == 0 {
            return Entry::Absent;
        }
        if entry & bits::NX != 0 && !self.nxe {
            return Entry::Reserved;
        }
        let large = entry & bits::LARGE != 0;
        match level {
            1 => Entry::Page(Gpa(entry & bits::ADDR)),
            2 | 3 if large => {
                // Bit 12 is the memory type's; the others below the page's size must be zero.
                let below = ((1u64 << entry_shift(level)) - 1) & bits::ADDR & !(1 << 12);
                if entry & below != 0 {
                    return Entry::Reserved;
                }
                Entry::Page(Gpa(entry & bits::ADDR & !(1 << 12)))
            }
            4 | 5 if large => Entry::Reserved,
            _ => Entry::Table(Gpa(entry & bits::ADDR)),
        }
    }
}

/// Where the entry for an address is in a table.
pub(crate) fn entry_at(table: Gpa, gva: Gva, level: u8) -> Gpa {
    // Tables are page aligned and below 2^52, so this neither carries nor overflows.
    Gpa(table.0 | (((gva.0 >> entry_shift(level)) & 0x1ff) * ENTRY_BYTES))
}

/// Reads one entry.
pub(crate) fn read_entry<M: GuestRead + ?Sized>(mem: &M, at: Gpa) -> Result<u64, MemoryError> {
    let mut bytes = [0; ENTRY_BYTES as usize];
    mem.read(at, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests;
