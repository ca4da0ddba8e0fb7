//! The commands, events and snapshots that the controller and its users exchange.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use exotrace_trace::ids::{Gva, SiteId, Tsc, VcpuId};
use exotrace_trace::ring::layout::FullPolicy;

/// What a user can ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Switch tracing of some functions on or off.
    Switch {
        /// Which functions.
        what: Selection,
        /// On or off.
        on: bool,
    },
    /// Trace exactly this: everything else is switched off, in the same stop.
    SwitchExactly {
        /// Which functions.
        what: Selection,
    },
    /// Start writing a trace file.
    StartFile {
        /// Where. An existing file is replaced.
        path: PathBuf,
    },
    /// Stop writing the trace file.
    StopFile,
    /// Pause the guest until [`Command::Resume`].
    Pause,
    /// Let the guest run again.
    Resume,
    /// Bytes typed at the guest's console.
    ConsoleInput(Vec<u8>),
    /// Switch everything off and restore the original bytes.
    Detach,
    /// End the VM.
    Quit,
}

/// Which functions a command means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Every site of the image.
    All,
    /// Filter text as in the command line's `--trace`: globs, separated by commas or spaces; `!glob` takes away.
    Filter(String),
    /// These sites.
    Sites(Vec<SiteId>),
}

/// How long a stop of the vCPUs took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PauseTimes {
    /// From the request until all vCPUs stood.
    pub kick: Duration,
    /// Verify and write.
    pub work: Duration,
    /// Until all vCPUs were told to go on.
    pub resume: Duration,
}

impl PauseTimes {
    /// The whole stop.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.kick + self.work + self.resume
    }
}

/// Why the guest ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestEnd {
    /// It powered itself off.
    PowerOff,
    /// It asked for a reset.
    Reset,
    /// It panicked.
    Panic,
    /// Its own self-check failed.
    SelfCheckFailed,
    /// Triple fault.
    TripleFault {
        /// The vCPU.
        vcpu: VcpuId,
    },
    /// A vCPU halted with interrupts disabled and nothing can wake it.
    Hang {
        /// The vCPU.
        vcpu: VcpuId,
        /// Where it halted.
        rip: Gva,
    },
    /// KVM could not run it; one sentence says what happened.
    Failed {
        /// The sentence.
        why: String,
    },
    /// The user ended it.
    Quit,
}

impl std::fmt::Display for GuestEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            GuestEnd::PowerOff => f.write_str("the guest powered off"),
            GuestEnd::Reset => f.write_str("the guest asked for a reset"),
            GuestEnd::Panic => f.write_str("the guest panicked; its last words are on its console"),
            GuestEnd::SelfCheckFailed => f.write_str("the guest's self-check failed; its console says what"),
            GuestEnd::TripleFault { vcpu } => write!(f, "triple fault on vCPU {vcpu}"),
            GuestEnd::Hang { vcpu, rip } => {
                write!(f, "the guest hangs: vCPU {vcpu} halted with interrupts disabled at {rip}")
            }
            GuestEnd::Failed { why } => f.write_str(why),
            GuestEnd::Quit => f.write_str("ended by the user"),
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A guest that boots on its own has got so far that it can be traced.
    Attached {
        /// How far the kernel was moved from where it was linked (KASLR), in bytes.
        slide: u64,
        /// Sites that can be switched.
        usable: usize,
        /// Sites that can't, per reason.
        left_out: Vec<(String, usize)>,
        /// Whether the guest can use its own ftrace, kprobes and live patching meanwhile.
        guarded: bool,
    },
    /// Functions were switched.
    Switched {
        /// Sites turned into calls by this.
        on: usize,
        /// Sites turned back by this.
        off: usize,
        /// Sites that were asked for but already so.
        unchanged: usize,
        /// Sites that were asked for but can't be switched now; [`Event::Attached`] says why.
        skipped: usize,
        /// Sites traced now.
        active: usize,
        /// How long the guest stood.
        pause: PauseTimes,
    },
    /// A command was refused; nothing was changed.
    Refused {
        /// What was asked for, in a few words.
        what: String,
        /// Why not, and what to do.
        why: String,
    },
    /// A trace file is being written.
    FileStarted {
        /// Where.
        path: PathBuf,
    },
    /// A trace file is complete.
    FileStopped {
        /// Where.
        path: PathBuf,
        /// Records in it.
        records: u64,
        /// Its size.
        bytes: u64,
    },
    /// Writing the trace file failed. The file was cut back to its last whole block and is readable.
    FileFailed {
        /// Where.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The guest was paused or resumed by command.
    Paused(bool),
    /// The guest reached a phase of its workload.
    Mark(u32),
    /// The original bytes are back; nothing is traced.
    Detached {
        /// Sites restored.
        sites: usize,
    },
    /// The guest ended.
    Ended(GuestEnd),
}

