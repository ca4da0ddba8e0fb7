//! Stopping all vCPUs: nothing runs meanwhile, nothing is lost or done twice, and it always ends.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use common::*;
use crossbeam_channel::bounded;
use exotrace_guest::abi;
use exotrace_patcher::control::GuestEnd;
use exotrace_patcher::machine::{GuestRead, Machine, Stopped};
use exotrace_trace::ids::{Gpa, Gva, VcpuId};
use exotrace_vmm::{Vm, VmEvent};
use iced_x86::code_asm::*;

/// Points rbx at variable `r15`.
fn own_var(a: &mut CodeAssembler) {
    a.mov(rbx, r15).unwrap();
    a.shl(rbx, 6).unwrap();
    a.add(rbx, (DATA + abi::VIRT_OFFSET) as i32).unwrap();
}

/// vCPU 0 starts the others.
fn start_others(a: &mut CodeAssembler, vcpus: u8) {
    let mut started = a.create_label();
    a.test(r15, r15).unwrap();
    a.jnz(started).unwrap();
    for n in 1..vcpus {
        out(a, abi::PORT_CPU_ON, n.into());
    }
    a.set_label(&mut started).unwrap();
}

/// Each vCPU counts in its own variable as fast as it can.
fn counting(vcpus: u8) -> Guest {
    guest(|a, _| {
        let mut round = a.create_label();
        start_others(a, vcpus);
        own_var(a);
        a.set_label(&mut round).unwrap();
        a.inc(qword_ptr(rbx)).unwrap();
        a.jmp(round).unwrap();
    })
}

fn counters(vm: &impl GuestRead, vcpus: u8) -> Vec<u64> {
    (0..u64::from(vcpus)).map(|n| get(vm, n)).collect()
}

#[test]
fn counters_stand_still_over_a_thousand_stops() {
    const VCPUS: u8 = 4;
    let vm = vm(&counting(VCPUS), VCPUS);
    vm.start().unwrap();
    wait_for("all vCPUs", || counters(&vm, VCPUS).iter().all(|c| *c > 0));
    let first = counters(&vm, VCPUS);
    for i in 0..1000_u64 {
        let s = vm.stop().unwrap();
        let before = counters(&s, VCPUS);
        if i % 50 == 0 {
            thread::sleep(Duration::from_millis(2));
        } else {
            thread::yield_now();
        }
        assert_eq!(before, counters(&s, VCPUS), "stop {i}");
        for n in 0..VCPUS {
            let rip = s.vcpu(VcpuId(n)).unwrap().rip.0;
            assert!((TEXT..TEXT + 256).contains(&rip), "vCPU {n} at {rip:#x}");
        }
        assert_eq!(s.vcpu(VcpuId(VCPUS)), None);
        drop(s);
        // Each of them in turn runs before the next stop.
        let n = i % u64::from(VCPUS);
        wait_for("progress", || get(&vm, n) > before[n as usize]);
    }
    wait_for("progress of all", || counters(&vm, VCPUS).iter().zip(&first).all(|(now, then)| now > then));
    let stats = vm.pause_stats();
    println!("kick   {:?}", stats.kick.summary());
    println!("work   {:?}", stats.work.summary());
    println!("resume {:?}", stats.resume.summary());
    assert_eq!(stats.kick.summary().count, 1000);
    assert!(stats.last.is_some());
}

/// Each vCPU reports 1, 2, 3 … up to `n`, counting in its own variable first; then it parks.
fn reporting(vcpus: u8, n: i32) -> Guest {
    guest(|a, labels| {
        let mut round = a.create_label();
        let mut counted = a.create_label();
        let mut told = a.create_label();
        start_others(a, vcpus);
        own_var(a);
        a.mov(edx, u32::from(abi::PORT_MARK)).unwrap();
        a.set_label(&mut round).unwrap();
        a.inc(qword_ptr(rbx)).unwrap();
        a.set_label(&mut counted).unwrap();
        a.mov(eax, dword_ptr(rbx)).unwrap();
        a.out(dx, eax).unwrap();
        a.set_label(&mut told).unwrap();
        a.cmp(qword_ptr(rbx), n).unwrap();
        a.jb(round).unwrap();
        out(a, abi::PORT_PARK, 0);
        labels.extend([round, counted, told]);
    })
}

