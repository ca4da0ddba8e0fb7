//! Checks of a guest image, and loading it. Images are foreign bytes: everything that linux-loader takes on trust is
//! checked before it sees them.

use std::io::Cursor;

use exotrace_guest::abi;
use exotrace_trace::ids::{Gpa, Gva};
use linux_loader::loader::{Elf, KernelLoader};
use vm_memory::GuestAddress;

use crate::config::Image;
use crate::memory::Ram;

const EHDR_BYTES: usize = 64;
const PHDR_BYTES: usize = 56;
const MAX_PHDRS: usize = 64;
const PT_LOAD: u32 = 1;
const PF_X: u32 = 1;

/// An image can't be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// Not an ELF.
    #[error("it is not an ELF file (it does not begin with 7f 45 4c 46)")]
    NotElf,
    /// An ELF of another kind.
    #[error("it is an ELF file, but not a static little-endian x86-64 executable: {what} is {found}, not {wanted}")]
    Kind {
        /// Which field.
        what: &'static str,
        /// What it is.
        found: u64,
        /// What it has to be.
        wanted: u64,
    },
    /// It ends before its headers say so.
    #[error("it is truncated: {what} ends at byte {end}, the file has {len}")]
    Truncated {
        /// Which part.
        what: &'static str,
        /// Where it should end.
        end: u64,
        /// How long the file is.
        len: u64,
    },
    /// Too many or no program headers, or nothing to load.
    #[error("it has {0} program headers: 1 to 64 are possible, and one has to be loadable")]
    Headers(usize),
    /// A segment lies where it may not.
    #[error(
        "a segment is loaded to {start} up to {end}: it has to lie between {low} and {high}; link the image at {low}"
    )]
    Segment {
        /// First byte.
        start: Gpa,
        /// First byte after it.
        end: Gpa,
        /// Lowest address.
        low: Gpa,
        /// First address after the room for images.
        high: Gpa,
    },
    /// A segment whose size in memory is below that in the file.
    #[error("a segment has {file} bytes in the file and only {memory} in memory")]
    Sizes {
        /// Bytes in the file.
        file: u64,
        /// Bytes in memory.
        memory: u64,
    },
    /// The entry point is in no executable segment.
    #[error("its entry point {0} lies in no executable segment")]
    Entry(Gva),
    /// Nothing at all, or too much.
    #[error("a raw image has {len} bytes: 1 to {max} are possible")]
    Raw {
        /// Its length.
        len: usize,
        /// The most.
        max: u64,
    },
    /// Not a bzImage.
    #[error("it is not a bzImage: {0}")]
    NotBzImage(&'static str),
    /// A bzImage that can't be booted this way.
    #[error("this bzImage can't be booted: {0}")]
    BzImage(&'static str),
    /// The unpacked kernel is needed and not there.
    #[error("it is to be entered in the unpacked kernel, which was not given")]
    NoVmlinux,
    /// The kernel's own limit.
    #[error("this kernel takes a command line of at most {max} bytes, not {len}")]
    Cmdline {
        /// Its length.
        len: usize,
        /// The most.
        max: u32,
    },
    /// The parts do not fit into RAM.
    #[error(
        "{what} ({bytes} bytes) does not fit into the guest's RAM between {low} and {high}: give the guest more RAM"
    )]
    NoRoom {
        /// Which part.
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// First usable address.
        low: Gpa,
        /// First address after the usable ones.
        high: Gpa,
    },
    /// linux-loader refused.
    #[error("{0}")]
    Loader(String),
}

struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    vaddr: u64,
    paddr: u64,
    filesz: u64,
    memsz: u64,
}

/// The first GPA after the room for images.
const HIGH: u64 = abi::PERCPU_GPA;

/// Loads an image; the result is its entry point.
pub(crate) fn load(image: &Image, ram: &Ram) -> Result<Gva, ImageError> {
    match image {
        Image::Elf(bytes) => load_elf(bytes, ram, ROOM),
        Image::Raw(bytes) => load_raw(bytes, ram),
        Image::Linux(_) => Err(ImageError::Loader("a Linux kernel is loaded with its boot structures".into())),
    }
}

/// What an ELF may occupy, and what its entry point is an address of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) low: Gpa,
    pub(crate) high: Gpa,
    /// The entry point is a physical address.
    pub(crate) physical_entry: bool,
}

const ROOM: Room = Room { low: Gpa(abi::IMAGE_GPA), high: Gpa(HIGH), physical_entry: false };

