//! What the text reports have in common: an output buffer, numbers, and the comment lines on the trace as a whole.

use std::io::{self, Write};

use super::Summary;
use crate::clock::NS_PER_SEC;
use crate::file::{Damage, Ending, Trace, printable};
use crate::ids::VcpuId;

/// The buffer goes out when it holds this much.
const BUFFER_BYTES: usize = 256 << 10;

/// Lines on their way to the output.
pub(super) struct Lines<W> {
    out: W,
    pub buf: Vec<u8>,
}

impl<W: Write> Lines<W> {
    pub fn new(out: W) -> Lines<W> {
        Lines { out, buf: Vec::with_capacity(BUFFER_BYTES + 4096) }
    }

    /// Adds formatted text and ends the line.
    pub fn line(&mut self, text: std::fmt::Arguments<'_>) {
        self.buf.write_fmt(text).expect("a Vec takes everything");
        self.buf.push(b'\n');
    }

    /// Called after each line or group of lines: writes when enough is there.
    pub fn pass_on(&mut self) -> io::Result<()> {
        if self.buf.len() < BUFFER_BYTES {
            return Ok(());
        }
        let written = self.out.write_all(&self.buf);
        self.buf.clear();
        written
    }

    pub fn flush(&mut self) -> io::Result<()> {
        let written = self.out.write_all(&self.buf);
        self.buf.clear();
        written.and_then(|()| self.out.flush())
    }
}

/// Appends a number, right-aligned in `width` with `fill` before it.
pub(super) fn put_number(buf: &mut Vec<u8>, mut value: u64, width: usize, fill: u8) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    let digits = &digits[at..];
    buf.resize(buf.len() + width.saturating_sub(digits.len()), fill);
    buf.extend_from_slice(digits);
}

/// Appends nanoseconds as `%5lu.%09lu` seconds; with a sign before them if negative.
pub(super) fn put_seconds(buf: &mut Vec<u8>, ns: u64, negative: bool) {
    if negative {
        let start = buf.len();
        put_number(buf, ns / NS_PER_SEC, 5, b' ');
        match buf[start..].iter().rposition(|&b| b == b' ') {
            Some(at) => buf[start + at] = b'-',
            None => buf.insert(start, b'-'),
        }
    } else {
        put_number(buf, ns / NS_PER_SEC, 5, b' ');
    }
    buf.push(b'.');
    put_number(buf, ns % NS_PER_SEC, 9, b'0');
}

/// Appends what is known of an `ip` that belongs to no site: `name+0xoff`, or a bare address.
pub(super) fn put_unknown(buf: &mut Vec<u8>, trace: &Trace, ip: u32) {
    let addr = trace.sites().guess_address(ip);
    match trace.symbols().at(addr) {
        Some(symbol) => write!(buf, "{}+{:#x}", symbol.name, addr.0 - symbol.addr.0),
        None => write!(buf, "{addr}"),
    }
    .expect("a Vec takes everything");
}

/// The first lines of every report: ftrace's own two, then what this trace is.
pub(super) fn head<W: Write>(out: &mut Lines<W>, trace: &Trace, tracer: &str) {
    let cpus = || (0..trace.vcpus()).map(VcpuId);
    let records: u64 = cpus().map(|v| trace.records(v)).sum();
    let lost = cpus().fold(0_u64, |sum, v| sum.saturating_add(trace.lost(v)));
    out.line(format_args!("# tracer: {tracer}"));
    out.line(format_args!("#"));
    out.line(format_args!(
        "# entries-in-buffer/entries-written: {records}/{}   #P:{}",
        records.saturating_add(lost),
        trace.vcpus()
    ));
    out.line(format_args!("#"));
    let m = trace.meta();
    if !m.kernel_image.is_empty() {
        out.line(format_args!("# kernel: {} (crc32 {:08x})", printable(&m.kernel_image), m.kernel_crc32));
    }
    if !m.cmdline.is_empty() {
        out.line(format_args!("# command line: {}", printable(&m.cmdline)));
    }
    if !m.host.is_empty() {
        out.line(format_args!("# host: {}", printable(&m.host)));
    }
    if !m.policy.is_empty() {
        out.line(format_args!("# full rings: {}", printable(&m.policy)));
    }
    status(out, trace);
}

