//! What kind of `/dev/kvm` this machine has, and what works there.
//!
//! Detection reads three places (the device, `/proc/cpuinfo`, `/sys/module`); their paths can be given, so that it can
//! be tested on machines that have none of that hardware.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kvm_bindings as kb;
use kvm_ioctls::Kvm;

use crate::error::Error;

/// The only version that KVM has ever had since it became stable.
const API_VERSION: i32 = 12;

/// What exotrace can't do without: number, name.
const NEEDED: &[(u32, &str)] = &[
    (kb::KVM_CAP_USER_MEMORY, "KVM_CAP_USER_MEMORY"),
    (kb::KVM_CAP_IMMEDIATE_EXIT, "KVM_CAP_IMMEDIATE_EXIT"),
    (kb::KVM_CAP_IOEVENTFD, "KVM_CAP_IOEVENTFD"),
    (kb::KVM_CAP_VCPU_EVENTS, "KVM_CAP_VCPU_EVENTS"),
    (kb::KVM_CAP_USER_NMI, "KVM_CAP_USER_NMI"),
    (kb::KVM_CAP_EXT_CPUID, "KVM_CAP_EXT_CPUID"),
    (kb::KVM_CAP_GET_TSC_KHZ, "KVM_CAP_GET_TSC_KHZ"),
    (kb::KVM_CAP_DESTROY_MEMORY_REGION_WORKS, "KVM_CAP_DESTROY_MEMORY_REGION_WORKS"),
];

/// Where detection looks.
#[derive(Clone, Debug)]
pub struct Roots {
    /// The KVM device.
    pub dev_kvm: PathBuf,
    /// The directory of loaded modules.
    pub sys_module: PathBuf,
    /// The processor's flags.
    pub cpuinfo: PathBuf,
}

impl Default for Roots {
    fn default() -> Roots {
        Roots { dev_kvm: "/dev/kvm".into(), sys_module: "/sys/module".into(), cpuinfo: "/proc/cpuinfo".into() }
    }
}

/// What stands behind KVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind {
    /// Intel's virtualisation.
    Vmx,
    /// AMD's virtualisation.
    Svm,
    /// KVM without hardware support: CPL 3 runs natively, CPL 0 is emulated instruction by instruction.
    Pvm,
    /// A KVM of a kind that is not known.
    Unknown,
    /// None that can be used.
    None,
}

/// Whether the KVM device can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// It can.
    Ok,
    /// There is no such device.
    Missing,
    /// It may not be opened by this user.
    NoPermission,
    /// Something else is wrong with it: an error text.
    Broken(String),
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostReport {
    /// What stands behind KVM.
    pub kind: HostKind,
    /// Whether the device can be used.
    pub access: Access,
    /// The device that was looked at.
    pub device: PathBuf,
    /// KVM's API version, 0 when unknown.
    pub api_version: i32,
    /// Needed capabilities that are missing.
    pub missing: Vec<&'static str>,
    /// vCPUs that KVM allows in one VM.
    pub max_vcpus: usize,
    /// Whether the processor has Intel's or AMD's virtualisation switched on.
    pub cpu_virtualisation: bool,
}

/// Looks at this machine.
#[must_use]
pub fn detect() -> HostReport {
    detect_in(&Roots::default())
}

/// Looks at a machine whose files lie elsewhere.
#[must_use]
pub fn detect_in(roots: &Roots) -> HostReport {
    let flags = cpu_flags(&roots.cpuinfo);
    let has = |f: &str| flags.iter().any(|g| g == f);
    let module = |m: &str| roots.sys_module.join(m).exists();
    let mut report = HostReport {
        kind: HostKind::None,
        access: Access::Ok,
        device: roots.dev_kvm.clone(),
        api_version: 0,
        missing: Vec::new(),
        max_vcpus: 0,
        cpu_virtualisation: has("vmx") || has("svm"),
    };
    let kvm = match open(&roots.dev_kvm) {
        Ok(kvm) => kvm,
        Err(e) => {
            report.access = access_of(&e);
            return report;
        }
    };
    report.api_version = kvm.get_api_version();
    if report.api_version < 0 {
        report.access = Access::Broken("it does not answer as KVM does".into());
        return report;
    }
    if report.api_version != API_VERSION {
        let text = format!("it speaks API version {}, not {API_VERSION}", report.api_version);
        report.access = Access::Broken(text);
        return report;
    }
    report.kind = kind_of(has("vmx"), has("svm"), module);
    report.max_vcpus = kvm.get_max_vcpus();
    report.missing =
        NEEDED.iter().filter(|(cap, _)| kvm.check_extension_raw((*cap).into()) <= 0).map(|(_, name)| *name).collect();
    report
}

