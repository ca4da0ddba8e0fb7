//! `exotrace lab`: any exotrace command in the lab, an emulated machine with real KVM (see `images/lab`).
//!
//! The terminal, the exit code and the files are those of the command: files that it reads are put into the lab, the
//! trace file that it writes comes out where it was asked for.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use clap::Parser;

use crate::args::{self, Cli};
use crate::exit::Exit;

/// Memory of the emulated machine that a guest of ordinary size runs well in, in MiB.
const MEMORY_MIB: u64 = 4096;
/// What it needs besides the guest's memory.
const OWN_MIB: u64 = 2048;
/// Options whose value is a file to read.
const INPUTS: &[&str] = &["--kernel", "--initrd", "--disk"];
/// Options whose value is a file to write.
const OUTPUTS: &[&str] = &["-o", "--output"];
/// Commands whose first argument may be a file to read.
const READERS: &[&str] = &["report", "sites"];

/// Runs `exotrace ARGS…` in the lab; `doctor` says whether there can be a lab here.
///
/// # Errors
/// The arguments are wrong, the recipes or the program for the lab are missing. What goes wrong later has the recipe's exit
/// codes: 3 no network, 4 something is missing here, 5 the lab itself panicked.
pub fn run(args: &[String]) -> anyhow::Result<Exit> {
    let recipes = recipes()?;
    if args.first().is_some_and(|a| a == "doctor") {
        return doctor(&recipes);
    }
    let whole = std::iter::once("exotrace").chain(args.iter().map(String::as_str));
    let cli = match Cli::try_parse_from(whole) {
        Ok(cli) => cli,
        Err(e) => e.exit(),
    };
    let plan = Plan::of(args)?;
    let mut command = Command::new(recipes.join("lab"));
    command.arg("--file").arg(pair(&program(&recipes)?, "/lab/bin/exotrace"));
    for (here, there) in &plan.files {
        command.arg("--file").arg(pair(here, there));
    }
    command.arg("--memory").arg(memory_mib(&cli).to_string());
    if let Some(dir) = &plan.output_dir {
        command.current_dir(dir);
    }
    command.args(["--", "exotrace"]).args(&plan.args);
    // The recipe takes this process over: terminal, signals and exit code are then its own.
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run {}", recipes.join("lab").display()))
}

fn doctor(recipes: &Path) -> anyhow::Result<Exit> {
    let what = recipes.join("lab");
    let status = Command::new(&what).arg("--check").status();
    let status = status.with_context(|| format!("cannot run {}", what.display()))?;
    if !status.success() {
        return Ok(Exit::Error);
    }
    println!("The lab can run here: an emulated machine with KVM on AMD SVM, slow but real.");
    println!("Its recipes: {}.", recipes.display());
    Ok(Exit::Ok)
}

/// The folder of the recipes.
fn recipes() -> anyhow::Result<PathBuf> {
    let set = std::env::var_os("EXOTRACE_IMAGES").map(PathBuf::from);
    let dir = set.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("images"));
    let dir = std::path::absolute(&dir).unwrap_or(dir);
    anyhow::ensure!(
        dir.join("lab").is_file(),
        "the lab's recipes are not in {}: set EXOTRACE_IMAGES to the folder `images` of exotrace's source",
        dir.display()
    );
    Ok(dir)
}

/// The program that runs in the lab: this one if it needs no libraries, else one that is built now.
fn program(recipes: &Path) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    if is_static(&own).with_context(|| format!("cannot read {}", own.display()))? {
        return Ok(own);
    }
    let dir = recipes.join("../target/lab/bin");
    let status = Command::new(recipes.join("static")).arg(&dir).status();
    let built = status.with_context(|| format!("cannot run {}", recipes.join("static").display()))?.success();
    anyhow::ensure!(built, "the lab needs exotrace without shared libraries, and building that failed");
    Ok(dir.join("exotrace"))
}

/// Whether a 64-bit ELF program names no dynamic loader.
fn is_static(path: &Path) -> std::io::Result<bool> {
    const PT_INTERP: u32 = 3;
    let mut file = File::open(path)?;
    let mut header = [0; 64];
    file.read_exact(&mut header)?;
    if !header.starts_with(b"\x7fELF\x02") {
        return Ok(false);
    }
    let number = |at: usize, len: usize| header[at..at + len].iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
    let (offset, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    for i in 0..count {
        let mut kind = [0; 4];
        file.seek(SeekFrom::Start(offset + i * size))?;
        file.read_exact(&mut kind)?;
        if u32::from_le_bytes(kind) == PT_INTERP {
            return Ok(false);
        }
    }
    Ok(true)
}

fn memory_mib(cli: &Cli) -> u64 {
    let guest = match &cli.command {
        Some(args::Command::Run(run)) => run.mem,
        _ => cli.run.mem,
    };
    (guest.unwrap_or(0) >> 20).saturating_add(OWN_MIB).max(MEMORY_MIB)
}

fn pair(here: &Path, there: &str) -> OsString {
    let mut text = here.as_os_str().to_owned();
    text.push("=");
    text.push(there);
    text
}

/// The command as it is run in the lab, and the files it needs there.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    args: Vec<String>,
    files: Vec<(PathBuf, String)>,
    output_dir: Option<PathBuf>,
}

