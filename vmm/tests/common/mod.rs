//! Guests of a dozen instructions, and what every test needs around them.
#![allow(dead_code, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use exotrace_guest::abi;
use exotrace_patcher::control::GuestEnd;
use exotrace_patcher::machine::{GuestRead, Machine, Stopped};
use exotrace_trace::ids::{Gpa, VcpuId};
use exotrace_vmm::{HostReport, Image, Vm, VmConfig, VmEvent, detect};
use iced_x86::BlockEncoderOptions;
use iced_x86::code_asm::*;

/// Where guests are linked.
pub const TEXT: u64 = abi::IMAGE_GPA + abi::VIRT_OFFSET;
/// GPA of the guests' variables: counter n is the u64 at `DATA + 64 * n`.
pub const DATA: u64 = abi::FREE_GPA;
/// How long anything may take on a loaded machine.
pub const LONG: Duration = Duration::from_secs(60);

/// GVA of counter `n`.
pub fn var(n: u64) -> AsmMemoryOperand {
    qword_ptr(DATA + abi::VIRT_OFFSET + 64 * n)
}

/// The host, which must have KVM: these tests are about nothing else.
pub fn host() -> HostReport {
    let host = detect();
    if let Err(e) = host.usable() {
        panic!("the VMM's tests need KVM: {e}");
    }
    host
}

/// A guest: its bytes, and the addresses of the labels that `write` returned.
pub struct Guest {
    pub bytes: Vec<u8>,
    pub labels: Vec<u64>,
}

/// Assembles a guest. Every vCPU begins at its first byte, with its number in rdi (kept in r15) and a stack.
pub fn guest(write: impl FnOnce(&mut CodeAssembler, &mut Vec<CodeLabel>)) -> Guest {
    let mut a = CodeAssembler::new(64).unwrap();
    a.mov(r15, rdi).unwrap();
    // A page of stack each.
    a.mov(rsp, rdi).unwrap();
    a.shl(rsp, 12).unwrap();
    a.add(rsp, (DATA + abi::VIRT_OFFSET + 0x10_1000) as i32).unwrap();
    let mut labels = Vec::new();
    write(&mut a, &mut labels);
    let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
    let done = a.assemble_options(TEXT, options).unwrap();
    let labels = labels.iter().map(|l| done.label_ip(l).unwrap()).collect();
    Guest { bytes: done.inner.code_buffer, labels }
}

/// `out` of a u32.
pub fn out(a: &mut CodeAssembler, port: u16, value: u32) {
    a.mov(edx, u32::from(port)).unwrap();
    a.mov(eax, value).unwrap();
    a.out(dx, eax).unwrap();
}

/// An interrupt handler that counts in variable `n`. With `error`, it is entered at CPL 0 like any other: the stub does
/// no more than the emulator of a PVM host can.
pub fn counting_handler(a: &mut CodeAssembler, labels: &mut Vec<CodeLabel>, n: u64) {
    let mut l = a.create_label();
    a.set_label(&mut l).unwrap();
    a.inc(var(n)).unwrap();
    a.iretq().unwrap();
    labels.push(l);
}

pub fn config(guest: &Guest, vcpus: u8) -> VmConfig {
    VmConfig {
        vcpus,
        ram_bytes: abi::MIN_RAM_BYTES,
        injected_bytes: 2 << 20,
        ..VmConfig::new(Image::Raw(guest.bytes.clone()))
    }
}

pub fn vm(guest: &Guest, vcpus: u8) -> Vm {
    Vm::new(config(guest, vcpus), &host()).unwrap()
}

/// Points vector `v` at `handler`, at CPL 0, callable from `dpl`.
pub fn set_gate(vm: &Vm, v: u64, handler: u64, dpl: u64) {
    let low = handler & 0xffff | abi::SEL_CODE0 << 16 | (0x8e | dpl << 5) << 40 | (handler >> 16 & 0xffff) << 48;
    let mut s = vm.stop().unwrap();
    s.write(Gpa(abi::IDT_GPA + 16 * v), &low.to_le_bytes()).unwrap();
    s.write(Gpa(abi::IDT_GPA + 16 * v + 8), &(handler >> 32).to_le_bytes()).unwrap();
}

/// Variable `n` of the guest.
pub fn get(vm: &impl GuestRead, n: u64) -> u64 {
    let mut b = [0; 8];
    vm.read(Gpa(DATA + 64 * n), &mut b).unwrap();
    u64::from_le_bytes(b)
}

pub fn set(vm: &Vm, n: u64, value: u64) {
    vm.stop().unwrap().write(Gpa(DATA + 64 * n), &value.to_le_bytes()).unwrap();
}

/// All events up to the end, and the end.
pub fn until_end(rx: &Receiver<VmEvent>) -> (Vec<VmEvent>, GuestEnd) {
    let mut seen = Vec::new();
    loop {
        match rx.recv_timeout(LONG) {
            Ok(VmEvent::Ended(end)) => return (seen, end),
            Ok(e) => seen.push(e),
            Err(_) => panic!("no end within {LONG:?}; events so far: {seen:?}"),
        }
    }
}

/// Runs a guest to its end.
pub fn run(vm: &Vm) -> (Vec<VmEvent>, GuestEnd) {
    vm.start().unwrap();
    until_end(&vm.events())
}

/// Waits until something holds.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LONG, "{what}: not within {LONG:?}");
        std::thread::yield_now();
    }
}

pub fn mark(vcpu: u8, value: u32) -> VmEvent {
    VmEvent::Mark { vcpu: VcpuId(vcpu), value }
}
