//! Unmodified Debian kernels as guests in the lab.

use std::time::Duration;

use libtest_mimic::Failed;

use crate::bench::{ensure, expect};
use crate::emulator::{Lab, Step};

/// For one boot; it takes 10 s.
const LIMIT: Duration = Duration::from_secs(240);

/// Boots a guest that carries out `steps` (see images/l2-init) and powers off; `options` are those of `exotrace run`.
pub fn boot(lab: &mut Lab, flavour: &str, vcpus: u8, options: &str, steps: &str) -> Result<Step, Failed> {
    let command = format!(
        "exotrace run --headless --kernel /lab/{flavour}/vmlinuz --initrd /lab/{flavour}/initrd --cpus {vcpus} {options} \
         --cmdline 'console=ttyS0 panic=-1 quiet exo.do={steps}'"
    );
    let run = expect(lab, &command, 0, LIMIT)?;
    let all = || format!("{command}\n--- stdout\n{}\n--- stderr\n{}", run.out, run.err);
    ensure(run.out.contains("exo: done"), all)?;
    ensure(run.err.contains("the guest powered off"), all)?;
    for step in steps.split(',') {
        ensure(run.out.contains(&format!("exo: end {step} 0")), || format!("step {step} failed: {}", all()))?;
    }
    Ok(run)
}

/// To init, all CPUs online, through loads and a module, to a power-off; no warning in the guest's log.
pub fn boots(lab: &mut Lab, flavour: &str, vcpus: u8) -> Result<(), Failed> {
    let run = boot(lab, flavour, vcpus, "", "kaslr,getppid:1000,mix:2,module,dmesg")?;
    ensure(run.out.contains(&format!(", {vcpus} CPUs")), || format!("not all CPUs are online: {}", run.out))?;
    for word in ["WARNING:", "BUG:", "Call Trace:", "Oops:", "soft lockup", "rcu: INFO"] {
        ensure(!run.out.contains(word), || format!("{word} in the guest's log: {}", run.out))?;
    }
    Ok(())
}

/// The kernel is somewhere else on each of three boots: the guest's own decompressor chose the place.
pub fn kaslr(lab: &mut Lab, flavour: &str) -> Result<(), Failed> {
    let mut places = Vec::new();
    for _ in 0..3 {
        let run = boot(lab, flavour, 1, "", "kaslr")?;
        let place = run.out.lines().find_map(|l| l.trim().strip_prefix("exo: _text "));
        places.push(place.ok_or_else(|| format!("no address in {}", run.out))?.to_owned());
    }
    // Three times the same by chance: about one in 250,000.
    ensure(places.iter().any(|p| *p != places[0]), || format!("{places:?}"))
}

/// A panic in the guest has its exit code.
pub fn panic(lab: &mut Lab, flavour: &str) -> Result<(), Failed> {
    let command = format!(
        "exotrace run --headless --kernel /lab/{flavour}/vmlinuz --initrd /lab/{flavour}/initrd \
         --cmdline 'console=ttyS0 panic=-1 quiet exo.do=panic'"
    );
    expect(lab, &command, 10, LIMIT).map(drop)
}
