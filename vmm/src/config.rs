//! The configuration of a VM: plain data and its checks. Nothing here touches KVM.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use exotrace_guest::abi;

use crate::error::Error;
use crate::layout::{LARGE_PAGE, pc};

/// The most injected memory: rings of 16 vCPUs at their largest, trampolines and page tables.
pub const MAX_INJECTED_BYTES: u64 = 1 << 30;
/// Least RAM of a Linux guest: what a distribution's kernel needs to unpack itself and an initrd.
pub const LINUX_MIN_RAM_BYTES: u64 = 64 << 20;
/// Most RAM of a Linux guest.
pub const LINUX_MAX_RAM_BYTES: u64 = 64 << 30;
/// Disks at most: the other virtio devices are the random numbers and the console.
pub const MAX_DISKS: usize = pc::VIRTIO_DEVICES - 2;
/// How long a stop waits for a vCPU unless told otherwise.
pub const DEFAULT_STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// What the guest runs.
#[derive(Clone, Debug)]
pub enum Image {
    /// A static ELF of the embedded guest's boot protocol, loaded by its physical addresses.
    Elf(Cow<'static, [u8]>),
    /// An unmodified Linux kernel on a PC: interrupt controllers and timers of KVM, ACPI, virtio devices.
    Linux(LinuxImage),
    /// Bare instructions, put at `IMAGE_GPA` and entered at their first byte: for tests of the VMM.
    Raw(Vec<u8>),
}

/// Where a Linux kernel is entered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Entry {
    /// In the bzImage's own code, which unpacks the kernel and picks its addresses (KASLR).
    #[default]
    BzImage,
    /// In the unpacked kernel, at the addresses that it is linked for.
    Vmlinux,
}

/// An unmodified Linux kernel.
#[derive(Clone, Debug, Default)]
pub struct LinuxImage {
    /// The bzImage. Its setup header is needed whatever the entry.
    pub bzimage: Cow<'static, [u8]>,
    /// The same kernel unpacked (an ELF), for [`Entry::Vmlinux`].
    pub vmlinux: Option<Cow<'static, [u8]>>,
    /// The initial RAM disk.
    pub initrd: Option<Cow<'static, [u8]>>,
    /// Where it is entered.
    pub entry: Entry,
}

/// Who sees what a guest writes to its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskMode {
    /// The guest can't write.
    ReadOnly,
    /// Only this run of the guest: the file stays as it is.
    #[default]
    CopyOnWrite,
}

/// A disk of a Linux guest: a raw file, in whole sectors of 512 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The file.
    pub path: PathBuf,
    /// Who sees writes.
    pub mode: DiskMode,
}

/// The configuration of a VM.
#[derive(Clone, Debug)]
pub struct VmConfig {
    /// How many vCPUs, 1 to 16.
    pub vcpus: u8,
    /// Guest RAM in bytes, a multiple of 2 MiB.
    pub ram_bytes: u64,
    /// What the guest runs.
    pub image: Image,
    /// The guest's command line.
    pub cmdline: String,
    /// Disks of a Linux guest, as virtio block devices `vda`, `vdb`, …
    pub disks: Vec<Disk>,
    /// Size of the memslot that tracers use, in bytes, a multiple of 2 MiB.
    pub injected_bytes: u64,
    /// How long a stop waits for a vCPU to leave guest mode.
    pub stop_timeout: Duration,
}

impl VmConfig {
    /// A VM for `image` with two vCPUs, 64 MiB of RAM and 64 MiB of injected memory.
    #[must_use]
    pub fn new(image: Image) -> VmConfig {
        VmConfig {
            vcpus: 2,
            ram_bytes: 64 << 20,
            image,
            cmdline: String::new(),
            disks: Vec::new(),
            injected_bytes: 64 << 20,
            stop_timeout: DEFAULT_STOP_TIMEOUT,
        }
    }

    /// The Linux kernel, if the guest is one.
    pub(crate) fn linux(&self) -> Option<&LinuxImage> {
        match &self.image {
            Image::Linux(l) => Some(l),
            Image::Elf(_) | Image::Raw(_) => None,
        }
    }

