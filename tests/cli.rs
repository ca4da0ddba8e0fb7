//! The program as its users meet it: exit codes, messages, files.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use exotrace_trace::file::{Ending, TraceReader};
use exotrace_trace::ids::VcpuId;

fn exotrace(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_exotrace")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Fails as it should: that code, a message on stderr with these words, at most a few lines, no backtrace.
fn refused(args: &[&str], code: i32, words: &[&str]) {
    let out = exotrace(args);
    let err = text(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{args:?}: {err}");
    for w in words {
        assert!(err.contains(w), "{args:?}: no {w:?} in {err}");
    }
    assert!(err.lines().count() <= 12, "{err}");
    assert!(!err.contains("panicked") && !err.contains("backtrace"), "{err}");
}

#[test]
fn a_headless_run_writes_a_trace_that_report_prints() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.exo");
    let path = file.to_str().unwrap();
    let out = exotrace(&["run", "--headless", "--seconds", "2", "--trace", "*", "-o", path]);
    let err = text(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{err}");
    assert!(err.contains("records"), "{err}");
    assert!(!out.stdout.is_empty(), "the guest's console is missing");

    let report = exotrace(&["report", path]);
    assert_eq!(report.status.code(), Some(0), "{}", text(&report.stderr));
    let lines = text(&report.stdout);
    assert!(lines.starts_with("# tracer: function"), "{}", &lines[..200]);
    let records = lines.lines().filter(|l| !l.starts_with('#')).count() as u64;
    let reader = TraceReader::open(&file).unwrap();
    assert_eq!(reader.trace().ending(), Ending::Clean);
    let total: u64 = (0..2).map(|v| reader.trace().records(VcpuId(v))).sum();
    assert_eq!(records, total);
    assert!(records > 1000, "{records}");
    assert!(lines.lines().filter(|l| !l.starts_with('#')).take(1000).all(|l| l.contains(" <-")));

    let profile = exotrace(&["report", "--summary", path]);
    assert_eq!(profile.status.code(), Some(0));
    let filtered = exotrace(&["report", "--filter", "vfs_*", "--cpu", "1", path]);
    let filtered = text(&filtered.stdout);
    assert!(filtered.lines().filter(|l| !l.starts_with('#')).all(|l| l.contains("[001]") && l.contains(": vfs_")));
    refused(&["report", "--cpu", "7", path], 1, &["no vCPU 7"]);
    refused(&["report", "--filter", "a[", path], 1, &["--filter", "^"]);

    // A reader that goes away is no error.
    let head = format!("{} report {path} | head -n 3", env!("CARGO_BIN_EXE_exotrace"));
    let piped = Command::new("bash").args(["-o", "pipefail", "-c", &head]).output().unwrap();
    assert_eq!(piped.status.code(), Some(0), "{}", text(&piped.stderr));
    assert_eq!(text(&piped.stdout).lines().count(), 3);
}

#[test]
fn a_guest_that_dies_says_how_and_leaves_its_last_records() {
    for (cmdline, code, words) in [
        ("workload=panic", 10, ["panicked", "the last"]),
        ("workload=hang", 11, ["hangs", "the last"]),
        ("workload=triplefault", 12, ["triple fault", "the last"]),
    ] {
        for policy in ["drop", "overwrite"] {
            let out = exotrace(&["run", "--headless", "--cmdline", cmdline, "--trace", "*", "--policy", policy]);
            let err = text(&out.stderr);
            assert_eq!(out.status.code(), Some(code), "{cmdline} {policy}: {err}");
            for w in words {
                assert!(err.contains(w), "{cmdline} {policy}: no {w:?} in {err}");
            }
            assert!(err.lines().filter(|l| l.contains(" <-")).count() >= 10, "{err}");
        }
    }
}

/// No terminal on stdout: headless by itself.
#[test]
fn without_a_terminal_it_is_headless() {
    let out = exotrace(&["--cmdline", "workload=syscall iters=5 threads=2", "--trace", "sys_*"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("selfcheck: ok"), "{}", text(&out.stdout));
}

#[test]
fn wrong_arguments_are_named() {
    refused(&["--cpus", "17"], 2, &["17", "1..=16"]);
    refused(&["run", "--mem", "lots"], 2, &["--mem", "64M"]);
    refused(&["run", "--ring", "1000"], 2, &["power of two"]);
    refused(&["run", "--policy", "maybe"], 2, &["drop", "overwrite", "block"]);
    refused(&["run", "--seconds", "-1"], 2, &["--seconds"]);
    refused(&["frobnicate"], 2, &["frobnicate"]);
    refused(&["run", "--headless", "--mem", "1G"], 1, &["512"]);
    refused(&["run", "--headless", "--trace", "vfs_reed"], 1, &["vfs_reed", "vfs_read"]);
    refused(&["run", "--headless", "--trace", "a["], 1, &["^"]);
    let long = "x".repeat(2000);
    refused(&["run", "--headless", "--cmdline", &long], 1, &["command line", "1023"]);
}

#[test]
fn bad_images_and_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let image = exotrace_guest::IMAGE;
    std::fs::write(path("short"), &image[..image.len() / 2]).unwrap();
    std::fs::write(path("tiny"), &image[..40]).unwrap();
    std::fs::write(path("empty"), b"").unwrap();
    std::fs::write(path("text"), b"this is not a kernel").unwrap();
    let run = |kernel: &str, words: &[&str]| {
        let kernel = path(kernel);
        refused(&["run", "--headless", "--kernel", &kernel], 1, &[&[kernel.as_str()], words].concat());
    };
    run("missing", &["No such file"]);
    run("short", &[]);
    run("tiny", &[]);
    run("empty", &[]);
    run("text", &[]);
    refused(&["run", "--headless", "--kernel", dir.path().to_str().unwrap()], 1, &["not a file"]);

    refused(&["report", &path("missing")], 1, &["missing", "No such file"]);
    refused(&["report", &path("text")], 1, &["text"]);
    refused(&["report", &path("empty")], 1, &["empty"]);
    refused(&["report", dir.path().to_str().unwrap()], 1, &[]);

    // Where nothing can be created, nothing is, and no guest runs.
    let nowhere = path("no/such/dir/out.exo");
    refused(&["run", "--headless", "--seconds", "1", "--trace", "*", "-o", &nowhere], 1, &["no/such/dir/out.exo"]);
    refused(&["run", "--headless", "--trace", "*", "-o", dir.path().to_str().unwrap()], 1, &[]);
    assert!(!Path::new(&path("no")).exists());
    // A wrong filter must not cost an existing trace.
    std::fs::write(path("kept.exo"), b"precious").unwrap();
    refused(&["run", "--headless", "--trace", "vfs_reed", "-o", &path("kept.exo")], 1, &["vfs_reed"]);
    assert_eq!(std::fs::read(path("kept.exo")).unwrap(), b"precious");
}

/// A full disk: the error names it, the file is readable up to its last whole block.
#[test]
fn a_full_disk_ends_the_run_and_leaves_a_readable_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("full.exo");
    // A limit on the size of files stands for a small disk: 2 MiB.
    let script = format!(
        "ulimit -f 2048; exec {} run --headless --seconds 60 --trace '*' -o {}",
        env!("CARGO_BIN_EXE_exotrace"),
        file.display()
    );
    let out = Command::new("bash").args(["-c", &script]).stdin(Stdio::null()).output().unwrap();
    let err = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{err}");
    assert!(err.contains("full.exo"), "{err}");
    let mut reader = TraceReader::open(&file).unwrap();
    assert_eq!(reader.trace().ending(), Ending::NotClosed);
    let records = reader.trace().records(VcpuId(0));
    assert!(records > 1000, "{records}");
    let mut merge = reader.merge(exotrace_trace::file::Vcpus::ALL);
    while merge.next().unwrap().is_some() {}
}

/// After kill -9 the file holds what was flushed: at most the last second is missing.
#[test]
fn a_killed_run_leaves_a_readable_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("killed.exo");
    let mut child = Command::new(env!("CARGO_BIN_EXE_exotrace"))
        .args(["run", "--headless", "--seconds", "60", "--trace", "*", "-o", file.to_str().unwrap()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while std::fs::metadata(&file).map_or(0, |m| m.len()) < 1 << 20 {
        assert!(Instant::now() < until, "the file does not grow");
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let report = exotrace(&["report", file.to_str().unwrap()]);
    assert_eq!(report.status.code(), Some(0), "{}", text(&report.stderr));
    let lines = text(&report.stdout);
    assert!(lines.lines().filter(|l| !l.starts_with('#')).count() > 1000);
    assert!(lines.contains("not closed"), "the report does not say that the trace was cut off");
}

#[test]
fn doctor_says_what_works_here() {
    let out = exotrace(&["doctor"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stdout));
    assert!(text(&out.stdout).contains("/dev/kvm"));
}