/// What a reader must know before believing the rest: how the file ends, and damage. Nothing if all is well.
fn status<W: Write>(out: &mut Lines<W>, trace: &Trace) {
    match trace.ending() {
        Ending::Clean => {}
        Ending::NotClosed => out
            .line(format_args!("# INCOMPLETE: the trace was not closed (its writer was killed, or is still writing)")),
        Ending::Truncated { at } => out.line(format_args!(
            "# INCOMPLETE: the trace was not closed cleanly; it is readable up to byte {at} of {}",
            trace.bytes()
        )),
        Ending::Damaged { at } => out.line(format_args!(
            "# DAMAGED: the file is readable up to byte {at} of {}; what follows is lost",
            trace.bytes()
        )),
    }
    let Damage { bad_checks, malformed, overlapping, unknown, ignored_events } = trace.damage();
    let mut note = |count: u64, text: &str| {
        if count > 0 {
            out.line(format_args!("# {count} {text}"));
        }
    };
    note(bad_checks, "damaged blocks left out (their checksum is wrong)");
    note(malformed, "malformed blocks left out (they break the rules of the format)");
    note(overlapping, "blocks of records overlap the ones before");
    note(unknown, "blocks of types that this version does not know left out");
    note(ignored_events, "events left out (too many)");
}

/// The last lines of every report: what was read per vCPU, and where it differs from what the writer counted.
pub(super) fn tail<W: Write>(out: &mut Lines<W>, trace: &Trace, summary: &Summary) {
    let read: u64 = summary.vcpus.iter().map(|(_, t)| t.records).sum();
    if summary.shown != read {
        out.line(format_args!("# shown: {} of {read} records", summary.shown));
    }
    for &(vcpu, tally) in &summary.vcpus {
        out.line(format_args!(
            "# CPU:{vcpu} {} records, {} lost, {} time inversions",
            tally.records, tally.lost, tally.inverted
        ));
        let Some(t) = trace.totals().and_then(|t| t.iter().find(|t| t.vcpu == vcpu)) else { continue };
        if t.pending > 0 {
            out.line(format_args!("# CPU:{vcpu} {} slots were reserved but not completed at the end", t.pending));
        }
        let counted = t.lost.saturating_add(t.corrupt);
        if t.delivered != tally.records {
            out.line(format_args!(
                "# CPU:{vcpu} DIFFERS: the writer counted {} records delivered, the file has {}",
                t.delivered, tally.records
            ));
        }
        if counted > tally.lost {
            out.line(format_args!(
                "# CPU:{vcpu} DIFFERS: the writer counted {counted} records lost, the file places {}",
                tally.lost
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(ns: u64, negative: bool) -> String {
        let mut buf = Vec::new();
        put_seconds(&mut buf, ns, negative);
        String::from_utf8_lossy(&buf).into_owned()
    }

    #[test]
    fn seconds_have_their_columns() {
        assert_eq!(seconds(12_345_678_901, false), "   12.345678901");
        assert_eq!(seconds(12_345_678_901, true), "  -12.345678901");
        assert_eq!(seconds(7, true), "   -0.000000007");
        assert_eq!(seconds(99_999_000_000_001, true), "-99999.000000001");
    }

    proptest! {
        #[test]
        fn numbers_as_format_prints_them(v: u64, width in 0..24_usize) {
            let mut buf = b"x".to_vec();
            put_number(&mut buf, v, width, b' ');
            prop_assert_eq!(String::from_utf8_lossy(&buf), format!("x{v:width$}"));
        }
    }
}