/// Opens KVM at a path.
fn open(path: &Path) -> io::Result<Kvm> {
    // Opened the ordinary way first: its errors tell a missing file from a forbidden one.
    drop(OpenOptions::new().read(true).write(true).open(path)?);
    let c = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
    Kvm::new_with_path(c).map_err(Into::into)
}

fn access_of(e: &io::Error) -> Access {
    match e.kind() {
        io::ErrorKind::NotFound => Access::Missing,
        io::ErrorKind::PermissionDenied => Access::NoPermission,
        _ if e.raw_os_error() == Some(libc::ENODEV) || e.raw_os_error() == Some(libc::ENXIO) => Access::Missing,
        _ => Access::Broken(e.to_string()),
    }
}

/// A processor's flag means that virtualisation is switched on, a module that KVM uses it; a kernel with KVM built in
/// may have no module directory, and one with `kvm_intel` built in has it on any processor.
fn kind_of(vmx: bool, svm: bool, module: impl Fn(&str) -> bool) -> HostKind {
    let pvm = module("kvm_pvm");
    match (vmx, svm) {
        (true, _) if module("kvm_intel") || !pvm => HostKind::Vmx,
        (_, true) if module("kvm_amd") || !pvm => HostKind::Svm,
        _ if pvm => HostKind::Pvm,
        _ => HostKind::Unknown,
    }
}

/// The flags of the first processor; none when the file can't be read.
fn cpu_flags(path: &Path) -> Vec<String> {
    let Ok(text) = fs::read_to_string(path) else { return Vec::new() };
    let line = text.lines().find(|l| l.starts_with("flags"));
    let flags = line.and_then(|l| l.split_once(':')).map_or("", |(_, f)| f);
    flags.split_whitespace().map(str::to_owned).collect()
}

impl HostReport {
    /// The privilege level at which the embedded guest's kernel runs here.
    #[must_use]
    pub fn guest_cpl(&self) -> u8 {
        if self.kind == HostKind::Pvm { 3 } else { 0 }
    }

    /// Whether an unmodified Linux kernel can run here. A KVM of an unknown kind gets the benefit of the doubt.
    ///
    /// # Errors
    /// One sentence that says why not and what to do.
    pub fn runs_linux(&self) -> Result<(), Error> {
        match self.kind {
            HostKind::Vmx | HostKind::Svm | HostKind::Unknown => Ok(()),
            HostKind::Pvm | HostKind::None => Err(Error::Host(format!(
                "{} has no hardware virtualisation behind it (VT-x or AMD-V), so kernel code is emulated instruction by \
                 instruction and Linux can't boot on it: use the lab (`exotrace lab run …`) or another machine",
                self.device.display()
            ))),
        }
    }

    /// Whether a VM can be made here.
    ///
    /// # Errors
    /// One sentence that says why not and what to do.
    pub fn usable(&self) -> Result<(), Error> {
        let dev = self.device.display();
        let why = match &self.access {
            Access::Ok if self.missing.is_empty() => return Ok(()),
            Access::Ok => format!("KVM on this machine lacks {}: run a newer kernel", self.missing.join(", ")),
            Access::Missing if self.cpu_virtualisation => format!(
                "there is no {dev}, though the processor can do it: load the module with `modprobe kvm_intel` or `modprobe kvm_amd`"
            ),
            Access::Missing => format!(
                "there is no {dev}: enable virtualisation (VT-x or AMD-V) in the firmware, or nested virtualisation for this machine, and load the kvm module"
            ),
            Access::NoPermission => format!(
                "{dev} may not be opened by this user: add yourself to its group (`sudo usermod -aG kvm $USER`) and log in again"
            ),
            Access::Broken(text) => format!("{dev} can't be used: {text}"),
        };
        Err(Error::Host(why))
    }

    /// One line: what kind of KVM this is.
    #[must_use]
    pub fn summary(&self) -> String {
        match self.kind {
            HostKind::Vmx => "KVM on Intel VMX".into(),
            HostKind::Svm => "KVM on AMD SVM".into(),
            HostKind::Pvm => "KVM without hardware virtualisation (PVM)".into(),
            HostKind::Unknown => "KVM of an unknown kind".into(),
            HostKind::None => "no usable KVM".into(),
        }
    }

