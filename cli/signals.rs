//! SIGINT, SIGTERM and SIGHUP end a headless run in good order.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;

/// A flag that becomes true when a signal asks the program to end.
pub(crate) fn ending_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        // The second one ends the program at once, should the first not get through.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag)).context("signals")?;
        signal_hook::flag::register(signal, Arc::clone(&flag)).context("signals")?;
    }
    Ok(flag)
}

/// A file that outgrows its limit is to be an error of the write (EFBIG), not the end of the program.
///
/// # Errors
/// The signal can't be handled.
pub fn survive_file_limit() -> anyhow::Result<()> {
    let ignored = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, ignored).context("signals")?;
    Ok(())
}
