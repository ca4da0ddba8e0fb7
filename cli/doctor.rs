//! `exotrace doctor`.

use exotrace_vmm::host;

use crate::exit::Exit;

/// Prints what KVM is here and what works with it.
///
/// # Errors
/// None; the exit code says whether a guest can run.
pub fn run() -> anyhow::Result<Exit> {
    let report = host::detect();
    for line in report.sentences() {
        println!("{line}");
    }
    Ok(if report.usable().is_ok() { Exit::Ok } else { Exit::Error })
}
