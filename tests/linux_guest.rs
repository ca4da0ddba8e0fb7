//! Switching and detaching on an unmodified Linux guest. Needs VMX or SVM, a kernel and its initramfs (images/l2), named by
//! EXOTRACE_KERNEL and EXOTRACE_INITRD: the lab tests run it, elsewhere it is ignored.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::time::{Duration, Instant};

use common::{args, command, wait_for};
use exotrace::run::boot;
use exotrace_patcher::control::{Command, Control, Controller, Event, GuestEnd, Selection};
use exotrace_patcher::image::{KernelImage, SiteTable};
use exotrace_patcher::machine::{GuestRead, Machine, Stopped, VcpuState};
use exotrace_patcher::paging::Paging;
use exotrace_trace::ids::{Gva, VcpuId};
use exotrace_vmm::Vm;

/// What the guest's log must not hold.
const BAD_WORDS: [&str; 7] = ["WARNING:", "BUG:", "Call Trace:", "Oops:", "soft lockup", "rcu: INFO", "ftrace bug"];
const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

fn console(guest: &Controller<Vm>) -> String {
    String::from_utf8_lossy(&guest.snapshot().console).into_owned()
}

fn wait_console(guest: &Controller<Vm>, word: &str) {
    let until = Instant::now() + common::PATIENCE;
    while !console(guest).contains(word) {
        assert!(Instant::now() < until, "{word:?} did not appear:\n{}", console(guest));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The 5 bytes of every site that was patchable at the attach, as the guest has them.
fn sites_in_memory(guest: &Controller<Vm>, image: &KernelImage) -> Vec<(Gva, [u8; 5])> {
    let vm = guest.target();
    let stopped = vm.stop().unwrap();
    // A vCPU in user mode under page-table isolation has the kernel's tables one bit away.
    let states = (0..vm.vcpus()).filter_map(|v| stopped.vcpu(VcpuId(v)));
    let roots = states.flat_map(|s| [s, VcpuState { cr3: s.cr3 & !0x1000, ..s }]);
    let text = SiteTable::build(image).iter().next().unwrap().1.addr;
    let paging = roots.filter_map(|s| Paging::of(&s).ok()).find(|p| p.walk(&stopped, text).is_ok()).unwrap();
    let read = |addr: Gva| {
        let mut bytes = [0; 5];
        stopped.read(paging.walk(&stopped, addr).ok()?.gpa, &mut bytes).ok()?;
        Some((addr, bytes))
    };
    let live = SiteTable::build(image);
    live.iter().filter(|(_, s)| !s.in_init_text).filter_map(|(_, s)| read(s.addr)).collect()
}

#[test]
#[ignore = "needs a Linux kernel and KVM with VMX or SVM; the lab tests run it"]
fn twenty_switches_of_all_sites_under_load_leave_no_trace() {
    let path = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let kernel = path("EXOTRACE_KERNEL");
    let image = KernelImage::decode(std::fs::read(&kernel).unwrap()).unwrap();
    let options = ["--kernel", &kernel, "--initrd", &path("EXOTRACE_INITRD"), "--cpus", "2", "--policy", "drop"];
    let guest = boot(&args(&options), "console=ttyS0 panic=-1 quiet exo.do=&mix:0,sleep:40,dmesg").unwrap();
    wait_console(&guest, "exo: begin sleep");

    // The first switch attaches.
    guest.send(Command::Switch { what: Selection::Filter("vfs_read".into()), on: true });
    let slide = wait_for(&guest, "the attach", |e| match e {
        Event::Attached { slide, usable, guarded, .. } => {
            assert!(*usable > 30_000 && *guarded, "{e:?}");
            Some(*slide)
        }
        _ => None,
    });
    let slid = image.slid(slide).unwrap();
    wait_for(&guest, "the switch", |e| matches!(e, Event::Switched { active: 1, .. }).then_some(()));
    assert!(matches!(command(&guest, Command::Switch { what: Selection::All, on: false }), Event::Switched { .. }));
    let before = sites_in_memory(&guest, &slid);
    assert!(before.iter().filter(|(_, b)| *b == NOP).count() > 30_000);

    for n in 0..20 {
        let delivered = || guest.snapshot().vcpus.iter().map(|v| v.delivered).sum::<u64>();
        let start = delivered();
        match command(&guest, Command::Switch { what: Selection::All, on: true }) {
            Event::Switched { on, active, .. } => assert!(on > 30_000 && active == on, "switch {n}"),
            other => panic!("switch {n}: {other:?}"),
        }
        let until = Instant::now() + common::PATIENCE;
        while delivered() < start + 1000 {
            assert!(Instant::now() < until, "switch {n}: the guest does not run");
            std::thread::sleep(Duration::from_millis(5));
        }
        match command(&guest, Command::Switch { what: Selection::All, on: false }) {
            Event::Switched { off, active: 0, .. } => assert!(off > 30_000, "switch {n}"),
            other => panic!("switch {n}: {other:?}"),
        }
    }
    assert!(matches!(command(&guest, Command::Detach), Event::Detached { .. }));
    let after = sites_in_memory(&guest, &slid);
    let different = before.iter().zip(&after).filter(|(b, a)| b != a).count();
    assert_eq!((before.len(), different), (after.len(), 0), "sites differ after the detach");

    assert_eq!(common::wait_end(&guest), GuestEnd::PowerOff);
    let log = console(&guest);
    assert!(log.contains("exo: done"), "{log}");
    for word in BAD_WORDS {
        assert!(!log.contains(word), "{word} in the guest's log:\n{log}");
    }
    for v in guest.snapshot().vcpus {
        assert_eq!(v.corrupt, 0, "{v:?}");
    }
}
