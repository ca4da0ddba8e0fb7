//! Random numbers, from the host's kernel.

use std::fs::File;
use std::io::{self, Read, Write};

use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;
use virtio_queue::{Queue, QueueT, Writer};

use super::{Device, Memory};

const QUEUE: [u16; 1] = [16];
/// Bytes given for one request; the guest asks again if it wants more.
const MOST: usize = 4096;

/// The device.
pub(crate) struct Rng {
    source: File,
}

impl Rng {
    pub(crate) fn new() -> io::Result<Rng> {
        Ok(Rng { source: File::open("/dev/urandom")? })
    }
}

impl Device for Rng {
    fn id(&self) -> u32 {
        VIRTIO_ID_RNG
    }

    fn queues(&self) -> &[u16] {
        &QUEUE
    }

    fn work(&mut self, queues: &mut [Queue], memory: &Memory) -> bool {
        let Some(queue) = queues.first_mut().filter(|q| q.ready()) else { return false };
        let mut worked = false;
        while let Some(chain) = queue.pop_descriptor_chain(memory) {
            let head = chain.head_index();
            let mut buffer = [0; MOST];
            let given = Writer::new(memory, chain).map_or(0, |mut to| {
                let wanted = to.available_bytes().min(MOST);
                match self.source.read_exact(&mut buffer[..wanted]) {
                    Ok(()) => to.write(&buffer[..wanted]).unwrap_or(0),
                    Err(_) => 0,
                }
            });
            if queue.add_used(memory, head, given as u32).is_err() {
                break;
            }
            worked = true;
        }
        worked
    }
}
