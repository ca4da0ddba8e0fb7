//! Records per function, most first.

use std::collections::HashMap;
use std::io::{self, Write};

use super::lines::{self, Lines};
use super::{Sink, Summary};
use crate::file::{Event, Loss, Record, Trace};
use crate::ring::layout::KIND_ENTRY;

/// Addresses of no known site that are counted one by one; a hostile guest can make up any number of them.
const MAX_UNKNOWN: usize = 1 << 16;

/// Counts records per function and prints the counts at the end.
pub struct ProfileSink<W> {
    lines: Lines<W>,
    /// By place of the site.
    sites: Vec<u64>,
    /// By `ip`.
    unknown: HashMap<u32, u64>,
    /// Of further unknown addresses.
    more_unknown: u64,
    /// Of kinds that are no function's entry.
    other_kinds: u64,
}

impl<W: Write> ProfileSink<W> {
    /// Prints to `out`, which need not be buffered.
    pub fn new(out: W) -> ProfileSink<W> {
        ProfileSink {
            lines: Lines::new(out),
            sites: Vec::new(),
            unknown: HashMap::new(),
            more_unknown: 0,
            other_kinds: 0,
        }
    }
}

impl<W: Write> Sink for ProfileSink<W> {
    fn begin(&mut self, trace: &Trace) -> io::Result<()> {
        self.sites = vec![0; trace.sites().len()];
        lines::head(&mut self.lines, trace, "function (profile: records per function)");
        self.lines.line(format_args!("#"));
        self.lines.line(format_args!("#      COUNT   SHARE  FUNCTION"));
        self.lines.pass_on()
    }

    fn record(&mut self, _: &Trace, record: &Record, site: Option<usize>) -> io::Result<()> {
        let full = self.unknown.len() >= MAX_UNKNOWN;
        if record.raw.kind() != KIND_ENTRY {
            self.other_kinds += 1;
        } else if let Some(count) = site.and_then(|n| self.sites.get_mut(n)) {
            *count += 1;
        } else if full && !self.unknown.contains_key(&record.raw.ip) {
            self.more_unknown += 1;
        } else {
            *self.unknown.entry(record.raw.ip).or_default() += 1;
        }
        Ok(())
    }

    fn loss(&mut self, _: &Trace, _: &Loss) -> io::Result<()> {
        // The tail says how many are missing, per vCPU.
        Ok(())
    }

    fn event(&mut self, _: &Trace, _: &Event) -> io::Result<()> {
        Ok(())
    }

    fn end(&mut self, trace: &Trace, summary: &Summary) -> io::Result<()> {
        let known = self.sites.iter().zip(trace.sites().iter()).map(|(&n, s)| (n, s.function.to_owned()));
        let unknown = self.unknown.iter().map(|(&ip, &n)| {
            let mut name = Vec::new();
            lines::put_unknown(&mut name, trace, ip);
            (n, String::from_utf8_lossy(&name).into_owned())
        });
        let mut rows: Vec<(u64, String)> = known.chain(unknown).filter(|&(n, _)| n > 0).collect();
        rows.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        let all = summary.shown.max(1) as f64;
        for (count, name) in rows {
            let share = 100.0 * count as f64 / all;
            self.lines.line(format_args!("{count:12} {share:6.2}%  {name}"));
            self.lines.pass_on()?;
        }
        if self.more_unknown > 0 {
            self.lines.line(format_args!("# {} records of further unknown addresses", self.more_unknown));
        }
        if self.other_kinds > 0 {
            self.lines.line(format_args!("# {} records of kinds that this version does not know", self.other_kinds));
        }
        lines::tail(&mut self.lines, trace, summary);
        self.lines.pass_on()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.lines.flush()
    }
}
