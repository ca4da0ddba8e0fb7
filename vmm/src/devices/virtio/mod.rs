//! Virtio devices over MMIO.
use crate::memory::Ram;
pub(crate) struct MmioDevice;
impl MmioDevice {
    pub(crate) fn read(&self, _offset: u64, _data: &mut [u8]) {}
    pub(crate) fn write(&self, _offset: u64, _data: &[u8], _ram: &Ram) {}
}
