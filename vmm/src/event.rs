//! What happened in a VM, as a bounded stream.
//!
//! A guest can make marks as fast as it likes and nobody may be reading, so the stream is bounded: when it is full the
//! oldest event makes room, and is counted. The end of the guest is therefore never lost. Console output itself is not
//! in the stream, only the hint that there is some; the console keeps its own bounded buffer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use exotrace_patcher::control::GuestEnd;
use exotrace_trace::ids::VcpuId;

/// Events that wait for a reader at most.
const CAPACITY: usize = 4096;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmEvent {
    /// There is console output that nobody has read yet: see [`Vm::console_since`](crate::Vm::console_since). Not sent
    /// again before someone reads it.
    Console,
    /// The guest reached a phase of its workload.
    Mark {
        /// The vCPU that said so.
        vcpu: VcpuId,
        /// Which phase.
        value: u32,
    },
    /// A vCPU was started.
    CpuOnline(VcpuId),
    /// The guest ended. Every vCPU stands; memory stays readable. Sent once.
    Ended(GuestEnd),
}

/// Where events are put and taken.
#[derive(Debug)]
pub(crate) struct EventSink {
    tx: Sender<VmEvent>,
    rx: Receiver<VmEvent>,
    dropped: AtomicU64,
    /// Whether readers were told of console output since they last read it.
    hinted: AtomicBool,
}

impl EventSink {
    pub(crate) fn new() -> EventSink {
        EventSink::with_capacity(CAPACITY)
    }

    fn with_capacity(n: usize) -> EventSink {
        let (tx, rx) = bounded(n);
        EventSink { tx, rx, dropped: AtomicU64::new(0), hinted: AtomicBool::new(false) }
    }

    pub(crate) fn receiver(&self) -> Receiver<VmEvent> {
        self.rx.clone()
    }

    /// Events that made room for newer ones because nobody read.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Says that there is console output, unless that was said already.
    pub(crate) fn console_written(&self) {
        if !self.hinted.swap(true, Ordering::AcqRel) {
            self.send(VmEvent::Console);
        }
    }

    /// Someone is about to read the console's buffer: output from now on is news again.
    pub(crate) fn console_read(&self) {
        self.hinted.store(false, Ordering::Release);
    }

    /// Puts an event in; never blocks.
    pub(crate) fn send(&self, event: VmEvent) {
        let mut event = event;
        loop {
            event = match self.tx.try_send(event) {
                Ok(()) => return,
                // This sink owns both ends, so the stream is never disconnected while someone can send.
                Err(TrySendError::Disconnected(_)) => return,
                Err(TrySendError::Full(e)) => e,
            };
            // A reader may have been faster: then there is room, which is just as good.
            if let Ok(oldest) = self.rx.try_recv() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                if oldest == VmEvent::Console {
                    self.console_read();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_full_stream_drops_the_oldest_and_keeps_the_end() {
        let sink = EventSink::with_capacity(2);
        let mark = |v| VmEvent::Mark { vcpu: VcpuId(0), value: v };
        sink.send(mark(1));
        sink.send(mark(2));
        sink.send(VmEvent::Ended(GuestEnd::Panic));
        let rx = sink.receiver();
        assert_eq!(rx.try_recv().unwrap(), mark(2));
        assert_eq!(rx.try_recv().unwrap(), VmEvent::Ended(GuestEnd::Panic));
        assert!(rx.try_recv().is_err());
        assert_eq!(sink.dropped(), 1);
    }

    #[test]
    fn console_output_is_hinted_once_until_it_is_read() {
        let sink = EventSink::with_capacity(1);
        let rx = sink.receiver();
        sink.console_written();
        sink.console_written();
        assert_eq!(rx.try_iter().count(), 1);
        sink.console_read();
        sink.console_written();
        assert_eq!(rx.len(), 1);
        // The hint makes room for something else; output after that must be hinted again.
        sink.send(VmEvent::CpuOnline(VcpuId(0)));
        assert_eq!(rx.try_iter().collect::<Vec<_>>(), [VmEvent::CpuOnline(VcpuId(0))]);
        sink.console_written();
        assert_eq!(rx.try_iter().collect::<Vec<_>>(), [VmEvent::Console]);
    }
}
