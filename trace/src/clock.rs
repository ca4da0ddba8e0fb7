//! Guest time: how a TSC value maps to time since the trace began and to the host's clocks.
//!
//! All arithmetic is on integers and exact to the nanosecond (rounded down), so two records that differ by a cycle
//! never change their order by being converted. A [`Clock`] that came out of a file was checked by [`Clock::new`].

use crate::ids::Tsc;

/// Nanoseconds in a second.
pub const NS_PER_SEC: u64 = 1_000_000_000;
/// The highest frequency that the arithmetic takes without overflow (18 GHz; real ones end below 7 GHz).
pub const MAX_TSC_HZ: u64 = 18_000_000_000;

/// A TSC frequency that can't be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a TSC frequency of {0} Hz can't be right (1 to {MAX_TSC_HZ} are accepted)")]
pub struct BadFrequency(pub u64);

/// The guest's TSC tied to host time at one instant, the start of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    tsc_hz: u64,
    tsc_start: Tsc,
    wall_start_ns: u64,
    mono_start_ns: u64,
}

impl Clock {
    /// Ties the TSC to host time.
    ///
    /// * `tsc_hz`: cycles per second of the guest's TSC.
    /// * `tsc_start`: what the guest's TSC showed at the start of the trace.
    /// * `wall_start_ns`: nanoseconds since 1970-01-01 00:00 UTC at that instant.
    /// * `mono_start_ns`: the host's CLOCK_MONOTONIC at that instant, nanoseconds.
    ///
    /// # Errors
    /// A frequency of 0 or above [`MAX_TSC_HZ`].
    pub fn new(tsc_hz: u64, tsc_start: Tsc, wall_start_ns: u64, mono_start_ns: u64) -> Result<Clock, BadFrequency> {
        if tsc_hz == 0 || tsc_hz > MAX_TSC_HZ {
            return Err(BadFrequency(tsc_hz));
        }
        Ok(Clock { tsc_hz, tsc_start, wall_start_ns, mono_start_ns })
    }

    /// Cycles per second.
    #[must_use]
    pub const fn tsc_hz(&self) -> u64 {
        self.tsc_hz
    }
    /// The guest's TSC at the start of the trace.
    #[must_use]
    pub const fn tsc_start(&self) -> Tsc {
        self.tsc_start
    }
    /// Nanoseconds since the epoch (UTC) at the start of the trace.
    #[must_use]
    pub const fn wall_start_ns(&self) -> u64 {
        self.wall_start_ns
    }
    /// The host's CLOCK_MONOTONIC at the start of the trace, nanoseconds.
    #[must_use]
    pub const fn mono_start_ns(&self) -> u64 {
        self.mono_start_ns
    }

    /// Nanoseconds that `cycles` take; saturates after 584 years.
    #[must_use]
    pub const fn cycles_to_ns(&self, cycles: u64) -> u64 {
        // Split in whole seconds and the rest, so that 64 bits do: the rest is below tsc_hz <= 18e9, times 1e9 < 2^64.
        let secs = cycles / self.tsc_hz;
        let rest = cycles % self.tsc_hz;
        secs.saturating_mul(NS_PER_SEC).saturating_add(rest * NS_PER_SEC / self.tsc_hz)
    }

    /// Cycles that `ns` nanoseconds take, rounded down; saturates.
    #[must_use]
    pub const fn ns_to_cycles(&self, ns: u64) -> u64 {
        let cycles = ns as u128 * self.tsc_hz as u128 / NS_PER_SEC as u128;
        if cycles > u64::MAX as u128 { u64::MAX } else { cycles as u64 }
    }

    /// Nanoseconds from the start of the trace to `tsc`; negative for a time stamp from before the start.
    #[must_use]
    pub const fn since_start_ns(&self, tsc: Tsc) -> i64 {
        let (cycles, before) = if tsc.0 >= self.tsc_start.0 {
            (tsc.0 - self.tsc_start.0, false)
        } else {
            (self.tsc_start.0 - tsc.0, true)
        };
        let ns = self.cycles_to_ns(cycles);
        let ns = if ns > i64::MAX as u64 { i64::MAX } else { ns as i64 };
        if before { -ns } else { ns }
    }

    /// Wall time of `tsc`: nanoseconds since the epoch (UTC), saturating.
    #[must_use]
    pub const fn wall_ns(&self, tsc: Tsc) -> u64 {
        self.wall_start_ns.saturating_add_signed(self.since_start_ns(tsc))
    }

    /// Host CLOCK_MONOTONIC of `tsc` in nanoseconds, saturating.
    #[must_use]
    pub const fn mono_ns(&self, tsc: Tsc) -> u64 {
        self.mono_start_ns.saturating_add_signed(self.since_start_ns(tsc))
    }

    /// What the guest's TSC showed when the host's CLOCK_MONOTONIC showed `mono_ns`, saturating.
    #[must_use]
    pub const fn tsc_at_mono(&self, mono_ns: u64) -> Tsc {
        if mono_ns >= self.mono_start_ns {
            Tsc(self.tsc_start.0.saturating_add(self.ns_to_cycles(mono_ns - self.mono_start_ns)))
        } else {
            Tsc(self.tsc_start.0.saturating_sub(self.ns_to_cycles(self.mono_start_ns - mono_ns)))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_values() {
        let c = Clock::new(2_300_000_000, Tsc(1_000), 5_000, 7_000).unwrap();
        assert_eq!(c.since_start_ns(Tsc(1_000)), 0);
        assert_eq!(c.since_start_ns(Tsc(1_000 + 2_300_000_000)), 1_000_000_000);
        assert_eq!(c.since_start_ns(Tsc(1_023)), 10);
        assert_eq!(c.since_start_ns(Tsc(977)), -10);
        assert_eq!(c.wall_ns(Tsc(1_023)), 5_010);
        assert_eq!(c.mono_ns(Tsc(0)), 7_000 - 434);
        assert_eq!(c.tsc_at_mono(7_010), Tsc(1_023));
        assert_eq!(c.tsc_at_mono(6_990), Tsc(977));
    }

    #[test]
    fn frequencies_that_cannot_be_right_are_refused() {
        assert_eq!(Clock::new(0, Tsc(0), 0, 0), Err(BadFrequency(0)));
        assert!(Clock::new(MAX_TSC_HZ + 1, Tsc(0), 0, 0).is_err());
        assert!(Clock::new(MAX_TSC_HZ, Tsc(0), 0, 0).is_ok());
    }

    proptest! {
        #[test]
        fn agrees_with_exact_arithmetic(hz in 1..=MAX_TSC_HZ, start: u64, tsc: u64) {
            let c = Clock::new(hz, Tsc(start), 0, 0).unwrap();
            let cycles = i128::from(tsc) - i128::from(start);
            let exact = cycles.abs() * 1_000_000_000 / i128::from(hz);
            let exact = exact.min(i128::from(i64::MAX)) * cycles.signum();
            prop_assert_eq!(i128::from(c.since_start_ns(Tsc(tsc))), exact);
            // Nothing that a file can hold makes the conversions panic.
            let c = Clock::new(hz, Tsc(start), tsc, start).unwrap();
            let _ = (c.wall_ns(Tsc(tsc)), c.mono_ns(Tsc(tsc)), c.tsc_at_mono(tsc), c.tsc_at_mono(0));
        }
    }
}
