//! Tracing unmodified Debian kernels in the lab.

use std::time::Duration;

use libtest_mimic::Failed;

use crate::bench::{ensure, expect};
use crate::emulator::Lab;
use crate::linux::boot;

/// For the integration test: it takes about a minute.
const LIMIT: Duration = Duration::from_secs(480);
/// What the guest's log must not hold.
const BAD_WORDS: [&str; 7] = ["WARNING:", "BUG:", "Call Trace:", "Oops:", "soft lockup", "rcu: INFO", "ftrace bug"];

/// An in-guest program's 100,000 calls of getppid give just as many records, on whatever CPUs.
pub fn getppid(lab: &mut Lab, flavour: &str) -> Result<(), Failed> {
    let options = "--trace __x64_sys_getppid --policy block";
    let run = boot(lab, flavour, 2, options, "sleep:2,getppid:100000")?;
    let counted = run.err.lines().any(|l| l.trim().starts_with("100000  ") && l.ends_with("sys_getppid"));
    ensure(counted, || format!("not 100,000 records: {}", run.err))
}

/// Every function traced through loads, while the guest uses its own function tracer, a kprobe and a module: nothing is lost,
/// the guest's tools work, and its log has nothing that an untraced boot's has not.
pub fn everything(lab: &mut Lab, flavour: &str) -> Result<(), Failed> {
    let steps = "sleep:2,mix:5,ftrace:function,getppid:100,ftraced,ftrace:nop,kprobe,module,dmesg";
    let run = boot(lab, flavour, 2, "--trace '*' --policy block", steps)?;
    let all = || format!("--- stdout\n{}\n--- stderr\n{}", run.out, run.err);
    let rings: Vec<&str> = run.err.lines().filter(|l| l.contains(": vCPU ")).collect();
    ensure(rings.len() == 2 && rings.iter().all(|l| l.contains(" 0 lost, 0 unfinished, 0 corrupt")), all)?;
    ensure(rings.iter().any(|l| !l.contains(" 0 records,")), all)?;
    ensure(run.out.contains("exo: tracer function") && run.out.contains("exo: kprobe hits 100"), all)?;
    ensure(!run.err.contains("must not be used"), all)?;
    for word in BAD_WORDS {
        ensure(!run.out.contains(word), || format!("{word} in the guest's log: {}", all()))?;
    }
    Ok(())
}

/// Live switches and the detach, by a program of its own (tests/linux_guest.rs).
pub fn switches(lab: &mut Lab, flavour: &str) -> Result<(), Failed> {
    let command = format!(
        "EXOTRACE_KERNEL=/lab/{flavour}/vmlinuz EXOTRACE_INITRD=/lab/{flavour}/initrd linux_guest --ignored --exact \
         twenty_switches_of_all_sites_under_load_leave_no_trace"
    );
    let run = expect(lab, &command, 0, LIMIT)?;
    ensure(run.out.contains("1 passed"), || format!("{command}: {}", run.out))
}
