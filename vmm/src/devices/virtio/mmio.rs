//! The registers of a virtio device (virtio 1.2, section 4.2: MMIO transport, version 2).

use std::sync::Mutex;

use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_DRIVER_OK, VIRTIO_CONFIG_S_FEATURES_OK, VIRTIO_CONFIG_S_NEEDS_RESET, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_mmio::*;
use virtio_queue::{Queue, QueueT};
use vmm_sys_util::eventfd::EventFd;

use super::Device;
use crate::lock;
use crate::memory::Ram;

/// "virt".
const MAGIC: u32 = 0x7472_6976;
/// Not a legacy device.
const VERSION: u32 = 2;
/// "EXOT": no vendor's number.
const VENDOR: u32 = 0x544f_5845;

/// A virtio device and its registers.
pub(crate) struct MmioDevice {
    state: Mutex<State>,
    irq: EventFd,
}

struct State {
    device: Box<dyn Device>,
    queues: Vec<Queue>,
    status: u32,
    features_select: u32,
    driver_features_select: u32,
    driver_features: u64,
    queue_select: u32,
    interrupts: u32,
}

impl MmioDevice {
    /// A device whose interrupt line is pulled by writing to `irq`. `None` if it asks for an impossible queue.
    pub(crate) fn new(device: Box<dyn Device>, irq: EventFd) -> Option<MmioDevice> {
        let queues = device.queues().iter().map(|n| Queue::new(*n).ok()).collect::<Option<_>>()?;
        let state = State {
            device,
            queues,
            status: 0,
            features_select: 0,
            driver_features_select: 0,
            driver_features: 0,
            queue_select: 0,
            interrupts: 0,
        };
        Some(MmioDevice { state: Mutex::new(state), irq })
    }

    /// The guest reads registers. What is no register reads as zero.
    pub(crate) fn read(&self, offset: u64, data: &mut [u8]) {
        let s = lock(&self.state);
        data.fill(0);
        if let Some(at) = offset.checked_sub(VIRTIO_MMIO_CONFIG.into()) {
            let config = usize::try_from(at).ok().and_then(|at| s.device.config().get(at..)).unwrap_or_default();
            for (to, from) in data.iter_mut().zip(config) {
                *to = *from;
            }
        } else if data.len() == 4 && offset.is_multiple_of(4) {
            data.copy_from_slice(&s.register(offset as u32).to_le_bytes());
        }
    }

    /// The guest writes a register; the device may go to work on the guest's memory.
    pub(crate) fn write(&self, offset: u64, data: &[u8], ram: &Ram) {
        // The configuration spaces of these devices have nothing to write to, and registers are 32 bits wide.
        let (Ok(offset), Ok(bytes)) = (u32::try_from(offset), <[u8; 4]>::try_from(data)) else { return };
        let mut s = lock(&self.state);
        if offset == VIRTIO_MMIO_QUEUE_NOTIFY {
            self.go_to_work(&mut s, ram);
        } else {
            s.set_register(offset, u32::from_le_bytes(bytes));
        }
    }

    /// There is something to do that the guest has not asked for. On a vCPU's thread only.
    pub(crate) fn poll(&self, ram: &Ram) {
        self.go_to_work(&mut lock(&self.state), ram);
    }

    fn go_to_work(&self, s: &mut State, ram: &Ram) {
        if s.status & VIRTIO_CONFIG_S_DRIVER_OK == 0 || s.status & VIRTIO_CONFIG_S_NEEDS_RESET != 0 {
            return;
        }
        let memory = ram.backend();
        if s.queues.iter().any(|q| q.ready() && !q.is_valid(memory)) {
            s.status |= VIRTIO_CONFIG_S_NEEDS_RESET;
            s.interrupts |= VIRTIO_MMIO_INT_CONFIG;
        } else if s.device.work(&mut s.queues, memory) {
            s.interrupts |= VIRTIO_MMIO_INT_VRING;
        } else {
            return;
        }
        // The descriptor's counter would have to reach 2^64 to refuse it.
        let _ = self.irq.write(1);
    }
}

impl State {
    fn queue(&mut self) -> Option<&mut Queue> {
        self.queues.get_mut(self.queue_select as usize)
    }

