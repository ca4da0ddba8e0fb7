//! The embedded guest under this VMM.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use exotrace_guest::abi;
use exotrace_patcher::control::GuestEnd;
use exotrace_patcher::machine::Machine;
use exotrace_vmm::{Image, Vm, VmConfig, VmEvent};

fn boot(vcpus: u8, cmdline: &str) -> Vm {
    let mut c = VmConfig::new(Image::Elf(exotrace_guest::IMAGE.into()));
    c.vcpus = vcpus;
    c.cmdline = cmdline.into();
    Vm::new(c, &host()).unwrap()
}

fn text(vm: &Vm) -> String {
    String::from_utf8_lossy(&vm.console()).into_owned()
}

#[test]
fn it_boots_works_and_powers_off() {
    for vcpus in [1, 2, 4] {
        let vm = boot(vcpus, "workload=mix seed=7 iters=20 threads=4 nmi_hz=50");
        let (events, end) = run(&vm);
        let console = text(&vm);
        assert_eq!(end, GuestEnd::PowerOff, "{vcpus} vCPUs; console:\n{console}");
        assert!(console.contains("selfcheck: ok"), "{console}");
        for value in [abi::MARK_SMP_UP, abi::MARK_WORK_BEGIN, abi::MARK_WORK_END] {
            let is = |e: &&VmEvent| matches!(e, VmEvent::Mark { value: v, .. } if *v == value);
            assert_eq!(events.iter().filter(is).count(), 1, "mark {value}: {events:?}");
        }
        println!("{vcpus} vCPUs: {:?}\n{console}", vm.counters());
    }
}

#[test]
fn it_survives_being_stopped_all_the_time() {
    let vm = boot(2, "workload=mix seed=3 iters=20 threads=4 nmi_hz=100");
    vm.start().unwrap();
    let mut stops = 0;
    while vm.ended().is_none() {
        drop(vm.stop().unwrap());
        stops += 1;
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(vm.ended(), Some(GuestEnd::PowerOff), "{stops} stops; console:\n{}", text(&vm));
    println!("{stops} stops: {:?}", vm.pause_stats().kick.summary());
}

#[test]
fn its_panic_is_told() {
    let vm = boot(2, "workload=panic");
    assert_eq!(run(&vm).1, GuestEnd::Panic);
    assert!(text(&vm).contains("panic requested"), "{}", text(&vm));
}

#[test]
fn its_hang_is_told() {
    let vm = boot(2, "workload=hang");
    let end = run(&vm).1;
    assert!(matches!(end, GuestEnd::Hang { .. }), "{end:?}; console:\n{}", text(&vm));
}

#[test]
fn its_triple_fault_is_told() {
    let vm = boot(2, "workload=triplefault");
    let end = run(&vm).1;
    assert!(matches!(end, GuestEnd::TripleFault { .. }), "{end:?}; console:\n{}", text(&vm));
}
