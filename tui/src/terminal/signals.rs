//! SIGTERM, SIGINT and SIGHUP end the UI in order. What the process did on them before is put back afterwards.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, Ordering};

/// The last of our signals, 0 if none came.
static RECEIVED: AtomicI32 = AtomicI32::new(0);

const OURS: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

extern "C" fn note(signal: i32) {
    // An atomic store is all that a handler may safely do, and all that is needed.
    RECEIVED.store(signal, Ordering::SeqCst);
}

/// The handlers, while they are installed.
pub(super) struct Signals {
    previous: Vec<(i32, libc::sigaction)>,
}

impl Signals {
    /// Installs the handlers.
    pub(super) fn install() -> io::Result<Signals> {
        RECEIVED.store(0, Ordering::SeqCst);
        let mut signals = Signals { previous: Vec::new() };
        for signal in OURS {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: all-zero bytes are a valid sigaction (SIG_DFL, no flags, empty mask) on every Unix.
            let action = unsafe { action.assume_init_mut() };
            action.sa_sigaction = note as extern "C" fn(i32) as libc::sighandler_t;
            let previous = swap(signal, action)?;
            signals.previous.push((signal, previous));
        }
        Ok(signals)
    }

    /// The signal that came, if one did.
    pub(super) fn received(&self) -> Option<i32> {
        Some(RECEIVED.load(Ordering::SeqCst)).filter(|s| *s != 0)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (signal, previous) in &self.previous {
            // It was valid when it came from the kernel; nothing can be done if that has changed.
            let _ = swap(*signal, previous);
        }
    }
}

/// Sets a signal's action and returns the one before.
fn swap(signal: i32, action: &libc::sigaction) -> io::Result<libc::sigaction> {
    let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: `action` is a valid sigaction, whose handler (ours or the former one) stays in the program for good;
    // `previous` is room for one.
    let result = unsafe { libc::sigaction(signal, action, previous.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed bytes are a valid sigaction, and the kernel has filled it in.
    Ok(unsafe { previous.assume_init() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_signal_is_noted_and_the_former_action_comes_back() {
        let mut plain = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: zeroed bytes are a valid sigaction.
        let plain = unsafe { plain.assume_init_mut() };
        plain.sa_sigaction = libc::SIG_IGN;
        let original = swap(libc::SIGHUP, plain).unwrap();
        let signals = Signals::install().unwrap();
        assert_eq!(signals.received(), None);
        // SAFETY: raises a signal that is handled.
        assert_eq!(unsafe { libc::raise(libc::SIGHUP) }, 0);
        assert_eq!(signals.received(), Some(libc::SIGHUP));
        drop(signals);
        let restored = swap(libc::SIGHUP, &original).unwrap();
        assert_eq!(restored.sa_sigaction, libc::SIG_IGN);
    }
}
