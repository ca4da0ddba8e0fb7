//! Address-space injection: makes trampolines, ring slots and control pages appear in the guest kernel's address space
//! without the guest's knowing.
//!
//! All of it lies in one memslot that the host owns ([`crate::machine::Machine::injected`]); [`Layout`] says what is
//! where in it. To map it, page-table entries are added to the guest's own tables. Only entries that are zero are ever
//! written, so the guest's mappings stay as they are and a host that shadows page tables needs no flush. Tables
//! that are missing on the way come from the memslot.
//!
//! [`Injection::plan`] looks for free address ranges and computes every write without touching anything;
//! [`Injection::apply`] checks that the entries are still zero and writes.

mod layout;
mod search;
mod tables;

use std::ops::Range;

use exotrace_trace::ids::{Gpa, Gva, VcpuId};
use exotrace_trace::ring::RingMemory;

use crate::machine::{GuestRead, MemoryError, Stopped, VcpuState};
use crate::paging::{PageSize, Paging, WalkError, bits, read_entry};

pub use layout::{Layout, TABLES_BYTES};
use search::{Ask, LargeControl};
use tables::{Access, Overlay, Page};

/// What shall be injected.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The registers of all vCPUs, in order.
    pub vcpus: &'a [VcpuState],
    /// Slots of each ring; a power of two.
    pub records: u32,
    /// From the first site to the end of the last: every one must reach the trampolines.
    pub text: Range<Gva>,
    /// Start of the memslot.
    pub memslot: Gpa,
    /// Its length in bytes.
    pub memslot_len: u64,
    /// Whether page-table pages may be added. A guest that walks all of its own tables (Linux does, when it checks them
    /// for pages that are writable and executable) would not find ours in its memory: then only free entries of its
    /// own tables are used, for large pages.
    pub new_tables: bool,
}

/// Why nothing can be injected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InjectError {
    /// No vCPU, too many, or a ring size that isn't one.
    #[error(
        "{vcpus} rings of {records} records can't be laid out: 1 to 16 rings, a power of two from 64 to 1048576 records"
    )]
    BadShape {
        /// vCPUs asked for.
        vcpus: usize,
        /// Records asked for.
        records: u32,
    },
    /// The memslot is too small.
    #[error("the injected memslot at {memslot} has {len} bytes, {needed} are needed")]
    MemslotTooSmall {
        /// Where it is.
        memslot: Gpa,
        /// How long it is.
        len: u64,
        /// How long it must be.
        needed: u64,
    },
    /// The memslot is not aligned.
    #[error("the injected memslot at {memslot} must begin at a multiple of 2 MiB")]
    MemslotUnaligned {
        /// Where it is.
        memslot: Gpa,
    },
    /// The guest's text isn't mapped as text.
    #[error("the guest's kernel text can't be found in the page tables of vCPU {vcpu}: {source}")]
    TextUnmapped {
        /// The vCPU.
        vcpu: VcpuId,
        /// Why.
        source: WalkError,
    },
    /// Two vCPUs, one per-CPU area.
    #[error("vCPU {a} and vCPU {b} have the same GS base {gs_base}: the guest has no per-CPU areas yet")]
    SameGsBase {
        /// The one.
        a: VcpuId,
        /// The other.
        b: VcpuId,
        /// Their GS base.
        gs_base: Gva,
    },
    /// Per-CPU areas too far apart for large pages.
    #[error("the GS bases of the vCPUs lie further apart ({low} to {high}) than per-CPU areas do")]
    GsFarApart {
        /// The lowest.
        low: Gva,
        /// The highest.
        high: Gva,
    },
    /// Per-CPU areas that don't share a page offset.
    #[error(
        "the GS bases of vCPU 0 ({first}) and vCPU {vcpu} ({gs_base}) differ in their low 12 bits: no page can be at the same distance from both"
    )]
    GsUnaligned {
        /// GS base of vCPU 0.
        first: Gva,
        /// The other vCPU.
        vcpu: VcpuId,
        /// Its GS base.
        gs_base: Gva,
    },
    /// No room for code and rings.
    #[error("no free {len} bytes of address space within reach of the kernel text at {text}")]
    NoRoomForCode {
        /// How much is needed.
        len: u64,
        /// Where the text is.
        text: Gva,
    },
    /// No room for the control pages.
    #[error("no free page at the same distance from the GS bases of all {vcpus} vCPUs")]
    NoRoomForControl {
        /// How many pages are needed.
        vcpus: usize,
    },
    /// Out of table pages.
    #[error("the guest's page tables need more than {limit} new tables")]
    TooManyTables {
        /// How many there may be.
        limit: usize,
    },
    /// Page tables that contain themselves and the like.
    #[error("{gva} can't be mapped: the guest's page tables are inconsistent")]
    Inconsistent {
        /// The address.
        gva: Gva,
    },
    /// The guest used an entry after the plan was made.
    #[error("the page-table entry at {at} is in use now ({found:#x}); nothing was written, plan again")]
    EntryTaken {
        /// Where it is.
        at: Gpa,
        /// What it holds.
        found: u64,
    },
    /// A page table can't be accessed any more.
    #[error("a page table of the guest: {0}")]
    Memory(#[from] MemoryError),
}

