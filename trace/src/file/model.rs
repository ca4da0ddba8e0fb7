//! What a trace file says, as types: the facts, losses, events and totals that its blocks hold.

use serde::{Deserialize, Serialize};

use crate::ids::{Gva, SiteId, Tsc, VcpuId};
use crate::ring::layout::FullPolicy;

/// Facts of guest and host. In the file it is JSON: fields can be added, readers ignore those they don't know.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Meta {
    /// Version of the program that wrote the file.
    pub exotrace: String,
    /// Name of the kernel image.
    pub kernel_image: String,
    /// Its length in bytes.
    pub kernel_bytes: u64,
    /// CRC-32 (IEEE) of the image, to recognise it by.
    pub kernel_crc32: u32,
    /// The guest's command line.
    pub cmdline: String,
    /// vCPUs of the guest.
    pub vcpus: u32,
    /// RAM of the guest, MiB.
    pub memory_mib: u32,
    /// Records per ring.
    pub ring_records: u32,
    /// What happens when a ring is full: `drop`, `overwrite` or `block`.
    pub policy: String,
    /// One line on the host.
    pub host: String,
}

/// The name of a policy, as in [`Meta::policy`] and on the command line.
#[must_use]
pub const fn policy_name(policy: FullPolicy) -> &'static str {
    match policy {
        FullPolicy::Drop => "drop",
        FullPolicy::Overwrite => "overwrite",
        FullPolicy::Block => "block",
    }
}

/// A symbol of the guest kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Where it starts.
    pub addr: Gva,
    /// Its length in bytes; 0 if unknown (it then reaches up to the next symbol).
    pub size: u32,
    /// Its name.
    pub name: &'a str,
}

/// A site: what a record's `ip` refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site<'a> {
    /// Its number in the image's site table.
    pub id: SiteId,
    /// Address of the 5-byte site. Records hold the low half of the address right after it.
    pub addr: Gva,
    /// Name of the function that it belongs to.
    pub function: &'a str,
}

/// Why records are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LossReason {
    /// The ring was full; the guest dropped the newest (`drop`).
    Dropped,
    /// The guest overwrote them before they were read (`overwrite`).
    Overwritten,
    /// The slots made no sense (a hostile or broken guest).
    Corrupt,
    /// Reserved, but never completed by the end of the trace.
    Unfinished,
    /// The records were in the file, in a block that is damaged. Readers make these.
    Damaged,
    /// A reason that this version does not know.
    Other(u8),
}

impl LossReason {
    /// The code in the file.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            LossReason::Dropped => 1,
            LossReason::Overwritten => 2,
            LossReason::Corrupt => 3,
            LossReason::Unfinished => 4,
            LossReason::Damaged => 5,
            LossReason::Other(code) => code,
        }
    }

    /// The reason with this code.
    #[must_use]
    pub const fn from_code(code: u8) -> LossReason {
        match code {
            1 => LossReason::Dropped,
            2 => LossReason::Overwritten,
            3 => LossReason::Corrupt,
            4 => LossReason::Unfinished,
            5 => LossReason::Damaged,
            other => LossReason::Other(other),
        }
    }

    /// A few words for people.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            LossReason::Dropped => "dropped: the ring was full",
            LossReason::Overwritten => "overwritten before they were read",
            LossReason::Corrupt => "corrupt: the slots made no sense",
            LossReason::Unfinished => "unfinished: reserved but never completed",
            LossReason::Damaged => "damaged in the trace file",
            LossReason::Other(_) => "for a reason that this version does not know",
        }
    }
}

/// Records that are missing from a vCPU's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The vCPU.
    pub vcpu: VcpuId,
    /// Why.
    pub reason: LossReason,
    /// How many.
    pub count: u64,
    /// They are missing right before the record with this index (or at the end, if none has it or a higher one).
    pub before_index: u64,
}

/// How long a stop of the vCPUs took, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pause {
    /// From the request until all vCPUs stood.
    pub kick_ns: u64,
    /// Verify and write.
    pub work_ns: u64,
    /// Until all were told to go on.
    pub resume_ns: u64,
}

/// Something that happened during the trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// Functions were switched on or off.
    Switched {
        /// Sites turned into calls.
        on: u64,
        /// Sites turned back.
        off: u64,
        /// Sites traced from now on.
        active: u64,
        /// How long the guest stood.
        pause: Pause,
    },
    /// The guest reached a phase of its workload.
    Mark {
        /// The number of the phase.
        mark: u32,
    },
    /// The guest was paused by command.
    Paused,
    /// The guest was resumed by command.
    Resumed,
    /// The original bytes are back; nothing is traced.
    Detached {
        /// Sites restored.
        sites: u64,
    },
    /// The guest ended.
    Ended {
        /// How, in a few words.
        how: String,
    },
    /// A remark.
    Note {
        /// The remark.
        text: String,
    },
    /// A kind that this version does not know. Not for writing.
    #[serde(other)]
    Unknown,
}

/// An event with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Guest time, as near as the host can tell.
    pub tsc: Tsc,
    /// What happened.
    pub kind: EventKind,
}

/// What the collector counted for one vCPU; in the `End` block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct VcpuTotals {
    /// The vCPU.
    pub vcpu: VcpuId,
    /// Records delivered to the file.
    pub delivered: u64,
    /// Records lost: dropped or overwritten.
    pub lost: u64,
    /// Slots given up as inconsistent.
    pub corrupt: u64,
    /// Records whose time stamp lies before their predecessor's.
    pub inverted: u64,
    /// Slots reserved whose writer had not finished at the end.
    pub pending: u64,
}

/// How a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With an `End` block: everything that the writer had is there.
    Clean,
    /// After a whole block, but without an `End`: the writer was killed, or still writes.
    NotClosed,
    /// In the middle of a block: it is readable up to `at`.
    Truncated {
        /// Offset of the end of the last whole block.
        at: u64,
    },
    /// A block header's check is wrong: what follows can't be found, it is readable up to `at`.
    Damaged {
        /// Offset of the bad header.
        at: u64,
    },
}

/// Where text of a guest or a file goes to a terminal: no control characters, so no escape sequences and no false lines.
#[must_use]
pub fn printable(text: &str) -> std::borrow::Cow<'_, str> {
    let bad = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if text.contains(bad) {
        text.chars().map(|c| if bad(c) { '\u{fffd}' } else { c }).collect::<String>().into()
    } else {
        text.into()
    }
}
