//! ELF images made to measure: a linked kernel, as far as a decoder cares, with every number under the test's control.

use crate::image::{KernelImage, SITE_BYTES, SiteTable};

/// Where [`linux_like`] puts `__fentry__`, from the start of its text.
pub const FENTRY_OFFSET: u64 = 0x40;
/// Text begins at this offset in the file.
const TEXT_AT: usize = 0x1000;

/// A symbol or site address and what it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Name.
    pub name: String,
    /// Address.
    pub addr: u64,
    /// Size in bytes.
    pub size: u64,
    /// `st_info`'s low half: 1 object, 2 function, 0 none.
    pub kind: u8,
}

/// An image to be written.
#[derive(Clone, Debug, Default)]
pub struct ElfImage {
    /// Address of the text.
    pub gva: u64,
    /// Where it is loaded.
    pub gpa: u64,
    /// The text.
    pub text: Vec<u8>,
    /// Symbols.
    pub symbols: Vec<Placed>,
    /// Entries of `__mcount_loc`; `None` leaves the section out.
    pub mcount: Option<Vec<u64>>,
}

/// An image with `functions` functions named `fn_0`, `fn_1` …, `stride` bytes apart (at least 16), each beginning with
/// `call __fentry__`.
#[must_use]
pub fn linux_like(gva: u64, gpa: u64, functions: usize, stride: usize) -> ElfImage {
    let first = 0x80usize;
    let mut image = ElfImage { gva, gpa, text: vec![0xcc; first + functions * stride], ..ElfImage::default() };
    let fentry = gva + FENTRY_OFFSET;
    image.text[FENTRY_OFFSET as usize] = 0xc3;
    image.symbol("__fentry__", fentry, 1, 2);
    let mut mcount = Vec::with_capacity(functions);
    for n in 0..functions {
        let at = first + n * stride;
        let addr = gva + at as u64;
        let rel = fentry.wrapping_sub(addr + 5) as u32;
        image.text[at] = 0xe8;
        image.text[at + 1..at + 5].copy_from_slice(&rel.to_le_bytes());
        image.text[at + 5] = 0xc3;
        image.symbol(&format!("fn_{n}"), addr, stride as u64, 2);
        mcount.push(addr);
    }
    image.mcount = Some(mcount);
    image
}

/// Decodes any bytes as an image and checks that what comes out, if anything does, is consistent. Shared by the tests
/// and the fuzz target.
///
/// # Panics
/// When it isn't.
pub fn check_image(bytes: Vec<u8>) {
    let Ok(image) = KernelImage::from_elf(bytes) else { return };
    let sites = SiteTable::build(&image);
    let mut end = 0;
    for (id, site) in sites.patchable() {
        assert!(site.addr.0 >= end, "sites overlap");
        end = site.addr.0 + SITE_BYTES as u64;
        assert_eq!(sites.by_ip(end as u32), Some(id), "site {id} isn't found by its ip");
        assert_eq!(image.bytes_at(site.addr, SITE_BYTES), Some(&site.original[..]));
        assert!(image.gpa_of(site.addr).is_some(), "a site outside guest memory");
    }
    for segment in image.segments() {
        assert!(image.bytes_of(segment).len() as u64 <= segment.mem_size);
    }
    for symbol in image.symbols().iter() {
        assert!(symbol.name.bytes().all(|b| b.is_ascii_graphic()), "an unprintable name");
        let _ = image.symbols().resolve(symbol.addr);
    }
}

impl ElfImage {
    /// Adds a symbol.
    pub fn symbol(&mut self, name: &str, addr: u64, size: u64, kind: u8) {
        self.symbols.push(Placed { name: name.into(), addr, size, kind });
    }

