//! `exotrace run`: boots a guest, traces it, and shows it in the terminal or headless.

use std::borrow::Cow;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use exotrace_patcher::control::{Boot, Command, Control, Controller, Selection, Setup};
use exotrace_patcher::image::KernelImage;
use exotrace_patcher::inject::Layout;
use exotrace_trace::file::{Meta, policy_name};
use exotrace_vmm::config::{Disk, DiskMode, Entry, LinuxImage};
use exotrace_vmm::{HostKind, HostReport, Image, Vm, VmConfig, host};

use crate::args::RunArgs;
use crate::exit::Exit;
use crate::headless;

/// What the embedded guest does when nothing else is asked for in the terminal UI: endless, and easy on the machine.
const IDLE_CMDLINE: &str = "workload=mix load=20";
/// What it does headless.
const HEADLESS_CMDLINE: &str = "workload=mix";
/// Largest kernel image or initial RAM disk read.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// RAM of the embedded guest, and of Linux, unless told otherwise.
const EMBEDDED_MEM: u64 = 64 << 20;
const LINUX_MEM: u64 = 512 << 20;
/// What a Linux guest is told unless told otherwise: its console is where exotrace shows it, and a panic ends it.
const LINUX_CMDLINE: &str = "console=ttyS0 panic=-1";

/// Runs a guest as the arguments say.
///
/// # Errors
/// The guest can't be prepared or started, or a file can't be written.
pub fn run(args: &RunArgs) -> anyhow::Result<Exit> {
    let headless = args.headless || args.seconds.is_some() || !std::io::stdout().is_terminal();
    let default = match (&args.kernel, headless) {
        (Some(_), _) => LINUX_CMDLINE,
        (None, true) => HEADLESS_CMDLINE,
        (None, false) => IDLE_CMDLINE,
    };
    let controller = boot(args, args.cmdline.as_deref().unwrap_or(default))?;
    if headless { headless::watch(&controller, args) } else { watch_in_terminal(controller) }
}

/// Boots the guest, traced from its first instruction (the embedded guest) or as soon as it has set itself up (Linux).
///
/// # Errors
/// No usable KVM, a bad image or filter, a file that can't be created; one sentence each.
pub fn boot(args: &RunArgs, cmdline: &str) -> anyhow::Result<Controller<Vm>> {
    let file = read_image(args.kernel.as_deref())?;
    let name = args.kernel.as_ref().map_or("embedded guest".into(), |p| p.display().to_string());
    let kernel = Arc::new(KernelImage::decode(file.clone()).with_context(|| name.clone())?);
    let host = host::detect();
    host.usable()?;
    let linux = kernel.banner().is_some();
    let mem = args.mem.unwrap_or(if linux { LINUX_MEM } else { EMBEDDED_MEM });
    let image = if linux {
        anyhow::ensure!(
            host.kind != HostKind::Pvm,
            "{name}: an unmodified Linux kernel can't run on this machine's KVM, which has no hardware virtualisation \
             (PVM); use a host with VMX or SVM, or `exotrace lab run …`"
        );
        Image::Linux(linux_image(args, &kernel, file.clone())?)
    } else {
        Image::Elf(file.clone())
    };
    let mut config = VmConfig::new(image);
    config.vcpus = args.cpus;
    config.ram_bytes = mem;
    config.cmdline = cmdline.to_owned();
    config.disks = args.disk.iter().map(|p| Disk { path: p.clone(), mode: DiskMode::CopyOnWrite }).collect();
    let cpus = usize::from(args.cpus);
    config.injected_bytes =
        if linux { Layout::spread_len(cpus, args.ring)? } else { Layout::new(cpus, args.ring)?.len() };
    let vm = Arc::new(Vm::new(config, &host).with_context(|| name.clone())?);
    let setup = Setup {
        image: kernel,
        boot: if linux { Boot::OnItsOwn } else { Boot::Prepared },
        rings: args.rings(),
        trace: args.trace.clone().map(Selection::Filter),
        file: args.output.clone(),
        meta: meta(args, &name, &file, cmdline, &host, mem),
        guest: format!("{name}, {} vCPUs, {} MiB", args.cpus, mem >> 20),
        host: host.summary(),
    };
    Ok(Controller::start(vm, setup)?)
}

fn linux_image(args: &RunArgs, kernel: &KernelImage, file: Cow<'static, [u8]>) -> anyhow::Result<LinuxImage> {
    anyhow::ensure!(
        kernel.setup().is_some(),
        "a Linux guest boots from its bzImage (vmlinuz), not from a bare vmlinux"
    );
    let initrd = args.initrd.as_deref().map(|p| read_file(p, "initial RAM disk")).transpose()?;
    Ok(LinuxImage {
        bzimage: file,
        vmlinux: args.nokaslr.then(|| kernel.vmlinux().to_vec().into()),
        initrd: initrd.map(Into::into),
        entry: if args.nokaslr { Entry::Vmlinux } else { Entry::BzImage },
    })
}

fn meta(args: &RunArgs, name: &str, image: &[u8], cmdline: &str, host: &HostReport, mem: u64) -> Meta {
    Meta {
        exotrace: env!("CARGO_PKG_VERSION").into(),
        kernel_image: name.into(),
        kernel_bytes: image.len() as u64,
        kernel_crc32: crc32fast::hash(image),
        cmdline: cmdline.into(),
        vcpus: u32::from(args.cpus),
        memory_mib: (mem >> 20) as u32,
        ring_records: args.ring,
        policy: policy_name(args.policy.into()).into(),
        host: host.summary(),
    }
}

/// The kernel image, or the embedded guest's.
///
/// # Errors
/// Says which file can't be read and why.
pub(crate) fn read_image(path: Option<&Path>) -> anyhow::Result<Cow<'static, [u8]>> {
    match path {
        None => Ok(Cow::Borrowed(exotrace_guest::IMAGE)),
        Some(path) => read_file(path, "kernel image").map(Cow::Owned),
    }
}

fn read_file(path: &Path, what: &str) -> anyhow::Result<Vec<u8>> {
    let failed = || format!("cannot read the {what} {}", path.display());
    let facts = std::fs::metadata(path).with_context(failed)?;
    anyhow::ensure!(facts.is_file(), "{}: it is not a file", failed());
    anyhow::ensure!(facts.len() <= MAX_FILE_BYTES, "{}: it is larger than 1 GiB", failed());
    std::fs::read(path).with_context(failed)
}

fn watch_in_terminal(controller: Controller<Vm>) -> anyhow::Result<Exit> {
    let controller = Arc::new(controller);
    let shown = exotrace_tui::run(Arc::clone(&controller) as Arc<dyn Control>, exotrace_tui::Options::default());
    controller.send(Command::Quit);
    let events = headless::until_done(&controller);
    shown?;
    headless::report_file_failures(&events)
}
