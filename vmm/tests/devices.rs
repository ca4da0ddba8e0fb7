//! Ports, the serial port, starting vCPUs, interrupts: real guests of a few instructions under KVM.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use exotrace_guest::abi;
use exotrace_patcher::control::GuestEnd;
use exotrace_trace::ids::VcpuId;
use exotrace_vmm::VmEvent;
use iced_x86::code_asm::*;

#[test]
fn serial_output_byte_by_byte_and_as_a_string() {
    let text = b"a line of console output\n";
    let g = guest(|a, _| {
        let mut msg = a.create_label();
        a.mov(edx, u32::from(abi::PORT_SERIAL)).unwrap();
        for c in b"hi!\n" {
            a.mov(al, i32::from(*c)).unwrap();
            a.out(dx, al).unwrap();
        }
        a.lea(rsi, ptr(msg)).unwrap();
        a.mov(ecx, text.len() as u32).unwrap();
        a.rep().outsb().unwrap();
        out(a, abi::PORT_EXIT, abi::EXIT_POWEROFF);
        a.set_label(&mut msg).unwrap();
        a.db(text).unwrap();
    });
    let vm = vm(&g, 1);
    let (events, end) = run(&vm);
    assert_eq!(end, GuestEnd::PowerOff);
    let want = [&b"hi!\n"[..], text].concat();
    assert_eq!(vm.console(), want);
    assert_eq!(vm.console_total(), want.len() as u64);
    assert_eq!(vm.console_since(4), (want.len() as u64, text.to_vec()));
    assert_eq!(events, [VmEvent::CpuOnline(VcpuId(0)), VmEvent::Console]);
    assert_eq!(vm.ended(), Some(GuestEnd::PowerOff));
    println!("{} bytes by rep outsb: {:?}", text.len(), vm.counters());
}

#[test]
fn unknown_ports_read_as_ones_and_are_counted() {
    let g = guest(|a, _| {
        let mut bad = a.create_label();
        a.in_(al, 0x80).unwrap();
        a.cmp(al, -1).unwrap();
        a.jne(bad).unwrap();
        a.mov(edx, 0x7777).unwrap();
        a.in_(eax, dx).unwrap();
        a.cmp(eax, -1).unwrap();
        a.jne(bad).unwrap();
        out(a, 0x7777, 5);
        // vCPU 7 of 1.
        out(a, abi::PORT_CPU_ON, 7);
        // It runs already.
        out(a, abi::PORT_CPU_ON, 0);
        out(a, 0x64, 0xfe);
        a.set_label(&mut bad).unwrap();
        out(a, abi::PORT_EXIT, abi::EXIT_SELFCHECK);
    });
    let vm = vm(&g, 1);
    assert_eq!(run(&vm).1, GuestEnd::Reset);
    assert_eq!((vm.counters().nobody, vm.counters().refused), (3, 2));
}

#[test]
fn the_guest_sees_its_boot_information() {
    let g = guest(|a, _| {
        for (n, offset) in [(0, 0), (1, 8), (2, 16), (3, 24), (4, 32)] {
            a.mov(rax, qword_ptr(rsi + offset)).unwrap();
            a.mov(var(n), rax).unwrap();
        }
        a.mov(rax, qword_ptr(8).gs()).unwrap();
        a.mov(var(5), rax).unwrap();
        a.rdtsc().unwrap();
        a.shl(rdx, 32).unwrap();
        a.or(rax, rdx).unwrap();
        a.mov(var(6), rax).unwrap();
        out(a, abi::PORT_EXIT, abi::EXIT_POWEROFF);
    });
    let mut c = config(&g, 3);
    c.cmdline = "workload=mix".into();
    let vm = exotrace_vmm::Vm::new(c, &host()).unwrap();
    let magic = (0xabcd_u64).to_le_bytes();
    {
        use exotrace_patcher::machine::{Machine, Stopped};
        let gpa = exotrace_trace::ids::Gpa(abi::PERCPU_GPA + 8);
        vm.stop().unwrap().write(gpa, &magic).unwrap();
    }
    let start = std::time::Instant::now();
    assert_eq!(run(&vm).1, GuestEnd::PowerOff);
    assert_eq!(get(&vm, 0), u64::from(abi::BOOT_MAGIC) | 3 << 32);
    assert_eq!(get(&vm, 1), u64::from(vm.guest_cpl()));
    assert_eq!(get(&vm, 2), abi::MIN_RAM_BYTES);
    assert_eq!(get(&vm, 3), vm.clock().tsc_hz);
    assert_eq!(get(&vm, 4).to_le_bytes(), *b"workload");
    assert_eq!(get(&vm, 5), 0xabcd, "GS base");
    // The guest's clock and ours: it read its TSC after the VM was made and before now.
    let ticks = get(&vm, 6).checked_sub(vm.clock().guest_tsc).expect("the guest's TSC is behind");
    let secs = ticks as f64 / vm.clock().tsc_hz as f64;
    assert!(secs < start.elapsed().as_secs_f64() + 5.0, "{secs} s off");
}

