//! A traced machine: image, sites, injected memory, trampoline, rings. The one place that holds what the guest's text
//! looks like now.

use std::sync::Arc;

use exotrace_trace::collect::{Collector, SiteLookup};
use exotrace_trace::ids::{Gva, SiteId, VcpuId};
use exotrace_trace::ring::layout::FullPolicy;
use exotrace_trace::ring::{Consumer, RingMemory, RingPlace};

use super::{FunctionInfo, Selection};
use crate::engine::{self, Applied, Refused};
use crate::filter::{Filter, FilterError};
use crate::image::{ImageError, KernelImage, SiteTable};
use crate::inject::{InjectError, Injection, Request};
use crate::machine::{Machine, StopError, Stopped};
use crate::paging::{Paging, WalkError};
use crate::plan::{Plan, PlanError, SiteState, Text};
use crate::trampoline::{self, RingMap, Trampoline, TrampolineError};

/// The tracer mask of the one tracer that there is.
const MASK_FUNCTION: u16 = 1;

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

/// Sites by the address in a record.
#[derive(Clone, Debug)]
pub struct Lookup(Arc<SiteTable>);

impl SiteLookup for Lookup {
    fn site_of_ip(&self, ip: u32) -> Option<SiteId> {
        self.0.by_ip(ip)
    }
    fn site_count(&self) -> usize {
        self.0.len()
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
    image: Arc<KernelImage>,
    text: Text,
    trampoline: Gva,
    detached: bool,
}

/// The collector of a machine's rings.
pub type MachineCollector<M> = Collector<<M as Machine>::Injected, Lookup>;

impl Session {
    /// Prepares a machine that has not started: turns every site into a nop, as ftrace_init does, maps trampoline and
    /// rings, and switches `initial` on.
    ///
    /// # Errors
    /// See [`SessionError`]; the machine must not be started then.
    pub fn attach<M: Machine>(
        machine: &M,
        image: Arc<KernelImage>,
        rings: RingOptions,
        initial: Option<&Selection>,
    ) -> Result<(Session, Arc<MachineCollector<M>>), SessionError> {
        let sites = Arc::new(SiteTable::build(&image));
        let wanted = initial.map(|s| select(&sites, s)).transpose()?;
        let mut guard = machine.stop()?;
        let state = |v| guard.vcpu(VcpuId(v)).ok_or(SessionError::NoVcpu(VcpuId(v)));
        let vcpus = (0..machine.vcpus()).map(state).collect::<Result<Vec<_>, _>>()?;
        let boot = vcpus.first().ok_or(SessionError::NoVcpu(VcpuId(0)))?;
        let paging = Paging::of(boot)?;
        let text = Text::resolve(Arc::clone(&sites), |gva| paging.walk(&guard, gva).map(|m| m.gpa));
        let request = Request {
            vcpus: &vcpus,
            records: rings.records,
            text: sites.span().ok_or(SessionError::NoSites)?,
            memslot: machine.injected_gpa(),
            memslot_len: machine.injected_len(),
        };
        let injection = Injection::plan(&guard, &request)?;
        let trampoline = assemble(&injection, rings.policy)?;
        let injected = machine.injected();
        injected.copy_in(injection.layout.code().start as usize, &trampoline.code);
        let consumers = (0..machine.vcpus())
            .map(|v| Consumer::new(injected.clone(), ring_place(&injection, VcpuId(v)), rings.policy))
            .collect();
        injection.apply(&mut guard, &injected)?;
        let mut session = Session { image, text, trampoline: trampoline.at, detached: false };
        session.boot_nops(&mut guard)?;
        if let Some(wanted) = wanted {
            let plan = session.plan_switch(wanted, true)?;
            session.apply(&plan, &mut guard)?;
        }
        Ok((session, Arc::new(Collector::new(consumers, Lookup(sites)))))
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

    /// What users see of the sites.
    #[must_use]
    pub fn functions(&self) -> Arc<[FunctionInfo]> {
        let info = |(site, s): (SiteId, &crate::image::Site)| FunctionInfo {
            site,
            name: s.name.clone(),
            addr: s.function,
            skipped: s.skip().map(|why| why.to_string().into()),
        };
        self.sites().iter().map(info).collect()
    }

    fn check_attached(&self) -> Result<(), SessionError> {
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

fn assemble(injection: &Injection, policy: FullPolicy) -> Result<Trampoline, TrampolineError> {
    let rings =
        RingMap { head_off: injection.head_off, slots: injection.slots_gva, records: injection.layout.records() };
    trampoline::assemble(policy, rings, MASK_FUNCTION, injection.code_gva)
}

fn ring_place(injection: &Injection, vcpu: VcpuId) -> RingPlace {
    let layout = &injection.layout;
    RingPlace {
        vcpu,
        ctrl: layout.control(vcpu) as usize,
        slots: layout.slots_of(vcpu).start as usize,
        records: layout.records(),
    }
}

/// The sites that a selection means, those only that can be patched.
fn select(sites: &SiteTable, what: &Selection) -> Result<Vec<SiteId>, SessionError> {
    match what {
        Selection::All => Ok(sites.patchable().map(|(id, _)| id).collect()),
        Selection::Filter(text) => {
            let (set, report) = Filter::parse(text)?.select(sites);
            if report.is_clean() { Ok(set.iter().collect()) } else { Err(SessionError::NoMatch(report)) }
        }
        Selection::Sites(ids) => Ok(ids.clone()),
    }
}
