//! Reports, literally.
#![allow(clippy::unwrap_used)]

use std::io::{self, Cursor, Write};

use super::*;
use crate::clock::Clock;
use crate::file::{EventKind, LossReason, Meta, Pause, Site, Symbol, TraceWriter, VcpuTotals};
use crate::ids::{Gva, SiteId, Tsc};
use crate::ring::layout::RawRecord;

const TEXT: u64 = 0xffff_ffff_8100_0000;

fn rec(tsc: u64, ip: u64, parent: u64) -> RawRecord {
    RawRecord { tsc, parent, meta: 1, ip: ip as u32, ..RawRecord::default() }
}

/// A trace with something of everything; `end` closes it.
fn sample(end: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let meta = Meta {
        kernel_image: "embedded.elf".into(),
        kernel_crc32: 0xabc,
        cmdline: "seed=1 workload=\u{1b}[31mred".into(),
        vcpus: 2,
        policy: "drop".into(),
        host: "KVM on SVM".into(),
        ..Meta::default()
    };
    let mut w = TraceWriter::new(&mut out, "sample", &meta).unwrap();
    let clock = Clock::new(1_000_000_000, Tsc(1_000_000), 1_700_000_000_000_000_005, 77_000_000_000).unwrap();
    w.write_clock(&clock).unwrap();
    let names = ["vfs_read", "vfs_write", "ksys_read", "ksys_write"];
    let symbol = |(n, name): (u64, _)| Symbol { addr: Gva(TEXT + n * 0x100), size: 0x80, name };
    w.write_symbols((0..).zip(names).map(symbol)).unwrap();
    let site = |(n, function)| Site { id: SiteId(n), addr: Gva(TEXT + 4 + u64::from(n) * 0x100), function };
    w.write_sites((0..).zip(names).map(site)).unwrap();
    let (read, write) = (TEXT + 9, TEXT + 0x109);
    let pause = Pause { kick_ns: 40_000, work_ns: 900, resume_ns: 9_100 };
    w.write_event(&Event { tsc: Tsc(1_000_000), kind: EventKind::Switched { on: 4, off: 0, active: 4, pause } })
        .unwrap();
    w.write_event(&Event { tsc: Tsc(1_000_300), kind: EventKind::Mark { mark: 2 } }).unwrap();
    w.write_event(&Event { tsc: Tsc(u64::MAX), kind: EventKind::Ended { how: "power off".into() } }).unwrap();
    let cpu0 = [
        rec(999_900, read, TEXT + 0x252),
        rec(1_000_100, read, TEXT + 0x252),
        rec(1_000_400, write, TEXT + 0x380),
        rec(1_000_350, write, TEXT + 0x52),
    ];
    w.write_records(VcpuId(0), 64, &cpu0).unwrap();
    let odd = RawRecord { meta: 9, ..rec(12_346_678_901, read, 0) };
    w.write_records(VcpuId(1), 64, &[rec(1_000_200, 0x8100_0f05, 0x1234), rec(1_000_500, 0x8100_0015, 0), odd])
        .unwrap();
    w.write_loss(&Loss { vcpu: VcpuId(1), reason: LossReason::Dropped, count: 123, before_index: 65 }).unwrap();
    if end {
        let totals = |n, delivered, lost, pending| VcpuTotals {
            vcpu: VcpuId(n),
            delivered,
            lost,
            pending,
            ..VcpuTotals::default()
        };
        w.finish(&[totals(0, 4, 0, 0), totals(1, 4, 124, 1)]).unwrap();
    } else {
        drop(w);
    }
    out
}

fn open(bytes: &[u8]) -> TraceReader<Cursor<&[u8]>> {
    TraceReader::new(Cursor::new(bytes)).unwrap()
}