#[test]
fn every_port_write_happens_exactly_once() {
    const VCPUS: u8 = 2;
    const N: u32 = 700;
    let g = reporting(VCPUS, N as i32);
    let vm = vm(&g, VCPUS);
    let rx = vm.events();
    let mut told = HashMap::<VcpuId, u32>::new();
    let mut places = HashSet::new();
    let mut stops = 0;
    let mut end = None;
    vm.start().unwrap();
    while end.is_none() {
        let s = vm.stop().unwrap();
        stops += 1;
        for e in rx.try_iter() {
            match e {
                VmEvent::Mark { vcpu, value } => {
                    let last = told.entry(vcpu).or_default();
                    assert_eq!(value, *last + 1, "vCPU {vcpu} after {stops} stops");
                    *last = value;
                }
                VmEvent::Ended(e) => end = Some(e),
                _ => {}
            }
        }
        // Where a vCPU stands says exactly what it has counted and told.
        for vcpu in (0..VCPUS).map(VcpuId) {
            let rip = s.vcpu(vcpu).unwrap().rip.0;
            let counted = get(&s, vcpu.0.into()) as u32;
            let told = told.get(&vcpu).copied().unwrap_or(0);
            let pending = u32::from((g.labels[1]..g.labels[2]).contains(&rip));
            assert_eq!(counted, told + pending, "vCPU {vcpu} at {rip:#x} after {stops} stops");
            places.insert(rip);
        }
        drop(s);
        // Somebody writes before the next stop.
        wait_for("a port write", || !rx.is_empty() || end.is_some());
    }
    assert_eq!(told.get(&VcpuId(0)), Some(&N));
    assert_eq!(told.get(&VcpuId(1)), Some(&N));
    assert_eq!(vm.counters().events_dropped, 0);
    println!("{stops} stops over {} marks, at {places:x?}", 2 * N);
    assert!(places.contains(&g.labels[2]), "never stopped right behind a port write: {places:x?}");
}

#[test]
fn reads_are_answered_once_across_stops() {
    // The serial port's scratch register, written and read back.
    let g = guest(|a, _| {
        let mut round = a.create_label();
        let mut bad = a.create_label();
        a.xor(ecx, ecx).unwrap();
        a.mov(edx, 0x3ff).unwrap();
        a.set_label(&mut round).unwrap();
        a.inc(ecx).unwrap();
        a.mov(eax, ecx).unwrap();
        a.out(dx, al).unwrap();
        a.mov(eax, 0x1234_5600).unwrap();
        a.in_(al, dx).unwrap();
        a.mov(esi, ecx).unwrap();
        a.and(esi, 0xff).unwrap();
        a.or(esi, 0x1234_5600).unwrap();
        a.cmp(eax, esi).unwrap();
        a.jne(bad).unwrap();
        a.cmp(ecx, 2000).unwrap();
        a.jb(round).unwrap();
        out(a, abi::PORT_EXIT, abi::EXIT_POWEROFF);
        a.set_label(&mut bad).unwrap();
        out(a, abi::PORT_EXIT, abi::EXIT_SELFCHECK);
    });
    let vm = vm(&g, 1);
    vm.start().unwrap();
    let mut stops = 0;
    while vm.ended().is_none() {
        drop(vm.stop().unwrap());
        stops += 1;
    }
    assert_eq!(vm.ended(), Some(GuestEnd::PowerOff), "after {stops} stops");
}

#[test]
fn a_vcpu_never_stands_in_the_middle_of_a_read() {
    const N: i32 = 3000;
    let g = guest(|a, labels| {
        let mut round = a.create_label();
        let mut counted = a.create_label();
        a.mov(edx, 0x7777).unwrap();
        a.set_label(&mut round).unwrap();
        a.inc(var(0)).unwrap();
        a.set_label(&mut counted).unwrap();
        a.in_(al, dx).unwrap();
        a.cmp(var(0), N).unwrap();
        a.jb(round).unwrap();
        out(a, abi::PORT_EXIT, abi::EXIT_POWEROFF);
        labels.push(counted);
    });
    let vm = vm(&g, 1);
    vm.start().unwrap();
    let (mut stops, mut last) = (0, 0);
    while vm.ended().is_none() {
        let s = vm.stop().unwrap();
        let rip = s.vcpu(VcpuId(0)).unwrap().rip.0;
        let (counted, answered) = (get(&s, 0), vm.counters().nobody);
        // At the instruction: it has not begun. Behind it: it was answered, and the guest has the answer.
        let ahead = u64::from(rip == g.labels[0]);
        assert_eq!(counted, answered + ahead, "at {rip:#x} after {stops} stops");
        drop(s);
        stops += 1;
        wait_for("the next read", || vm.counters().nobody > last || vm.ended().is_some());
        last = vm.counters().nobody;
    }
    assert_eq!(vm.ended(), Some(GuestEnd::PowerOff));
    assert_eq!(get(&vm, 0), N as u64);
    println!("{stops} stops over {N} reads");
}

