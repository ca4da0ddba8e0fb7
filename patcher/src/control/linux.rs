//! Attaching to a Linux kernel that runs: where it was moved to, its page tables and per-CPU areas, and what its text
//! holds by now.
//!
//! Everything is found in the guest's memory by the names of the kernel's own symbols; nothing is asked of the guest.

use std::sync::Arc;

use exotrace_trace::ids::Gva;

use super::RingOptions;
use super::guard::{Guard, tail_of};
use super::session::{MachineCollector, Placement, Session, SessionError, states};
use crate::image::{KernelImage, SiteTable};
use crate::machine::{GuestRead, Machine, Stopped, VcpuState};
use crate::paging::Paging;
use crate::plan::Text;
use crate::trampoline::Tail;

/// The kernel is moved in steps of this (CONFIG_PHYSICAL_ALIGN) …
const SLIDE_STEP: u64 = 2 << 20;
/// … within this (KERNEL_IMAGE_SIZE).
const SLIDE_RANGE: u64 = 1 << 30;
/// The bit of CR3 that tells a process' user page tables from its kernel ones under page-table isolation.
const PTI_USER_ROOT: u64 = 1 << 12;
/// `system_state` from when on the kernel runs user space (include/linux/kernel.h, since 5.17).
const SYSTEM_RUNNING: u32 = 3;
/// Enough of the banner to tell a kernel by.
const BANNER_BYTES: usize = 64;
/// A kernel that has turned its sites into nops has done so with nearly all of them.
const LEAST_USABLE: f64 = 0.5;
/// Return sites looked at to see how this kernel returns.
const RETURNS_LOOKED_AT: usize = 256;

/// A kernel in memory.
struct Found {
    slide: u64,
    /// The registers of all vCPUs, with the kernel's page tables and GS bases.
    vcpus: Vec<VcpuState>,
    paging: Paging,
}

/// What an attach found.
pub(super) struct Attached {
    pub(super) session: Session,
    pub(super) slide: u64,
    pub(super) usable: usize,
}

/// Attaches to a running Linux kernel. `image` has the addresses that it was linked at.
///
/// # Errors
/// [`SessionError::NotYet`] while it boots.
pub(super) fn attach<M: Machine>(
    machine: &M,
    image: &KernelImage,
    rings: RingOptions,
    collector: &MachineCollector<M>,
) -> Result<Attached, SessionError> {
    // A first short stop to find it; the tables for where it lies are made while it runs on.
    let slide = {
        let guard = machine.stop()?;
        find(machine, &guard, image)?.slide
    };
    let image = Arc::new(image.slid(slide)?);
    let sites = Arc::new(SiteTable::build(&image));
    let mut guard = machine.stop()?;
    let found = find(machine, &guard, &image)?;
    if found.slide != 0 {
        return Err(SessionError::NotYet("its kernel was moved again"));
    }
    let walk = |gva| found.paging.walk(&guard, gva).map(|m| m.gpa);
    let mut text = Text::resolve(Arc::clone(&sites), walk);
    let usable = text.survey(&guard);
    if (usable as f64) < sites.patchable_len() as f64 * LEAST_USABLE {
        return Err(SessionError::NotYet("it has not turned its sites into nops (ftrace_init)"));
    }
    let placement = Placement {
        machine,
        policy: rings.policy,
        records: rings.records,
        vcpus: &found.vcpus,
        tail: tail(&guard, &found.paging, &image),
        sites: &sites,
        shared_top: true,
        collector,
    };
    let placed = placement.inject(&mut guard)?;
    let mut session = Session::new(Arc::clone(&image), text, placed.trampoline);
    session.shares_text = true;
    session.guard = Guard::prepare(&guard, &found.paging, &image, &machine.injected(), placed.stubs)?;
    if !session.set_guard(&mut guard, true) {
        session.guard = None;
    }
    drop(guard);
    Ok(Attached { session, slide, usable })
}

fn find<M: Machine, S: Stopped>(machine: &M, guard: &S, image: &KernelImage) -> Result<Found, SessionError> {
    let raw = states(machine, guard)?;
    let (slide, home) =
        raw.iter().find_map(|s| kernel_of(guard, s, image)).ok_or(SessionError::NotYet("no vCPU runs its kernel"))?;
    let paging = Paging::of(&home)?;
    has_booted(guard, &paging, image, slide)?;
    let areas = per_cpu_areas(guard, &paging, image, slide, raw.len())?;
    let with_area = |(n, s): (usize, &VcpuState)| {
        // A vCPU that has not come up yet has no page tables of the kernel's: those of the one that has are the same.
        let (_, own) = kernel_of(guard, s, image).unwrap_or((slide, home));
        VcpuState { gs_base: areas[n], ..own }
    };
    let vcpus = raw.iter().enumerate().map(with_area).collect();
    Ok(Found { slide, vcpus, paging })
}

