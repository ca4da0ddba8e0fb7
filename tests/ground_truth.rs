//! Records against the guest's own counts: exact, whatever preempts what.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Kernel, run_to_end, totals};
use exotrace_patcher::control::Control;

/// Interrupts and NMIs at rates that hit trampolines often.
const STRESS: &str = "hz=1000 nmi_hz=300 quiet";

fn check_block(cpus: u8, seed: u64) {
    let kernel = Kernel::embedded();
    // Small rings fill up often, large ones hardly ever: both sides of the protocol.
    let ring = if seed.is_multiple_of(2) { "256" } else { "8192" };
    let cpus_text = cpus.to_string();
    let options = ["--cpus", &cpus_text, "--trace", "*", "--policy", "block", "--ring", ring];
    let cmdline = format!("workload=mix seed={seed} iters=12 threads=6 {STRESS}");
    let controller = run_to_end(&options, &cmdline);

    let counts = controller.snapshot().counts;
    let truth = kernel.ground_truth(controller.target(), cpus);
    let mut wrong = Vec::new();
    for (id, site) in kernel.sites.iter() {
        let expected = truth[id.index()].unwrap_or(0);
        if counts[id.index()] != expected {
            wrong.push(format!("{}: {} records, {expected} calls", site.name, counts[id.index()]));
        }
    }
    assert!(wrong.is_empty(), "{cpus} vCPUs, seed {seed}: {wrong:#?}\n{:?}", totals(&controller));
    let called = truth.iter().flatten().filter(|n| **n > 0).count();
    let calls: u64 = truth.iter().flatten().sum();
    assert!(called >= 200 && calls > 10_000, "the workload is too thin to prove anything: {called}, {calls}");
    assert_eq!(controller.collector().unknown(), 0);
    for t in totals(&controller) {
        assert_eq!((t.lost(), t.corrupt, t.unfinished), (0, 0, 0), "{t:?}");
    }
    assert_eq!(kernel.variable(controller.target(), "selfcheck_failures"), 0);
}

#[test]
fn block_mode_has_every_call_on_1_vcpu() {
    (1..=10).for_each(|seed| check_block(1, seed));
}

#[test]
fn block_mode_has_every_call_on_2_vcpus() {
    (11..=20).for_each(|seed| check_block(2, seed));
}

#[test]
fn block_mode_has_every_call_on_4_vcpus() {
    (21..=30).for_each(|seed| check_block(4, seed));
}

/// An overrun in `drop` mode: what is missing was counted, to the last one.
#[test]
fn drop_mode_counts_what_it_loses() {
    let kernel = Kernel::embedded();
    let mut lost_somewhere = false;
    for (cpus, seed) in [(1, 41), (2, 42), (2, 43), (4, 44), (4, 45)] {
        let cpus_text = cpus.to_string();
        let options = ["--cpus", &cpus_text, "--trace", "*", "--policy", "drop", "--ring", "64"];
        let cmdline = format!("workload=mix seed={seed} iters=12 threads=6 {STRESS}");
        let controller = run_to_end(&options, &cmdline);
        let produced: u64 = kernel.ground_truth(controller.target(), cpus).iter().flatten().sum();
        let all = totals(&controller);
        let delivered: u64 = all.iter().map(|t| t.delivered).sum();
        let lost: u64 = all.iter().map(|t| t.lost()).sum();
        assert_eq!(produced, delivered + lost, "{cpus} vCPUs, seed {seed}: {all:?}");
        assert!(all.iter().all(|t| t.corrupt == 0 && t.unfinished == 0), "{all:?}");
        lost_somewhere |= lost > 0;
        // No function has more records than calls.
        let truth = kernel.ground_truth(controller.target(), cpus);
        let counts = controller.snapshot().counts;
        assert!(counts.iter().zip(&truth).all(|(c, t)| *c <= t.unwrap_or(0)));
    }
    assert!(lost_somewhere, "no ring overran: the test proves nothing");
}

/// The flight recorder after the end: the last records are there, all others were counted.
#[test]
fn overwrite_mode_keeps_the_last_records() {
    let kernel = Kernel::embedded();
    let options = ["--cpus", "2", "--trace", "*", "--policy", "overwrite", "--ring", "1024"];
    let controller = run_to_end(&options, &format!("workload=mix seed=51 iters=12 threads=6 {STRESS}"));
    let produced: u64 = kernel.ground_truth(controller.target(), 2).iter().flatten().sum();
    let all = totals(&controller);
    let delivered: u64 = all.iter().map(|t| t.delivered).sum();
    let lost: u64 = all.iter().map(|t| t.lost()).sum();
    assert_eq!(produced, delivered + lost, "{all:?}");
    assert!(all.iter().all(|t| t.delivered == 1024), "{all:?}");
}