fn load_raw(bytes: &[u8], ram: &Ram) -> Result<Gva, ImageError> {
    let max = HIGH - abi::IMAGE_GPA;
    if bytes.is_empty() || bytes.len() as u64 > max {
        return Err(ImageError::Raw { len: bytes.len(), max });
    }
    ram.write(Gpa(abi::IMAGE_GPA), bytes).map_err(|e| ImageError::Loader(e.to_string()))?;
    Ok(Gva(abi::IMAGE_GPA + abi::VIRT_OFFSET))
}

pub(crate) fn load_elf(bytes: &[u8], ram: &Ram, room: Room) -> Result<Gva, ImageError> {
    let entry = check(bytes, room)?;
    // An offset, even of zero, tells the loader to leave notes alone: there is no PVH entry here, and parsing them
    // would only let a broken note reject a good image.
    Elf::load(ram.backend(), Some(GuestAddress(0)), &mut Cursor::new(bytes), None)
        .map_err(|e| ImageError::Loader(e.to_string()))?;
    Ok(entry)
}

/// Checks all that the loader relies on; the result is the entry point.
fn check(bytes: &[u8], room: Room) -> Result<Gva, ImageError> {
    if bytes.len() < 4 || bytes[..4] != *b"\x7fELF" {
        return Err(ImageError::NotElf);
    }
    let len = bytes.len() as u64;
    let cut = |what, end| ImageError::Truncated { what, end, len };
    if bytes.len() < EHDR_BYTES {
        return Err(cut("the ELF header", EHDR_BYTES as u64));
    }
    let kind = [
        ("class", u64::from(bytes[4]), 2),
        ("byte order", u64::from(bytes[5]), 1),
        ("type", field(bytes, 16, 2), 2),
        ("machine", field(bytes, 18, 2), 62),
        ("size of a program header", field(bytes, 54, 2), PHDR_BYTES as u64),
    ];
    if let Some(&(what, found, wanted)) = kind.iter().find(|(_, found, wanted)| found != wanted) {
        return Err(ImageError::Kind { what, found, wanted });
    }
    let (phoff, count) = (field(bytes, 32, 8), field(bytes, 56, 2) as usize);
    if count == 0 || count > MAX_PHDRS {
        return Err(ImageError::Headers(count));
    }
    let end = phoff.saturating_add((count * PHDR_BYTES) as u64);
    if end > len {
        return Err(cut("the table of program headers", end));
    }
    let entry = field(bytes, 24, 8);
    let (mut loadable, mut entry_found) = (0, false);
    for i in 0..count {
        let s = segment(bytes, phoff as usize + i * PHDR_BYTES);
        if s.kind != PT_LOAD {
            continue;
        }
        check_segment(&s, len, room)?;
        loadable += 1;
        // Only bytes that come from the file can be code.
        let start = if room.physical_entry { s.paddr } else { s.vaddr };
        let inside = entry.checked_sub(start).is_some_and(|d| d < s.filesz);
        entry_found |= inside && s.flags & PF_X != 0;
    }
    match (loadable, entry_found) {
        (0, _) => Err(ImageError::Headers(0)),
        (_, false) => Err(ImageError::Entry(Gva(entry))),
        (_, true) => Ok(Gva(entry)),
    }
}

fn check_segment(s: &Segment, len: u64, room: Room) -> Result<(), ImageError> {
    let end = s.offset.saturating_add(s.filesz);
    if end > len {
        return Err(ImageError::Truncated { what: "a segment", end, len });
    }
    if s.memsz < s.filesz {
        return Err(ImageError::Sizes { file: s.filesz, memory: s.memsz });
    }
    let Room { low, high, .. } = room;
    let end = Gpa(s.paddr.saturating_add(s.memsz));
    if s.memsz > 0 && (s.paddr < low.0 || end > high) {
        return Err(ImageError::Segment { start: Gpa(s.paddr), end, low, high });
    }
    Ok(())
}

/// A little-endian field; the caller has checked that the header is there.
fn field(bytes: &[u8], at: usize, size: usize) -> u64 {
    let part = bytes.get(at..at + size).unwrap_or_default();
    part.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b))
}

