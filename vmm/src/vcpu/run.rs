//! The loop of a vCPU's thread.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use exotrace_guest::abi;
use exotrace_patcher::control::GuestEnd;
use exotrace_patcher::machine::VcpuState;
use exotrace_trace::ids::{Gpa, VcpuId};
use kvm_bindings::KVM_MP_STATE_UNINITIALIZED;
use kvm_ioctls::{VcpuExit, VcpuFd};

use super::kvm::{RunPage, interrupt};
use super::read_state;
use crate::event::VmEvent;
use crate::exit::{Action, Exit, Facts, decide};
use crate::pc;
use crate::rendezvous::{CpuShared, Next, Phase};
use crate::shared::{Shared, count};
use crate::timer::Tick;
use crate::vm::PortHook;

/// Exits that may happen while one access is being completed: KVM splits a string access into one exit an element and
/// looks at `immediate_exit` at least every 1,024 of them.
const COMPLETION_EXITS: usize = 1 << 16;

/// What the thread does before it goes into guest mode again.
enum Wait {
    Stand(Phase),
    Hook(u16),
}

/// A vCPU and its thread's state.
pub(super) struct Runner {
    id: VcpuId,
    fd: VcpuFd,
    me: Arc<CpuShared>,
    shared: Arc<Shared>,
    hooks: Vec<(u16, PortHook)>,
    hook_ports: Vec<u16>,
    wait: Option<Wait>,
    /// The last exit was an access that KVM completes when it runs next.
    incomplete: bool,
    /// An interrupt was injected since the last run, so what KVM said then about another one is stale.
    injected: bool,
    /// The vCPU has just left its idle wait: what is injected now comes before its next look for work.
    idled: bool,
    /// Something was injected since the idle wait. It may have come after the guest looked for work and before it asked
    /// to sleep, so the next sleep is none.
    roused: bool,
}

impl Runner {
    pub(super) fn new(id: VcpuId, fd: VcpuFd, me: Arc<CpuShared>, shared: Arc<Shared>) -> Runner {
        let hooks = shared.hooks.get().cloned().unwrap_or_default();
        let hook_ports = hooks.iter().map(|(p, _)| *p).collect();
        // KVM itself lets the vCPUs of a PC wait for their start.
        let ready = id.0 == 0 || shared.pc.is_some();
        let first = if ready { Phase::Running } else { Phase::WaitingForStart };
        let wait = Some(Wait::Stand(first));
        Runner {
            id,
            fd,
            me,
            shared,
            hooks,
            hook_ports,
            wait,
            incomplete: false,
            injected: false,
            idled: false,
            roused: false,
        }
    }

    fn page(&self) -> &RunPage {
        self.me.kicker.page().expect("a vCPU with a thread has its run page")
    }

    /// Until the VM is torn down.
    pub(super) fn run(mut self) {
        loop {
            // Before looking for requests: see the rendezvous' docs.
            self.page().set_immediate_exit(false);
            let attention = self.me.attention.swap(false, Ordering::SeqCst);
            if self.wait.is_none() && attention && self.shared.rendezvous.must_stand() {
                self.wait = Some(Wait::Stand(Phase::Running));
            }
            if let Some(wait) = self.wait.take() {
                if !self.stand(wait) {
                    return;
                }
                continue;
            }
            if self.id.0 == 0 {
                self.shared.virtio_input();
            }
            self.inject();
            self.step();
            self.idled = false;
        }
    }

    /// Stands until it may go on; false at the end.
    fn stand(&mut self, wait: Wait) -> bool {
        self.complete();
        let state = self.state();
        let phase = match wait {
            Wait::Stand(phase) => {
                self.idled = phase == Phase::Idle;
                phase
            }
            Wait::Hook(port) => {
                // The hook may block as long as it likes: this vCPU counts as standing meanwhile.
                self.shared.rendezvous.step_aside(self.id, state.unwrap_or_default());
                for (_, hook) in self.hooks.iter().filter(|(p, _)| *p == port) {
                    hook(self.id);
                }
                Phase::Running
            }
        };
        match self.shared.rendezvous.stand(self.id, phase, state) {
            Next::Leave => false,
            Next::Go { stopped } => {
                if stopped {
                    // Tells a guest with a kvmclock that the time it missed was no lock-up; the others: EINVAL.
                    let _ = self.fd.kvmclock_ctrl();
                }
                true
            }
        }
    }

    fn state(&self) -> Option<VcpuState> {
        match read_state(&self.fd, self.shared.pc.is_some()) {
            Ok(state) => Some(state),
            Err(e) => {
                let why = format!("the registers of vCPU {} can't be read: {e}", self.id);
                self.shared.end(GuestEnd::Failed { why });
                None
            }
        }
    }

