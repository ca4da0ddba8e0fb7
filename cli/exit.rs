//! Exit codes, in one place.

use std::process::ExitCode;

use exotrace_patcher::control::GuestEnd;

/// What the program's exit code says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All went well; the guest powered off, or its time was up.
    Ok = 0,
    /// exotrace could not do what was asked for.
    Error = 1,
    /// Wrong usage (clap's code).
    Usage = 2,
    /// The guest panicked.
    GuestPanic = 10,
    /// The guest hangs.
    GuestHang = 11,
    /// The guest triple-faulted.
    GuestTripleFault = 12,
    /// The guest's self-check failed.
    GuestSelfCheck = 13,
    /// KVM could not go on running the guest.
    GuestFailed = 14,
    /// Ended by SIGINT or SIGTERM.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(e: Exit) -> ExitCode {
        ExitCode::from(e as u8)
    }
}

impl Exit {
    /// The code for the way a guest ended.
    #[must_use]
    pub fn of_guest(end: &GuestEnd) -> Exit {
        match end {
            GuestEnd::PowerOff | GuestEnd::Reset | GuestEnd::Quit => Exit::Ok,
            GuestEnd::Panic => Exit::GuestPanic,
            GuestEnd::SelfCheckFailed => Exit::GuestSelfCheck,
            GuestEnd::TripleFault { .. } => Exit::GuestTripleFault,
            GuestEnd::Hang { .. } => Exit::GuestHang,
            GuestEnd::Failed { .. } => Exit::GuestFailed,
        }
    }
}
