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
use exotrace_vmm::{HostReport, Image, Vm, VmConfig, host};

use crate::args::RunArgs;
use crate::exit::Exit;
use crate::headless;

/// What the embedded guest does when nothing else is asked for in the terminal UI: endless, and easy on the machine.
const IDLE_CMDLINE: &str = "workload=mix load=20";
/// What it does headless.
const HEADLESS_CMDLINE: &str = "workload=mix";
/// Largest kernel image read.
const MAX_IMAGE_BYTES: u64 = 256 << 20;

/// Runs a guest as the arguments say.
///
/// # Errors
/// The guest can't be prepared or started, or a file can't be written.
pub fn run(args: &RunArgs) -> anyhow::Result<Exit> {
    let headless = args.headless || args.seconds.is_some() || !std::io::stdout().is_terminal();
    let default = if headless { HEADLESS_CMDLINE } else { IDLE_CMDLINE };
    let controller = boot(args, args.cmdline.as_deref().unwrap_or(default))?;
    if headless { headless::watch(&controller, args) } else { watch_in_terminal(controller) }
}

/// Boots the guest, traced from its first instruction as `args` say.
///
/// # Errors
/// No usable KVM, a bad image or filter, a file that can't be created; one sentence each.
pub fn boot(args: &RunArgs, cmdline: &str) -> anyhow::Result<Controller<Vm>> {
    let image = read_image(args.kernel.as_deref())?;
    let name = args.kernel.as_ref().map_or("embedded guest".into(), |p| p.display().to_string());
    let kernel = Arc::new(KernelImage::from_elf(image.clone()).with_context(|| name.clone())?);
    let host = host::detect();
    host.usable()?;
    let mut config = VmConfig::new(Image::Elf(image.clone()));
    config.vcpus = args.cpus;
    config.ram_bytes = args.mem;
    config.cmdline = cmdline.to_owned();
    config.injected_bytes = Layout::new(usize::from(args.cpus), args.ring)?.len();
    let vm = Arc::new(Vm::new(config, &host).with_context(|| name.clone())?);
    let setup = Setup {
        image: kernel,
        boot: Boot::Prepared,
        rings: args.rings(),
        trace: args.trace.clone().map(Selection::Filter),
        file: args.output.clone(),
        meta: meta(args, &name, &image, cmdline, &host),
        guest: format!("{name}, {} vCPUs, {} MiB", args.cpus, args.mem >> 20),
        host: host.summary(),
    };
    Ok(Controller::start(vm, setup)?)
}

fn meta(args: &RunArgs, name: &str, image: &[u8], cmdline: &str, host: &HostReport) -> Meta {
    Meta {
        exotrace: env!("CARGO_PKG_VERSION").into(),
        kernel_image: name.into(),
        kernel_bytes: image.len() as u64,
        kernel_crc32: crc32fast::hash(image),
        cmdline: cmdline.into(),
        vcpus: u32::from(args.cpus),
        memory_mib: (args.mem >> 20) as u32,
        ring_records: args.ring,
        policy: policy_name(args.policy.into()).into(),
        host: host.summary(),
    }
}

fn read_image(path: Option<&Path>) -> anyhow::Result<Cow<'static, [u8]>> {
    let Some(path) = path else { return Ok(Cow::Borrowed(exotrace_guest::IMAGE)) };
    let what = || format!("cannot read the kernel image {}", path.display());
    let facts = std::fs::metadata(path).with_context(what)?;
    anyhow::ensure!(facts.is_file(), "{}: it is not a file", what());
    anyhow::ensure!(facts.len() <= MAX_IMAGE_BYTES, "{}: it is larger than 256 MiB", what());
    Ok(Cow::Owned(std::fs::read(path).with_context(what)?))
}

fn watch_in_terminal(controller: Controller<Vm>) -> anyhow::Result<Exit> {
    let controller = Arc::new(controller);
    let shown = exotrace_tui::run(Arc::clone(&controller) as Arc<dyn Control>, exotrace_tui::Options::default());
    controller.send(Command::Quit);
    let events = headless::until_done(&controller);
    shown?;
    headless::report_file_failures(&events)
}
