//! COM1, a 16550 by vm-superio, with bounded buffers on both sides.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use vm_superio::serial::NoEvents;
use vm_superio::{Serial, Trigger};

use crate::lock;

/// Bytes of output that are kept.
pub(crate) const CONSOLE_BYTES: usize = 64 << 10;
/// Bytes typed ahead that are kept until the guest reads them.
const INPUT_BYTES: usize = 64 << 10;

/// The 16550's interrupt line: remembers that it was pulled.
struct Irq(Arc<AtomicBool>);

impl Trigger for Irq {
    type E = Infallible;
    fn trigger(&self) -> Result<(), Infallible> {
        self.0.store(true, Ordering::Relaxed);
        Ok(())
    }
}

struct State {
    uart: Serial<Irq, NoEvents, Vec<u8>>,
    irq: Arc<AtomicBool>,
    /// Input that does not fit into the 16550's FIFO yet.
    input: VecDeque<u8>,
    /// The latest output.
    output: VecDeque<u8>,
    /// Bytes of output ever.
    total: u64,
}

/// What an access brought about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect {
    /// The interrupt line was pulled.
    pub(crate) irq: bool,
    /// There is new output.
    pub(crate) output: bool,
}

/// COM1 and what was written to it.
pub(crate) struct SerialPort(Mutex<State>);

impl SerialPort {
    pub(crate) fn new() -> SerialPort {
        let irq = Arc::new(AtomicBool::new(false));
        SerialPort(Mutex::new(State {
            uart: Serial::new(Irq(Arc::clone(&irq)), Vec::new()),
            irq,
            input: VecDeque::new(),
            output: VecDeque::new(),
            total: 0,
        }))
    }

    /// The guest writes bytes to a register.
    pub(crate) fn write(&self, register: u8, data: &[u8]) -> Effect {
        let mut s = lock(&self.0);
        for b in data {
            // The writer is a buffer and the trigger a flag: neither fails.
            let _ = s.uart.write(register, *b);
        }
        let new = std::mem::take(s.uart.writer_mut());
        s.keep(&new);
        Effect { irq: s.irq.swap(false, Ordering::Relaxed), output: !new.is_empty() }
    }

    /// Output that came another way joins that of the serial port.
    pub(crate) fn add_output(&self, bytes: &[u8]) -> Effect {
        lock(&self.0).keep(bytes);
        Effect { irq: false, output: !bytes.is_empty() }
    }

    /// The guest reads a register, once for each byte of `buf`.
    pub(crate) fn read(&self, register: u8, buf: &mut [u8]) -> Effect {
        let mut s = lock(&self.0);
        for b in buf {
            *b = s.uart.read(register);
        }
        s.feed();
        Effect { irq: s.irq.swap(false, Ordering::Relaxed), output: false }
    }

    /// Somebody types. Returns how many bytes were taken: input that nobody reads is bounded.
    pub(crate) fn type_in(&self, bytes: &[u8]) -> (usize, Effect) {
        let mut s = lock(&self.0);
        let room = INPUT_BYTES - s.input.len();
        let taken = room.min(bytes.len());
        s.input.extend(&bytes[..taken]);
        s.feed();
        (taken, Effect { irq: s.irq.swap(false, Ordering::Relaxed), output: false })
    }

    /// Output from byte `from` on (counted over all output ever), as far as it is kept, and the number of the byte
    /// that comes next.
    pub(crate) fn output_since(&self, from: u64) -> (u64, Vec<u8>) {
        let s = lock(&self.0);
        let oldest = s.total - s.output.len() as u64;
        // Below the length of the buffer, which is small.
        let skip = from.clamp(oldest, s.total) - oldest;
        (s.total, s.output.iter().skip(skip as usize).copied().collect())
    }
}

impl State {
    fn keep(&mut self, new: &[u8]) {
        self.total += new.len() as u64;
        self.output.extend(new);
        let excess = self.output.len().saturating_sub(CONSOLE_BYTES);
        self.output.drain(..excess);
    }

    /// Moves input into the FIFO as far as there is room.
    fn feed(&mut self) {
        let n = self.uart.fifo_capacity().min(self.input.len());
        if n == 0 {
            return;
        }
        let bytes: Vec<u8> = self.input.iter().take(n).copied().collect();
        // In loop-back mode the 16550 takes nothing.
        let taken = self.uart.enqueue_raw_bytes(&bytes).unwrap_or(0);
        self.input.drain(..taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_bounded_and_counted() {
        let s = SerialPort::new();
        assert_eq!(s.write(0, b"hello"), Effect { irq: false, output: true });
        assert_eq!(s.output_since(0), (5, b"hello".to_vec()));
        assert_eq!(s.output_since(3), (5, b"lo".to_vec()));
        assert_eq!(s.output_since(99), (5, vec![]));
        s.write(0, &vec![b'x'; CONSOLE_BYTES]);
        let (total, kept) = s.output_since(0);
        assert_eq!((total, kept.len(), kept[0]), (5 + CONSOLE_BYTES as u64, CONSOLE_BYTES, b'x'));
    }

    #[test]
    fn input_is_fed_in_order_with_interrupts() {
        let s = SerialPort::new();
        s.write(1, &[1]);
        let text: Vec<u8> = (0..200).collect();
        let (taken, effect) = s.type_in(&text);
        assert_eq!((taken, effect.irq), (200, true));
        let mut got = Vec::new();
        let mut irqs = 0;
        let mut b = [0];
        loop {
            s.read(5, &mut b);
            if b[0] & 1 == 0 {
                break;
            }
            irqs += u32::from(s.read(0, &mut b).irq);
            got.push(b[0]);
        }
        assert_eq!(got, text);
        assert!(irqs > 0, "bytes behind the FIFO came without an interrupt");
    }

    #[test]
    fn input_is_bounded() {
        let s = SerialPort::new();
        let (taken, _) = s.type_in(&vec![0; 2 * INPUT_BYTES]);
        assert_eq!(taken, INPUT_BYTES);
        assert_eq!(s.type_in(&[0; 100]).0, 64, "what the FIFO took made room");
        assert_eq!(s.type_in(&[0]).0, 0);
    }
}