    /// What works here, one sentence an entry.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let mut out = vec![format!("{}: {}.", self.device.display(), self.summary())];
        if let Err(e) = self.usable() {
            out.push(format!("No guest can run: {e}."));
            return out;
        }
        out.push(format!("Up to {} vCPUs in one VM.", self.max_vcpus.min(16)));
        match self.kind {
            HostKind::Pvm => out.extend([
                "The embedded guest runs, with its kernel at CPL 3, at native speed.".to_owned(),
                "Unmodified Linux guests do not: their kernel would be emulated instruction by instruction; use a machine with VMX or SVM."
                    .to_owned(),
            ]),
            HostKind::Vmx | HostKind::Svm => {
                out.push("The embedded guest runs, with its kernel at CPL 0, at native speed.".into());
            }
            HostKind::Unknown => out.push(
                "The embedded guest should run, with its kernel at CPL 0; how fast is not known."
                    .into(),
            ),
            HostKind::None => {}
        }
        out
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn kind(vmx: bool, svm: bool, modules: &[&str]) -> HostKind {
        kind_of(vmx, svm, |m| modules.contains(&m))
    }

    #[test]
    fn kinds() {
        assert_eq!(kind(true, false, &["kvm", "kvm_intel"]), HostKind::Vmx);
        assert_eq!(kind(true, false, &[]), HostKind::Vmx);
        assert_eq!(kind(false, true, &["kvm_amd"]), HostKind::Svm);
        assert_eq!(kind(false, true, &[]), HostKind::Svm);
        assert_eq!(kind(false, false, &["kvm", "kvm_pvm"]), HostKind::Pvm);
        assert_eq!(kind(true, false, &["kvm_pvm"]), HostKind::Pvm);
        assert_eq!(kind(false, false, &["kvm_intel", "kvm_pvm"]), HostKind::Pvm);
        assert_eq!(kind(false, false, &["kvm"]), HostKind::Unknown);
    }

    #[test]
    fn linux_needs_hardware_virtualisation() {
        let mut r = detect_in(&roots(Path::new("/nonexistent")));
        for kind in [HostKind::Vmx, HostKind::Svm, HostKind::Unknown] {
            r.kind = kind;
            assert!(r.runs_linux().is_ok());
        }
        r.kind = HostKind::Pvm;
        let text = r.runs_linux().unwrap_err().to_string();
        assert!(
            text.contains("has no hardware virtualisation behind it") && text.contains("exotrace lab run"),
            "{text}"
        );
    }

    fn roots(dir: &Path) -> Roots {
        Roots { dev_kvm: dir.join("kvm"), sys_module: dir.join("module"), cpuinfo: dir.join("cpuinfo") }
    }

    /// A directory of our own, removed at the end.
    struct Dir(PathBuf);
    impl Dir {
        fn new(name: &str) -> Dir {
            let d = std::env::temp_dir().join(format!("exotrace-{name}-{}", std::process::id()));
            fs::create_dir_all(&d).unwrap();
            Dir(d)
        }
    }
    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_missing_device_says_what_to_do() {
        let d = Dir::new("missing");
        let r = detect_in(&roots(&d.0));
        assert_eq!((r.kind, &r.access), (HostKind::None, &Access::Missing));
        assert!(r.usable().unwrap_err().to_string().contains("enable virtualisation"));
        fs::write(d.0.join("cpuinfo"), "processor : 0\nflags\t\t: fpu vmx sse\n").unwrap();
        let r = detect_in(&roots(&d.0));
        assert!(r.cpu_virtualisation);
        assert!(r.usable().unwrap_err().to_string().contains("modprobe"));
        assert_eq!(r.sentences().len(), 2);
    }

    #[test]
    fn a_file_that_is_no_kvm() {
        let d = Dir::new("nokvm");
        fs::write(d.0.join("kvm"), b"").unwrap();
        let r = detect_in(&roots(&d.0));
        assert_eq!(r.kind, HostKind::None);
        assert!(matches!(r.access, Access::Broken(_)), "{r:?}");
        assert!(r.usable().is_err());
    }

    #[test]
    fn permission_and_capabilities() {
        let e = io::Error::from_raw_os_error(libc::EACCES);
        assert_eq!(access_of(&e), Access::NoPermission);
        let mut r = HostReport {
            kind: HostKind::None,
            access: Access::NoPermission,
            device: "/dev/kvm".into(),
            api_version: 0,
            missing: vec![],
            max_vcpus: 0,
            cpu_virtualisation: true,
        };
        assert!(r.usable().unwrap_err().to_string().contains("usermod -aG kvm"));
        r.access = Access::Ok;
        r.missing = vec!["KVM_CAP_IOEVENTFD"];
        assert!(r.usable().unwrap_err().to_string().contains("lacks KVM_CAP_IOEVENTFD"));
    }
}
