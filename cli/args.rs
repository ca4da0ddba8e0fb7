//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use exotrace_patcher::control::RingOptions;
use exotrace_trace::ring::layout::{FullPolicy, MAX_RECORDS, MIN_RECORDS};

/// Traces every function of a guest kernel from outside the guest.
#[derive(Debug, Parser)]
#[command(name = "exotrace", version, about, long_about = None, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do; without a command: run.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Options of `run` when no command is given.
    #[command(flatten)]
    pub run: RunArgs,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Boot a guest kernel and trace it, in the terminal UI or headless
    Run(RunArgs),
    /// Print a trace file as ftrace-like text
    Report(ReportArgs),
    /// List what could be traced in a kernel image, without booting it
    Sites(SitesArgs),
    /// Say what this machine's KVM can do for exotrace
    Doctor,
    /// Run any of these commands in the lab: an emulated machine with real KVM, for machines without; `lab doctor`
    /// says whether that works here
    #[command(disable_help_flag = true)]
    Lab {
        /// The command with its options, as without `lab`
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
        args: Vec<String>,
    },
}

/// Options of `run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Kernel image: a Linux bzImage as distributions ship it, or an ELF for the embedded guest's boot protocol;
    /// without it the embedded guest runs
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// Initial RAM disk of a Linux guest
    #[arg(long, value_name = "FILE", requires = "kernel")]
    pub initrd: Option<PathBuf>,
    /// Disk of a Linux guest, a raw image: /dev/vda, then vdb, …; what the guest writes is gone afterwards
    #[arg(long, value_name = "FILE", requires = "kernel")]
    pub disk: Vec<PathBuf>,
    /// Enter a Linux kernel where it is linked, without its own decompressor and so without KASLR
    #[arg(long, requires = "kernel")]
    pub nokaslr: bool,
    /// Number of vCPUs, 1 to 16
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub cpus: u8,
    /// Guest memory, with suffix M or G (default: 64M for the embedded guest, 512M for Linux)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub mem: Option<u64>,
    /// The guest's command line, for example 'workload=fs seed=7 iters=1000'
    #[arg(long, value_name = "TEXT")]
    pub cmdline: Option<String>,
    /// Functions to trace from the first instruction on: globs, separated by commas; '!glob' takes away
    #[arg(long, value_name = "FILTER")]
    pub trace: Option<String>,
    /// Write a trace file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// What happens when a vCPU's ring is full
    #[arg(long, value_enum, default_value_t = Policy::Drop)]
    pub policy: Policy,
    /// Records per ring, a power of two
    #[arg(long, value_name = "N", default_value_t = 1 << 18, value_parser = parse_records)]
    pub ring: u32,
    /// No terminal UI: guest console on stdout, results on stderr (the default when stdout is no terminal)
    #[arg(long)]
    pub headless: bool,
    /// End after this many seconds (headless)
    #[arg(long, value_name = "N", value_parser = parse_seconds, allow_negative_numbers = true)]
    pub seconds: Option<f64>,
    /// How many of the last records to print when the guest ends badly (headless)
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub last: usize,
}

impl RunArgs {
    /// The rings.
    #[must_use]
    pub fn rings(&self) -> RingOptions {
        RingOptions { policy: self.policy.into(), records: self.ring }
    }
}

/// Options of `sites`.
#[derive(Clone, Debug, Args)]
pub struct SitesArgs {
    /// Kernel image: bzImage or vmlinux; without it the embedded guest's
    pub kernel: Option<PathBuf>,
    /// Functions to list (globs as in run --trace)
    #[arg(default_value = "*")]
    pub filter: String,
    /// Addresses, too
    #[arg(short, long)]
    pub long: bool,
    /// How many sites there are and how many are left out, per reason; and how long decoding took
    #[arg(long)]
    pub summary: bool,
}

/// See [`FullPolicy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// The newest record is dropped and counted
    Drop,
    /// Flight recorder: the last records are kept, read at the end
    Overwrite,
    /// The vCPU waits: nothing is lost
    Block,
}

impl From<Policy> for FullPolicy {
    fn from(p: Policy) -> FullPolicy {
        match p {
            Policy::Drop => FullPolicy::Drop,
            Policy::Overwrite => FullPolicy::Overwrite,
            Policy::Block => FullPolicy::Block,
        }
    }
}

/// Options of `report`.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// The trace file
    pub file: PathBuf,
    /// Only these vCPUs
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub cpu: Vec<u8>,
    /// Only functions that this filter takes (globs as in run --trace)
    #[arg(long, value_name = "FILTER")]
    pub filter: Option<String>,
    /// What the time column shows
    #[arg(long, value_enum, default_value_t = Time::Start)]
    pub time: Time,
    /// Callers with their offset
    #[arg(long)]
    pub offsets: bool,
    /// Calls per function instead of records
    #[arg(long)]
    pub summary: bool,
}

/// Time bases of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Time {
    /// Seconds since the trace began
    Start,
    /// The host's monotonic clock
    Mono,
    /// Seconds since 1970
    Wall,
    /// TSC cycles
    Tsc,
}

fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((i, 'M' | 'm')) => (&text[..i], 1u64 << 20),
        Some((i, 'G' | 'g')) => (&text[..i], 1 << 30),
        _ => return Err("give a number with M or G, for example 64M".into()),
    };
    let n: u64 = number.parse().map_err(|_| "give a number with M or G, for example 64M".to_owned())?;
    n.checked_mul(unit).ok_or_else(|| "that is more than there is".into())
}

fn parse_records(text: &str) -> Result<u32, String> {
    let n: u32 = text.parse().map_err(|_| "not a number".to_owned())?;
    if n.is_power_of_two() && (MIN_RECORDS..=MAX_RECORDS).contains(&n) {
        Ok(n)
    } else {
        Err(format!("choose a power of two from {MIN_RECORDS} to {MAX_RECORDS}"))
    }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if s.is_finite() && s > 0.0 && s <= 1e9 => Ok(s),
        _ => Err("choose a number above 0".into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("64M").unwrap(), 64 << 20);
        assert_eq!(parse_size("1g").unwrap(), 1 << 30);
        for bad in ["", "M", "64", "64K", "-1M", "99999999999999G", "1.5G", "é"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn run_is_the_default() {
        let cli = Cli::try_parse_from(["exotrace", "--cpus", "4"]).unwrap();
        assert!(cli.command.is_none());
        assert_eq!(cli.run.cpus, 4);
        assert!(Cli::try_parse_from(["exotrace", "--cpus", "17"]).is_err());
        assert!(Cli::try_parse_from(["exotrace", "run", "--ring", "1000"]).is_err());
        assert!(Cli::try_parse_from(["exotrace", "run", "--seconds", "NaN"]).is_err());
    }
}
