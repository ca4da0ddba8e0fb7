//! The console `hvc0`: one port, no size. What the guest writes joins the serial port's output.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use virtio_bindings::virtio_ids::VIRTIO_ID_CONSOLE;
use virtio_queue::{Queue, QueueT, Reader, Writer};

use super::{Device, Memory};
use crate::devices::serial::CONSOLE_BYTES;
use crate::lock;

const QUEUES: [u16; 2] = [64, 64];
/// To the guest.
const RECEIVE: usize = 0;
/// From the guest.
const TRANSMIT: usize = 1;
/// Bytes typed ahead that are kept until the guest reads them.
const INPUT_BYTES: usize = 64 << 10;

/// What was typed and not read, shared with whoever types.
#[derive(Clone, Debug, Default)]
pub(crate) struct Input(Arc<Mutex<VecDeque<u8>>>);

impl Input {
    /// Takes as many bytes as there is room for; the result is how many.
    pub(crate) fn push(&self, bytes: &[u8]) -> usize {
        let mut input = lock(&self.0);
        let taken = (INPUT_BYTES - input.len()).min(bytes.len());
        input.extend(&bytes[..taken]);
        taken
    }
}

/// What the guest wrote and nobody has taken yet, at most the last [`CONSOLE_BYTES`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Output(Arc<Mutex<Vec<u8>>>);

impl Output {
    pub(crate) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut lock(&self.0))
    }

    fn put(&self, bytes: &[u8]) {
        let mut output = lock(&self.0);
        output.extend(bytes);
        let excess = output.len().saturating_sub(CONSOLE_BYTES);
        output.drain(..excess);
    }
}

/// The device.
pub(crate) struct Console {
    input: Input,
    output: Output,
}

impl Console {
    pub(crate) fn new(input: Input, output: Output) -> Console {
        Console { input, output }
    }

    fn transmit(&mut self, queue: &mut Queue, memory: &Memory) -> bool {
        let mut worked = false;
        let mut buffer = vec![0; CONSOLE_BYTES];
        while let Some(chain) = queue.pop_descriptor_chain(memory) {
            let head = chain.head_index();
            if let Ok(mut from) = Reader::new(memory, chain) {
                // More than the console keeps in one go is nothing that a console is for.
                let n = from.read(&mut buffer).unwrap_or(0);
                self.output.put(&buffer[..n]);
            }
            if queue.add_used(memory, head, 0).is_err() {
                break;
            }
            worked = true;
        }
        worked
    }

    fn receive(&mut self, queue: &mut Queue, memory: &Memory) -> bool {
        let mut input = lock(&self.input.0);
        let mut worked = false;
        while !input.is_empty() {
            let Some(chain) = queue.pop_descriptor_chain(memory) else { break };
            let head = chain.head_index();
            let given = Writer::new(memory, chain).map_or(0, |mut to| to.write(input.make_contiguous()).unwrap_or(0));
            input.drain(..given);
            if queue.add_used(memory, head, given as u32).is_err() {
                break;
            }
            worked = true;
        }
        worked
    }
}

impl Device for Console {
    fn id(&self) -> u32 {
        VIRTIO_ID_CONSOLE
    }

    fn queues(&self) -> &[u16] {
        &QUEUES
    }

    fn work(&mut self, queues: &mut [Queue], memory: &Memory) -> bool {
        let mut worked = false;
        if let Some(queue) = queues.get_mut(TRANSMIT).filter(|q| q.ready()) {
            worked |= self.transmit(queue, memory);
        }
        if let Some(queue) = queues.get_mut(RECEIVE).filter(|q| q.ready()) {
            worked |= self.receive(queue, memory);
        }
        worked
    }
}
