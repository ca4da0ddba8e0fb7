//! The embedded guest in the lab, where its kernel runs at CPL 0 under SVM.

use std::time::Duration;

use libtest_mimic::Failed;

use crate::bench::{ensure, expect};
use crate::emulator::Lab;

/// For one run of the embedded guest; they take a few seconds.
const LIMIT: Duration = Duration::from_secs(180);
/// For one integration test; the longest takes 40 s.
const TEST_LIMIT: Duration = Duration::from_secs(480);

/// The lab is what it claims to be, and exotrace sees it.
pub fn doctor(lab: &mut Lab) -> Result<(), Failed> {
    let kvm = expect(lab, "cat /sys/module/kvm_amd/parameters/npt && test -c /dev/kvm", 0, LIMIT)?;
    ensure(kvm.out.trim() == "Y", || format!("nested paging: {}", kvm.out))?;
    let doctor = expect(lab, "exotrace doctor", 0, LIMIT)?;
    for word in ["SVM", "CPL 0"] {
        ensure(doctor.out.contains(word), || format!("no {word:?} in {}", doctor.out))?;
    }
    Ok(())
}

/// Each finite workload, all functions traced, nothing lost, the guest's self-check passed.
pub fn workloads(lab: &mut Lab, vcpus: u8) -> Result<(), Failed> {
    for workload in ["mix", "fs", "alloc", "sched", "syscall", "pipe"] {
        let command = format!(
            "exotrace run --headless --cpus {vcpus} --trace '*' --policy block \
             --cmdline 'workload={workload} seed={vcpus} iters=3 threads=4 hz=1000 quiet'"
        );
        let run = expect(lab, &command, 0, LIMIT)?;
        let all = || format!("{command}\n--- stdout\n{}\n--- stderr\n{}", run.out, run.err);
        ensure(run.out.contains("selfcheck: ok"), all)?;
        let rings: Vec<&str> = run.err.lines().filter(|l| l.contains(": vCPU ")).collect();
        ensure(rings.len() == usize::from(vcpus), all)?;
        ensure(rings.iter().all(|l| l.contains(" 0 lost, 0 unfinished, 0 corrupt")), all)?;
        ensure(rings.iter().any(|l| !l.contains(" 0 records,")), all)?;
    }
    Ok(())
}

/// The ways in which a guest ends badly have their exit codes here, too.
pub fn bad_end(lab: &mut Lab, workload: &str, code: i32) -> Result<(), Failed> {
    for policy in ["drop", "overwrite"] {
        let command = format!("exotrace run --headless --cmdline workload={workload} --trace '*' --policy {policy}");
        let run = expect(lab, &command, code, LIMIT)?;
        ensure(run.err.contains("the last"), || format!("{command}: no last records in {}", run.err))?;
    }
    Ok(())
}

/// One test of an integration test program.
pub fn integration(lab: &mut Lab, program: &str, test: &str) -> Result<(), Failed> {
    let run = expect(lab, &format!("{program} --exact {test}"), 0, TEST_LIMIT)?;
    ensure(run.out.contains("1 passed; 0 failed; 0 ignored"), || format!("{program} {test}: {}", run.out))
}