#[test]
fn four_vcpus_start_when_they_are_asked_to() {
    let g = guest(|a, _| {
        let mut ap = a.create_label();
        let mut wait = a.create_label();
        a.test(r15, r15).unwrap();
        a.jnz(ap).unwrap();
        for n in 1..4 {
            out(a, abi::PORT_CPU_ON, n);
        }
        a.set_label(&mut wait).unwrap();
        a.pause().unwrap();
        a.cmp(var(0), 3).unwrap();
        a.jne(wait).unwrap();
        out(a, abi::PORT_EXIT, abi::EXIT_POWEROFF);
        a.set_label(&mut ap).unwrap();
        a.mov(edx, u32::from(abi::PORT_MARK)).unwrap();
        a.mov(eax, r15d).unwrap();
        a.out(dx, eax).unwrap();
        a.lock().inc(var(0)).unwrap();
        out(a, abi::PORT_PARK, 0);
        // A parked vCPU never comes here.
        out(a, abi::PORT_EXIT, abi::EXIT_SELFCHECK);
    });
    let vm = vm(&g, 4);
    assert!((0..4).all(|n| !vm.vcpu_online(VcpuId(n))));
    let (events, end) = run(&vm);
    assert_eq!(end, GuestEnd::PowerOff);
    for n in 0..4 {
        let online = |e: &&VmEvent| **e == VmEvent::CpuOnline(VcpuId(n));
        assert_eq!(events.iter().filter(online).count(), 1, "vCPU {n}: {events:?}");
    }
    for n in 1..4 {
        assert_eq!(events.iter().filter(|e| **e == mark(n, n.into())).count(), 1);
    }
}

#[test]
fn parking_everything_is_an_end_and_no_hang() {
    let g = guest(|a, _| out(a, abi::PORT_PARK, 0));
    let end = run(&vm(&g, 2)).1;
    assert!(matches!(&end, GuestEnd::Failed { why } if why.contains("parked")), "{end:?}");
}

/// A guest that waits for variable 0 to reach `n`, spinning or sleeping, counting its rounds in variable 1.
fn ticking(port: u16, period_us: u32, n: i32, sleep: bool) -> Guest {
    guest(|a, labels| {
        let mut round = a.create_label();
        if host().guest_cpl() == 0 {
            a.sti().unwrap();
        }
        out(a, port, period_us);
        a.set_label(&mut round).unwrap();
        a.inc(var(1)).unwrap();
        if sleep {
            out(a, abi::PORT_IDLE, 0);
        }
        a.cmp(var(0), n).unwrap();
        a.jb(round).unwrap();
        out(a, port, 0);
        out(a, abi::PORT_EXIT, abi::EXIT_POWEROFF);
        counting_handler(a, labels, 0);
    })
}

#[test]
fn timer_interrupts_reach_a_spinning_guest() {
    let g = ticking(abi::PORT_TIMER, 500, 100, false);
    let vm = vm(&g, 1);
    set_gate(&vm, abi::VEC_TIMER, g.labels[0], 0);
    assert_eq!(run(&vm).1, GuestEnd::PowerOff);
    let n = get(&vm, 0);
    assert!((100..110).contains(&n), "{n} ticks handled");
    assert!(vm.counters().interrupts >= n);
}

#[test]
fn nmis_reach_a_spinning_guest() {
    let g = ticking(abi::PORT_NMI_TIMER, 500, 100, false);
    let vm = vm(&g, 1);
    set_gate(&vm, 2, g.labels[0], 0);
    assert_eq!(run(&vm).1, GuestEnd::PowerOff);
    let n = get(&vm, 0);
    assert!((100..110).contains(&n), "{n} NMIs handled");
    assert_eq!(vm.counters().interrupts, 0);
}

