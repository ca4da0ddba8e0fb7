//! What the threads of a VM share.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use exotrace_guest::abi;
use exotrace_patcher::control::GuestEnd;
use exotrace_trace::ids::VcpuId;
use vmm_sys_util::eventfd::EventFd;

use crate::devices::serial::{Effect, SerialPort};
use crate::devices::virtio::{Input, MmioDevice, Output};
use crate::event::EventSink;
use crate::memory::Ram;
use crate::rendezvous::{CpuShared, Rendezvous};
use crate::timer::{Tick, Timers};
use crate::vm::PortHook;

/// Counts since the VM was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmCounters {
    /// Exits from guest mode to this program.
    pub exits: u64,
    /// Accesses to ports and addresses where nothing answers.
    pub nobody: u64,
    /// Requests of the guest that made no sense, such as starting a vCPU that runs.
    pub refused: u64,
    /// Interrupts injected.
    pub interrupts: u64,
    /// NMIs injected.
    pub nmis: u64,
    /// Ticks that became due while the one before was still pending.
    pub coalesced: u64,
    /// Events that nobody read in time.
    pub events_dropped: u64,
}

/// The same, being counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) exits: AtomicU64,
    pub(crate) nobody: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) interrupts: AtomicU64,
    pub(crate) nmis: AtomicU64,
    pub(crate) coalesced: AtomicU64,
}

/// Adds one.
pub(crate) fn count(c: &AtomicU64) {
    c.fetch_add(1, Ordering::Relaxed);
}

/// The PC that a Linux guest sees, as far as the kernel does not emulate it.
pub(crate) struct Pc {
    /// What the guest wrote to ACPI's PM1 enable register. No event ever happens, but the guest reads it back.
    pub(crate) acpi_enabled: AtomicU16,
    /// Pulls COM1's interrupt line.
    pub(crate) serial_irq: EventFd,
    pub(crate) virtio: Vec<MmioDevice>,
    pub(crate) console: VirtioConsole,
}

/// The console `hvc0`. Which of the two consoles gets what is typed is the guest's choice: the one that it wrote to last.
#[derive(Debug, Default)]
pub(crate) struct VirtioConsole {
    /// Its number among the virtio devices.
    pub(crate) device: usize,
    pub(crate) input: Input,
    pub(crate) output: Output,
    /// The guest wrote to it last.
    pub(crate) in_use: AtomicBool,
    /// vCPU 0 has to take typed input to the guest.
    pub(crate) typed: AtomicBool,
}

/// What Linux prints first when it panics.
const PANIC_TEXT: &str = "Kernel panic - not syncing";

/// What the threads of a VM share.
pub(crate) struct Shared {
    pub(crate) ram: Ram,
    pub(crate) cpus: Vec<Arc<CpuShared>>,
    pub(crate) rendezvous: Rendezvous,
    pub(crate) timers: Timers,
    pub(crate) serial: SerialPort,
    pub(crate) events: Arc<EventSink>,
    pub(crate) counters: Counters,
    /// `None` for the embedded guest and tests, which run on no machine that exists elsewhere.
    pub(crate) pc: Option<Pc>,
    /// Fixed when the VM is started.
    pub(crate) hooks: OnceLock<Vec<(u16, PortHook)>>,
}

impl Shared {
    /// Makes an interrupt pending and brings it to the vCPU's attention.
    pub(crate) fn raise(&self, vcpu: VcpuId, vector: u64) {
        let Some(cpu) = self.cpus.get(vcpu.index()) else { return };
        if cpu.pending.raise(vector as u8) {
            self.rendezvous.wake(vcpu);
        } else {
            count(&self.counters.coalesced);
        }
    }

    /// A period is over.
    pub(crate) fn tick(&self, vcpu: VcpuId, tick: Tick) {
        match tick {
            Tick::Timer => self.raise(vcpu, abi::VEC_TIMER),
            Tick::Nmi => {
                let Some(cpu) = self.cpus.get(vcpu.index()) else { return };
                if cpu.pending.raise_nmi() {
                    self.rendezvous.wake(vcpu);
                } else {
                    count(&self.counters.coalesced);
                }
            }
        }
    }

    /// Passes on what an access to the serial port brought about.
    pub(crate) fn serial_effect(&self, effect: Effect) {
        if effect.output {
            self.events.console_written();
        }
        match &self.pc {
            _ if !effect.irq => {}
            // The descriptor's counter would have to reach 2^64 to refuse it.
            Some(pc) => drop(pc.serial_irq.write(1)),
            None => self.raise(VcpuId(0), abi::VEC_SERIAL),
        }
    }

    /// A virtio device.
    pub(crate) fn virtio(&self, n: usize) -> Option<&MmioDevice> {
        self.pc.as_ref()?.virtio.get(n)
    }

    /// Passes on what the guest wrote to a virtio console.
    pub(crate) fn virtio_output(&self) {
        let Some(pc) = &self.pc else { return };
        let new = pc.console.output.take();
        if !new.is_empty() {
            pc.console.in_use.store(true, Ordering::Relaxed);
            self.serial_effect(self.serial.add_output(&new));
        }
    }

    /// On vCPU 0's thread: takes typed input to the guest's virtio console.
    pub(crate) fn virtio_input(&self) {
        let Some(pc) = &self.pc else { return };
        if pc.console.typed.load(Ordering::SeqCst)
            && pc.console.typed.swap(false, Ordering::SeqCst)
            && let Some(device) = pc.virtio.get(pc.console.device)
        {
            device.poll(&self.ram);
        }
    }

    /// Somebody types. Returns how many bytes were taken.
    pub(crate) fn type_in(&self, bytes: &[u8]) -> usize {
        match &self.pc {
            Some(pc) if pc.console.in_use.load(Ordering::Relaxed) => {
                let taken = pc.console.input.push(bytes);
                pc.console.typed.store(true, Ordering::SeqCst);
                self.rendezvous.wake(VcpuId(0));
                taken
            }
            _ => {
                let (taken, effect) = self.serial.type_in(bytes);
                self.serial_effect(effect);
                taken
            }
        }
    }

    /// Ends the guest.
    pub(crate) fn end(&self, end: GuestEnd) {
        // A Linux kernel that panics without telling any device resets or faults; its last words tell them apart.
        let ambiguous = matches!(end, GuestEnd::Reset | GuestEnd::TripleFault { .. });
        let panicked = || {
            let (_, console) = self.serial.output_since(0);
            console.windows(PANIC_TEXT.len()).any(|w| w == PANIC_TEXT.as_bytes())
        };
        let end = if self.pc.is_some() && ambiguous && panicked() { GuestEnd::Panic } else { end };
        self.rendezvous.end(end);
        self.timers.hold(true);
    }

    /// Lets stopped vCPUs and their timers go on. After the guest's end there is nothing to tick for.
    pub(crate) fn resume(&self) {
        self.timers.hold(false);
        self.rendezvous.resume();
        if self.rendezvous.ending() {
            self.timers.hold(true);
        }
    }

    pub(crate) fn counters(&self) -> VmCounters {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let c = &self.counters;
        VmCounters {
            exits: get(&c.exits),
            nobody: get(&c.nobody),
            refused: get(&c.refused),
            interrupts: get(&c.interrupts),
            nmis: get(&c.nmis),
            coalesced: get(&c.coalesced),
            events_dropped: self.events.dropped(),
        }
    }
}
