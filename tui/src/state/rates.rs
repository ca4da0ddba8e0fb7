//! Rates from counters: the difference over the last second.

use std::collections::VecDeque;
use std::time::Duration;

/// How far back a rate looks.
const WINDOW: Duration = Duration::from_millis(1000);
/// How often a sample is kept.
const STEP: Duration = Duration::from_millis(125);

/// Rates of a table of counters over a sliding window.
#[derive(Debug, Default)]
pub struct RateWindow {
    samples: VecDeque<(Duration, Vec<u64>)>,
    rates: Vec<f32>,
}

impl RateWindow {
    /// Takes the counters of `now`, if it is time to. Returns whether the rates changed. A counter that went back
    /// counts as unchanged; a table that changed its length starts anew.
    pub fn push(&mut self, now: Duration, counters: &[u64]) -> bool {
        if let Some((last, sample)) = self.samples.back() {
            if sample.len() != counters.len() {
                self.reset();
            } else if now.saturating_sub(*last) < STEP {
                return false;
            }
        }
        self.rates.resize(counters.len(), 0.0);
        // The oldest sample still inside the window, or the one just before it.
        let mut spare = Vec::new();
        while self.samples.len() > 1 && self.samples.get(1).is_some_and(|s| now.saturating_sub(s.0) >= WINDOW) {
            if let Some((_, old)) = self.samples.pop_front() {
                spare = old;
            }
        }
        if let Some((then, old)) = self.samples.front() {
            let per_second = 1.0 / now.saturating_sub(*then).as_secs_f64();
            for ((rate, new), old) in self.rates.iter_mut().zip(counters).zip(old) {
                *rate = (new.saturating_sub(*old) as f64 * per_second) as f32;
            }
        }
        spare.clear();
        spare.extend_from_slice(counters);
        self.samples.push_back((now, spare));
        true
    }

    /// Forgets the past but keeps the rates until the next ones are known (after the display was frozen).
    pub fn reset(&mut self) {
        self.samples.clear();
    }

    /// The rate of one counter, per second.
    #[must_use]
    pub fn get(&self, index: usize) -> f32 {
        self.rates.get(index).copied().unwrap_or(0.0)
    }

    /// The sum of all rates, per second.
    #[must_use]
    pub fn sum(&self) -> f32 {
        self.rates.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_steady_counter_has_its_rate_and_a_stopped_one_none_after_a_second() {
        let mut w = RateWindow::default();
        for t in (0..=2000).step_by(50) {
            w.push(ms(t), &[t * 5, 7]);
        }
        assert!((w.get(0) - 5000.0).abs() < 1.0, "{}", w.get(0));
        assert_eq!(w.get(1), 0.0);
        for t in (2050..=3500).step_by(50) {
            w.push(ms(t), &[10_000, 7]);
        }
        assert_eq!(w.get(0), 0.0);
        assert!(w.samples.len() <= 10, "{}", w.samples.len());
    }

    #[test]
    fn after_a_reset_only_what_follows_counts() {
        let mut w = RateWindow::default();
        w.push(ms(0), &[0]);
        w.push(ms(500), &[500]);
        w.reset();
        assert_eq!(w.get(0), 1000.0, "the old rate stays until there is a new one");
        w.push(ms(5000), &[1_000_000]);
        w.push(ms(5200), &[1_000_020]);
        assert_eq!(w.get(0), 100.0);
    }

    #[test]
    fn counters_that_shrink_or_change_number_do_no_harm() {
        let mut w = RateWindow::default();
        w.push(ms(0), &[100, 100]);
        w.push(ms(500), &[50, 200]);
        assert_eq!(w.get(0), 0.0);
        assert_eq!(w.get(1), 200.0);
        w.push(ms(510), &[1]);
        assert_eq!(w.get(1), 0.0);
        w.push(ms(5), &[2]);
        assert!(w.get(0).is_finite());
        assert_eq!(w.get(99), 0.0);
    }
}
