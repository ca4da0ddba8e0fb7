//! The lab's own promises.

use std::process::{Command, Stdio};
use std::time::Duration;

use libtest_mimic::Failed;

use crate::bench::{ensure, expect, own_lab};
use crate::emulator::{Lab, LabError, recipes};

const LIMIT: Duration = Duration::from_secs(60);

/// The list of an integration test program's tests is complete.
pub fn complete(lab: &mut Lab, program: &str, tests: &[&str]) -> Result<(), Failed> {
    let list = expect(lab, &format!("{program} --list"), 0, LIMIT)?;
    let mut all: Vec<&str> = list.out.lines().filter_map(|l| l.strip_suffix(": test")).collect();
    let mut known = tests.to_vec();
    all.sort_unstable();
    known.sort_unstable();
    ensure(all == known, || format!("{program} has the tests {all:?}, the lab runs {known:?}"))
}

/// A step beyond its limit is killed, with all that it started; the lab goes on.
pub fn slow_step(lab: &mut Lab) -> Result<(), Failed> {
    let step = lab.run("echo begun; sleep 1000 & sleep 1000", Duration::from_secs(2))?;
    ensure(step.code == 137 && step.out == "begun\n", || format!("{step:?}"))?;
    ensure(step.time >= Duration::from_secs(2), || format!("{step:?}"))?;
    let left = expect(lab, "ps | grep -c '[s]leep 1000' || true", 0, LIMIT)?;
    ensure(left.out.trim() == "0", || format!("{} processes are left", left.out))?;
    let step = lab.run("printf 'a\\000b'; echo e >&2; exit 3", LIMIT)?;
    ensure(step.code == 3 && step.out == "a\0b" && step.err == "e\n", || format!("{step:?}"))
}

/// A panic of the emulated host is reported as that.
pub fn panic_is_told() -> Result<(), Failed> {
    let mut lab = own_lab()?;
    match lab.run("echo c >/proc/sysrq-trigger; sleep 100", LIMIT) {
        Err(e @ LabError::Panicked(_)) => {
            ensure(e.to_string().contains("sysrq triggered crash"), || format!("the reason is missing: {e}"))?;
            ensure(!lab.usable(), || "the lab should not be used again".into())
        }
        other => Err(format!("{other:?}").into()),
    }
}

/// `images/lab COMMAND`: exit code, output and files.
pub fn command_mode() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let mut command = Command::new(recipes().join("lab"));
    command.args(["sh", "-c", "echo 'of a file' >file; printf 'a b\\n'; exit 7"]).current_dir(dir.path());
    let done = command.stdin(Stdio::null()).output()?;
    let out = String::from_utf8_lossy(&done.stdout);
    ensure(done.status.code() == Some(7), || format!("{done:?}"))?;
    ensure(out == "a b\n", || format!("{out:?}"))?;
    ensure(std::fs::read_to_string(dir.path().join("file"))? == "of a file\n", || "the file is wrong".into())
}
