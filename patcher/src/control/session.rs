//! A traced machine: image, sites, injected memory, trampoline, rings. The one place that holds what the guest's text
//! looks like now.

use std::sync::{Arc, OnceLock};

use exotrace_trace::collect::{Collector, SiteLookup};
use exotrace_trace::ids::{Gpa, Gva, SiteId, VcpuId};
use exotrace_trace::ring::layout::FullPolicy;
use exotrace_trace::ring::{Consumer, RingMemory, RingPlace};

use super::guard::Guard;
use super::{FunctionInfo, Selection};
use crate::engine::{self, Applied, Refused};
use crate::filter::{Filter, FilterError};
use crate::image::{ImageError, KernelImage, SiteTable};
use crate::inject::{InjectError, Injection, Request};
use crate::machine::{GuestRead, Machine, StopError, Stopped, VcpuState};
use crate::paging::{Paging, WalkError};
use crate::plan::{Plan, PlanError, SiteState, Text};
use crate::trampoline::{self, RingMap, Tail, TrampolineError};

/// The tracer mask of the one tracer that there is.
const MASK_FUNCTION: u16 = 1;
/// Where stubs begin in the code area, behind the trampoline.
const STUBS_AT: usize = 0x800;

/// Why tracing could not be prepared or changed. Nothing was changed then, unless the text says so.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The kernel image.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The filter.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// A filter that names what is not there.
    #[error("{0}")]
    NoMatch(crate::filter::Report),
    /// The vCPUs.
    #[error("the guest could not be stopped: {0}")]
    Stop(#[from] StopError),
    /// The guest's page tables.
    #[error("the guest's page tables: {0}")]
    Paging(#[from] WalkError),
    /// The plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The guest's text.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Mapping the rings.
    #[error("mapping trampolines and rings into the guest: {0}")]
    Inject(#[from] InjectError),
    /// The trampoline.
    #[error(transparent)]
    Trampoline(#[from] TrampolineError),
    /// Nothing to trace.
    #[error("the kernel image has no site that could be traced")]
    NoSites,
    /// A vCPU has no state.
    #[error("vCPU {0} has no registers to read")]
    NoVcpu(VcpuId),
    /// A symbol is missing.
    #[error("the kernel image has no symbol '{0}', which is needed to find out how far it has booted")]
    NoSymbol(&'static str),
    /// The guest has not got that far.
    #[error("the guest can't be traced yet: {0}; exotrace tries again")]
    NotYet(&'static str),
    /// Only a new top-level entry would do.
    #[error("no free address space near the kernel under page-table entries that all processes share")]
    NotShared,
    /// The guest is at it itself.
    #[error("the guest is patching its own text just now; try again")]
    GuestPatches,
    /// The guest was detached.
    #[error("exotrace is detached from the guest; start it again to trace it")]
    Detached,
}

/// How rings are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingOptions {
    /// What happens when one is full.
    pub policy: FullPolicy,
    /// Slots per vCPU, a power of two.
    pub records: u32,
}

/// The kernel's names at the addresses that it runs at.
#[derive(Debug)]
pub struct Tables {
    /// The image, at run-time addresses.
    pub image: Arc<KernelImage>,
    /// Its sites.
    pub sites: Arc<SiteTable>,
}

/// Sites by the address in a record. Empty until it is known where the kernel runs.
#[derive(Clone, Debug)]
pub struct Lookup {
    tables: Arc<OnceLock<Tables>>,
    sites: usize,
}

impl Lookup {
    /// A look-up for an image with that many sites.
    #[must_use]
    pub fn new(sites: usize) -> Lookup {
        Lookup { tables: Arc::default(), sites }
    }

    /// The tables, once it is known where the kernel runs.
    #[must_use]
    pub fn tables(&self) -> Option<&Tables> {
        self.tables.get()
    }

    /// Says where the kernel runs; once.
    pub(super) fn set(&self, session: &Session) {
        let tables = Tables { image: Arc::clone(&session.image), sites: Arc::clone(session.sites()) };
        // A second attach finds the kernel where the first one found it.
        let _ = self.tables.set(tables);
    }
}

impl SiteLookup for Lookup {
    fn site_of_ip(&self, ip: u32) -> Option<SiteId> {
        self.tables.get().and_then(|t| t.sites.by_ip(ip))
    }
    fn site_count(&self) -> usize {
        self.sites
    }
}

/// What a change did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Sites turned into calls.
    pub on: usize,
    /// Sites turned back.
    pub off: usize,
    /// What the engine did.
    pub applied: Applied,
}

/// See the module's docs.
pub struct Session {
    pub(super) image: Arc<KernelImage>,
    pub(super) text: Text,
    trampoline: Gva,
    detached: bool,
    /// The guest patches its own text as well: look before every plan.
    pub(super) shares_text: bool,
    pub(super) guard: Option<Guard>,
    /// While the guest patches its own text: what was traced.
    held: Option<Vec<SiteId>>,
}

/// The collector of a machine's rings.
pub type MachineCollector<M> = Collector<<M as Machine>::Injected, Lookup>;

/// All that it takes to put trampolines and rings into a guest.
pub(super) struct Placement<'a, M: Machine> {
    pub(super) machine: &'a M,
    pub(super) policy: FullPolicy,
    pub(super) records: u32,
    /// The registers of all vCPUs, with the kernel's page tables and GS bases.
    pub(super) vcpus: &'a [VcpuState],
    pub(super) tail: Tail,
    pub(super) sites: &'a SiteTable,
    /// New entries in top-level page tables would be seen by one address space only.
    pub(super) shared_top: bool,
    /// Takes the rings.
    pub(super) collector: &'a MachineCollector<M>,
}

impl<M: Machine> Placement<'_, M> {
    /// Maps rings and trampoline into the stopped guest.
    pub(super) fn inject<S: Stopped>(&self, guard: &mut S) -> Result<Placed, SessionError> {
        let request = Request {
            vcpus: self.vcpus,
            records: self.records,
            text: self.sites.span().ok_or(SessionError::NoSites)?,
            memslot: self.machine.injected_gpa(),
            memslot_len: self.machine.injected_len(),
            new_tables: !self.shared_top,
        };
        let injection = Injection::plan(guard, &request)?;
        if self.shared_top {
            let roots: Vec<Gpa> = self.vcpus.iter().map(|v| Gpa(v.cr3 & !0xfff)).collect();
            if injection.writes.iter().any(|w| roots.contains(&Gpa(w.at.0 & !0xfff))) {
                return Err(SessionError::NotShared);
            }
        }
        let rings =
            RingMap { head_off: injection.head_off, slots: injection.slots_gva, records: injection.layout.records() };
        let trampoline = trampoline::assemble(self.policy, rings, MASK_FUNCTION, self.tail, injection.code_gva)?;
        let injected = self.machine.injected();
        injected.copy_in(injection.layout.code().start as usize, &trampoline.code);
        let consumer = |v| {
            let (vcpu, layout) = (VcpuId(v), &injection.layout);
            let (ctrl, slots) = (layout.control(vcpu) as usize, layout.slots_of(vcpu).start as usize);
            Consumer::new(injected.clone(), RingPlace { vcpu, ctrl, slots, records: layout.records() }, self.policy)
        };
        injection.apply(guard, &injected)?;
        self.collector.set_rings((0..self.machine.vcpus()).map(consumer).collect());
        let stubs = (injection.layout.code().start as usize + STUBS_AT, injection.code_gva.offset(STUBS_AT as u64));
        Ok(Placed { trampoline: trampoline.at, stubs })
    }
}

/// Where things are in the guest.
pub(super) struct Placed {
    pub(super) trampoline: Gva,
    /// The free part of the code area: its offset in the injected memory, and its address in the guest.
    pub(super) stubs: (usize, Gva),
}

/// The registers of all vCPUs.
pub(super) fn states<M: Machine, S: Stopped>(machine: &M, guard: &S) -> Result<Vec<VcpuState>, SessionError> {
    (0..machine.vcpus()).map(|v| guard.vcpu(VcpuId(v)).ok_or(SessionError::NoVcpu(VcpuId(v)))).collect()
}

impl Session {
    /// Prepares a machine that has not started and whose boot protocol sets page tables and GS bases up: turns every
    /// site into a nop, as ftrace_init does, maps trampoline and rings, and switches `initial` on.
    ///
    /// # Errors
    /// See [`SessionError`]; the machine must not be started then.
    pub fn attach<M: Machine>(
        machine: &M,
        image: Arc<KernelImage>,
        rings: RingOptions,
        initial: Option<&Selection>,
        collector: &MachineCollector<M>,
    ) -> Result<Session, SessionError> {
        let sites = Arc::new(SiteTable::build(&image));
        let wanted = initial.map(|s| select(&sites, s)).transpose()?;
        let mut guard = machine.stop()?;
        let vcpus = states(machine, &guard)?;
        let paging = Paging::of(vcpus.first().ok_or(SessionError::NoVcpu(VcpuId(0)))?)?;
        let text = Text::resolve(Arc::clone(&sites), |gva| paging.walk(&guard, gva).map(|m| m.gpa));
        let (policy, records) = (rings.policy, rings.records);
        let (vcpus, sites) = (&vcpus[..], &*sites);
        let placement =
            Placement { machine, policy, records, vcpus, tail: Tail::Ret, sites, shared_top: false, collector };
        let trampoline = placement.inject(&mut guard)?.trampoline;
        let mut session = Session::new(image, text, trampoline);
        session.boot_nops(&mut guard)?;
        if let Some(wanted) = wanted {
            let plan = session.plan_switch(wanted, true)?;
            session.apply(&plan, &mut guard)?;
        }
        Ok(session)
    }

    pub(super) fn new(image: Arc<KernelImage>, text: Text, trampoline: Gva) -> Session {
        Session { image, text, trampoline, detached: false, shares_text: false, guard: None, held: None }
    }

    /// Whether the guest's own text patching is guarded.
    #[must_use]
    pub fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    /// The guest is about to patch its text: the plan that gives it its own bytes back, the traced sites remembered.
    ///
    /// # Errors
    /// See [`Text::plan`].
    pub fn plan_hold(&mut self) -> Result<Plan, SessionError> {
        let sites = self.sites().iter().map(|(id, _)| id);
        let traced: Vec<SiteId> = sites.filter(|id| self.is_active(*id)).collect();
        let plan = self.text.plan(traced.iter().map(|s| (*s, SiteState::Nop)))?;
        // A second begin without an end in between holds what the first one did.
        self.held.get_or_insert(traced);
        Ok(plan)
    }

    /// The guest has patched its text: the plan that traces again what was traced before, as far as the guest left it.
    ///
    /// # Errors
    /// See [`Text::plan`].
    pub fn plan_release<M: GuestRead + ?Sized>(&mut self, memory: &M) -> Result<Plan, SessionError> {
        self.text.survey(memory);
        let call = SiteState::Call(self.trampoline);
        let held = self.held.take().unwrap_or_default();
        Ok(self.text.plan(held.into_iter().map(|s| (s, call)))?)
    }

    /// Leads the guest's patching over stubs, or no more.
    pub(super) fn set_guard<S: Stopped>(&self, guest: &mut S, on: bool) -> bool {
        self.guard.as_ref().is_none_or(|g| g.set(guest, on))
    }

    /// Looks at the guest's sites again, if the guest changes them as well.
    pub fn look<M: GuestRead + ?Sized>(&mut self, memory: &M) {
        if self.shares_text {
            self.text.survey(memory);
        }
    }

    /// How many sites are left out, and why.
    #[must_use]
    pub fn left_out(&self) -> Vec<(String, usize)> {
        self.text.left_out()
    }

    /// Every site a nop, before the first instruction.
    fn boot_nops<S: Stopped>(&mut self, guard: &mut S) -> Result<(), SessionError> {
        let plan = self.text.plan_all(SiteState::Nop)?;
        self.apply(&plan, guard)?;
        Ok(())
    }

    /// The site table.
    #[must_use]
    pub fn sites(&self) -> &Arc<SiteTable> {
        self.text.sites()
    }

    /// The image.
    #[must_use]
    pub fn image(&self) -> &Arc<KernelImage> {
        &self.image
    }

    /// How many sites are traced.
    #[must_use]
    pub fn active(&self) -> usize {
        self.text.calls()
    }

    /// Whether a site is traced.
    #[must_use]
    pub fn is_active(&self, site: SiteId) -> bool {
        matches!(self.text.state(site), Some(SiteState::Call(_)))
    }

    fn check_attached(&self) -> Result<(), SessionError> {
        if self.held.is_some() {
            return Err(SessionError::GuestPatches);
        }
        if self.detached { Err(SessionError::Detached) } else { Ok(()) }
    }

    fn plan_switch(&self, sites: Vec<SiteId>, on: bool) -> Result<Plan, SessionError> {
        self.check_attached()?;
        let state = if on { SiteState::Call(self.trampoline) } else { SiteState::Nop };
        Ok(self.text.plan(sites.into_iter().map(|s| (s, state)))?)
    }

    /// The plan that switches functions on or off.
    ///
    /// # Errors
    /// A filter that is wrong or matches nothing, an unknown site.
    pub fn plan(&self, what: &Selection, on: bool) -> Result<Plan, SessionError> {
        self.plan_switch(select(self.sites(), what)?, on)
    }

    /// The plan that traces exactly these.
    ///
    /// # Errors
    /// A filter that is wrong or matches nothing, an unknown site.
    pub fn plan_exactly(&self, what: &Selection) -> Result<Plan, SessionError> {
        self.check_attached()?;
        let wanted = select(self.sites(), what)?;
        let all_off = self.sites().patchable().map(|(id, _)| (id, SiteState::Nop));
        let call = SiteState::Call(self.trampoline);
        Ok(self.text.plan(all_off.chain(wanted.into_iter().map(|s| (s, call))))?)
    }

    /// The plan that restores the bytes of the image everywhere.
    ///
    /// # Errors
    /// When it was detached already.
    pub fn plan_detach(&self) -> Result<Plan, SessionError> {
        self.check_attached()?;
        if self.shares_text {
            // What a Linux guest had there before exotrace came.
            return Ok(self.text.plan_all(SiteState::Nop)?);
        }
        Ok(self.text.plan_detach()?)
    }

    /// Takes note that the guest was detached: no plan is made any more.
    pub fn set_detached(&mut self) {
        self.detached = true;
    }

    /// Carries out a plan on stopped vCPUs: all of it or nothing.
    ///
    /// # Errors
    /// The guest's text is not what it should be.
    pub fn apply<S: Stopped>(&mut self, plan: &Plan, guard: &mut S) -> Result<Change, Refused> {
        let applied = engine::apply(plan, guard)?;
        let calling = |this: &Session| plan.patches().iter().filter(|p| this.is_active(p.site)).count();
        let off = calling(self);
        self.text.commit(plan);
        let on = calling(self);
        Ok(Change { on, off, applied })
    }
}

/// What users see of the sites.
pub(super) fn functions(sites: &SiteTable) -> Arc<[FunctionInfo]> {
    let info = |(site, s): (SiteId, &crate::image::Site)| FunctionInfo {
        site,
        name: s.name.clone(),
        addr: s.function,
        skipped: s.skip().map(|why| why.to_string().into()),
    };
    sites.iter().map(info).collect()
}

/// The sites that a selection means, those only that can be patched.
pub(super) fn select(sites: &SiteTable, what: &Selection) -> Result<Vec<SiteId>, SessionError> {
    match what {
        Selection::All => Ok(sites.patchable().map(|(id, _)| id).collect()),
        Selection::Filter(text) => {
            let (set, report) = Filter::parse(text)?.select(sites);
            if report.is_clean() { Ok(set.iter().collect()) } else { Err(SessionError::NoMatch(report)) }
        }
        Selection::Sites(ids) => Ok(ids.clone()),
    }
}