    /// The file.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut file = vec![0; TEXT_AT];
        file.extend_from_slice(&self.text);
        file.resize(file.len().next_multiple_of(8), 0);
        let mcount_at = file.len();
        for addr in self.mcount.iter().flatten() {
            file.extend_from_slice(&addr.to_le_bytes());
        }
        let mcount_len = file.len() - mcount_at;
        let (symtab, strtab) = self.symbol_tables();
        let symtab_at = file.len();
        file.extend_from_slice(&symtab);
        let strtab_at = file.len();
        file.extend_from_slice(&strtab);
        let names = b"\0.text\0__mcount_loc\0.symtab\0.strtab\0.shstrtab\0";
        let names_at = file.len();
        file.extend_from_slice(names);
        file.resize(file.len().next_multiple_of(8), 0);
        let headers_at = file.len();
        let name_of = |s: &str| {
            let at = names.windows(s.len()).position(|w| w == s.as_bytes());
            at.unwrap_or(0) as u32
        };
        let text = (self.gva, TEXT_AT, self.text.len());
        let mut sections = vec![
            section(0, 0, 0, (0, 0, 0), 0, 0),
            section(name_of(".text"), 1, 6, text, 0, 0),
            section(name_of(".symtab"), 2, 0, (0, symtab_at, symtab.len()), 3, 24),
            section(name_of(".strtab"), 3, 0, (0, strtab_at, strtab.len()), 0, 0),
            section(name_of(".shstrtab"), 3, 0, (0, names_at, names.len()), 0, 0),
        ];
        if self.mcount.is_some() {
            let place = (0, mcount_at, mcount_len);
            sections.push(section(name_of("__mcount_loc"), 1, 2, place, 0, 8));
        }
        for s in &sections {
            file.extend_from_slice(s);
        }
        let header = self.header(headers_at, sections.len() as u16);
        file[..header.len()].copy_from_slice(&header);
        file
    }

    fn symbol_tables(&self) -> (Vec<u8>, Vec<u8>) {
        let mut symtab = vec![0; 24];
        let mut strtab = vec![0];
        for s in &self.symbols {
            symtab.extend_from_slice(&(strtab.len() as u32).to_le_bytes());
            symtab.extend_from_slice(&[0x10 | s.kind, 0, 1, 0]);
            symtab.extend_from_slice(&s.addr.to_le_bytes());
            symtab.extend_from_slice(&s.size.to_le_bytes());
            strtab.extend_from_slice(s.name.as_bytes());
            strtab.push(0);
        }
        strtab.resize(strtab.len().next_multiple_of(8), 0);
        (symtab, strtab)
    }

    /// File header and one program header.
    fn header(&self, sections_at: usize, sections: u16) -> Vec<u8> {
        let mut h = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        h.extend_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]);
        for word in [self.gva, 64, sections_at as u64] {
            h.extend_from_slice(&word.to_le_bytes());
        }
        h.extend_from_slice(&[0; 4]);
        for half in [64u16, 56, 1, 64, sections, 4] {
            h.extend_from_slice(&half.to_le_bytes());
        }
        h.extend_from_slice(&[1, 0, 0, 0, 7, 0, 0, 0]);
        let len = self.text.len() as u64;
        for word in [TEXT_AT as u64, self.gva, self.gpa, len, len, 0x1000] {
            h.extend_from_slice(&word.to_le_bytes());
        }
        h
    }
}

fn section(
    name: u32,
    kind: u32,
    flags: u64,
    (addr, offset, len): (u64, usize, usize),
    link: u32,
    entry: u64,
) -> Vec<u8> {
    let mut s = Vec::with_capacity(64);
    s.extend_from_slice(&name.to_le_bytes());
    s.extend_from_slice(&kind.to_le_bytes());
    for word in [flags, addr, offset as u64, len as u64] {
        s.extend_from_slice(&word.to_le_bytes());
    }
    s.extend_from_slice(&link.to_le_bytes());
    s.extend_from_slice(&0u32.to_le_bytes());
    for word in [8, entry] {
        s.extend_from_slice(&word.to_le_bytes());
    }
    s
}
