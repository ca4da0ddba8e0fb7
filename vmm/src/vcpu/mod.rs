//! One thread per vCPU.
//!
//! The thread goes round one loop: clear `immediate_exit`, see whether anybody wants something, inject what is
//! pending, run the guest, carry out what the exit asks for. It leaves the loop only to stand at the rendezvous, with
//! its last access completed and its registers published.

pub(crate) mod kvm;
mod run;

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::Sender;
use exotrace_patcher::control::GuestEnd;
use exotrace_patcher::machine::VcpuState;
use exotrace_trace::ids::{Gva, VcpuId};
use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::VcpuFd;

use crate::error::Error;
use crate::shared::Shared;
use run::Runner;

/// The registers that the patcher looks at. `linux`: with those that only a Linux guest has a use for.
pub(crate) fn read_state(fd: &VcpuFd, linux: bool) -> Result<VcpuState, vmm_sys_util::errno::Error> {
    let regs = fd.get_regs()?;
    let sregs = fd.get_sregs()?;
    let [kernel_gs, lstar] = if linux { read_msrs(fd)? } else { [0; 2] };
    Ok(VcpuState {
        cpl: sregs.ss.dpl,
        kernel_gs_base: Gva(kernel_gs),
        lstar: Gva(lstar),
        rip: Gva(regs.rip),
        rsp: Gva(regs.rsp),
        cr3: sregs.cr3,
        cr4: sregs.cr4,
        efer: sregs.efer,
        gs_base: Gva(sregs.gs.base),
    })
}

const MSR_LSTAR: u32 = 0xc000_0082;
const MSR_KERNEL_GS_BASE: u32 = 0xc000_0102;

fn read_msrs(fd: &VcpuFd) -> Result<[u64; 2], vmm_sys_util::errno::Error> {
    let entries = [MSR_KERNEL_GS_BASE, MSR_LSTAR].map(|index| kvm_msr_entry { index, ..Default::default() });
    let no_memory = |_| vmm_sys_util::errno::Error::new(libc::ENOMEM);
    let mut msrs = Msrs::from_entries(&entries).map_err(no_memory)?;
    fd.get_msrs(&mut msrs)?;
    // KVM tells how many it could read; the others are 0 as they were.
    let value = |n: usize| msrs.as_slice().get(n).map_or(0, |m| m.data);
    Ok([value(0), value(1)])
}

/// Whatever way a vCPU's thread ends, nobody waits for it afterwards.
struct Over {
    id: VcpuId,
    shared: Arc<Shared>,
    /// Dropped last: whoever tears the VM down waits until all of these are gone.
    _alive: Sender<()>,
}

impl Drop for Over {
    fn drop(&mut self) {
        self.shared.cpus[self.id.index()].kicker.release_thread();
        if std::thread::panicking() {
            let why = format!("the thread of vCPU {} panicked", self.id);
            self.shared.end(GuestEnd::Failed { why });
        }
        self.shared.rendezvous.thread_over(self.id);
    }
}

/// Starts a vCPU's thread. It stands until the guest starts the vCPU.
pub(crate) fn spawn(id: VcpuId, fd: VcpuFd, shared: Arc<Shared>, alive: Sender<()>) -> Result<JoinHandle<()>, Error> {
    let name = format!("vcpu{id}");
    let body = move || {
        let _over = Over { id, shared: Arc::clone(&shared), _alive: alive };
        let me = Arc::clone(&shared.cpus[id.index()]);
        if let Err(e) = me.kicker.adopt_thread() {
            let why = format!("vCPU {id}'s thread can't receive its signal: {e}");
            shared.end(GuestEnd::Failed { why });
            return;
        }
        Runner::new(id, fd, me, shared).run();
    };
    std::thread::Builder::new().name(name.clone()).spawn(body).map_err(|source| Error::Thread { name, source })
}