#[test]
fn ticks_and_stops_together() {
    // Counts in variable 0; the tick's handler counts in variable 1.
    let g = guest(|a, labels| {
        let mut round = a.create_label();
        if host().guest_cpl() == 0 {
            a.sti().unwrap();
        }
        out(a, abi::PORT_TIMER, 200);
        out(a, abi::PORT_NMI_TIMER, 700);
        a.mov(r12d, 0x1111).unwrap();
        a.set_label(&mut round).unwrap();
        a.inc(var(0)).unwrap();
        a.cmp(var(1), 1000).unwrap();
        a.jb(round).unwrap();
        out(a, abi::PORT_EXIT, abi::EXIT_POWEROFF);
        counting_handler(a, labels, 1);
        counting_handler(a, labels, 2);
    });
    let vm = vm(&g, 1);
    set_gate(&vm, abi::VEC_TIMER, g.labels[0], 0);
    set_gate(&vm, 2, g.labels[1], 0);
    vm.start().unwrap();
    while vm.ended().is_none() {
        let s = vm.stop().unwrap();
        let before = (get(&s, 0), get(&s, 1), get(&s, 2));
        thread::sleep(Duration::from_micros(300));
        assert_eq!(before, (get(&s, 0), get(&s, 1), get(&s, 2)));
        drop(s);
        thread::sleep(Duration::from_micros(300));
    }
    assert_eq!(vm.ended(), Some(GuestEnd::PowerOff));
    let c = vm.counters();
    // What was injected is handled, except what is in flight at the end.
    assert!(c.interrupts - get(&vm, 1) <= 1, "{c:?}, {} handled", get(&vm, 1));
    assert!(c.nmis - get(&vm, 2) <= 2, "{c:?}, {} handled", get(&vm, 2));
}

#[test]
fn a_stop_before_the_start_sees_the_first_instruction() {
    let g = counting(2);
    let vm = vm(&g, 2);
    let mut s = vm.stop().unwrap();
    for n in 0..2 {
        let state = s.vcpu(VcpuId(n)).unwrap();
        assert_eq!(state.rip, Gva(TEXT));
        let gs_base = abi::PERCPU_GPA + abi::VIRT_OFFSET + u64::from(n) * abi::PERCPU_STRIDE;
        assert_eq!(state.gs_base, Gva(gs_base));
        assert_eq!(state.cr3, abi::PAGE_TABLES_GPA);
    }
    let mut text = vec![0; g.bytes.len()];
    s.read(Gpa(abi::IMAGE_GPA), &mut text).unwrap();
    assert_eq!(text, g.bytes);
    s.write(Gpa(DATA), &[7]).unwrap();
    assert!(s.write(Gpa(abi::MIN_RAM_BYTES), &[7]).is_err());
    // Started while stopped: nothing moves before the guard is gone.
    vm.start().unwrap();
    thread::sleep(Duration::from_millis(20));
    assert_eq!(counters(&s, 2), [7, 0]);
    drop(s);
    wait_for("progress", || get(&vm, 0) > 7);
    assert!(vm.start().is_err(), "started twice");
    assert!(vm.set_port_hook(1, Arc::new(|_| {})).is_err());
}

#[test]
fn a_stop_after_the_end_succeeds() {
    let g = guest(|a, _| out(a, abi::PORT_EXIT, abi::EXIT_PANIC));
    let vm = vm(&g, 2);
    assert_eq!(run(&vm).1, GuestEnd::Panic);
    let mut s = vm.stop().unwrap();
    let mut text = vec![0; g.bytes.len()];
    s.read(Gpa(abi::IMAGE_GPA), &mut text).unwrap();
    assert_eq!(text, g.bytes);
    s.write(Gpa(DATA), &[1]).unwrap();
    // The write to PORT_EXIT was completed: the vCPU stands behind it.
    assert_eq!(s.vcpu(VcpuId(0)).unwrap().rip.0, TEXT + g.bytes.len() as u64);
    assert!(!vm.vcpu_online(VcpuId(0)));
}

