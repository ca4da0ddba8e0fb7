//! What can go wrong before a guest runs. Once it runs, trouble is an event
//! ([`GuestEnd::Failed`](exotrace_patcher::control::GuestEnd)).

use crate::image::ImageError;

/// A VM could not be made or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This host can't run the VM; the text says what to do.
    #[error("{0}")]
    Host(String),
    /// A number of vCPUs that is not supported.
    #[error("{asked} vCPUs asked for: choose 1 to {max}")]
    Vcpus {
        /// What was asked for.
        asked: u8,
        /// The most that work here.
        max: u8,
    },
    /// RAM too small, too large or not in whole large pages.
    #[error("{asked} bytes of RAM asked for: choose {} MiB to {} MiB in steps of 2 MiB", .min >> 20, .max >> 20)]
    Ram {
        /// What was asked for.
        asked: u64,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// Injected memory is not a sensible number of large pages.
    #[error("{asked} bytes of injected memory asked for: choose 2 MiB to {} MiB in steps of 2 MiB", .max >> 20)]
    Injected {
        /// What was asked for.
        asked: u64,
        /// The most.
        max: u64,
    },
    /// Too many disks, or disks for a guest that has no driver for them.
    #[error("{asked} disks asked for: a Linux guest can have up to 6, other guests none")]
    Disks {
        /// How many were asked for.
        asked: usize,
        /// The most that this guest can have.
        max: usize,
    },
    /// A disk's file can't be used.
    #[error("the disk {} can't be used", .path.display())]
    Disk {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The command line does not fit.
    #[error("the guest's command line has {len} bytes: at most {max} fit")]
    CmdlineTooLong {
        /// Its length.
        len: usize,
        /// The longest.
        max: usize,
    },
    /// The command line has a zero byte, where the guest would stop reading.
    #[error("the guest's command line has a zero byte at position {0}: remove it")]
    CmdlineZero(usize),
    /// The image can't be loaded.
    #[error("the guest image can't be loaded")]
    Image(#[from] ImageError),
    /// Host memory for the guest.
    #[error("{bytes} bytes of host memory for the guest can't be mapped: close other programs or choose less RAM")]
    Map {
        /// How much.
        bytes: u64,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A call of KVM failed.
    #[error("KVM refused to {what}")]
    Kvm {
        /// What was tried.
        what: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A thread could not be started.
    #[error("thread {name} can't be started")]
    Thread {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The VM was started already.
    #[error("{0} is possible only before the VM is started")]
    Started(&'static str),
}

impl Error {
    /// A failed call of KVM.
    pub(crate) fn kvm(what: &'static str) -> impl FnOnce(vmm_sys_util::errno::Error) -> Error {
        move |e| Error::Kvm { what, source: e.into() }
    }
}
