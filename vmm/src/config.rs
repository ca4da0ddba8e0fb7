//! The configuration of a VM: plain data and its checks. Nothing here touches KVM.

use std::borrow::Cow;
use std::time::Duration;

use exotrace_guest::abi;

use crate::error::Error;
use crate::layout::LARGE_PAGE;

/// The most injected memory: rings of 16 vCPUs at their largest, trampolines and page tables.
pub const MAX_INJECTED_BYTES: u64 = 1 << 30;
/// How long a stop waits for a vCPU unless told otherwise.
pub const DEFAULT_STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// What the guest runs.
#[derive(Clone, Debug)]
pub enum Image {
    /// A static ELF of the embedded guest's boot protocol, loaded by its physical addresses.
    Elf(Cow<'static, [u8]>),
    /// Bare instructions, put at `IMAGE_GPA` and entered at their first byte: for tests of the VMM.
    Raw(Vec<u8>),
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
            injected_bytes: 64 << 20,
            stop_timeout: DEFAULT_STOP_TIMEOUT,
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
        let ram_range = abi::MIN_RAM_BYTES..=abi::MAX_RAM_BYTES;
        if !ram_range.contains(&self.ram_bytes) || !self.ram_bytes.is_multiple_of(LARGE_PAGE) {
            let (min, max) = (*ram_range.start(), *ram_range.end());
            return Err(Error::Ram { asked: self.ram_bytes, min, max });
        }
        let injected_ok = (LARGE_PAGE..=MAX_INJECTED_BYTES).contains(&self.injected_bytes)
            && self.injected_bytes.is_multiple_of(LARGE_PAGE);
        if !injected_ok {
            return Err(Error::Injected { asked: self.injected_bytes, max: MAX_INJECTED_BYTES });
        }
        let max = abi::CMDLINE_BYTES as usize - 1;
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
        assert!(err(|c| c.cmdline = "x".repeat(1024)).contains("1024 bytes: at most 1023"));
        assert!(err(|c| c.cmdline = "a\0b".into()).contains("zero byte at position 1"));
        let mut c = good();
        c.cmdline = "x".repeat(1023);
        c.validate(16).unwrap();
        c.vcpus = 9;
        assert_eq!(c.validate(8).unwrap_err().to_string(), "9 vCPUs asked for: choose 1 to 8");
    }
}