#[test]
fn everybody_stands_when_the_end_is_reported() {
    const VCPUS: u8 = 4;
    let g = guest(|a, _| {
        let mut round = a.create_label();
        start_others(a, VCPUS);
        own_var(a);
        a.set_label(&mut round).unwrap();
        a.inc(qword_ptr(rbx)).unwrap();
        a.cmp(r15, 3).unwrap();
        a.jne(round).unwrap();
        a.cmp(qword_ptr(rbx), 100_000).unwrap();
        a.jb(round).unwrap();
        out(a, abi::PORT_EXIT, abi::EXIT_POWEROFF);
    });
    let vm = vm(&g, VCPUS);
    assert_eq!(run(&vm).1, GuestEnd::PowerOff);
    let at_end = counters(&vm, VCPUS);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(at_end, counters(&vm, VCPUS));
}

#[test]
fn stops_take_turns() {
    let vm = Arc::new(vm(&counting(2), 2));
    vm.start().unwrap();
    let inside = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (vm, inside) = (Arc::clone(&vm), Arc::clone(&inside));
            thread::spawn(move || {
                for _ in 0..100 {
                    let s = vm.stop().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two guards at a time");
                    let before = counters(&s, 2);
                    thread::yield_now();
                    assert_eq!(before, counters(&s, 2));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(s);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(vm.pause_stats().kick.summary().count, 300);
}

/// A guest that writes to the hooked port and then reports.
fn hooked() -> (Guest, Vm) {
    let g = guest(|a, _| {
        out(a, 0xe74, 1);
        out(a, abi::PORT_EXIT, abi::EXIT_POWEROFF);
    });
    let vm = vm(&g, 1);
    (g, vm)
}

#[test]
fn a_hook_is_called_and_may_block_without_holding_up_a_stop() {
    let (g, vm) = hooked();
    let (go, wait) = bounded::<()>(0);
    let called = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&called);
    let hook = move |vcpu: VcpuId| {
        assert_eq!(vcpu, VcpuId(0));
        seen.store(true, Ordering::SeqCst);
        wait.recv_timeout(LONG).unwrap();
    };
    vm.set_port_hook(0xe74, Arc::new(hook)).unwrap();
    vm.start().unwrap();
    wait_for("the hook", || called.load(Ordering::SeqCst));
    let s = vm.stop().unwrap();
    let rip = s.vcpu(VcpuId(0)).unwrap().rip.0;
    assert!((TEXT + 1..TEXT + g.bytes.len() as u64).contains(&rip));
    go.send(()).unwrap();
    thread::sleep(Duration::from_millis(20));
    assert_eq!(vm.ended(), None, "the guest went on while it was stopped");
    drop(s);
    assert_eq!(until_end(&vm.events()).1, GuestEnd::PowerOff);
}

#[test]
fn a_hook_that_panics_ends_the_guest() {
    let (_, vm) = hooked();
    vm.set_port_hook(0xe74, Arc::new(|_| panic!("on purpose"))).unwrap();
    let end = run(&vm).1;
    assert!(matches!(&end, GuestEnd::Failed { why } if why.contains("panicked")), "{end:?}");
    vm.stop().unwrap();
}

#[test]
fn a_doorbell_rings_without_an_exit() {
    let g = guest(|a, _| {
        let mut round = a.create_label();
        a.mov(ecx, 100).unwrap();
        a.mov(edx, 0xe70).unwrap();
        a.set_label(&mut round).unwrap();
        a.out(dx, eax).unwrap();
        a.dec(ecx).unwrap();
        a.jnz(round).unwrap();
        out(a, abi::PORT_EXIT, abi::EXIT_POWEROFF);
    });
    let vm = vm(&g, 1);
    let bell = vm.doorbell(0xe70).unwrap();
    let same = vm.doorbell(0xe70).unwrap();
    assert!(bell.read().is_err(), "rang before the start");
    assert_eq!(run(&vm).1, GuestEnd::PowerOff);
    assert_eq!(same.read().unwrap(), 100);
    assert!(vm.counters().exits < 10, "{:?}", vm.counters());
}
