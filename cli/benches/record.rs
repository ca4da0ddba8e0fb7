//! The cost of one record against a bare `rdtsc`, and of an untraced site, measured by the guest itself inside the VM.
//!
//! The guest's `workload=bench` times four loops of the same shape in turn, round after round, so that all figures of a
//! line come from one run: [0] call of an empty function, [1] the same and one rdtsc, [2] call of a traced function,
//! [3] call of an instrumented function that is not traced. Printed are medians over the rounds.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use exotrace::args::{Cli, RunArgs};
use exotrace::run::boot;
use exotrace_guest::abi;
use exotrace_patcher::control::{Control, Event, GuestEnd};
use exotrace_patcher::engine;
use exotrace_patcher::image::{KernelImage, SiteTable};
use exotrace_patcher::machine::{GuestRead, Machine};
use exotrace_patcher::plan::{SiteState, Text};
use exotrace_trace::ids::Gpa;
use exotrace_vmm::{Image, Vm, VmConfig, VmEvent, host};

const VARIANTS: usize = 4;
/// Largest number of rounds that the guest keeps.
const MAX_ROUNDS: u64 = 64;

/// Cycles per iteration, medians over the rounds.
struct Costs {
    rdtsc: f64,
    record: f64,
    untraced: f64,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn read_u64(vm: &Vm, gpa: u64) -> u64 {
    let mut b = [0; 8];
    vm.read(Gpa(gpa), &mut b).unwrap();
    u64::from_le_bytes(b)
}

fn costs(vm: &Vm, image: &KernelImage) -> Costs {
    let var =
        |name: &str| image.symbols().named(name).next().expect("the guest's bench variables").addr.0 - abi::VIRT_OFFSET;
    let rounds = read_u64(vm, var("bench_rounds")).min(MAX_ROUNDS);
    let iters = read_u64(vm, var("bench_iters")) as f64;
    let results = var("bench_results");
    let cell = |round: u64, v: usize| read_u64(vm, results + (round * VARIANTS as u64 + v as u64) * 8) as f64 / iters;
    let of = |f: &dyn Fn(u64) -> f64| median((0..rounds).map(f).collect());
    Costs {
        rdtsc: of(&|r| cell(r, 1) - cell(r, 0)),
        record: of(&|r| cell(r, 2) - cell(r, 3)),
        untraced: of(&|r| cell(r, 3)),
    }
}

fn args(text: &[&str]) -> RunArgs {
    Cli::try_parse_from(["exotrace", "--cpus", "1"].iter().chain(text)).unwrap().run
}

fn traced(image: &KernelImage, cmdline: &str, options: &[&str]) -> (Costs, u64, u64) {
    let controller = boot(&args(options), cmdline).unwrap();
    loop {
        let ended = controller.wait_events(Duration::from_secs(60)).into_iter().find_map(|e| match e {
            Event::Ended(end) => Some(end),
            _ => None,
        });
        if let Some(end) = ended {
            assert_eq!(end, GuestEnd::PowerOff);
            break;
        }
    }
    let v = controller.snapshot().vcpus;
    (costs(controller.target(), image), v[0].delivered, v[0].lost)
}

/// A guest that exotrace never attached to: its sites are nops, nothing is mapped into it.
fn never_attached(image: &KernelImage, cmdline: &str) -> Costs {
    let mut config = VmConfig::new(Image::Elf(exotrace_guest::IMAGE.into()));
    config.vcpus = 1;
    config.cmdline = cmdline.into();
    let vm = Vm::new(config, &host::detect()).unwrap();
    let sites = Arc::new(SiteTable::build(image));
    let text = Text::resolve(sites, |gva| Ok(image.gpa_of(gva).unwrap()));
    engine::apply(&text.plan_all(SiteState::Nop).unwrap(), &mut vm.stop().unwrap()).unwrap();
    vm.start().unwrap();
    loop {
        match vm.events().recv().unwrap() {
            VmEvent::Ended(end) => {
                assert_eq!(end, GuestEnd::PowerOff);
                return costs(&vm, image);
            }
            VmEvent::Console | VmEvent::Mark { .. } | VmEvent::CpuOnline(_) => {}
        }
    }
}

fn main() {
    let image = KernelImage::from_elf(exotrace_guest::IMAGE).unwrap();
    let quick = std::env::args().any(|a| a == "--quick");
    let cmdline =
        if quick { "workload=bench rounds=5 iters=2000 quiet" } else { "workload=bench rounds=31 iters=20000 quiet" };
    println!(
        "one record of 32 bytes, cycles and ratio to a bare rdtsc of the same run (limit with full-ring check: 1.40)"
    );
    for (policy, ring) in
        [("drop", "1048576"), ("drop", "262144"), ("drop", "65536"), ("block", "1048576"), ("overwrite", "65536")]
    {
        let (c, delivered, lost) =
            traced(&image, cmdline, &["--trace", "bench_traced", "--policy", policy, "--ring", ring]);
        println!(
            "  {policy:>9}, ring of {ring:>7}: rdtsc {:6.2}, record {:6.2}, ratio {:.2}   ({delivered} delivered, {lost} lost)",
            c.rdtsc,
            c.record,
            c.record / c.rdtsc
        );
    }
    println!("an untraced site, cycles per call and return of the function around it");
    let (mut never, mut attached) = (Vec::new(), Vec::new());
    for _ in 0..if quick { 1 } else { 9 } {
        never.push(never_attached(&image, cmdline).untraced);
        attached.push(traced(&image, cmdline, &["--trace", "*,!bench_untraced"]).0.untraced);
    }
    let (never, attached) = (median(never), median(attached));
    println!(
        "  never attached {never:.3}, attached with all others traced {attached:.3}, ratio {:.3}",
        attached / never
    );
}
