//! Two vCPUs that do nothing but call traced functions, drained to a file: the rate that is sustained, what is lost, and
//! whether memory stays flat.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Parser;
use exotrace::args::Cli;
use exotrace::run::boot;
use exotrace_patcher::control::{Command, Control};

/// The file is begun anew when it has grown to this size, so that a small disk will do.
const FILE_BYTES: u64 = 4 << 30;

fn rss_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

fn measure(policy: &str, out: &Path, seconds: u64) {
    let out = out.to_str().unwrap();
    let cli = ["exotrace", "--cpus", "2", "--trace", "*", "--policy", policy, "--ring", "262144", "-o", out];
    let controller = boot(&Cli::try_parse_from(cli).unwrap().run, "workload=flood iters=0 quiet").unwrap();
    let begin = Instant::now();
    let mut rss = Vec::new();
    let mut slowest = Duration::ZERO;
    while begin.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(Duration::from_millis(500));
        rss.push(rss_mib());
        // What the terminal UI draws a frame from.
        let took = Instant::now();
        let snapshot = controller.snapshot();
        slowest = slowest.max(took.elapsed());
        if snapshot.file.is_none_or(|(_, bytes)| bytes > FILE_BYTES) {
            controller.send(Command::StartFile { path: out.into() });
        }
    }
    let vcpus = controller.snapshot().vcpus;
    let took = begin.elapsed().as_secs_f64();
    let delivered: u64 = vcpus.iter().map(|v| v.delivered).sum();
    let lost: u64 = vcpus.iter().map(|v| v.lost).sum();
    let rate = delivered as f64 / took / 1e6;
    println!(
        "  {policy:>5}: {rate:.1} M records/s ({:.0} MB/s) to the file, {lost} lost of {}; RSS {} MiB after 1 s, {} MiB at the end; slowest snapshot {slowest:.1?}",
        rate * 32.0,
        delivered + lost,
        rss[1.min(rss.len() - 1)],
        rss[rss.len() - 1]
    );
    drop(controller);
    std::fs::remove_file(out).unwrap();
}

fn main() {
    let seconds = if std::env::args().any(|a| a == "--quick") { 2 } else { 20 };
    let dir = tempfile::tempdir().unwrap();
    println!("two vCPUs at full rate (workload=flood) for {seconds} s each:");
    for policy in ["block", "drop"] {
        measure(policy, &dir.path().join("flood.exo"), seconds);
    }
}
