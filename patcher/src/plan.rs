//! Plans: what to change in the guest's text, computed while the guest runs.
//!
//! [`Text`] is what we know of the guest's sites: where each lies in guest physical memory and what we last put there.
//! [`Text::plan`] turns a wish into a [`Plan`], a list of (address, bytes expected, bytes wanted), without touching
//! anything; [`crate::engine::apply`] carries it out; [`Text::commit`] takes note.
//!
//! Every form that a site takes is a single instruction of 5 bytes, so a vCPU or a preempted thread stands before or
//! after a site but never inside, and a site may change whenever the vCPUs are stopped.

use std::collections::BTreeMap;
use std::sync::Arc;

use exotrace_trace::ids::{Gpa, Gva, SiteId};

use crate::image::{HexBytes, SITE_BYTES, Site, SiteTable, Skip};
use crate::machine::GuestRead;
use crate::paging::WalkError;

/// The nop that an untraced site holds (the one that Linux uses).
pub const NOP: [u8; SITE_BYTES] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// What a site is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum SiteState {
    /// The bytes of the image.
    #[default]
    Original,
    /// A nop.
    Nop,
    /// A call of a trampoline.
    Call(Gva),
}

/// A call can't reach its target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a call at {site} can't reach {target}: it is more than 2 GiB away")]
pub struct OutOfReach {
    /// Where the call would be.
    pub site: Gva,
    /// What it should call.
    pub target: Gva,
}

/// The bytes of a `call` at `site` of `target`.
///
/// # Errors
/// When the target is out of the ±2 GiB that a rel32 reaches.
pub fn make_call(site: Gva, target: Gva) -> Result<[u8; SITE_BYTES], OutOfReach> {
    let next = i128::from(site.0) + SITE_BYTES as i128;
    let rel = i32::try_from(i128::from(target.0) - next).map_err(|_| OutOfReach { site, target })?.to_le_bytes();
    Ok([0xe8, rel[0], rel[1], rel[2], rel[3]])
}

/// The bytes of an untraced site.
#[must_use]
pub fn make_nop() -> [u8; SITE_BYTES] {
    NOP
}

/// Why a site is left out of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unpatchable {
    /// The image says so.
    #[error("{0}")]
    Skipped(Skip),
    /// The guest doesn't map it.
    #[error("{0}")]
    Unmapped(WalkError),
    /// The guest changed it: its own ftrace, a kprobe, live patching, or memory that was given back after boot.
    #[error("the guest changed it: it holds {}", HexBytes(found))]
    Changed {
        /// What it holds.
        found: [u8; SITE_BYTES],
    },
    /// Its 5 bytes lie in two pages that are not neighbours in guest physical memory.
    #[error("its bytes lie in two guest pages that are not contiguous")]
    Split,
}

impl Unpatchable {
    /// A few words that are the same for all sites of a kind, to count by.
    #[must_use]
    pub fn kind(&self) -> String {
        match self {
            Unpatchable::Skipped(skip) => skip.reason().to_string(),
            Unpatchable::Unmapped(_) => "not mapped (any more)".into(),
            Unpatchable::Changed { .. } => "changed by the guest".into(),
            Unpatchable::Split => "in two pages that are not neighbours".into(),
        }
    }
}

/// What becomes of one site in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its bytes change.
    Patched,
    /// It is already what it should be.
    Unchanged,
    /// It is left alone.
    Skipped(Unpatchable),
}

/// One change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    /// The site.
    pub site: SiteId,
    /// Its address.
    pub gva: Gva,
    /// Where that is in guest physical memory.
    pub gpa: Gpa,
    /// What must be there now.
    pub expected: [u8; SITE_BYTES],
    /// What shall be there.
    pub wanted: [u8; SITE_BYTES],
}

/// A plan can't be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A trampoline is too far away.
    #[error("function '{name}': {source}")]
    OutOfReach {
        /// The function.
        name: Box<str>,
        /// The addresses.
        source: OutOfReach,
    },
    /// No such site.
    #[error("there is no site {site}: the image has {sites} sites")]
    NoSuchSite {
        /// The number asked for.
        site: SiteId,
        /// How many there are.
        sites: usize,
    },
}