/// The slide of the kernel that a vCPU's page tables map, and the vCPU's registers with the kernel's page tables.
fn kernel_of<G: GuestRead + ?Sized>(mem: &G, state: &VcpuState, image: &KernelImage) -> Option<(u64, VcpuState)> {
    let (addr, banner) = image.banner()?;
    let banner = &banner[..banner.len().min(BANNER_BYTES)];
    let roots = [state.cr3, state.cr3 & !PTI_USER_ROOT];
    roots.iter().find_map(|&cr3| {
        let candidate = VcpuState { cr3, ..*state };
        let paging = Paging::of(&candidate).ok()?;
        let holds = |slide: &u64| {
            let mut found = [0; BANNER_BYTES];
            let found = &mut found[..banner.len()];
            let at = paging.walk(mem, addr.offset(*slide));
            at.is_ok_and(|m| mem.read(m.gpa, found).is_ok()) && found == banner
        };
        let slide = (0..SLIDE_RANGE).step_by(SLIDE_STEP as usize).find(holds)?;
        Some((slide, candidate))
    })
}

fn read_u64<G: GuestRead + ?Sized>(mem: &G, paging: &Paging, gva: Gva) -> Option<u64> {
    let mut bytes = [0; 8];
    let at = paging.walk(mem, gva).ok()?;
    mem.read(at.gpa, &mut bytes).ok()?;
    Some(u64::from_le_bytes(bytes))
}

/// Whether the kernel has booted. Before that it still changes its own text without asking (alternatives, return
/// thunks), gives init text back and looks for pages that are writable and executable.
fn has_booted<G: GuestRead + ?Sized>(
    mem: &G,
    paging: &Paging,
    image: &KernelImage,
    slide: u64,
) -> Result<(), SessionError> {
    let symbol = image.symbols().named("system_state").next().ok_or(SessionError::NoSymbol("system_state"))?;
    match read_u64(mem, paging, symbol.addr.offset(slide)) {
        Some(state) if (state as u32) >= SYSTEM_RUNNING => Ok(()),
        _ => Err(SessionError::NotYet("it is booting")),
    }
}

/// The per-CPU areas (the kernel's GS bases): `__per_cpu_offset[]`.
fn per_cpu_areas<G: GuestRead + ?Sized>(
    mem: &G,
    paging: &Paging,
    image: &KernelImage,
    slide: u64,
    cpus: usize,
) -> Result<Vec<Gva>, SessionError> {
    let table = image.symbols().named("__per_cpu_offset").next();
    let table = table.ok_or(SessionError::NoSymbol("__per_cpu_offset"))?.addr.offset(slide);
    let not_yet = SessionError::NotYet("its per-CPU areas are not set up");
    let mut areas = Vec::with_capacity(cpus);
    for n in 0..cpus {
        let Some(area) = read_u64(mem, paging, table.offset(n as u64 * 8)) else { return Err(not_yet) };
        // Before they are set up, all entries are those of the area in the image.
        if paging.walk(mem, Gva(area)).is_err() || areas.contains(&Gva(area)) || area >> 63 == 0 {
            return Err(not_yet);
        }
        areas.push(Gva(area));
    }
    let first = image.symbols().named("__per_cpu_load").next().map(|s| s.addr.offset(slide));
    if areas.first() == first.as_ref() { Err(not_yet) } else { Ok(areas) }
}

/// How this kernel returns, by what most of its patched return sites hold: a plain `ret`, or a jump to a thunk that its
/// mitigations chose at boot.
fn tail<G: GuestRead + ?Sized>(mem: &G, paging: &Paging, image: &KernelImage) -> Tail {
    let mut thunks: Vec<(Gva, usize)> = Vec::new();
    let mut plain = 0;
    let sites = image.return_sites();
    let step = (sites.len() / RETURNS_LOOKED_AT).max(1);
    for &site in sites.iter().step_by(step) {
        let mut code = [0; 5];
        let read = paging.walk(mem, site).is_ok_and(|m| mem.read(m.gpa, &mut code).is_ok());
        match tail_of(site, code).filter(|_| read) {
            Some(Tail::Ret) => plain += 1,
            Some(Tail::Thunk(target)) => match thunks.iter_mut().find(|(t, _)| *t == target) {
                Some((_, n)) => *n += 1,
                None => thunks.push((target, 1)),
            },
            None => {}
        }
    }
    match thunks.into_iter().max_by_key(|(_, n)| *n) {
        Some((thunk, n)) if n > plain => Tail::Thunk(thunk),
        _ => Tail::Ret,
    }
}
