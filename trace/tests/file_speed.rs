//! How fast the trace file is written, read and printed. Not a pass/fail matter on shared machines, so ignored:
//! `cargo test -p exotrace-trace --release --test file_speed -- --ignored --nocapture`.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::time::Instant;

use exotrace_trace::clock::Clock;
use exotrace_trace::file::{Destination, Meta, Site, Symbol, TraceReader, TraceWriter, Vcpus};
use exotrace_trace::ids::{Gva, SiteId, Tsc, VcpuId};
use exotrace_trace::report::{Selection, TextOptions, profile, text};
use exotrace_trace::ring::layout::RawRecord;

const FUNCTIONS: u32 = 40_000;
const BATCH: usize = 8192;
const BATCHES: u64 = 800;

/// Counts bytes.
struct Count(u64);

impl Destination for Count {
    fn cut_back(&mut self, _: u64) -> std::io::Result<()> {
        Ok(())
    }
}

impl Write for Count {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0 += buf.len() as u64;
        Ok(buf.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn batch(n: u64) -> Vec<RawRecord> {
    let one = |i: u64| {
        let f = (i.wrapping_mul(0x9e37_79b9) >> 8) as u32 % FUNCTIONS;
        let caller = 0x1000_0000 + u64::from(f * 7 % FUNCTIONS) * 64 + 20;
        RawRecord { tsc: i * 50, parent: caller, meta: 1, ip: 0x1000_0005 + f * 64, ..RawRecord::default() }
    };
    (n * BATCH as u64..(n + 1) * BATCH as u64).map(one).collect()
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM"));
    line.and_then(|l| l.split_whitespace().nth(1)).and_then(|n| n.parse().ok()).unwrap_or(0)
}

#[test]
#[ignore = "prints speeds; run it by hand in a release build"]
fn speeds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("speed.exo");
    let names: Vec<String> = (0..FUNCTIONS).map(|n| format!("some_function_{n}")).collect();
    let addr = |n: usize| Gva(0x1000_0000 + n as u64 * 64);
    let mut w = TraceWriter::create(&path, &Meta { vcpus: 2, ..Meta::default() }).unwrap();
    w.write_clock(&Clock::new(2_300_000_000, Tsc(0), 0, 0).unwrap()).unwrap();
    w.write_symbols(names.iter().enumerate().map(|(n, name)| Symbol { addr: addr(n), size: 64, name })).unwrap();
    w.write_sites((0..).zip(&names).map(|(n, f)| Site { id: SiteId(n), addr: addr(n as usize), function: f })).unwrap();
    let batches: Vec<_> = (0..8).map(batch).collect();
    let write = |w: &mut dyn FnMut(VcpuId, u64, &[RawRecord])| {
        for n in 0..BATCHES {
            // Batches repeat (their making would be measured too); so the stamps jump back, which costs the same.
            w(VcpuId((n % 2) as u8), 64 + n / 2 * BATCH as u64, &batches[n as usize % 8]);
        }
    };
    let rate = |start: Instant, what: f64| what / start.elapsed().as_secs_f64();
    let gb = (BATCHES * BATCH as u64 * 32) as f64 / 1e9;
    let mut nowhere = TraceWriter::new(Count(0), "nowhere", &Meta::default()).unwrap();
    let start = Instant::now();
    write(&mut |vcpu, index, records| nowhere.write_records(vcpu, index, records).unwrap());
    nowhere.finish(&[]).unwrap();
    println!("write: {:.2} GB/s to nowhere", rate(start, gb));
    let start = Instant::now();
    write(&mut |vcpu, index, records| w.write_records(vcpu, index, records).unwrap());
    let written = w.finish(&[]).unwrap();
    println!("write: {:.2} GB/s to a file", rate(start, gb));

    let mut r = TraceReader::open(&path).unwrap();
    let start = Instant::now();
    let mut merge = r.merge(Vcpus::ALL);
    while merge.next().unwrap().is_some() {}
    let millions = written.records as f64 / 1e6;
    println!("merge: {:.1} M records/s", rate(start, millions));
    let start = Instant::now();
    let mut out = Count(0);
    text(&mut r, &Selection::default(), TextOptions::default(), &mut out).unwrap();
    println!("text: {:.2} M lines/s, {:.2} GB", rate(start, millions), out.0 as f64 / 1e9);
    let start = Instant::now();
    profile(&mut r, &Selection::default(), Count(0)).unwrap();
    println!("profile: {:.1} M records/s", rate(start, millions));
    println!("file of {:.0} MB; peak memory of the process {} MiB", written.bytes as f64 / 1e6, peak_kib() / 1024);
}
