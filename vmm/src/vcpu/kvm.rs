//! The few calls that kvm-ioctls does not have, and a second mapping of a vCPU's `kvm_run`.
//!
//! The vCPU's thread uses kvm-ioctls' mapping through `&mut`; everybody else (and this thread, for fields that
//! kvm-ioctls hides) uses [`RunPage`], whose accesses are all volatile or atomic.

use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering, fence};

use kvm_bindings::{kvm_interrupt, kvm_run};
use kvm_ioctls::VcpuFd;
use libc::{c_int, c_ulong, c_void, siginfo_t};
use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler, unblock_signal};

/// `_IOW(KVMIO, 0x86, struct kvm_interrupt)`.
const KVM_INTERRUPT: c_ulong = 0x4004_ae86;

/// Injects an interrupt. `Ok(false)`: one is queued already, try again later.
pub(crate) fn interrupt(vcpu: &VcpuFd, vector: u8) -> io::Result<bool> {
    let arg = kvm_interrupt { irq: vector.into() };
    // SAFETY: the descriptor is a vCPU's, and KVM_INTERRUPT only reads the structure.
    let r = unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_INTERRUPT as _, &raw const arg) };
    if r == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        e if e.raw_os_error() == Some(libc::EEXIST) => Ok(false),
        e => Err(e),
    }
}

