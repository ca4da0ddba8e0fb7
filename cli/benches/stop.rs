//! How long a guest stands when 42,000 sites are switched: a real VM whose text is a synthetic kernel with as many sites
//! as a distribution kernel has, spread over 20 MiB.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use exotrace_guest::abi;
use exotrace_patcher::engine;
use exotrace_patcher::image::{KernelImage, SiteTable};
use exotrace_patcher::machine::{Machine, Stopped};
use exotrace_patcher::mock::linux_like;
use exotrace_patcher::plan::{SiteState, Text};
use exotrace_trace::ids::{Gpa, Gva};
use exotrace_vmm::{Image, Vm, VmConfig, host};

const SITES: usize = 42_000;
const STRIDE: usize = 496;
const GPA: u64 = 0x200_0000;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() {
    let rounds = if std::env::args().any(|a| a == "--quick") { 5 } else { 61 };
    let bytes = linux_like(GPA + abi::VIRT_OFFSET, GPA, SITES, STRIDE).to_bytes();
    let image = KernelImage::from_elf(bytes).unwrap();
    let sites = Arc::new(SiteTable::build(&image));
    let mut text = Text::resolve(Arc::clone(&sites), |gva| Ok(image.gpa_of(gva).unwrap()));

    // Two vCPUs that spin: `jmp .` on the first, which starts the second.
    let mut config = VmConfig::new(Image::Raw(vec![0xeb, 0xfe]));
    config.ram_bytes = 128 << 20;
    let vm = Vm::new(config, &host::detect()).unwrap();
    let mut stopped = vm.stop().unwrap();
    for s in image.segments() {
        stopped.write(Gpa(s.gpa.0), image.bytes_of(s)).unwrap();
    }
    drop(stopped);
    vm.start().unwrap();

    let (mut kick, mut verify, mut write, mut whole) = (vec![], vec![], vec![], vec![]);
    for round in 0..rounds {
        let state = if round % 2 == 0 { SiteState::Call(Gva(0x6000_0000)) } else { SiteState::Nop };
        let plan = text.plan_all(state).unwrap();
        let begin = Instant::now();
        let mut stopped = vm.stop().unwrap();
        let applied = engine::apply(&plan, &mut stopped).unwrap();
        kick.push(stopped.stop_time());
        drop(stopped);
        whole.push(begin.elapsed());
        assert_eq!(applied.patched, SITES);
        verify.push(applied.verify);
        write.push(applied.write);
        text.commit(&plan);
    }
    let work = median(verify.iter().zip(&write).map(|(v, w)| *v + *w).collect());
    println!("{SITES} sites in a running VM, medians of {rounds} stops:");
    println!("  kick {:.2?}, verify {:.2?}, write {:.2?}", median(kick), median(verify), median(write));
    println!("  verify + write {work:.2?} (limit 5 ms), whole stop {:.2?}", median(whole));
}