/// An entry to be written into a page table of the guest; it is zero before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryWrite {
    /// Where the entry is.
    pub at: Gpa,
    /// What it becomes.
    pub value: u64,
}

/// What is injected where, and the writes that do it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injection {
    /// Where things are in the memslot.
    pub layout: Layout,
    /// Where the code area ([`Layout::code`]) is mapped, readable and executable.
    pub code_gva: Gva,
    /// Where the slot arrays ([`Layout::slots`]) are mapped, writable; fits a sign-extended disp32 to its end.
    pub slots_gva: Gva,
    /// Distance of a vCPU's control page from its GS base, for `%gs:disp32`.
    pub head_off: i32,
    /// Whether CPL 3 may use the mappings, because the kernel runs there.
    pub user: bool,
    /// Whether data is mapped no-execute.
    pub nx: bool,
    /// Entries to be added to the guest's tables, sorted by address.
    pub writes: Vec<EntryWrite>,
    /// New tables, from the start of the memslot.
    tables: Vec<u8>,
}

impl Injection {
    /// Computes an injection. Nothing is written.
    ///
    /// # Errors
    /// Says what is in the way.
    pub fn plan<M: GuestRead + ?Sized>(mem: &M, ask: &Request<'_>) -> Result<Injection, InjectError> {
        let gs: Vec<Gva> = ask.vcpus.iter().map(|v| v.gs_base).collect();
        let layout =
            if ask.new_tables { Layout::new(gs.len(), ask.records)? } else { Layout::spread(&gs, ask.records)? };
        if !ask.memslot.0.is_multiple_of(PageSize::Mib2.bytes()) {
            return Err(InjectError::MemslotUnaligned { memslot: ask.memslot });
        }
        if ask.memslot_len < layout.len() || ask.memslot.checked_add(ask.memslot_len).is_none() {
            let (memslot, len, needed) = (ask.memslot, ask.memslot_len, layout.len());
            return Err(InjectError::MemslotTooSmall { memslot, len, needed });
        }
        check_gs(ask.vcpus)?;
        let spaces = address_spaces(mem, ask)?;
        let user = spaces.iter().any(|s| s.user);
        // Setting NX where one of the vCPUs has it disabled would make that vCPU fault on a reserved bit.
        let nx = spaces.iter().all(|s| s.paging.nxe());
        let pagings: Vec<Paging> = spaces.iter().map(|s| s.paging).collect();
        let mut overlay = Overlay::new(mem, ask.memslot);

        let code_gva = search::code_range(
            &overlay,
            &pagings,
            &Ask { text: &ask.text, user, len: layout.mapped_len(), new_tables: ask.new_tables },
        )?;
        let slots_gva = code_gva.offset(layout.slots().start - layout.code().start);
        let mut pages = linear_pages(&layout, ask.memslot, code_gva, user, nx);
        map_all(&mut overlay, &pagings, &pages)?;

        let access = Access { writable: true, user, nx };
        let (head_off, control) = control_pages(&overlay, &pagings, ask.memslot, &layout, &gs, access)?;
        map_all(&mut overlay, &pagings, &control)?;
        pages.extend(control);
        recheck(&overlay, &pagings, &pages)?;
        let (writes, tables) = overlay.into_parts();
        Ok(Injection { layout, code_gva, slots_gva, head_off, user, nx, writes, tables })
    }

