//! A disk: a raw file that the guest reads, with its writes refused or kept aside in a nameless temporary file.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK,
    VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
};
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;
use virtio_queue::{DescriptorChain, Queue, QueueT, Reader, Writer};

use super::{Device, Memory};
use crate::config::{Disk, DiskMode};
use crate::error::Error;

const SECTOR: u64 = 512;
const QUEUE: [u16; 1] = [128];
/// Segments of a request at most: the queue's length without header and status.
const SEGMENTS: u32 = 126;
/// Bytes of a request at most. Linux asks for far less at once; a vCPU can't be stopped in the middle of a request.
const MAX_REQUEST: usize = 16 << 20;
/// Bytes copied at once.
const CHUNK: usize = 128 << 10;
/// Sectors in one word of the map of sectors that were written.
const MAP_SECTORS: u64 = 64;
/// Bytes of the name that the guest can ask for.
const ID_BYTES: usize = 20;
/// Offset of `seg_max` in the configuration, behind `capacity` and `size_max`.
const CONFIG_SEG_MAX: usize = 12;

/// Writes that the file does not see.
struct Aside {
    file: File,
    /// Which sectors are in `file`: one bit each, in words of 64 sectors. Grows only with what was written.
    written: HashMap<u64, u64>,
}

/// The device.
pub(crate) struct Block {
    file: File,
    bytes: u64,
    aside: Option<Aside>,
    config: [u8; 16],
    buffer: Vec<u8>,
}

impl Block {
    /// Opens a disk.
    ///
    /// # Errors
    /// The file can't be opened or has no whole number of sectors; no temporary file can be made.
    pub(crate) fn open(disk: &Disk) -> Result<Block, Error> {
        Block::try_open(disk).map_err(|source| Error::Disk { path: disk.path.clone(), source })
    }