impl Plan {
    fn of(args: &[String]) -> anyhow::Result<Plan> {
        let mut plan = Plan::default();
        let mut option = String::new();
        let reader = args.first().is_some_and(|a| READERS.contains(&a.as_str()));
        for (i, arg) in args.iter().enumerate() {
            let (name, value) = split(arg);
            let done = if INPUTS.contains(&option.as_str()) {
                plan.input(arg)?
            } else if OUTPUTS.contains(&option.as_str()) {
                plan.output(arg)?
            } else if let Some(value) = value.filter(|_| INPUTS.contains(&name)) {
                format!("{name}={}", plan.input(value)?)
            } else if let Some(value) = value.filter(|_| OUTPUTS.contains(&name)) {
                format!("--output={}", plan.output(value)?)
            } else if reader && i > 0 && Path::new(arg).is_file() {
                plan.input(arg)?
            } else {
                arg.clone()
            };
            plan.args.push(done);
            option = if option.is_empty() || !takes_file(&option) { arg.clone() } else { String::new() };
        }
        Ok(plan)
    }

    /// A file that the command reads: packed; its path there.
    fn input(&mut self, path: &str) -> anyhow::Result<String> {
        let here = std::path::absolute(path).with_context(|| format!("bad path {path}"))?;
        anyhow::ensure!(here.is_file(), "cannot read {path}: it is not a file");
        anyhow::ensure!(!path.contains('='), "the lab cannot take a file with '=' in its path: {path}");
        let name = here.file_name().map_or("file".into(), |n| n.to_string_lossy().into_owned());
        let there = format!("/lab/files/{}/{name}", self.files.len());
        self.files.push((here, there.clone()));
        Ok(there)
    }

    /// The file that the command writes: into its current directory, which comes out here.
    fn output(&mut self, path: &str) -> anyhow::Result<String> {
        let here = std::path::absolute(path).with_context(|| format!("bad path {path}"))?;
        let name = here.file_name().with_context(|| format!("{path} has no file name"))?;
        let dir = here.parent().with_context(|| format!("{path} has no directory"))?;
        anyhow::ensure!(dir.is_dir(), "cannot write {path}: there is no directory {}", dir.display());
        self.output_dir = Some(dir.to_owned());
        Ok(name.to_string_lossy().into_owned())
    }
}

fn takes_file(option: &str) -> bool {
    INPUTS.contains(&option) || OUTPUTS.contains(&option)
}

/// `--name=value` and `-ovalue` in their parts.
fn split(arg: &str) -> (&str, Option<&str>) {
    if let Some(value) = arg.strip_prefix("-o").filter(|v| !v.is_empty()) {
        return ("-o", Some(value.strip_prefix('=').unwrap_or(value)));
    }
    match arg.split_once('=') {
        Some((name, value)) if arg.starts_with("--") => (name, Some(value)),
        _ => (arg, None),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn plan(args: &[&str]) -> anyhow::Result<Plan> {
        Plan::of(&args.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn files_go_in_and_the_trace_comes_out() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = dir.path().join("vmlinuz");
        std::fs::write(&kernel, b"k").unwrap();
        let kernel_text = kernel.to_str().unwrap();
        let out = dir.path().join("out.exo");
        let out_text = out.to_str().unwrap();
        let with = |args: &[&str]| {
            let p = plan(args).unwrap();
            assert_eq!(p.files, [(kernel.clone(), "/lab/files/0/vmlinuz".to_owned())]);
            assert_eq!(p.output_dir.as_deref(), Some(dir.path()));
            p.args
        };
        let told = with(&["run", "--kernel", kernel_text, "--trace", "vfs_*", "-o", out_text, "--cpus", "2"]);
        assert_eq!(
            told,
            ["run", "--kernel", "/lab/files/0/vmlinuz", "--trace", "vfs_*", "-o", "out.exo", "--cpus", "2"]
        );
    }

    #[test]
    fn joined_options_and_readers() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.exo");
        std::fs::write(&file, b"x").unwrap();
        let text = file.to_str().unwrap();
        let joined = plan(&["run", &format!("--kernel={text}"), &format!("-o{text}")]).unwrap();
        assert_eq!(joined.args, ["run", "--kernel=/lab/files/0/a.exo", "--output=a.exo"]);
        let report = plan(&["report", "--summary", text]).unwrap();
        assert_eq!(report.args, ["report", "--summary", "/lab/files/0/a.exo"]);
        assert_eq!(plan(&["run", "--cmdline", "a=b c"]).unwrap().args, ["run", "--cmdline", "a=b c"]);
    }

    #[test]
    fn what_is_not_there_is_named() {
        for args in [["run", "--kernel", "/nonexistent/vmlinuz"], ["run", "-o", "/nonexistent/out.exo"]] {
            let error = plan(&args).unwrap_err().to_string();
            assert!(error.contains("/nonexistent/"), "{error}");
        }
    }

    #[test]
    fn a_program_with_a_loader_is_not_static() {
        // Tests are built as everything else on the machine: with it.
        assert_eq!(is_static(&std::env::current_exe().unwrap()).unwrap(), cfg!(target_feature = "crt-static"));
        assert!(is_static(Path::new("/proc/cpuinfo")).is_ok_and(|s| !s));
    }
}