    /// Checks every number. `host_max_vcpus` is KVM's own limit.
    ///
    /// # Errors
    /// Names the first setting that is out of range, and the range.
    pub fn validate(&self, host_max_vcpus: usize) -> Result<(), Error> {
        let max = host_max_vcpus.min(abi::MAX_CPUS as usize) as u8;
        if self.vcpus == 0 || self.vcpus > max {
            return Err(Error::Vcpus { asked: self.vcpus, max });
        }
        let linux = self.linux();
        let ram_range = match linux {
            Some(_) => LINUX_MIN_RAM_BYTES..=LINUX_MAX_RAM_BYTES,
            None => abi::MIN_RAM_BYTES..=abi::MAX_RAM_BYTES,
        };
        if !ram_range.contains(&self.ram_bytes) || !self.ram_bytes.is_multiple_of(LARGE_PAGE) {
            let (min, max) = (*ram_range.start(), *ram_range.end());
            return Err(Error::Ram { asked: self.ram_bytes, min, max });
        }
        let injected_ok = (LARGE_PAGE..=MAX_INJECTED_BYTES).contains(&self.injected_bytes)
            && self.injected_bytes.is_multiple_of(LARGE_PAGE);
        if !injected_ok {
            return Err(Error::Injected { asked: self.injected_bytes, max: MAX_INJECTED_BYTES });
        }
        if self.disks.len() > MAX_DISKS || linux.is_none() && !self.disks.is_empty() {
            return Err(Error::Disks { asked: self.disks.len(), max: linux.map_or(0, |_| MAX_DISKS) });
        }
        // A Linux kernel may take less still; that is checked where its header is read.
        let max = linux.map_or(abi::CMDLINE_BYTES, |_| pc::CMDLINE_BYTES) as usize - 1;
        if self.cmdline.len() > max {
            return Err(Error::CmdlineTooLong { len: self.cmdline.len(), max });
        }
        match self.cmdline.bytes().position(|b| b == 0) {
            Some(at) => Err(Error::CmdlineZero(at)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn good() -> VmConfig {
        VmConfig::new(Image::Raw(vec![0xf4]))
    }

    #[test]
    fn the_default_is_valid() {
        good().validate(16).unwrap();
    }

    #[test]
    fn a_linux_guest_has_limits_of_its_own() {
        let mut c = VmConfig::new(Image::Linux(LinuxImage::default()));
        c.cmdline = "x".repeat(4095);
        c.ram_bytes = 8 << 30;
        c.disks = vec![Disk { path: "x".into(), mode: DiskMode::CopyOnWrite }; MAX_DISKS];
        c.validate(16).unwrap();
        c.ram_bytes = 32 << 20;
        assert!(c.validate(16).unwrap_err().to_string().contains("choose 64 MiB to 65536 MiB"));
        c.ram_bytes = 64 << 20;
        c.disks.push(c.disks[0].clone());
        assert!(c.validate(16).unwrap_err().to_string().starts_with("7 disks asked for"));
    }

    #[test]
    fn every_number_is_checked() {
        let err = |change: fn(&mut VmConfig)| {
            let mut c = good();
            change(&mut c);
            c.validate(1024).unwrap_err().to_string()
        };
        assert_eq!(err(|c| c.vcpus = 0), "0 vCPUs asked for: choose 1 to 16");
        assert_eq!(err(|c| c.vcpus = 17), "17 vCPUs asked for: choose 1 to 16");
        assert!(err(|c| c.ram_bytes = 1 << 20).starts_with("1048576 bytes of RAM asked for: choose 32 MiB to 512 MiB"));
        assert!(err(|c| c.ram_bytes = 1 << 40).contains("in steps of 2 MiB"));
        assert!(err(|c| c.ram_bytes += 4096).contains("in steps of 2 MiB"));
        assert!(err(|c| c.injected_bytes = 0).contains("injected memory"));
        assert!(err(|c| c.injected_bytes = 3 << 20).contains("injected memory"));
        assert!(err(|c| c.injected_bytes = u64::MAX).contains("injected memory"));
        let add = |c: &mut VmConfig| c.disks.push(Disk { path: "x".into(), mode: DiskMode::ReadOnly });
        assert_eq!(err(add), "1 disks asked for: a Linux guest can have up to 6, other guests none");
        assert!(err(|c| c.cmdline = "x".repeat(1024)).contains("1024 bytes: at most 1023"));
        assert!(err(|c| c.cmdline = "a\0b".into()).contains("zero byte at position 1"));
        let mut c = good();
        c.cmdline = "x".repeat(1023);
        c.validate(16).unwrap();
        c.vcpus = 9;
        assert_eq!(c.validate(8).unwrap_err().to_string(), "9 vCPUs asked for: choose 1 to 8");
    }
}