    /// Lets KVM complete an access that it has handed out, without running the guest.
    fn complete(&mut self) {
        for _ in 0..COMPLETION_EXITS {
            if !self.incomplete {
                return;
            }
            self.page().set_immediate_exit(true);
            self.step();
        }
        let why = format!("vCPU {} did not complete an access", self.id);
        self.shared.end(GuestEnd::Failed { why });
    }

    /// Injects what is pending, as far as the vCPU can take it.
    fn inject(&mut self) {
        let pending = &self.me.pending;
        if pending.take_nmi() {
            count(&self.shared.counters.nmis);
            self.roused |= !self.idled;
            if let Err(e) = self.fd.nmi() {
                self.fail(format!("KVM refused an NMI: {e}"));
            }
        }
        if self.shared.pc.is_some() {
            // Its interrupts are the kernel's business.
            return;
        }
        let Some(vector) = self.me.pending.next() else {
            return self.page().request_interrupt_window(false);
        };
        if self.page().ready_for_interrupt() && !self.injected {
            match interrupt(&self.fd, vector) {
                Ok(true) => {
                    self.me.pending.clear(vector);
                    self.injected = true;
                    self.roused |= !self.idled;
                    count(&self.shared.counters.interrupts);
                }
                Ok(false) => {}
                Err(e) => self.fail(format!("KVM refused an interrupt: {e}")),
            }
        }
        self.page().request_interrupt_window(self.me.pending.next().is_some());
    }

    /// Runs the guest until the next exit and carries out what it asks for.
    fn step(&mut self) {
        let exit = self.enter();
        count(&self.shared.counters.exits);
        let facts = Facts {
            vcpus: self.shared.cpus.len() as u8,
            if_flag: self.page().if_flag(),
            nmi_armed: exit == Exit::Hlt && self.shared.timers.armed(self.id, Tick::Nmi),
            hooks: &self.hook_ports,
            acpi_enabled: self.shared.pc.as_ref().map_or(0, |pc| pc.acpi_enabled.load(Ordering::Relaxed)),
        };
        let mmio = matches!(exit, Exit::MmioRead { .. });
        let action = match &self.shared.pc {
            Some(_) => {
                self.look_for_start(&exit);
                pc::decide(exit, &facts)
            }
            None => decide(exit, &facts),
        };
        self.act(action, mmio);
    }

    /// KVM_RUN of a vCPU that is not started returns when INIT arrives: then it is time to look. What follows INIT does
    /// not bring it out.
    fn look_for_start(&self, exit: &Exit) {
        if *exit != Exit::Interrupted || self.me.started.load(Ordering::Relaxed) {
            return;
        }
        let waits = self.fd.get_mp_state().is_ok_and(|s| s.mp_state == KVM_MP_STATE_UNINITIALIZED);
        if !waits {
            self.me.started.store(true, Ordering::Relaxed);
            self.shared.events.send(VmEvent::CpuOnline(self.id));
        }
    }

    fn enter(&mut self) -> Exit {
        let Runner { fd, me, .. } = self;
        let page = me.kicker.page().expect("a vCPU with a thread has its run page");
        let exit = match fd.run() {
            Ok(VcpuExit::IoOut(port, data)) => Exit::PortOut { port, size: page.io_size(), data: data.to_vec() },
            Ok(VcpuExit::IoIn(port, data)) => Exit::PortIn { port, size: page.io_size(), bytes: data.len() },
            Ok(VcpuExit::MmioRead(gpa, data)) => Exit::MmioRead { gpa: Gpa(gpa), bytes: data.len() },
            Ok(VcpuExit::MmioWrite(gpa, data)) => Exit::MmioWrite { gpa: Gpa(gpa), data: data.to_vec() },
            Ok(VcpuExit::Hlt) => Exit::Hlt,
            Ok(VcpuExit::IrqWindowOpen) => Exit::IrqWindow,
            Ok(VcpuExit::Intr) => Exit::Interrupted,
            Ok(VcpuExit::Shutdown) => Exit::Shutdown,
            Ok(VcpuExit::FailEntry(reason, _)) => Exit::FailEntry { reason },
            Ok(VcpuExit::InternalError) => Exit::Internal { suberror: page.suberror() },
            Ok(other) => Exit::Unexpected(format!("{other:?}")),
            Err(e) if e.errno() == libc::EINTR || e.errno() == libc::EAGAIN => Exit::Interrupted,
            Err(e) => Exit::Errno(e.errno()),
        };
        // A run that was interrupted at once has completed the access before and touched nothing else.
        self.incomplete =
            matches!(exit, Exit::PortOut { .. } | Exit::PortIn { .. } | Exit::MmioRead { .. } | Exit::MmioWrite { .. });
        self.injected = false;
        exit
    }

