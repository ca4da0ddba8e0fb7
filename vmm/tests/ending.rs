//! The ways a guest ends, and tearing a VM down at any time.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use exotrace_guest::abi;
use exotrace_patcher::control::GuestEnd;
use exotrace_patcher::machine::{Machine, Stopped};
use exotrace_trace::ids::VcpuId;
use exotrace_vmm::{HostKind, Image, Vm, VmConfig};
use iced_x86::code_asm::*;

/// Vector of the exception that `ud2` raises.
const VEC_UD: u64 = 6;

#[test]
fn a_triple_fault_is_named() {
    // The IDT is empty, so the exception's own delivery faults, and so does that.
    let g = guest(|a, _| a.ud2().unwrap());
    let vm = vm(&g, 1);
    assert_eq!(run(&vm).1, GuestEnd::TripleFault { vcpu: VcpuId(0) });
    vm.stop().unwrap();
}

/// A guest that goes to CPL 0 by an exception and does something there. (`int n` from CPL 3 is #UD on a PVM host.)
fn at_cpl0(then: impl FnOnce(&mut CodeAssembler)) -> Guest {
    guest(|a, labels| {
        a.ud2().unwrap();
        let mut stub = a.create_label();
        a.set_label(&mut stub).unwrap();
        then(a);
        out(a, abi::PORT_EXIT, abi::EXIT_POWEROFF);
        labels.push(stub);
    })
}

#[test]
fn halting_with_interrupts_off_is_a_hang_and_the_vm_stays_inspectable() {
    let g = at_cpl0(|a| {
        a.cli().unwrap();
        a.hlt().unwrap();
    });
    let vm = vm(&g, 2);
    set_gate(&vm, VEC_UD, g.labels[0], 0);
    let (_, end) = run(&vm);
    let GuestEnd::Hang { vcpu, rip } = end else { panic!("{end:?}") };
    assert_eq!((vcpu, rip.0), (VcpuId(0), g.labels[0] + 2));
    assert_eq!(vm.stop().unwrap().vcpu(vcpu).unwrap().rip, rip);
}

#[test]
fn halting_with_an_nmi_timer_waits_for_the_nmi() {
    let g = guest(|a, labels| {
        out(a, abi::PORT_NMI_TIMER, 3000);
        a.ud2().unwrap();
        let mut stub = a.create_label();
        a.set_label(&mut stub).unwrap();
        a.cli().unwrap();
        a.hlt().unwrap();
        out(a, abi::PORT_EXIT, abi::EXIT_POWEROFF);
        labels.push(stub);
        counting_handler(a, labels, 0);
    });
    let vm = vm(&g, 1);
    set_gate(&vm, VEC_UD, g.labels[0], 0);
    set_gate(&vm, 2, g.labels[1], 0);
    assert_eq!(run(&vm).1, GuestEnd::PowerOff);
    assert!(get(&vm, 0) >= 1);
}

#[test]
fn an_instruction_that_kvm_cannot_emulate_is_one_sentence() {
    let host = host();
    let g = at_cpl0(|a| a.popcnt(rax, rax).unwrap());
    let vm = vm(&g, 1);
    set_gate(&vm, VEC_UD, g.labels[0], 0);
    let end = run(&vm).1;
    if host.kind != HostKind::Pvm {
        // Hardware runs it.
        assert_eq!(end, GuestEnd::PowerOff);
        return;
    }
    let at = format!("at {:#x} (instruction bytes: f3 48 0f b8 c0 ", g.labels[0]);
    let GuestEnd::Failed { why } = end else { panic!("{end:?}") };
    assert!(why.contains(&at) && !why.contains('\n'), "{why}");
}

fn spinning(vcpus: u8) -> Guest {
    guest(|a, _| {
        let mut round = a.create_label();
        for n in 1..vcpus {
            out(a, abi::PORT_CPU_ON, n.into());
        }
        a.set_label(&mut round).unwrap();
        a.inc(var(0)).unwrap();
        a.jmp(round).unwrap();
    })
}

#[test]
fn quitting_ends_a_spinning_guest() {
    let vm = vm(&spinning(4), 4);
    vm.start().unwrap();
    wait_for("the guest", || get(&vm, 0) > 0);
    vm.quit();
    vm.quit();
    assert_eq!(until_end(&vm.events()).1, GuestEnd::Quit);
    assert_eq!(vm.ended(), Some(GuestEnd::Quit));
    thread::sleep(Duration::from_millis(20));
    assert!(vm.events().is_empty(), "the end was reported twice");
}

#[test]
fn dropping_never_hangs() {
    let start = Instant::now();
    // Never started.
    drop(vm(&spinning(2), 2));
    // Just started, running, idle, parked.
    for wait_ms in [0, 1, 5] {
        for idle in [false, true] {
            let g = if idle { guest(|a, _| out(a, abi::PORT_IDLE, 0)) } else { spinning(4) };
            let vm = vm(&g, 4);
            vm.start().unwrap();
            thread::sleep(Duration::from_millis(wait_ms));
            drop(vm);
        }
    }
    // Ended.
    let ended = vm(&guest(|a, _| out(a, abi::PORT_EXIT, 0)), 2);
    run(&ended);
    drop(ended);
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
}

#[test]
fn dropping_leaves_a_hook_behind_that_never_returns() {
    let vm = vm(&guest(|a, _| out(a, 0xe74, 0)), 1);
    let (called, was_called) = crossbeam_channel::bounded(1);
    let hook = move |_| {
        called.send(()).unwrap();
        loop {
            thread::park();
        }
    };
    vm.set_port_hook(0xe74, Arc::new(hook)).unwrap();
    vm.start().unwrap();
    was_called.recv_timeout(LONG).unwrap();
    let start = Instant::now();
    drop(vm);
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
}

#[test]
fn many_vms_one_after_another() {
    for n in 0..50 {
        let vm = vm(&guest(|a, _| out(a, abi::PORT_EXIT, 0)), 1 + n % 16);
        assert_eq!(run(&vm).1, GuestEnd::PowerOff, "VM {n}");
    }
}

#[test]
fn bad_configurations_are_refused() {
    let host = host();
    let error = |change: fn(&mut VmConfig)| {
        let mut c = VmConfig::new(Image::Raw(vec![0xf4]));
        change(&mut c);
        match Vm::new(c, &host) {
            Ok(_) => panic!("accepted"),
            Err(e) => e.to_string(),
        }
    };
    assert!(error(|c| c.vcpus = 17).contains("17 vCPUs"));
    assert!(error(|c| c.ram_bytes = 2 << 20).contains("bytes of RAM"));
    assert!(error(|c| c.cmdline = "x".repeat(5000)).contains("command line"));
    assert!(error(|c| c.image = Image::Elf(b"\x7fELF".as_slice().into())).contains("image"));
}