    /// Puts the injection in place: the new tables first, then the entries that lead to them. If an entry is no longer
    /// zero, nothing is written.
    ///
    /// # Errors
    /// [`InjectError::EntryTaken`] or [`InjectError::Memory`]; the guest's tables are then as before.
    pub fn apply<S, R>(&self, stopped: &mut S, injected: &R) -> Result<(), InjectError>
    where
        S: Stopped + ?Sized,
        R: RingMemory + ?Sized,
    {
        for write in &self.writes {
            let found = read_entry(stopped, write.at)?;
            if found != 0 {
                return Err(InjectError::EntryTaken { at: write.at, found });
            }
        }
        injected.copy_in(0, &self.tables);
        for (n, write) in self.writes.iter().enumerate() {
            if let Err(e) = stopped.write(write.at, &write.value.to_le_bytes()) {
                // No vCPU has run since, so no CPU can have cached what is taken back.
                for done in &self.writes[..n] {
                    let _ = stopped.write(done.at, &[0; 8]);
                }
                return Err(e.into());
            }
        }
        Ok(())
    }

    /// Takes the entries out of the guest's tables again. The guest's memory is then as it was before, but only its
    /// next flush makes its CPUs forget the mappings: call this when nothing calls trampolines any more and no thread
    /// can be inside one.
    ///
    /// # Errors
    /// When an entry isn't ours any more (accessed and dirty bits aside); nothing is written then.
    pub fn remove<S: Stopped + ?Sized>(&self, stopped: &mut S) -> Result<(), InjectError> {
        let by_cpu = bits::ACCESSED | bits::DIRTY;
        for write in &self.writes {
            let found = read_entry(stopped, write.at)?;
            if (found ^ write.value) & !by_cpu != 0 {
                return Err(InjectError::EntryTaken { at: write.at, found });
            }
        }
        for write in &self.writes {
            stopped.write(write.at, &[0; 8])?;
        }
        Ok(())
    }
}

/// One set of page tables that some vCPU uses.
struct Space {
    paging: Paging,
    user: bool,
}

/// All different page tables of the vCPUs, each of which must map the text.
fn address_spaces<M: GuestRead + ?Sized>(mem: &M, ask: &Request<'_>) -> Result<Vec<Space>, InjectError> {
    let mut spaces: Vec<Space> = Vec::new();
    for (n, state) in ask.vcpus.iter().enumerate() {
        let unmapped = |source| InjectError::TextUnmapped { vcpu: VcpuId(n as u8), source };
        let paging = Paging::of(state).map_err(unmapped)?;
        if spaces.iter().all(|s| s.paging != paging) {
            let user = paging.walk(mem, ask.text.start).map_err(unmapped)?.user;
            spaces.push(Space { paging, user });
        }
    }
    Ok(spaces)
}

fn check_gs(vcpus: &[VcpuState]) -> Result<(), InjectError> {
    let first = vcpus.first().map_or(Gva(0), |v| v.gs_base);
    for (b, state) in vcpus.iter().enumerate() {
        let gs_base = state.gs_base;
        let vcpu = VcpuId(b as u8);
        if (gs_base.0 ^ first.0) & (PageSize::Kib4.bytes() - 1) != 0 {
            return Err(InjectError::GsUnaligned { first, vcpu, gs_base });
        }
        if let Some(a) = vcpus[..b].iter().position(|v| v.gs_base == gs_base) {
            return Err(InjectError::SameGsBase { a: VcpuId(a as u8), b: vcpu, gs_base });
        }
    }
    Ok(())
}

