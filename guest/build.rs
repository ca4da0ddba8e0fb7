//! Compiles the guest kernel in `kernel/` with gcc into one static ELF image in `OUT_DIR`.
//!
//! No build tool is needed but gcc and its linker. `src/abi.rs` is turned into a C header, so that the numbers that
//! the VMM and the guest agree on are written down once.

use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Flags of every C and assembly file.
///
/// The `-fno-…` ones keep functions as they are written: inlined, cloned, split or merged functions would have no site
/// of their own, or two counters.
const CFLAGS: &[&str] = &[
    "-std=gnu11",
    "-O2",
    "-m64",
    "-march=x86-64",
    "-mcmodel=small",
    "-mgeneral-regs-only",
    "-mno-red-zone",
    "-ffreestanding",
    "-fno-pie",
    "-fno-pic",
    "-fno-stack-protector",
    "-fcf-protection=none",
    "-fno-asynchronous-unwind-tables",
    "-fno-omit-frame-pointer",
    "-fno-strict-aliasing",
    "-fno-common",
    "-fno-delete-null-pointer-checks",
    "-fno-tree-loop-distribute-patterns",
    "-fno-inline",
    "-fno-ipa-cp",
    "-fno-ipa-sra",
    "-fno-ipa-icf",
    "-fno-ipa-ra",
    "-fno-partial-inlining",
    "-fno-ipa-cp-clone",
    "-fno-reorder-blocks-and-partition",
    "-fno-lto",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wframe-larger-than=3072",
    "-Wmissing-prototypes",
];
/// Flags that make each function begin with a call of `__fentry__` and list these calls in `__mcount_loc`.
const TRACE_FLAGS: &[&str] = &["-pg", "-mfentry", "-mrecord-mcount"];
/// The folder whose programs play the part of user space: no sites.
const UNTRACED_DIR: &str = "user";

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let root = PathBuf::from(env("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env("OUT_DIR")?);
    let kernel = root.join("kernel");
    if env("CARGO_CFG_TARGET_ARCH")? != "x86_64" {
        return Err("the guest kernel is for x86-64; build exotrace for an x86_64 target".into());
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/abi.rs");
    println!("cargo::rerun-if-changed=kernel");
    println!("cargo::rerun-if-env-changed=GUEST_CC");
    let cc = std::env::var_os("GUEST_CC").unwrap_or_else(|| "gcc".into());

    write_header(&root.join("src/abi.rs"), &out.join("exo_abi.h"))?;
    let mut sources = Vec::new();
    find_sources(&kernel, &mut sources)?;
    sources.sort();
    let objects = compile_all(&cc, &kernel, &out, &sources)?;
    let script = out.join("guest.ld");
    run(Command::new(&cc)
        .args(["-E", "-P", "-x", "c", "-DEXO_LINKER", "-I"])
        .arg(&out)
        .arg(kernel.join("linker.ld"))
        .arg("-o")
        .arg(&script))?;
    let mut link = Command::new(&cc);
    link.args([
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,--build-id=none",
        "-Wl,-z,noexecstack",
        "-Wl,-z,max-page-size=4096",
    ]);
    link.args(["-Wl,--no-warn-rwx-segments", "-Wl,--fatal-warnings", "-T"])
        .arg(&script)
        .args(&objects)
        .arg("-o")
        .arg(out.join("guest.elf"));
    run(&mut link)
}

fn env(name: &str) -> Result<OsString> {
    std::env::var_os(name).ok_or_else(|| format!("cargo did not set {name}").into())
}

/// Turns every `pub const NAME: uNN = value;` into `#define EXO_NAME value`.
fn write_header(abi: &Path, header: &Path) -> Result<()> {
    let text = fs::read_to_string(abi)?;
    let mut out = String::from("/* Generated from abi.rs. */\n#pragma once\n");
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("pub const ") else { continue };
        let parsed = rest.split_once(": u").and_then(|(name, r)| {
            let (ty, value) = r.split_once(" = ")?;
            Some((name, ty, value.strip_suffix(';')?))
        });
        let Some((name, ty, value)) = parsed else {
            return Err(format!("{}: cannot read the line `{line}`", abi.display()).into());
        };
        // Assembly knows no suffixes; C needs one for what is wider than an int.
        let number = value.replace('_', "");
        if ty == "64" {
            out.push_str(&format!(
                "#ifdef __ASSEMBLER__\n#define EXO_{name} {number}\n#elif defined(EXO_LINKER)\n#define EXO_{name} {number}\n#else\n#define EXO_{name} {number}UL\n#endif\n"
            ));
        } else {
            out.push_str(&format!("#define EXO_{name} {number}\n"));
        }
    }
    fs::write(header, out)?;
    Ok(())
}

fn find_sources(dir: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        // Cargo looks at a folder's files only if it is told about each folder.
        if path.is_dir() {
            println!("cargo::rerun-if-changed={}", path.display());
            find_sources(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "c" || e == "S") {
            found.push(path);
        }
    }
    Ok(())
}

/// Compiles all files, a few at a time, and returns the objects in the order of the sources.
fn compile_all(cc: &OsString, kernel: &Path, out: &Path, sources: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut jobs = Vec::new();
    for source in sources {
        let name = source.strip_prefix(kernel)?.to_string_lossy().replace('/', "_");
        jobs.push((source.clone(), out.join(name + ".o")));
    }
    let queue = Mutex::new(jobs.iter());
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get()).min(8);
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..workers)
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    loop {
                        let next = queue.lock().map_err(|_| "a compile thread panicked")?.next();
                        let Some((source, object)) = next else { return Ok(()) };
                        compile(cc, kernel, out, source, object)?;
                    }
                })
            })
            .collect();
        handles.into_iter().try_for_each(|h| h.join().map_err(|_| "a compile thread panicked")?)
    })?;
    Ok(jobs.into_iter().map(|(_, object)| object).collect())
}

fn compile(cc: &OsString, kernel: &Path, out: &Path, source: &Path, object: &Path) -> Result<()> {
    let mut cmd = Command::new(cc);
    cmd.args(CFLAGS).arg("-I").arg(out).arg("-I").arg(kernel.join("include"));
    if !source.starts_with(kernel.join(UNTRACED_DIR)) && source.extension().is_some_and(|e| e == "c") {
        cmd.args(TRACE_FLAGS);
    }
    run(cmd.arg("-c").arg(source).arg("-o").arg(object))
}

fn run(cmd: &mut Command) -> Result<()> {
    let program = cmd.get_program().to_string_lossy().into_owned();
    let output = match cmd.output() {
        Ok(o) => o,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(format!("{program} is needed to build the guest kernel: apt-get install gcc binutils").into());
        }
        Err(e) => return Err(format!("{program} could not be started: {e}").into()),
    };
    if output.status.success() {
        return Ok(());
    }
    Err(format!("building the guest kernel failed: {cmd:?}\n{}", String::from_utf8_lossy(&output.stderr)).into())
}
