//! Boots a Linux kernel and connects its serial console to this terminal:
//! `boot_linux bzImage initrd|- 'command line' vcpus MiB [vmlinux=FILE] [disk=FILE] [rodisk=FILE] [stops=N]`
//!
//! `stops=N` stops all vCPUs N times, as fast as the guest lets them go on for 5 ms in between.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use exotrace_patcher::machine::{Machine, Stopped};
use exotrace_trace::ids::VcpuId;
use exotrace_vmm::{Disk, DiskMode, Entry, Image, LinuxImage, Vm, VmConfig, VmEvent, detect};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [kernel, initrd, cmdline, vcpus, mib, more @ ..] = &args[..] else {
        return Err("usage: boot_linux bzImage initrd|- 'command line' vcpus MiB [vmlinux=FILE] [disk=FILE]".into());
    };
    let mut image = LinuxImage { bzimage: std::fs::read(kernel)?.into(), ..Default::default() };
    if initrd != "-" {
        image.initrd = Some(std::fs::read(initrd)?.into());
    }
    let (mut disks, mut stops) = (Vec::new(), 0);
    for extra in more {
        match extra.split_once('=') {
            Some(("vmlinux", path)) => {
                image.vmlinux = Some(std::fs::read(path)?.into());
                image.entry = Entry::Vmlinux;
            }
            Some(("disk", path)) => disks.push(Disk { path: path.into(), mode: DiskMode::CopyOnWrite }),
            Some(("rodisk", path)) => disks.push(Disk { path: path.into(), mode: DiskMode::ReadOnly }),
            Some(("stops", n)) => stops = n.parse()?,
            _ => return Err(format!("unknown argument {extra}").into()),
        }
    }
    let mut config = VmConfig::new(Image::Linux(image));
    config.vcpus = vcpus.parse()?;
    config.ram_bytes = mib.parse::<u64>()? << 20;
    config.cmdline.clone_from(cmdline);
    config.disks = disks;
    let vm = Arc::new(Vm::new(config, &detect()).map_err(|e| exotrace_patcher::control::error_chain(&e))?);
    println!("injected memory at {}", vm.injected_gpa());
    vm.start()?;
    type_in(Arc::clone(&vm));
    if stops > 0 {
        stop_often(Arc::clone(&vm), stops);
    }
    print_until_end(&vm)
}

fn print_until_end(vm: &Vm) -> Result<(), Failure> {
    let (start, mut at, events) = (Instant::now(), 0, vm.events());
    loop {
        let event = events.recv_timeout(Duration::from_millis(100));
        let (next, text) = vm.console_since(at);
        at = next;
        std::io::stdout().write_all(&text)?;
        std::io::stdout().flush()?;
        match event {
            Ok(VmEvent::Ended(end)) => {
                println!(
                    "\nafter {:?}: {end}; {:?}; {:?}",
                    start.elapsed(),
                    vm.counters(),
                    vm.pause_stats().kick.summary()
                );
                show_state(vm);
                return Ok(());
            }
            Ok(VmEvent::CpuOnline(id)) => println!("\n[vCPU {id} is started after {:?}]", start.elapsed()),
            _ => {}
        }
    }
}

fn show_state(vm: &Vm) {
    let Ok(stopped) = vm.stop() else { return };
    for n in 0..vm.vcpus() {
        println!("vCPU {n}: {:x?}", stopped.vcpu(VcpuId(n)));
    }
}

fn type_in(vm: Arc<Vm>) {
    std::thread::spawn(move || {
        let mut byte = [0];
        while std::io::stdin().read(&mut byte).is_ok_and(|n| n == 1) {
            vm.console_input(&byte);
        }
    });
}

fn stop_often(vm: Arc<Vm>, times: u32) {
    std::thread::spawn(move || {
        for n in 0..times {
            match vm.stop() {
                Ok(s) => drop(s),
                Err(e) => println!("stop {n}: {e}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        println!("\n[{times} stops done]");
    });
}
