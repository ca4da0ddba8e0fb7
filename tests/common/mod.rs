//! What the tests that boot the embedded guest share.
#![allow(dead_code, clippy::unwrap_used, missing_docs)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use exotrace::args::{Cli, RunArgs};
use exotrace::run::boot;
use exotrace_guest::abi;
use exotrace_patcher::control::{Command, Control, Controller, Event, GuestEnd};
use exotrace_patcher::image::{KernelImage, SiteTable};
use exotrace_patcher::machine::GuestRead;
use exotrace_trace::ids::{Gpa, Gva, VcpuId};
use exotrace_trace::ring::RingTotals;
use exotrace_vmm::Vm;

/// No step of a test takes longer on the slowest machine that still works.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// The embedded guest's image and its sites, as the program sees them.
pub struct Kernel {
    pub image: KernelImage,
    pub sites: SiteTable,
}

impl Kernel {
    pub fn embedded() -> Kernel {
        let image = KernelImage::from_elf(exotrace_guest::IMAGE).unwrap();
        let sites = SiteTable::build(&image);
        Kernel { image, sites }
    }

    pub fn symbol(&self, name: &str) -> Gva {
        let symbols = self.image.symbols();
        symbols.named(name).next().unwrap_or_else(|| panic!("the guest has no symbol {name}")).addr
    }

    /// Reads a u64 variable of the guest.
    pub fn variable(&self, vm: &Vm, name: &str) -> u64 {
        read_u64(vm, self.symbol(name).0 - abi::VIRT_OFFSET)
    }

    /// The guest's own count per function, by site; `None` for sites that it does not count (the bench's).
    pub fn ground_truth(&self, vm: &Vm, cpus: u8) -> Vec<Option<u64>> {
        let start = self.symbol("gt_table_start").0 - abi::VIRT_OFFSET;
        let end = self.symbol("gt_table_end").0 - abi::VIRT_OFFSET;
        let mut truth = vec![None; self.sites.len()];
        for entry in (start..end).step_by(16) {
            let (addr, offset) = (read_u64(vm, entry), read_u64(vm, entry + 8));
            let (function, _) = self.image.symbols().resolve(Gva(addr)).unwrap();
            let counter = |cpu| abi::PERCPU_GPA + cpu * abi::PERCPU_STRIDE + offset;
            let calls = (0..u64::from(cpus)).map(|cpu| read_u64(vm, counter(cpu))).sum();
            let site = self.sites.named(function.name).next().unwrap();
            assert_eq!(truth[site.index()].replace(calls), None, "{} is counted twice", function.name);
        }
        truth
    }

    /// The guest's text, byte by byte, where it differs from the image.
    pub fn text_differences(&self, vm: &Vm) -> Vec<String> {
        let mut different = Vec::new();
        for (_, site) in self.sites.iter() {
            let mut now = [0; 5];
            vm.read(Gpa(site.addr.0 - abi::VIRT_OFFSET), &mut now).unwrap();
            if now != site.original {
                different.push(format!("{}: {now:x?}", site.name));
            }
        }
        for s in self.image.segments().iter().filter(|s| s.executable) {
            let bytes = self.image.bytes_of(s);
            let mut now = vec![0; bytes.len()];
            vm.read(s.gpa, &mut now).unwrap();
            let others = now.iter().zip(bytes).filter(|(a, b)| a != b).count();
            if different.is_empty() && others > 0 {
                different.push(format!("{others} bytes outside of sites"));
            }
        }
        different
    }
}

pub fn read_u64(vm: &Vm, gpa: u64) -> u64 {
    let mut bytes = [0; 8];
    vm.read(Gpa(gpa), &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

/// The arguments of `exotrace run` from their text.
pub fn args(text: &[&str]) -> RunArgs {
    let all = ["exotrace"].iter().chain(text);
    Cli::try_parse_from(all).unwrap().run
}

/// Boots the embedded guest as `exotrace run` would.
pub fn start(options: &[&str], cmdline: &str) -> Controller<Vm> {
    boot(&args(options), cmdline).unwrap()
}

/// Waits for an event, failing loudly.
pub fn wait_for<T>(controller: &Controller<Vm>, what: &str, mut pick: impl FnMut(&Event) -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    let mut seen = Vec::new();
    while Instant::now() < until {
        for event in controller.wait_events(Duration::from_millis(200)) {
            if let Some(t) = pick(&event) {
                return t;
            }
            if matches!(event, Event::Ended(_)) {
                let console = String::from_utf8_lossy(&controller.snapshot().console).into_owned();
                panic!("the guest ended while waiting for {what}: {event:?}\n{console}");
            }
            seen.push(event);
        }
    }
    let snapshot = controller.snapshot();
    let console = String::from_utf8_lossy(&snapshot.console).into_owned();
    panic!("{what} did not happen in {PATIENCE:?}; events: {seen:?}\n{:?}\n{console}", snapshot.vcpus);
}

pub fn wait_end(controller: &Controller<Vm>) -> GuestEnd {
    wait_for(controller, "the guest's end", |e| if let Event::Ended(end) = e { Some(end.clone()) } else { None })
}

/// Runs a finite workload to its end.
pub fn run_to_end(options: &[&str], cmdline: &str) -> Controller<Vm> {
    let controller = start(options, cmdline);
    let end = wait_end(&controller);
    let console = String::from_utf8_lossy(&controller.snapshot().console).into_owned();
    assert_eq!(end, GuestEnd::PowerOff, "{cmdline}\n{console}");
    controller
}

pub fn totals(controller: &Controller<Vm>) -> Vec<RingTotals> {
    let c = controller.collector();
    (0..c.rings()).map(|v| c.totals(VcpuId(v as u8))).collect()
}

/// Sends a command and waits until it was carried out; the event tells how.
pub fn command(controller: &Controller<Vm>, command: Command) -> Event {
    controller.send(command.clone());
    wait_for(controller, &format!("{command:?}"), |e| match e {
        Event::Mark(_) => None,
        other => Some(other.clone()),
    })
}

pub type Guest = Arc<Controller<Vm>>;
