//! Disks that fill up, writers that die, places that can't be written to.
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::*;

/// Takes `room` bytes, in small bites, and then fails.
struct Tight {
    bytes: Vec<u8>,
    room: usize,
    cuttable: bool,
}

impl Write for Tight {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = buf.len().min(self.room - self.bytes.len()).min(100);
        if n == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(&buf[..n]);
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Destination for Tight {
    fn cut_back(&mut self, len: u64) -> io::Result<()> {
        if self.cuttable { self.bytes.cut_back(len) } else { Err(io::ErrorKind::Unsupported.into()) }
    }
}

/// Writes some blocks, flushing after each; the first error.
fn fill(dest: impl Destination) -> Result<(), WriteError> {
    let mut w = TraceWriter::new(dest, "tight.exo", &meta())?;
    for n in 0..4 {
        w.write_records(VcpuId(0), 64 + n * 10, &recs(0, 64 + n * 10, 10, n * 100))?;
        if let Err(first) = w.flush() {
            // Later calls fail at once, and say less.
            let again = w.write_records(VcpuId(0), 1, &recs(0, 1, 1, 1)).unwrap_err();
            assert!(matches!(again, WriteError::GivenUp { .. }), "{again}");
            assert!(matches!(w.flush(), Err(WriteError::GivenUp { .. })));
            assert!(matches!(w.finish(&[]), Err(WriteError::GivenUp { .. })));
            return Err(first);
        }
    }
    w.finish(&[]).map(|_| ())
}

#[test]
fn a_full_disk_at_any_byte_leaves_whole_blocks() {
    let mut whole = Tight { bytes: Vec::new(), room: usize::MAX, cuttable: true };
    fill(&mut whole).unwrap();
    let whole = whole.bytes;
    let mut lengths = std::collections::BTreeSet::new();
    for room in 0..whole.len() {
        let mut t = Tight { bytes: Vec::new(), room, cuttable: true };
        let error = fill(&mut t).unwrap_err();
        let WriteError::Write { kept, .. } = &error else { panic!("{error}") };
        assert_eq!(*kept, t.bytes.len() as u64, "room {room}");
        assert!(whole.starts_with(&t.bytes));
        assert!(error.to_string().contains("tight.exo") && error.to_string().contains("disk is full"), "{error}");
        if !t.bytes.is_empty() {
            let mut r = read(&t.bytes);
            assert_eq!(r.trace().ending(), Ending::NotClosed);
            assert_eq!(records(&items(&mut r)).len() % 10, 0);
        }
        lengths.insert(t.bytes.len());
    }
    // Nothing, the bare file header, Meta, and each of the four blocks of records.
    assert_eq!(lengths.len(), 1 + 1 + 1 + 4);
}

#[test]
fn what_cannot_be_cut_back_is_said() {
    let mut t = Tight { bytes: Vec::new(), room: 700, cuttable: false };
    let error = fill(&mut t).unwrap_err();
    assert!(matches!(error, WriteError::NotCut { kept, .. } if kept < 700), "{error}");
}

#[test]
fn a_device_that_is_full() {
    let error = TraceWriter::create(Path::new("/dev/full"), &meta()).err().unwrap();
    assert!(
        matches!(&error, WriteError::Create { source, .. } if source.kind() == io::ErrorKind::StorageFull),
        "{error}"
    );
    assert!(error.to_string().contains("/dev/full") && error.to_string().contains("disk is full"));
    assert!(Path::new("/dev/full").exists(), "it is not ours to remove");
}

/// The other half of `a_file_size_limit`: runs in a process of its own, under the limit.
#[test]
fn child_under_a_file_size_limit() {
    let Some(path) = std::env::var_os("EXOTRACE_TEST_LIMITED_FILE") else { return };
    let mut w = TraceWriter::create(Path::new(&path), &meta()).unwrap();
    let batch = recs(0, 64, 3000, 5);
    let error = (0..).find_map(|n| w.write_records(VcpuId(0), 64 + n * 3000, &batch).err()).unwrap();
    let WriteError::Write { kept, source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.kind(), io::ErrorKind::FileTooLarge);
    assert!(error.to_string().contains("ulimit -f"), "{error}");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), *kept);
    println!("limited: {error}: {source}");
}