/// A mapping of a vCPU's `kvm_run`.
#[derive(Debug)]
pub(crate) struct RunPage {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is shared memory that this value owns, and all accesses to it are atomic or volatile.
unsafe impl Send for RunPage {}
// SAFETY: as for `Send`.
unsafe impl Sync for RunPage {}

/// Offset of the union that describes an exit.
const EXIT: usize = offset_of!(kvm_run, __bindgen_anon_1);
/// Offsets in `kvm_run.io`.
const IO_SIZE: usize = EXIT + 1;
const IO_DATA_OFFSET: usize = EXIT + 8;
/// Offset of `kvm_run.mmio.data`.
const MMIO_DATA: usize = EXIT + 8;

impl RunPage {
    /// Maps the `len` bytes that KVM shares for this vCPU.
    pub(crate) fn map(vcpu: &VcpuFd, len: usize) -> io::Result<RunPage> {
        if len < size_of::<kvm_run>() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let (at, fd) = (std::ptr::null_mut(), vcpu.as_raw_fd());
        // SAFETY: a new shared mapping at an address of the kernel's choice touches nothing that exists.
        let p = unsafe { libc::mmap(at, len, prot, libc::MAP_SHARED, fd, 0) };
        match NonNull::new(p.cast::<u8>()) {
            Some(base) if p != libc::MAP_FAILED => Ok(RunPage { base, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn byte(&self, offset: usize) -> Option<&AtomicU8> {
        if offset >= self.len {
            return None;
        }
        let p = self.base.as_ptr().wrapping_add(offset);
        // SAFETY: inside the mapping, which lives as long as `self`; the kernel and other threads share it, hence atomic.
        Some(unsafe { AtomicU8::from_ptr(p) })
    }

    fn get(&self, offset: usize) -> u8 {
        self.byte(offset).map_or(0, |b| b.load(Ordering::Relaxed))
    }

    fn set(&self, offset: usize, value: u8) {
        if let Some(b) = self.byte(offset) {
            b.store(value, Ordering::SeqCst);
        }
    }

    fn get_le(&self, offset: usize, bytes: usize) -> u64 {
        (0..bytes).rev().fold(0, |v, i| v << 8 | u64::from(self.get(offset + i)))
    }

    /// Makes the next KVM_RUN return at once, or not.
    pub(crate) fn set_immediate_exit(&self, on: bool) {
        self.set(offset_of!(kvm_run, immediate_exit), on.into());
        fence(Ordering::SeqCst);
    }

    /// Asks for an exit as soon as the vCPU can take an interrupt.
    pub(crate) fn request_interrupt_window(&self, on: bool) {
        self.set(offset_of!(kvm_run, request_interrupt_window), on.into());
    }

    /// Whether the vCPU could take an interrupt when it left guest mode.
    pub(crate) fn ready_for_interrupt(&self) -> bool {
        self.get(offset_of!(kvm_run, ready_for_interrupt_injection)) != 0
    }

    /// The vCPU's interrupt flag when it left guest mode.
    pub(crate) fn if_flag(&self) -> bool {
        self.get(offset_of!(kvm_run, if_flag)) != 0
    }

    /// After an I/O exit: bytes of an element.
    pub(crate) fn io_size(&self) -> u8 {
        self.get(IO_SIZE)
    }

    /// After an internal error: KVM's suberror.
    pub(crate) fn suberror(&self) -> u32 {
        self.get_le(EXIT, 4) as u32
    }

    /// After a port read: what the guest reads.
    pub(crate) fn answer_port(&self, bytes: &[u8]) {
        let offset = usize::try_from(self.get_le(IO_DATA_OFFSET, 8)).unwrap_or(self.len);
        self.answer(offset, bytes);
    }

    /// After an MMIO read: what the guest reads.
    pub(crate) fn answer_mmio(&self, bytes: &[u8]) {
        self.answer(MMIO_DATA, &bytes[..bytes.len().min(8)]);
    }

    fn answer(&self, offset: usize, bytes: &[u8]) {
        for (i, b) in bytes.iter().enumerate() {
            if let Some(to) = self.byte(offset.saturating_add(i)) {
                to.store(*b, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for RunPage {
    fn drop(&mut self) {
        // SAFETY: this value made the mapping and nothing borrows from it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
    }
}

/// Brings one vCPU's thread out of KVM_RUN.
#[derive(Debug)]
pub(crate) struct Kicker {
    /// `None` in tests without KVM.
    page: Option<RunPage>,
    /// The vCPU thread's id; 0 while there is no thread.
    tid: AtomicI32,
}

impl Kicker {
    pub(crate) fn new(page: Option<RunPage>) -> Kicker {
        Kicker { page, tid: AtomicI32::new(0) }
    }

    pub(crate) fn page(&self) -> Option<&RunPage> {
        self.page.as_ref()
    }

    /// Called by the vCPU's thread before its first KVM_RUN: from now on kicks go to this thread.
    pub(crate) fn adopt_thread(&self) -> io::Result<()> {
        install_handler();
        unblock_signal(kick_signal()).map_err(|e| io::Error::other(e.to_string()))?;
        // SAFETY: gettid has no preconditions.
        self.tid.store(unsafe { libc::gettid() }, Ordering::SeqCst);
        Ok(())
    }

    /// Called by the vCPU's thread after its last KVM_RUN.
    pub(crate) fn release_thread(&self) {
        self.tid.store(0, Ordering::SeqCst);
    }

    /// Makes the current or next KVM_RUN return. The caller has stored what the thread shall see before.
    pub(crate) fn kick(&self) {
        if let Some(page) = &self.page {
            page.set_immediate_exit(true);
        }
        let tid = self.tid.load(Ordering::SeqCst);
        if tid != 0 {
            let pid = std::process::id() as libc::pid_t;
            // SAFETY: tgkill has no memory effects. The thread id is of this process; should the thread be gone, the
            // call fails, or the signal, whose handler does nothing, meets another thread of this process.
            unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, kick_signal()) };
        }
    }
}

/// A real-time signal away from the first ones, which programs like to take.
fn kick_signal() -> c_int {
    SIGRTMIN() + 7
}

extern "C" fn on_kick(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    // Nothing: that KVM_RUN was interrupted is all that was wanted.
}

fn install_handler() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // The number is valid, so this can't fail; if it did, the first kick would end the process visibly.
        let _ = register_signal_handler(kick_signal(), on_kick);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvm_bindings::kvm_run__bindgen_ty_1__bindgen_ty_4 as Io;
    use kvm_bindings::kvm_run__bindgen_ty_1__bindgen_ty_6 as Mmio;

    #[test]
    fn offsets_are_those_of_the_bindings() {
        assert_eq!(IO_SIZE, EXIT + offset_of!(Io, size));
        assert_eq!(IO_DATA_OFFSET, EXIT + offset_of!(Io, data_offset));
        assert_eq!(MMIO_DATA, EXIT + offset_of!(Mmio, data));
        assert_eq!(EXIT, 32);
    }
}