    fn offered(&self) -> u64 {
        self.device.features() | 1 << VIRTIO_F_VERSION_1
    }

    fn register(&self, offset: u32) -> u32 {
        let queue = self.queues.get(self.queue_select as usize);
        match offset {
            VIRTIO_MMIO_MAGIC_VALUE => MAGIC,
            VIRTIO_MMIO_VERSION => VERSION,
            VIRTIO_MMIO_DEVICE_ID => self.device.id(),
            VIRTIO_MMIO_VENDOR_ID => VENDOR,
            VIRTIO_MMIO_DEVICE_FEATURES => match self.features_select {
                0 => self.offered() as u32,
                1 => (self.offered() >> 32) as u32,
                _ => 0,
            },
            VIRTIO_MMIO_QUEUE_NUM_MAX => queue.map_or(0, |q| q.max_size().into()),
            VIRTIO_MMIO_QUEUE_READY => queue.map_or(0, |q| q.ready().into()),
            VIRTIO_MMIO_INTERRUPT_STATUS => self.interrupts,
            VIRTIO_MMIO_STATUS => self.status,
            // No shared memory: length -1.
            VIRTIO_MMIO_SHM_LEN_LOW | VIRTIO_MMIO_SHM_LEN_HIGH => u32::MAX,
            _ => 0,
        }
    }

    fn set_register(&mut self, offset: u32, value: u32) {
        let set_up = self.status & VIRTIO_CONFIG_S_DRIVER_OK == 0;
        match offset {
            VIRTIO_MMIO_DEVICE_FEATURES_SEL => self.features_select = value,
            VIRTIO_MMIO_DRIVER_FEATURES_SEL => self.driver_features_select = value,
            VIRTIO_MMIO_DRIVER_FEATURES => match self.driver_features_select {
                0 => self.driver_features = self.driver_features >> 32 << 32 | u64::from(value),
                1 => self.driver_features = self.driver_features & 0xffff_ffff | u64::from(value) << 32,
                _ => {}
            },
            VIRTIO_MMIO_QUEUE_SEL => self.queue_select = value,
            VIRTIO_MMIO_INTERRUPT_ACK => self.interrupts &= !value,
            VIRTIO_MMIO_STATUS => self.set_status(value),
            // A queue can't be moved while it is in use.
            _ if !set_up => {}
            _ => self.set_queue(offset, value),
        }
    }

    fn set_queue(&mut self, offset: u32, value: u32) {
        let Some(queue) = self.queue() else { return };
        match offset {
            VIRTIO_MMIO_QUEUE_NUM => queue.set_size(u16::try_from(value).unwrap_or(0)),
            VIRTIO_MMIO_QUEUE_READY => queue.set_ready(value == 1),
            VIRTIO_MMIO_QUEUE_DESC_LOW => queue.set_desc_table_address(Some(value), None),
            VIRTIO_MMIO_QUEUE_DESC_HIGH => queue.set_desc_table_address(None, Some(value)),
            VIRTIO_MMIO_QUEUE_AVAIL_LOW => queue.set_avail_ring_address(Some(value), None),
            VIRTIO_MMIO_QUEUE_AVAIL_HIGH => queue.set_avail_ring_address(None, Some(value)),
            VIRTIO_MMIO_QUEUE_USED_LOW => queue.set_used_ring_address(Some(value), None),
            VIRTIO_MMIO_QUEUE_USED_HIGH => queue.set_used_ring_address(None, Some(value)),
            _ => {}
        }
    }

    fn set_status(&mut self, value: u32) {
        if value == 0 {
            self.queues.iter_mut().for_each(Queue::reset);
            (self.status, self.interrupts, self.driver_features) = (0, 0, 0);
            return;
        }
        let new = value & !self.status;
        self.status |= value;
        // Features that were not offered, or no virtio 1: the driver sees that its choice was not taken.
        let wrong = self.driver_features & !self.offered() != 0 || self.driver_features >> VIRTIO_F_VERSION_1 & 1 == 0;
        if new & VIRTIO_CONFIG_S_FEATURES_OK != 0 && wrong {
            self.status &= !VIRTIO_CONFIG_S_FEATURES_OK;
        }
    }
}