    fn try_open(disk: &Disk) -> io::Result<Block> {
        let file = File::open(&disk.path)?;
        let kind = file.metadata()?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(io::Error::other("it is neither a file nor a block device"));
        }
        let bytes = io::Seek::seek(&mut &file, io::SeekFrom::End(0))?;
        if bytes == 0 || !bytes.is_multiple_of(SECTOR) {
            return Err(io::Error::other(format!(
                "its {bytes} bytes are no whole number of sectors of {SECTOR} bytes"
            )));
        }
        let aside = match disk.mode {
            DiskMode::ReadOnly => None,
            DiskMode::CopyOnWrite => Some(Aside { file: nameless(&std::env::temp_dir())?, written: HashMap::new() }),
        };
        let mut config = [0; 16];
        config[..8].copy_from_slice(&(bytes / SECTOR).to_le_bytes());
        config[CONFIG_SEG_MAX..].copy_from_slice(&SEGMENTS.to_le_bytes());
        Ok(Block { file, bytes, aside, config, buffer: vec![0; CHUNK] })
    }

    /// Carries one request out; the result is how many bytes the guest gets.
    fn request(&mut self, chain: DescriptorChain<&Memory>, memory: &Memory) -> Option<u32> {
        let mut from = Reader::new(memory, chain.clone()).ok()?;
        let mut to = Writer::new(memory, chain).ok()?;
        // The status is the last byte that the guest lets us write.
        let data = to.available_bytes().checked_sub(1)?;
        let mut status = to.split_at(data).ok()?;
        let mut header = [0; 16];
        let result = match from.read_exact(&mut header) {
            Ok(()) => self.carry_out(&header, &mut from, &mut to),
            Err(e) => Err(e),
        };
        let code = match result {
            Ok(()) => VIRTIO_BLK_S_OK,
            Err(e) if e.kind() == io::ErrorKind::Unsupported => VIRTIO_BLK_S_UNSUPP,
            Err(_) => VIRTIO_BLK_S_IOERR,
        };
        status.write_all(&[code as u8]).ok()?;
        u32::try_from(to.bytes_written() + 1).ok()
    }

    fn carry_out(&mut self, header: &[u8; 16], from: &mut Reader<'_>, to: &mut Writer<'_>) -> io::Result<()> {
        let [k0, k1, k2, k3, _, _, _, _, sector @ ..] = *header;
        let sector = u64::from_le_bytes(sector);
        match u32::from_le_bytes([k0, k1, k2, k3]) {
            VIRTIO_BLK_T_IN => {
                let bytes = to.available_bytes();
                self.each_chunk(sector, bytes, |disk, at, n| {
                    let mut buffer = std::mem::take(&mut disk.buffer);
                    let done = disk.read_at(at, &mut buffer[..n]).and_then(|()| to.write_all(&buffer[..n]));
                    disk.buffer = buffer;
                    done
                })
            }
            VIRTIO_BLK_T_OUT => {
                let bytes = from.available_bytes();
                self.each_chunk(sector, bytes, |disk, at, n| {
                    let mut buffer = std::mem::take(&mut disk.buffer);
                    let done = from.read_exact(&mut buffer[..n]).and_then(|()| disk.write_at(at, &buffer[..n]));
                    disk.buffer = buffer;
                    done
                })
            }
            // What was written has a life no longer than this process.
            VIRTIO_BLK_T_FLUSH => Ok(()),
            VIRTIO_BLK_T_GET_ID => {
                let mut id = [0; ID_BYTES];
                id[..8].copy_from_slice(b"exotrace");
                to.write_all(&id[..to.available_bytes().min(ID_BYTES)])
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Calls `f` with byte offset and length of every piece of a request that lies on the disk as a whole.
    fn each_chunk(
        &mut self,
        sector: u64,
        bytes: usize,
        mut f: impl FnMut(&mut Block, u64, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let start = sector.checked_mul(SECTOR);
        let fits = start.and_then(|s| s.checked_add(bytes as u64)).is_some_and(|end| end <= self.bytes);
        let (Some(start), true) = (start, fits && bytes <= MAX_REQUEST && (bytes as u64).is_multiple_of(SECTOR)) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        for done in (0..bytes).step_by(CHUNK) {
            f(self, start + done as u64, (bytes - done).min(CHUNK))?;
        }
        Ok(())
    }

    /// Reads whole sectors.
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(to, at)?;
        let Some(aside) = &self.aside else { return Ok(()) };
        if aside.written.is_empty() {
            return Ok(());
        }
        for (sector, part) in (at / SECTOR..).zip(to.chunks_exact_mut(SECTOR as usize)) {
            let word = aside.written.get(&(sector / MAP_SECTORS)).copied().unwrap_or(0);
            if word >> (sector % MAP_SECTORS) & 1 != 0 {
                aside.file.read_exact_at(part, sector * SECTOR)?;
            }
        }
        Ok(())
    }

    /// Writes whole sectors.
    fn write_at(&mut self, at: u64, from: &[u8]) -> io::Result<()> {
        let Some(aside) = &mut self.aside else { return Err(io::ErrorKind::PermissionDenied.into()) };
        aside.file.write_all_at(from, at)?;
        for sector in at / SECTOR..(at + from.len() as u64) / SECTOR {
            *aside.written.entry(sector / MAP_SECTORS).or_default() |= 1 << (sector % MAP_SECTORS);
        }
        Ok(())
    }
}

/// A file in `dir` that has no name and is gone with its last user.
fn nameless(dir: &Path) -> io::Result<File> {
    let failed = |e: io::Error| {
        let text = format!("no temporary file for its changes in {}: {e}; set TMPDIR", dir.display());
        io::Error::new(e.kind(), text)
    };
    OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(dir).map_err(failed)
}

impl Device for Block {
    fn id(&self) -> u32 {
        VIRTIO_ID_BLOCK
    }

    fn features(&self) -> u64 {
        let read_only = if self.aside.is_none() { 1 << VIRTIO_BLK_F_RO } else { 0 };
        1 << VIRTIO_BLK_F_FLUSH | 1 << VIRTIO_BLK_F_SEG_MAX | read_only
    }

    fn queues(&self) -> &[u16] {
        &QUEUE
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn work(&mut self, queues: &mut [Queue], memory: &Memory) -> bool {
        let Some(queue) = queues.first_mut().filter(|q| q.ready()) else { return false };
        let mut worked = false;
        while let Some(chain) = queue.pop_descriptor_chain(memory) {
            let head = chain.head_index();
            let given = self.request(chain, memory).unwrap_or(0);
            if queue.add_used(memory, head, given).is_err() {
                break;
            }
            worked = true;
        }
        worked
    }
}
