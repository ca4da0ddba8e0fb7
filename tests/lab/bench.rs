//! The labs that the tests share, and what is in them: built, downloaded and booted when a test first needs it.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use libtest_mimic::{Completion, Failed};

use crate::emulator::{Lab, LabError, Step, recipes};

/// The Linux guests' flavours, as images/fetch names them.
pub const FLAVOURS: [&str; 3] = ["6.12-cloud", "6.1-cloud", "6.12-rt"];
/// Exit codes of the recipes that mean: not here, not now.
const NO_NETWORK: i32 = 3;
const MISSING: i32 = 4;

/// Why there is no lab.
#[derive(Clone, Debug)]
pub enum NoLab {
    /// The machine lacks something: tests are skipped, with this reason.
    Skip(String),
    /// Something that should work does not: tests fail.
    Fail(String),
}

/// What is put into each lab: path here, path there.
struct Parts {
    files: Vec<(PathBuf, String)>,
    _programs: tempfile::TempDir,
}

/// All that the tests share.
#[derive(Default)]
pub struct Bench {
    parts: OnceLock<Result<Parts, NoLab>>,
    idle: Mutex<Vec<Lab>>,
}

impl Bench {
    /// Runs a test in a lab, which it has for itself meanwhile.
    pub fn test(&self, test: impl FnOnce(&mut Lab) -> Result<(), Failed>) -> Result<Completion, Failed> {
        let parts = match self.parts.get_or_init(prepare) {
            Ok(parts) => parts,
            Err(NoLab::Skip(why)) => {
                println!("SKIPPED: {why}");
                return Ok(Completion::ignored_with(why));
            }
            Err(NoLab::Fail(why)) => return Err(why.clone().into()),
        };
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut lab = match idle {
            Some(lab) => lab,
            None => Lab::boot(&parts.files)?,
        };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&mut lab)));
        if lab.usable() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(lab);
        }
        match done {
            Ok(Ok(())) => Ok(Completion::Completed),
            Ok(Err(failed)) => Err(failed),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Ends the labs. (The bench itself lives as long as the program.)
    pub fn close(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Downloads and builds what the labs need.
fn prepare() -> Result<Parts, NoLab> {
    // Nothing is built when there is no lab to run it in.
    recipe("lab", &["--check"])?;
    let programs = tempfile::tempdir().map_err(|e| NoLab::Fail(e.to_string()))?;
    let mut files = Vec::new();
    for line in recipe("l2", &FLAVOURS)?.lines() {
        let [flavour, kernel, initrd] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(NoLab::Fail(format!("images/l2 said {line:?}")));
        };
        files.push((kernel.into(), format!("/lab/{flavour}/vmlinuz")));
        files.push((initrd.into(), format!("/lab/{flavour}/initrd")));
    }
    let dir =
        programs.path().to_str().ok_or_else(|| NoLab::Fail("the temporary directory's name is not UTF-8".into()))?;
    recipe("static", &["--tests", dir])?;
    for program in ["exotrace", "ground_truth", "switching", "linux_guest"] {
        files.push((programs.path().join(program), format!("/lab/bin/{program}")));
    }
    Ok(Parts { files, _programs: programs })
}

/// Runs a recipe, returns what it printed.
fn recipe(name: &str, args: &[&str]) -> Result<String, NoLab> {
    let done = Command::new(recipes().join(name)).args(args).stdin(Stdio::null()).output();
    let done = done.map_err(|e| NoLab::Fail(format!("images/{name}: {e}")))?;
    let said = String::from_utf8_lossy(&done.stderr);
    match done.status.code() {
        Some(0) => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        Some(NO_NETWORK | MISSING) => {
            let reason = said.lines().last().unwrap_or("no reason given").to_owned();
            Err(NoLab::Skip(reason))
        }
        _ => Err(NoLab::Fail(format!("images/{name} failed:\n{said}"))),
    }
}

/// A step that must end with this exit code; else all it said is in the failure.
pub fn expect(lab: &mut Lab, command: &str, code: i32, limit: Duration) -> Result<Step, Failed> {
    let step = lab.run(command, limit)?;
    if step.code == code {
        return Ok(step);
    }
    let ended =
        if step.code == 137 { format!("was killed after {limit:?}") } else { format!("ended with {}", step.code) };
    Err(format!("{command}\n{ended}, not with {code}\n--- stdout\n{}\n--- stderr\n{}", step.out, step.err).into())
}

/// Fails with a text unless the condition holds.
pub fn ensure(holds: bool, text: impl FnOnce() -> String) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(text().into()) }
}

/// A command's own lab, for tests that break it.
pub fn own_lab() -> Result<Lab, LabError> {
    Lab::boot(&[])
}