/// The 2 MiB pages of code and slots, which are neighbours in the memslot and in the guest's address space.
fn linear_pages(layout: &Layout, memslot: Gpa, code_gva: Gva, user: bool, nx: bool) -> Vec<Page> {
    let start = layout.code().start;
    (start..start + layout.mapped_len())
        .step_by(PageSize::Mib2.bytes() as usize)
        .map(|offset| {
            let is_code = layout.code().contains(&offset);
            Page {
                gva: code_gva.offset(offset - start),
                gpa: Gpa(memslot.0 + offset),
                size: PageSize::Mib2,
                access: Access { writable: !is_code, user, nx: nx && !is_code },
            }
        })
        .collect()
}

/// The pages that map the control area, and the distance from the GS bases.
fn control_pages<M: GuestRead + ?Sized>(
    overlay: &Overlay<'_, M>,
    spaces: &[Paging],
    memslot: Gpa,
    layout: &Layout,
    gs: &[Gva],
    access: Access,
) -> Result<(i32, Vec<Page>), InjectError> {
    let Some(from) = layout.control_from() else {
        let head_off = search::head_offset(overlay, spaces, gs, access.user)?;
        let page = |n: usize| Page {
            gva: Gva(gs[n].0.wrapping_add_signed(i64::from(head_off))),
            gpa: Gpa(memslot.0 + layout.control(VcpuId(n as u8))),
            size: PageSize::Kib4,
            access,
        };
        return Ok((head_off, (0..gs.len()).map(page).collect()));
    };
    let none = InjectError::NoRoomForControl { vcpus: gs.len() };
    let area = layout.control_area();
    let whole = memslot.0.is_multiple_of(PageSize::Gib1.bytes()) && layout.len() <= PageSize::Gib1.bytes();
    let (start, pages) = match search::large_control(overlay, spaces, from, area.end - area.start, access.user) {
        Some(LargeControl::Mib2(gva)) => {
            let step = PageSize::Mib2.bytes();
            let page = |o: u64| Page {
                gva: gva.offset(o),
                gpa: Gpa(memslot.0 + area.start + o),
                size: PageSize::Mib2,
                access,
            };
            (gva, (0..area.end - area.start).step_by(step as usize).map(page).collect())
        }
        Some(LargeControl::Gib1(gva)) if whole => {
            (gva.offset(area.start), vec![Page { gva, gpa: memslot, size: PageSize::Gib1, access }])
        }
        _ => return Err(none),
    };
    let head_off = i32::try_from(i128::from(start.0) - i128::from(from.0)).map_err(|_| none)?;
    Ok((head_off, pages))
}

fn map_all<M: GuestRead + ?Sized>(
    overlay: &mut Overlay<'_, M>,
    spaces: &[Paging],
    pages: &[Page],
) -> Result<(), InjectError> {
    for paging in spaces {
        for page in pages {
            overlay.map(paging, page)?;
        }
    }
    Ok(())
}

/// Walks every page again as the CPU will. Guest tables that lead into each other can make one write undo another; such
/// a plan must not get out of here.
fn recheck<M: GuestRead + ?Sized>(
    overlay: &Overlay<'_, M>,
    spaces: &[Paging],
    pages: &[Page],
) -> Result<(), InjectError> {
    for paging in spaces {
        for page in pages {
            let inconsistent = InjectError::Inconsistent { gva: page.gva };
            let found = paging.walk(overlay, page.gva).map_err(|_| inconsistent.clone())?;
            let Access { writable, user, nx } = page.access;
            let right = found.gpa == page.gpa
                && found.page == page.size
                && found.writable == writable
                && (found.user || !user)
                && found.executable != nx;
            if !right {
                return Err(inconsistent);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
