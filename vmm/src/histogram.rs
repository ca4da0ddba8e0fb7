//! How long stops took: log2 buckets over all of them, and order statistics over the latest.

use std::time::Duration;

use exotrace_patcher::control::PauseTimes;

/// Buckets: bucket n counts times of 2^n to 2^(n+1) - 1 nanoseconds; the last takes everything above.
pub const BUCKETS: usize = 40;
/// The latest times that minimum, median and so on are taken from.
const KEPT: usize = 4096;

/// Times of one kind.
#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: [u64; BUCKETS],
    count: u64,
    kept: Vec<u64>,
    next: usize,
}

/// Order statistics over the latest 4,096 times, in nanoseconds; the count is over all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Times recorded, ever.
    pub count: u64,
    /// The shortest.
    pub min: Duration,
    /// Half of them took at most this.
    pub median: Duration,
    /// 99 of 100 took at most this.
    pub p99: Duration,
    /// The longest.
    pub max: Duration,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: [0; BUCKETS], count: 0, kept: Vec::new(), next: 0 }
    }
}

impl Histogram {
    /// Adds one time.
    pub fn record(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bucket = (ns.max(1).ilog2() as usize).min(BUCKETS - 1);
        self.buckets[bucket] += 1;
        self.count += 1;
        if self.kept.len() < KEPT {
            self.kept.push(ns);
        } else {
            self.kept[self.next] = ns;
            self.next = (self.next + 1) % KEPT;
        }
    }

    /// How many times fell into each bucket.
    #[must_use]
    pub fn buckets(&self) -> &[u64; BUCKETS] {
        &self.buckets
    }

    /// Order statistics; all zero when nothing was recorded.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let mut sorted = self.kept.clone();
        sorted.sort_unstable();
        let Some(last) = sorted.len().checked_sub(1) else { return Summary::default() };
        let at = |percent: usize| Duration::from_nanos(sorted[(last * percent).div_ceil(100)]);
        Summary { count: self.count, min: at(0), median: at(50), p99: at(99), max: at(100) }
    }
}

/// The times of all stops of a VM.
#[derive(Clone, Debug, Default)]
pub struct PauseStats {
    /// From the request until all vCPUs stood.
    pub kick: Histogram,
    /// While they stood.
    pub work: Histogram,
    /// Until all were told to go on.
    pub resume: Histogram,
    /// The latest stop.
    pub last: Option<PauseTimes>,
}

impl PauseStats {
    /// Adds one stop.
    pub fn record(&mut self, times: PauseTimes) {
        self.kick.record(times.kick);
        self.work.record(times.work);
        self.resume.record(times.resume);
        self.last = Some(times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_statistics_and_buckets() {
        let mut h = Histogram::default();
        assert_eq!(h.summary(), Summary::default());
        for ns in (1..=100).rev() {
            h.record(Duration::from_nanos(ns));
        }
        let s = h.summary();
        assert_eq!((s.count, s.min.as_nanos(), s.max.as_nanos()), (100, 1, 100));
        assert_eq!((s.median.as_nanos(), s.p99.as_nanos()), (51, 100));
        assert_eq!(h.buckets()[..7], [1, 2, 4, 8, 16, 32, 37]);
    }

    #[test]
    fn extremes_have_a_bucket() {
        let mut h = Histogram::default();
        h.record(Duration::ZERO);
        h.record(Duration::MAX);
        assert_eq!((h.buckets()[0], h.buckets()[BUCKETS - 1]), (1, 1));
    }

    #[test]
    fn only_the_latest_are_kept() {
        let mut h = Histogram::default();
        h.record(Duration::from_secs(1));
        for _ in 0..KEPT {
            h.record(Duration::from_nanos(5));
        }
        assert_eq!((h.summary().max.as_nanos(), h.summary().count), (5, KEPT as u64 + 1));
    }
}