#[test]
fn a_file_size_limit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("limited.exo");
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 5000; exec \"$0\" child_under_a_file_size_limit --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .env("EXOTRACE_TEST_LIMITED_FILE", &path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("limited: cannot write on"), "{text}");
    let mut r = TraceReader::open(&path).unwrap();
    assert_eq!(r.trace().ending(), Ending::NotClosed);
    let n = records(&items(&mut r)).len();
    assert!(n > 30_000 && n.is_multiple_of(3000), "{n} records in whole blocks");
}

#[test]
fn what_was_flushed_survives_a_killed_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("killed.exo");
    let mut w = TraceWriter::create(&path, &meta()).unwrap();
    w.write_records(VcpuId(0), 64, &recs(0, 64, 5, 1)).unwrap();
    w.flush().unwrap();
    w.write_records(VcpuId(0), 69, &recs(0, 69, 5, 6)).unwrap();
    // As kill -9 does: neither destructors nor buffers run.
    std::mem::forget(w);
    let mut r = TraceReader::open(&path).unwrap();
    assert_eq!(r.trace().ending(), Ending::NotClosed);
    assert_eq!(records(&items(&mut r)).len(), 5);
}

#[test]
fn a_dropped_writer_delivers_what_it_has() {
    let mut out = Vec::new();
    let mut w = TraceWriter::new(&mut out, "dropped", &meta()).unwrap();
    w.write_records(VcpuId(0), 64, &recs(0, 64, 5, 1)).unwrap();
    drop(w);
    let mut r = read(&out);
    assert_eq!((records(&items(&mut r)).len(), r.trace().ending()), (5, Ending::NotClosed));
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn files_are_private_and_replace_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.exo");
    TraceWriter::create(&path, &meta()).unwrap().finish(&[]).unwrap();
    assert_eq!(mode(&path), 0o600);
    let len = std::fs::metadata(&path).unwrap().len();
    std::fs::write(&path, vec![b'x'; 100_000]).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    let link = dir.path().join("link.exo");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    TraceWriter::create(&link, &meta()).unwrap().finish(&[]).unwrap();
    assert_eq!((mode(&path), std::fs::metadata(&path).unwrap().len()), (0o600, len));
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(TraceReader::open(&path).unwrap().trace().ending(), Ending::Clean);
}

#[test]
fn places_that_cannot_be_written_are_named_and_stay_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let create = |p: &Path| TraceWriter::create(p, &meta()).err().unwrap().to_string();
    let text = create(dir.path());
    assert!(text.contains("it is a directory") && text.contains(dir.path().to_str().unwrap()), "{text}");
    assert!(create(&dir.path().join("no/such.exo")).contains("does not exist"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was left behind");
    // Facts that don't fit are found before an existing file is emptied.
    let path = dir.path().join("precious.exo");
    std::fs::write(&path, "precious").unwrap();
    let long = Meta { cmdline: "x".repeat(70_000), ..meta() };
    assert!(matches!(TraceWriter::create(&path, &long), Err(WriteError::TooLong { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn callers_mistakes_are_errors() {
    let mut out = Vec::new();
    let mut w = TraceWriter::new(&mut out, "mistakes", &meta()).unwrap();
    assert!(matches!(w.write_records(VcpuId(16), 64, &recs(0, 64, 1, 1)), Err(WriteError::NoSuchVcpu { .. })));
    assert!(matches!(w.write_records(VcpuId(0), 1 << 56, &recs(0, 64, 1, 1)), Err(WriteError::NoSuchIndex { .. })));
    let loss = Loss { vcpu: VcpuId(200), reason: LossReason::Dropped, count: 1, before_index: 0 };
    assert!(matches!(w.write_loss(&loss), Err(WriteError::NoSuchVcpu { .. })));
    let event = Event { tsc: Tsc(0), kind: EventKind::Note { text: "x".repeat(70_000) } };
    assert!(matches!(w.write_event(&event), Err(WriteError::TooLong { .. })));
    // None of them spoils the file.
    w.finish(&[]).unwrap();
    assert_eq!(read(&out).trace().ending(), Ending::Clean);
}