fn segment(bytes: &[u8], at: usize) -> Segment {
    Segment {
        kind: field(bytes, at, 4) as u32,
        flags: field(bytes, at + 4, 4) as u32,
        offset: field(bytes, at + 8, 8),
        vaddr: field(bytes, at + 16, 8),
        paddr: field(bytes, at + 24, 8),
        filesz: field(bytes, at + 32, 8),
        memsz: field(bytes, at + 40, 8),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const VA: u64 = abi::IMAGE_GPA + abi::VIRT_OFFSET;

    fn put(b: &mut [u8], at: usize, v: u64, size: usize) {
        b[at..at + size].copy_from_slice(&v.to_le_bytes()[..size]);
    }

    /// A minimal good ELF: one executable segment with 16 bytes.
    fn elf() -> Vec<u8> {
        let mut b = vec![0; EHDR_BYTES + PHDR_BYTES];
        b[..6].copy_from_slice(b"\x7fELF\x02\x01");
        put(&mut b, 16, 2, 2);
        put(&mut b, 18, 62, 2);
        put(&mut b, 24, VA + 4, 8);
        put(&mut b, 32, 64, 8);
        put(&mut b, 54, 56, 2);
        put(&mut b, 56, 1, 2);
        for (at, v, size) in [(0, 1, 4), (4, 5, 4), (8, 120, 8), (16, VA, 8), (24, abi::IMAGE_GPA, 8)] {
            put(&mut b, 64 + at, v, size);
        }
        put(&mut b, 64 + 32, 16, 8);
        put(&mut b, 64 + 40, 4096, 8);
        b.extend(1..=16);
        b
    }

    fn load_bytes(b: Vec<u8>) -> Result<Gva, ImageError> {
        let ram = Ram::new(abi::MIN_RAM_BYTES).unwrap();
        let entry = load(&Image::Elf(b.into()), &ram)?;
        let mut got = [0; 17];
        ram.read(Gpa(abi::IMAGE_GPA), &mut got).unwrap();
        assert_eq!(got[..16], (1..=16).collect::<Vec<u8>>()[..]);
        Ok(entry)
    }

    #[test]
    fn a_good_image_is_loaded_by_physical_address() {
        assert_eq!(load_bytes(elf()), Ok(Gva(VA + 4)));
    }

    #[test]
    fn every_truncation_is_an_error() {
        let whole = elf();
        for n in 0..whole.len() {
            assert!(load_bytes(whole[..n].to_vec()).is_err(), "{n} bytes were accepted");
        }
        let e = load_bytes(whole[..whole.len() - 1].to_vec()).unwrap_err();
        assert_eq!(e.to_string(), "it is truncated: a segment ends at byte 136, the file has 135");
    }

    #[test]
    fn wrong_fields_are_named() {
        let changed = |at: usize, v: u64, size: usize| {
            let mut b = elf();
            put(&mut b, at, v, size);
            load_bytes(b).unwrap_err()
        };
        assert_eq!(changed(0, 0, 1), ImageError::NotElf);
        assert!(changed(4, 1, 1).to_string().contains("class is 1, not 2"));
        assert!(changed(18, 3, 2).to_string().contains("machine is 3, not 62"));
        assert_eq!(changed(24, VA + 16, 8), ImageError::Entry(Gva(VA + 16)));
        assert_eq!(changed(24, 0, 8), ImageError::Entry(Gva(0)));
        assert_eq!(changed(56, 0, 2), ImageError::Headers(0));
        assert_eq!(changed(64, 4, 4), ImageError::Headers(0));
        assert_eq!(changed(56, 65, 2), ImageError::Headers(65));
        assert!(matches!(changed(32, u64::MAX, 8), ImageError::Truncated { .. }));
        assert!(matches!(changed(64 + 8, u64::MAX, 8), ImageError::Truncated { .. }));
        assert!(matches!(changed(64 + 24, 0, 8), ImageError::Segment { .. }));
        assert!(matches!(changed(64 + 24, HIGH - 8, 8), ImageError::Segment { .. }));
        assert!(matches!(changed(64 + 40, u64::MAX, 8), ImageError::Segment { .. }));
        assert!(matches!(changed(64 + 40, 8, 8), ImageError::Sizes { .. }));
        assert!(matches!(changed(64 + 4, 4, 4), ImageError::Entry(_)), "not executable");
    }

    #[test]
    fn any_single_byte_changed_never_panics() {
        for at in 0..EHDR_BYTES + PHDR_BYTES {
            for v in [0, 1, 0x7f, 0x80, 0xff] {
                let mut b = elf();
                b[at] = v;
                let ram = Ram::new(abi::MIN_RAM_BYTES).unwrap();
                let _ = load(&Image::Elf(b.into()), &ram);
            }
        }
    }

    #[test]
    fn raw_images_are_bounded() {
        let ram = Ram::new(abi::MIN_RAM_BYTES).unwrap();
        assert!(load(&Image::Raw(vec![]), &ram).is_err());
        let too_much = vec![0; (HIGH - abi::IMAGE_GPA) as usize + 1];
        assert!(load(&Image::Raw(too_much), &ram).is_err());
        assert_eq!(load(&Image::Raw(vec![0xf4]), &ram), Ok(Gva(VA)));
    }
}