/// A change of the guest's text, ready to be applied.
#[derive(Clone, Debug)]
pub struct Plan {
    sites: Arc<SiteTable>,
    /// Sorted by GPA.
    patches: Vec<Patch>,
    /// Sorted by site.
    outcomes: Vec<(SiteId, SiteState, Outcome)>,
    tally: Tally,
}

/// How many sites of a plan have which outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tally {
    /// See [`Outcome::Patched`].
    pub patched: usize,
    /// See [`Outcome::Unchanged`].
    pub unchanged: usize,
    /// See [`Outcome::Skipped`].
    pub skipped: usize,
}

impl Plan {
    /// The changes, sorted by GPA.
    #[must_use]
    pub fn patches(&self) -> &[Patch] {
        &self.patches
    }

    /// What becomes of each site that was asked for, sorted by site.
    pub fn outcomes(&self) -> impl ExactSizeIterator<Item = (SiteId, Outcome)> + '_ {
        self.outcomes.iter().map(|&(id, _, o)| (id, o))
    }

    /// The outcomes, counted (when the plan was made: the pause is no time for counting).
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.patches.is_empty()
    }

    /// The table that the plan's sites belong to.
    #[must_use]
    pub fn sites(&self) -> &SiteTable {
        &self.sites
    }
}

/// What we know of the guest's sites.
#[derive(Clone, Debug)]
pub struct Text {
    sites: Arc<SiteTable>,
    at: Vec<Result<Gpa, Unpatchable>>,
    /// Where a site lies, also while it is left out because the guest changed it.
    home: Vec<Option<Gpa>>,
    now: Vec<SiteState>,
}

impl Text {
    /// Finds out where every site lies in guest physical memory; all sites count as holding their original bytes.
    ///
    /// `resolve` is asked for the first and the last byte of each patchable site.
    pub fn resolve(sites: Arc<SiteTable>, mut resolve: impl FnMut(Gva) -> Result<Gpa, WalkError>) -> Text {
        let mut place = |site: &Site| {
            if let Err(skip) = site.form {
                return Err(Unpatchable::Skipped(skip));
            }
            let last = SITE_BYTES as u64 - 1;
            let first = resolve(site.addr).map_err(Unpatchable::Unmapped)?;
            let end = resolve(site.addr.offset(last)).map_err(Unpatchable::Unmapped)?;
            if first.checked_add(last) == Some(end) { Ok(first) } else { Err(Unpatchable::Split) }
        };
        let at: Vec<Result<Gpa, Unpatchable>> = sites.iter().map(|(_, site)| place(site)).collect();
        let home = at.iter().map(|a| a.ok()).collect();
        let now = vec![SiteState::Original; sites.len()];
        Text { sites, at, home, now }
    }

    /// Looks at every site of a guest that turned its own sites into nops (Linux's ftrace_init): those that hold the nop
    /// count as such from now on, those that hold something else than what was last written are left out of plans
    /// until a later look finds them back. Returns how many sites may be patched.
    pub fn survey<M: GuestRead + ?Sized>(&mut self, memory: &M) -> usize {
        let mut usable = 0;
        for n in 0..self.at.len() {
            let Some(site) = self.sites.get(SiteId(n as u32)) else { continue };
            let gpa = match (self.at[n], self.home[n]) {
                (Ok(gpa), _) | (Err(Unpatchable::Changed { .. }), Some(gpa)) => gpa,
                _ => continue,
            };
            let mut found = [0; SITE_BYTES];
            let read = memory.read(gpa, &mut found).is_ok();
            let now = self.now[n];
            let call = matches!(now, SiteState::Call(_)) && bytes_of(site, now).is_ok_and(|b| b == found);
            self.at[n] = match found {
                NOP if read => {
                    self.now[n] = SiteState::Nop;
                    Ok(gpa)
                }
                _ if call && read => Ok(gpa),
                _ => Err(Unpatchable::Changed { found }),
            };
            usable += usize::from(self.at[n].is_ok());
        }
        usable
    }

    /// How many sites are left out of plans, and why, most frequent first.
    #[must_use]
    pub fn left_out(&self) -> Vec<(String, usize)> {
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for why in self.at.iter().filter_map(|a| a.as_ref().err()) {
            *reasons.entry(why.kind()).or_default() += 1;
        }
        let mut list: Vec<_> = reasons.into_iter().collect();
        list.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        list
    }