fn as_text(bytes: &[u8], selection: &Selection, options: TextOptions) -> String {
    let mut out = Vec::new();
    text(&mut open(bytes), selection, options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn the_whole_report() {
    let got = as_text(&sample(true), &Selection::default(), TextOptions::default());
    let want = "\
# tracer: function
#
# entries-in-buffer/entries-written: 7/130   #P:2
#
# kernel: embedded.elf (crc32 00000abc)
# command line: seed=1 workload=\u{fffd}[31mred
# host: KVM on SVM
# full rings: drop
# time: seconds since the trace began, at Unix time 1700000000.000000005
#
#           TASK-PID     CPU#     TIMESTAMP  FUNCTION
#              | |         |         |         |
           <...>-0       [000]     -0.000000100: vfs_read <-ksys_read
#     0.000000000: switched 4 on, 0 off, 4 traced now; the guest stood for 50 us
           <...>-0       [000]      0.000000100: vfs_read <-ksys_read
           <...>-0       [001]      0.000000200: 0xffffffff81000f00 <-0x1234
#     0.000000300: mark 2
           <...>-0       [000]      0.000000400: vfs_write <-ksys_write
           <...>-0       [000]      0.000000350: vfs_write <-vfs_read
# CPU:1 [LOST 123 EVENTS] dropped: the ring was full
           <...>-0       [001]      0.000000500: vfs_read+0x10 <-0x0
# CPU:1 record 66 is of kind 9, which this version does not know
# 9223372036.854775807: the guest ended: power off
# CPU:0 4 records, 0 lost, 1 time inversions
# CPU:1 3 records, 123 lost, 0 time inversions
# CPU:1 1 slots were reserved but not completed at the end
# CPU:1 DIFFERS: the writer counted 4 records delivered, the file has 3
# CPU:1 DIFFERS: the writer counted 124 records lost, the file places 123
";
    assert_eq!(got, want);
}

#[test]
fn other_times_and_offsets() {
    let selection =
        || Selection { vcpus: Vcpus::NONE.with(VcpuId(0)), functions: Some(Box::new(|f| f == "vfs_write")) };
    let lines = |time| {
        let text = as_text(&sample(true), &selection(), TextOptions { time, parent_offsets: true });
        assert!(text.contains("# shown: 2 of 4 records\n"), "{text}");
        text.lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    // 0x380 is the first byte behind ksys_write: its call was the last instruction.
    assert_eq!(
        lines(TimeBase::Start),
        [
            "           <...>-0       [000]      0.000000400: vfs_write <-ksys_write+0x80",
            "           <...>-0       [000]      0.000000350: vfs_write <-vfs_read+0x52"
        ]
    );
    let first = |time| lines(time).swap_remove(0);
    assert!(first(TimeBase::Tsc).contains("[000]          1000400: vfs_write"), "{}", first(TimeBase::Tsc));
    assert!(first(TimeBase::HostMonotonic).contains("[000]     77.000000400: "));
    assert!(first(TimeBase::Wall).contains("[000]  1700000000.000000405: "));
}

#[test]
fn an_unclosed_trace_says_so_before_the_first_record() {
    let bytes = sample(false);
    let head = |bytes: &[u8]| {
        let text = as_text(bytes, &Selection::default(), TextOptions::default());
        text[..text.find("TASK-PID").unwrap()].to_owned()
    };
    assert!(head(&bytes).contains("# INCOMPLETE: the trace was not closed (its writer"));
    let cut = head(&bytes[..bytes.len() - 1]);
    assert!(cut.contains("# INCOMPLETE: the trace was not closed cleanly; it is readable up to byte "), "{cut}");
    let mut holed = bytes.clone();
    holed.extend_from_slice(&[0; 64]);
    assert!(head(&holed).contains(&format!("# DAMAGED: the file is readable up to byte {}", bytes.len())));
    assert!(!head(&sample(true)).contains("INCOMPLETE"));
}

#[test]
fn a_damaged_block_shows_as_loss() {
    let mut bytes = sample(true);
    // The stamp of vCPU 0's first record.
    let at = bytes.windows(8).position(|w| w == 999_900_u64.to_le_bytes()).unwrap();
    bytes[at] ^= 1;
    let text = as_text(&bytes, &Selection::default(), TextOptions::default());
    assert!(text.contains("# CPU:0 [LOST 4 EVENTS] damaged in the trace file\n"), "{text}");
    assert!(text.contains("# CPU:0 DIFFERS: the writer counted 4 records delivered, the file has 0\n"), "{text}");
}

#[test]
fn the_profile() {
    let mut out = Vec::new();
    profile(&mut open(&sample(true)), &Selection::default(), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let body: Vec<_> = text.lines().skip_while(|l| !l.contains("SHARE")).collect();
    assert_eq!(
        body,
        [
            "#      COUNT   SHARE  FUNCTION",
            "           2  28.57%  vfs_read",
            "           2  28.57%  vfs_write",
            "           1  14.29%  0xffffffff81000f00",
            "           1  14.29%  vfs_read+0x10",
            "# 1 records of kinds that this version does not know",
            "# CPU:0 4 records, 0 lost, 1 time inversions",
            "# CPU:1 3 records, 123 lost, 0 time inversions",
            "# CPU:1 1 slots were reserved but not completed at the end",
            "# CPU:1 DIFFERS: the writer counted 4 records delivered, the file has 3",
            "# CPU:1 DIFFERS: the writer counted 124 records lost, the file places 123",
        ]
    );
}

/// An output that fails with this.
struct Fails(io::ErrorKind);

impl Write for Fails {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(self.0.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_closed_pipe_is_no_error_but_a_full_disk_is() {
    let bytes = sample(true);
    let run = |kind| text(&mut open(&bytes), &Selection::default(), TextOptions::default(), Fails(kind));
    assert!(run(io::ErrorKind::BrokenPipe).unwrap().cut_short);
    assert!(matches!(run(io::ErrorKind::StorageFull), Err(ReportError::Write(_))));
}

#[test]
fn a_trace_without_a_clock_shows_cycles() {
    let mut out = Vec::new();
    let mut w = TraceWriter::new(&mut out, "no clock", &Meta::default()).unwrap();
    w.write_records(VcpuId(2), 64, &[rec(5, 0x105, 0x200)]).unwrap();
    w.finish(&[]).unwrap();
    let text = as_text(&out, &Selection::default(), TextOptions::default());
    assert!(text.contains("# time: TSC cycles (the file has no clock)\n"), "{text}");
    assert!(text.contains("#P:3\n") && text.contains("[002]                5: 0x100 <-0x200\n"), "{text}");
}
