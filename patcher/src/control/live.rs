//! The live view: the last records with their names.

use std::sync::Arc;

use exotrace_trace::clock::Clock;
use exotrace_trace::collect::{SiteLookup, TailRecord};
use exotrace_trace::ids::Gva;

use super::LiveRecord;
use super::session::Lookup;
use crate::image::SITE_BYTES;

/// Lines in a snapshot at most.
pub(super) const LINES: usize = 512;

/// See the module's docs.
pub(super) struct LiveView {
    lookup: Lookup,
    clock: Clock,
}

impl LiveView {
    pub(super) fn new(lookup: Lookup, clock: Clock) -> LiveView {
        LiveView { lookup, clock }
    }

    /// Resolves names.
    pub(super) fn lines(&self, records: &[TailRecord]) -> Arc<[LiveRecord]> {
        records.iter().map(|t| self.line(t)).collect()
    }

    fn line(&self, t: &TailRecord) -> LiveRecord {
        let site = self.lookup.site_of_ip(t.record.ip);
        let sites = self.lookup.tables().map(|t| &t.sites);
        let addr = site.and_then(|s| sites?.get(s)).map(|s| s.addr);
        LiveRecord {
            vcpu: t.vcpu,
            tsc: t.record.tsc(),
            time_ns: u64::try_from(self.clock.since_start_ns(t.record.tsc())).unwrap_or(0),
            site,
            ip: addr.unwrap_or(Gva(u64::from(t.record.ip).wrapping_sub(SITE_BYTES as u64))),
            parent: self.caller(t.record.parent()),
        }
    }

    /// A return address as the function that it lies in.
    fn caller(&self, addr: Gva) -> Box<str> {
        // The call is before the return address, which may already be the next function's first byte.
        let before = Gva(addr.0.wrapping_sub(1));
        match self.lookup.tables().and_then(|t| t.image.symbols().resolve(before)) {
            Some((symbol, offset)) => format!("{}+{:#x}", symbol.name, offset + 1).into(),
            None => addr.to_string().into(),
        }
    }
}