    /// The table of the sites.
    #[must_use]
    pub fn sites(&self) -> &Arc<SiteTable> {
        &self.sites
    }

    /// What a site holds now.
    #[must_use]
    pub fn state(&self, site: SiteId) -> Option<SiteState> {
        self.now.get(site.index()).copied()
    }

    /// Where a site lies in guest physical memory, or why it can't be patched.
    #[must_use]
    pub fn place(&self, site: SiteId) -> Option<Result<Gpa, Unpatchable>> {
        self.at.get(site.index()).copied()
    }

    /// How many sites call a trampoline now.
    #[must_use]
    pub fn calls(&self) -> usize {
        let call = |s: &&SiteState| matches!(s, SiteState::Call(_));
        self.now.iter().filter(call).count()
    }

    /// The plan that takes the sites from what they hold now to what is wanted. Sites that are not named stay as they
    /// are; when one is named more than once, the last wish counts.
    ///
    /// # Errors
    /// When a trampoline is out of a site's reach or a site doesn't exist; then there is no plan at all.
    pub fn plan(&self, wanted: impl IntoIterator<Item = (SiteId, SiteState)>) -> Result<Plan, PlanError> {
        let mut plan =
            Plan { sites: Arc::clone(&self.sites), patches: Vec::new(), outcomes: Vec::new(), tally: Tally::default() };
        for (site, state) in last_wishes(wanted) {
            let (info, at) = match (self.sites.get(site), self.at.get(site.index())) {
                (Some(info), Some(at)) => (info, at),
                _ => {
                    let sites = self.sites.len();
                    return Err(PlanError::NoSuchSite { site, sites });
                }
            };
            let outcome = match at {
                Err(why) => Outcome::Skipped(*why),
                Ok(gpa) => {
                    let expected = bytes_of(info, self.now[site.index()])?;
                    let bytes = bytes_of(info, state)?;
                    if expected == bytes {
                        Outcome::Unchanged
                    } else {
                        plan.patches.push(Patch { site, gva: info.addr, gpa: *gpa, expected, wanted: bytes });
                        Outcome::Patched
                    }
                }
            };
            match outcome {
                Outcome::Patched => plan.tally.patched += 1,
                Outcome::Unchanged => plan.tally.unchanged += 1,
                Outcome::Skipped(_) => plan.tally.skipped += 1,
            }
            plan.outcomes.push((site, state, outcome));
        }
        plan.patches.sort_by_key(|p| p.gpa);
        Ok(plan)
    }

    /// The plan that brings every site back to the bytes of the image.
    ///
    /// # Errors
    /// See [`Text::plan`].
    pub fn plan_detach(&self) -> Result<Plan, PlanError> {
        self.plan_all(SiteState::Original)
    }

    /// The plan that gives every patchable site the same state.
    ///
    /// # Errors
    /// See [`Text::plan`].
    pub fn plan_all(&self, state: SiteState) -> Result<Plan, PlanError> {
        self.plan(self.sites.patchable().map(|(id, _)| (id, state)))
    }

    /// Takes note that a plan was applied. Sites that it skipped keep their state.
    pub fn commit(&mut self, plan: &Plan) {
        for &(site, state, outcome) in &plan.outcomes {
            if let (Outcome::Patched | Outcome::Unchanged, Some(now)) = (outcome, self.now.get_mut(site.index())) {
                *now = state;
            }
        }
    }
}

/// The bytes of a site in a state.
fn bytes_of(site: &Site, state: SiteState) -> Result<[u8; SITE_BYTES], PlanError> {
    match state {
        SiteState::Original => Ok(site.original),
        SiteState::Nop => Ok(make_nop()),
        SiteState::Call(target) => {
            make_call(site.addr, target).map_err(|source| PlanError::OutOfReach { name: site.name.clone(), source })
        }
    }
}

/// One wish per site, the last one, sorted by site.
fn last_wishes(wanted: impl IntoIterator<Item = (SiteId, SiteState)>) -> Vec<(SiteId, SiteState)> {
    let mut wishes: Vec<_> = wanted.into_iter().collect();
    wishes.sort_by_key(|w| w.0);
    // `dedup_by` keeps the first of equals and the sort is stable: carry the later state forward.
    wishes.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        if same {
            kept.1 = later.1;
        }
        same
    });
    wishes
}

#[cfg(test)]
mod tests;