#[test]
fn idle_sleeps_until_the_tick() {
    for (port, vector) in [(abi::PORT_TIMER, abi::VEC_TIMER), (abi::PORT_NMI_TIMER, 2)] {
        let g = ticking(port, 2000, 20, true);
        let vm = vm(&g, 1);
        set_gate(&vm, vector, g.labels[0], 0);
        assert_eq!(run(&vm).1, GuestEnd::PowerOff);
        let (ticks, rounds) = (get(&vm, 0), get(&vm, 1));
        assert!(rounds <= ticks + 3, "{rounds} rounds for {ticks} ticks: it does not sleep");
    }
}

#[test]
fn an_ipi_wakes_another_vcpu() {
    let g = guest(|a, labels| {
        let mut second = a.create_label();
        let mut sleep = a.create_label();
        if host().guest_cpl() == 0 {
            a.sti().unwrap();
        }
        a.test(r15, r15).unwrap();
        a.jnz(second).unwrap();
        out(a, abi::PORT_CPU_ON, 1);
        a.set_label(&mut sleep).unwrap();
        out(a, abi::PORT_IDLE, 0);
        a.cmp(var(0), 1).unwrap();
        a.jb(sleep).unwrap();
        out(a, abi::PORT_EXIT, abi::EXIT_POWEROFF);
        a.set_label(&mut second).unwrap();
        out(a, abi::PORT_IPI, 0);
        out(a, abi::PORT_PARK, 0);
        counting_handler(a, labels, 0);
    });
    let vm = vm(&g, 2);
    set_gate(&vm, abi::VEC_IPI, g.labels[0], 0);
    assert_eq!(run(&vm).1, GuestEnd::PowerOff);
    assert_eq!(get(&vm, 0), 1);
}

#[test]
fn typed_bytes_arrive_in_order_with_an_interrupt() {
    let g = guest(|a, labels| {
        let mut sleep = a.create_label();
        let mut drain = a.create_label();
        let mut quit = a.create_label();
        if host().guest_cpl() == 0 {
            a.sti().unwrap();
        }
        // Received-data interrupt on.
        a.mov(edx, 0x3f9).unwrap();
        a.mov(al, 1).unwrap();
        a.out(dx, al).unwrap();
        // An interrupt that is handled right before PORT_IDLE wakes nobody: the tick does.
        out(a, abi::PORT_TIMER, 5000);
        out(a, abi::PORT_MARK, 1);
        a.set_label(&mut sleep).unwrap();
        out(a, abi::PORT_IDLE, 0);
        a.set_label(&mut drain).unwrap();
        a.mov(edx, 0x3fd).unwrap();
        a.in_(al, dx).unwrap();
        a.test(al, 1).unwrap();
        a.jz(sleep).unwrap();
        a.mov(edx, 0x3f8).unwrap();
        a.in_(al, dx).unwrap();
        a.cmp(al, i32::from(b'q')).unwrap();
        a.je(quit).unwrap();
        a.out(dx, al).unwrap();
        a.jmp(drain).unwrap();
        a.set_label(&mut quit).unwrap();
        out(a, abi::PORT_EXIT, abi::EXIT_POWEROFF);
        counting_handler(a, labels, 0);
        counting_handler(a, labels, 1);
    });
    let vm = vm(&g, 1);
    set_gate(&vm, abi::VEC_SERIAL, g.labels[0], 0);
    set_gate(&vm, abi::VEC_TIMER, g.labels[1], 0);
    vm.start().unwrap();
    let rx = vm.events();
    while rx.recv_timeout(LONG).unwrap() != mark(0, 1) {}
    let text: Vec<u8> = (b'0'..=b'9').cycle().take(200).collect();
    assert_eq!(vm.console_input(&text), 200);
    wait_for("the echo", || vm.console_total() == 200);
    assert_eq!(vm.console_input(b"q"), 1);
    assert_eq!(until_end(&rx).1, GuestEnd::PowerOff);
    assert_eq!(vm.console(), text);
    assert!(get(&vm, 0) >= 1, "no interrupt was handled");
}