/// One traceable function, never changes during a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionInfo {
    /// Its site.
    pub site: SiteId,
    /// Its name.
    pub name: Box<str>,
    /// Address of the function.
    pub addr: Gva,
    /// Why it can't be traced, if so.
    pub skipped: Option<Box<str>>,
}

/// One line of the live record stream, names resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveRecord {
    /// The vCPU.
    pub vcpu: VcpuId,
    /// Guest time stamp.
    pub tsc: Tsc,
    /// Time since the trace began, nanoseconds.
    pub time_ns: u64,
    /// Index in [`Control::functions`]' table; `None` when the address belongs to no known site.
    pub site: Option<SiteId>,
    /// Address recorded.
    pub ip: Gva,
    /// Caller, as `name+0xoff` or a bare address.
    pub parent: Box<str>,
}

/// Gauges of one vCPU and its ring.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct VcpuGauge {
    /// Records read from its ring.
    pub delivered: u64,
    /// Records lost: dropped by the guest because the ring was full, or overwritten unread.
    pub lost: u64,
    /// Slots that were found inconsistent and given up (a hostile or broken guest).
    pub corrupt: u64,
    /// Records whose time stamp lies before their predecessor's (an interrupt between reserving and stamping).
    pub inverted: u64,
    /// Slots in use now.
    pub used: u32,
    /// Slots reserved whose writer has not finished (preempted).
    pub pending: u32,
    /// Slots of the ring.
    pub capacity: u32,
    /// Times the vCPU waited for room (`block`).
    pub blocked: u64,
    /// Started, and running (not parked or idle for good).
    pub online: bool,
}

/// What a frame is drawn from. Cheap to take: counters are copied, names are shared.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Records delivered per site, indexed by [`SiteId`].
    pub counts: Vec<u64>,
    /// Whether a site is traced, indexed by [`SiteId`].
    pub active: Vec<bool>,
    /// Per vCPU.
    pub vcpus: Vec<VcpuGauge>,
    /// The last records, oldest first (bounded).
    pub live: Arc<[LiveRecord]>,
    /// The guest's console, the last bytes (bounded, raw).
    pub console: Arc<[u8]>,
    /// The last stop.
    pub last_pause: Option<PauseTimes>,
    /// Stops so far.
    pub pauses: u64,
    /// File being written, with bytes so far.
    pub file: Option<(PathBuf, u64)>,
    /// Paused by command.
    pub paused: bool,
    /// The guest has ended.
    pub ended: Option<GuestEnd>,
    /// Time since the VM started.
    pub uptime: Duration,
}

/// Facts that do not change during a run.
#[derive(Clone, Debug)]
pub struct RunInfo {
    /// All sites of the image, in order of [`SiteId`].
    pub functions: Arc<[FunctionInfo]>,
    /// What happens when a ring is full.
    pub policy: FullPolicy,
    /// One line on the guest: image, vCPUs, memory.
    pub guest: String,
    /// One line on the host: kind of KVM.
    pub host: String,
}

/// The controller as its users see it.
pub trait Control: Send + Sync {
    /// Facts that do not change.
    fn info(&self) -> &RunInfo;
    /// Queues a command. Its outcome comes as events.
    fn send(&self, command: Command);
    /// Events since the last call, oldest first.
    fn poll_events(&self) -> Vec<Event>;
    /// The state now.
    fn snapshot(&self) -> Snapshot;
}