    fn act(&mut self, action: Action, mmio: bool) {
        let shared = Arc::clone(&self.shared);
        match action {
            Action::Resume => {}
            Action::Many(all) => all.into_iter().for_each(|a| self.act(a, mmio)),
            Action::Nobody { reply } => {
                count(&shared.counters.nobody);
                self.answer(&vec![0xff; reply], mmio);
            }
            Action::Answer(reply) => self.answer(&reply, mmio),
            Action::AcpiEnable(value) => {
                if let Some(pc) = &shared.pc {
                    pc.acpi_enabled.store(value, Ordering::Relaxed);
                }
            }
            Action::VirtioRead { device, offset, bytes } => self.virtio_read(device, offset, bytes),
            Action::VirtioWrite { device, offset, data } => self.virtio_write(device, offset, &data),
            Action::Refused => count(&shared.counters.refused),
            Action::SerialWrite { register, data } => {
                let effect = shared.serial.write(register, &data);
                if let (true, Some(pc)) = (effect.output, &shared.pc) {
                    pc.console.in_use.store(false, Ordering::Relaxed);
                }
                shared.serial_effect(effect);
            }
            Action::SerialRead { register, bytes } => {
                let mut data = vec![0; bytes];
                let effect = shared.serial.read(register, &mut data);
                self.answer(&data, mmio);
                shared.serial_effect(effect);
            }
            Action::CpuOn(id) => {
                if !shared.rendezvous.cpu_on(id) {
                    count(&shared.counters.refused);
                }
            }
            Action::Ipi(id) => shared.raise(id, abi::VEC_IPI),
            Action::Timer(us) => shared.timers.set(self.id, Tick::Timer, us),
            Action::NmiTimer(us) => shared.timers.set(self.id, Tick::Nmi, us),
            Action::Mark(value) => shared.events.send(VmEvent::Mark { vcpu: self.id, value }),
            Action::Idle if std::mem::take(&mut self.roused) => {}
            Action::Idle => self.wait(Wait::Stand(Phase::Idle)),
            Action::IdleForNmi => self.wait(Wait::Stand(Phase::IdleForNmi)),
            Action::Park => self.wait(Wait::Stand(Phase::Parked)),
            Action::Hook(port) => self.wait(Wait::Hook(port)),
            Action::End(end) => self.end(end),
            Action::Hang => {
                let rip = self.state().unwrap_or_default().rip;
                self.end(GuestEnd::Hang { vcpu: self.id, rip });
            }
            Action::TripleFault => self.end(GuestEnd::TripleFault { vcpu: self.id }),
            Action::Fail(what) => self.fail(what),
        }
    }

    fn answer(&self, data: &[u8], mmio: bool) {
        if mmio { self.page().answer_mmio(data) } else { self.page().answer_port(data) }
    }

    fn virtio_read(&self, device: usize, offset: u64, bytes: usize) {
        let mut data = vec![0xff; bytes];
        match self.shared.virtio(device) {
            Some(device) => device.read(offset, &mut data),
            None => count(&self.shared.counters.nobody),
        }
        self.answer(&data, true);
    }

    fn virtio_write(&self, device: usize, offset: u64, data: &[u8]) {
        match self.shared.virtio(device) {
            Some(device) => {
                device.write(offset, data, &self.shared.ram);
                self.shared.virtio_output();
            }
            None => count(&self.shared.counters.nobody),
        }
    }

    /// Stand before the next run. Of several requests in one string access the first counts.
    fn wait(&mut self, wait: Wait) {
        if self.wait.is_none() {
            self.wait = Some(wait);
        }
    }

    fn end(&mut self, end: GuestEnd) {
        self.shared.end(end);
        self.wait = Some(Wait::Stand(Phase::Running));
    }

    /// Ends the guest with a sentence that says where it was.
    fn fail(&mut self, what: String) {
        // Nothing can be completed on a vCPU that KVM can't run.
        self.incomplete = false;
        let rip = self.fd.get_regs().map_or(0, |r| r.rip);
        let mut code = [0; 15];
        let gpa = match self.shared.pc {
            // Nothing is there if the vCPU can't translate its own address.
            Some(_) => self.fd.translate_gva(rip).map_or(u64::MAX, |t| t.physical_address),
            None => rip.wrapping_sub(abi::VIRT_OFFSET),
        };
        let bytes = match self.shared.ram.read(Gpa(gpa), &mut code) {
            Ok(()) => code.map(|b| format!("{b:02x}")).join(" "),
            Err(_) => "not in RAM".into(),
        };
        let why = format!("{what}, on vCPU {} at {rip:#x} (instruction bytes: {bytes})", self.id);
        self.end(GuestEnd::Failed { why });
    }
}
