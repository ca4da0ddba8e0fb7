//! What can go wrong with a trace file. The texts say what, where and what to do; the cause is the error's source.

use std::io;
use std::path::PathBuf;

use crate::ids::VcpuId;

/// A trace file could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// It could not be created. Nothing new was left behind.
    #[error("cannot create the trace file {}{}", .path.display(), advice(.source))]
    Create {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A write failed; the file was cut back to its last whole block. Nothing more can be written.
    #[error("cannot write on to the trace file {}; its first {kept} bytes are whole and readable{}", .path.display(), advice(.source))]
    Write {
        /// Where.
        path: PathBuf,
        /// Length of the file now, bytes.
        kept: u64,
        /// Why.
        source: io::Error,
    },
    /// A write failed, and the incomplete block at the end could not be taken away (a pipe or a device).
    #[error("cannot write on to {}, nor cut off its incomplete last block after byte {kept}{}", .path.display(), advice(.source))]
    NotCut {
        /// Where.
        path: PathBuf,
        /// Bytes of whole blocks.
        kept: u64,
        /// Why the write failed.
        source: io::Error,
    },
    /// An earlier write failed, and was reported then.
    #[error("the trace file {} was given up after an earlier error", .path.display())]
    GivenUp {
        /// Where.
        path: PathBuf,
    },
    /// The caller named a vCPU that no ring can have.
    #[error("vCPU {vcpu} can't be in a trace file (0 to {} can)", crate::ring::layout::MAX_RINGS - 1)]
    NoSuchVcpu {
        /// The vCPU.
        vcpu: VcpuId,
    },
    /// The caller gave an index that no ring can have.
    #[error("ring index {index:#x} can't be in a trace file (indices have 56 bits)")]
    NoSuchIndex {
        /// The first index of the batch.
        index: u64,
    },
    /// The facts do not fit.
    #[error("{what} for the trace file is {bytes} bytes long; {max} fit, shorten the command line or texts in it")]
    TooLong {
        /// What.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The longest that fits.
        max: usize,
    },
}

/// What the user can do about an I/O error, as the end of a sentence.
fn advice(e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::StorageFull => " (the disk is full: free some space or write to another one)",
        io::ErrorKind::QuotaExceeded => " (your disk quota is used up: free some space or write elsewhere)",
        io::ErrorKind::FileTooLarge => " (over a file size limit: raise it with `ulimit -f` or trace less)",
        io::ErrorKind::IsADirectory => " (it is a directory: name a file in it)",
        io::ErrorKind::NotFound => " (its directory does not exist: create it first)",
        io::ErrorKind::PermissionDenied => " (no permission: choose a place you may write to)",
        io::ErrorKind::ReadOnlyFilesystem => " (a read-only file system: choose another place)",
        _ => "",
    }
}

/// A trace file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It could not be opened.
    #[error("cannot open the trace file {}", .path.display())]
    Open {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Reading failed.
    #[error("cannot read the trace file at byte {at}")]
    Read {
        /// Offset.
        at: u64,
        /// Why.
        source: io::Error,
    },
    /// It is something else.
    #[error("this is not an exotrace trace file (its first bytes are not those of one)")]
    NotATrace,
    /// It ends within the file header.
    #[error("the trace file is only {bytes} bytes long; it was cut off before anything was recorded")]
    TooShort {
        /// Its length.
        bytes: u64,
    },
    /// Written in a format that this version does not read.
    #[error(
        "the trace file has format version {found}, this exotrace reads version {}; use the exotrace that wrote it",
        super::format::VERSION
    )]
    Version {
        /// The file's version.
        found: u32,
    },
    /// Uses a feature that this version does not know.
    #[error(
        "the trace file needs features that this exotrace does not know (flags {flags:#x}); use the exotrace that wrote it"
    )]
    Flags {
        /// The file's flags.
        flags: u32,
    },
}
