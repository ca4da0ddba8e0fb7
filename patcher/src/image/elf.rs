//! The ELF decoder: file bytes to segments, symbols and the mcount table.

use std::ops::Range;

use exotrace_trace::ids::{Gpa, Gva};
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, SectionTable, Sym};
use object::{LittleEndian as LE, SymbolIndex};

use super::kallsyms::{self, Region};
use super::mcount::{self, MAX_SITES};
use super::symbols::{MAX_NAME_BYTES, SymbolKind, Symbols, SymbolsBuilder};
use super::{ImageError, McountTable, Segment, segment_at};

/// Loadable segments at most.
pub const MAX_SEGMENTS: usize = 64;
/// The section with the addresses of all sites.
const MCOUNT_SECTION: &str = "__mcount_loc";
/// Type information.
const BTF_SECTION: &str = ".BTF";
const BTF_LABELS: (&str, &str) = ("__start_BTF", "__stop_BTF");
/// Where functions return through a thunk.
const RETURNS_SECTION: &str = ".return_sites";
const RETURNS_LABELS: (&str, &str) = ("__return_sites", "__return_sites_end");

type Header = elf::FileHeader64<LE>;

/// What a decoder delivers.
pub(super) struct Parts {
    pub entry: Gva,
    pub segments: Vec<Segment>,
    pub symbols: Symbols,
    pub mcount: McountTable,
    /// Where the type information is in the file.
    pub btf: Option<Range<usize>>,
    /// Addresses of the return sites.
    pub returns: Vec<Gva>,
}

pub(super) fn decode(data: &[u8]) -> Result<Parts, ImageError> {
    let header = header(data)?;
    let segments = segments(header, data)?;
    let sections = header.sections(LE, data).map_err(malformed("section table"))?;
    let symbols = match symbols(&sections, data)? {
        Some(symbols) => symbols,
        None => from_kallsyms(&sections, &segments, data)?,
    };
    let section = mcount_section(&sections, data)?;
    let mcount = mcount::read(section, &segments, &symbols, data)?;
    let btf = labelled(&sections, &segments, &symbols, data, BTF_SECTION, BTF_LABELS).map(|(_, range)| range);
    let returns = labelled(&sections, &segments, &symbols, data, RETURNS_SECTION, RETURNS_LABELS);
    let returns = returns.map_or_else(Vec::new, |(gva, range)| return_sites(gva, &data[range]));
    Ok(Parts { entry: Gva(header.e_entry(LE)), mcount, segments, symbols, btf, returns })
}

/// The symbols of a stripped image.
fn from_kallsyms(
    sections: &SectionTable<'_, Header>,
    segments: &[Segment],
    data: &[u8],
) -> Result<Symbols, ImageError> {
    // The tables are in `.rodata`; looking there first is only quicker.
    let rodata = sections.section_by_name(LE, b".rodata").and_then(|(_, s)| {
        let bytes = s.data(LE, data).ok()?;
        Some(Region { gva: s.sh_addr(LE), bytes })
    });
    let all = segments.iter().map(|s| Region { gva: s.gva.0, bytes: data.get(s.file.clone()).unwrap_or_default() });
    let regions: Vec<Region<'_>> = rodata.into_iter().chain(all).collect();
    kallsyms::decode(&regions, segments).map_err(|e| match e {
        kallsyms::Error::Missing(why) => ImageError::NoSymbols(why),
        kallsyms::Error::Full(full) => full.into(),
    })
}

/// A table of the image that is a section of its own, or lies between two labels of the linker script: its address and
/// where it is in the file.
fn labelled(
    sections: &SectionTable<'_, Header>,
    segments: &[Segment],
    symbols: &Symbols,
    data: &[u8],
    section: &str,
    labels: (&str, &str),
) -> Option<(Gva, Range<usize>)> {
    if let Some((_, section)) = sections.section_by_name(LE, section.as_bytes()) {
        let (from, len) = section.file_range(LE)?;
        let range = usize::try_from(from).ok()?..usize::try_from(from.checked_add(len)?).ok()?;
        return data.get(range.clone()).map(|_| (Gva(section.sh_addr(LE)), range));
    }
    let label = |name| symbols.named(name).next().map(|s| s.addr);
    let (start, stop) = (label(labels.0)?, label(labels.1)?);
    let segment = segment_at(segments, start)?;
    let from = segment.file.start + usize::try_from(start.0 - segment.gva.0).ok()?;
    let to = from.checked_add(usize::try_from(stop.0.checked_sub(start.0)?).ok()?)?;
    (to <= segment.file.end).then_some((start, from..to))
}

/// Every entry is the distance from itself to its site.
fn return_sites(table: Gva, bytes: &[u8]) -> Vec<Gva> {
    let entries = bytes.as_chunks().0.iter().take(MAX_SITES).enumerate();
    let mut all: Vec<Gva> = entries
        .map(|(i, entry)| {
            let at = table.0.wrapping_add(4 * i as u64);
            Gva(at.wrapping_add_signed(i32::from_le_bytes(*entry).into()))
        })
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn malformed(what: &'static str) -> impl Fn(object::read::Error) -> ImageError {
    move |e| ImageError::Malformed { what, why: e.to_string() }
}

fn header(data: &[u8]) -> Result<&Header, ImageError> {
    let start = &data[..data.len().min(4)];
    if start != elf::ELFMAG {
        return Err(ImageError::NotElf { found: start.to_vec() });
    }
    let wrong = |what: String| ImageError::WrongKind { what };
    match (data.get(4), data.get(5)) {
        (Some(&class), Some(&order)) if class == elf::ELFCLASS64.0 && order == elf::ELFDATA2LSB.0 => {}
        (None, _) | (_, None) => {
            return Err(ImageError::Malformed { what: "header", why: format!("the file has {} bytes", data.len()) });
        }
        (Some(class), Some(order)) => {
            return Err(wrong(format!("of class {class} and byte order {order}")));
        }
    }
    let header = Header::parse(data).map_err(malformed("header"))?;
    let machine = header.e_machine(LE);
    if machine != elf::EM_X86_64 {
        return Err(wrong(format!("for machine {machine}")));
    }
    match header.e_type(LE) {
        elf::ET_EXEC | elf::ET_DYN => Ok(header),
        elf::ET_REL => Err(wrong("an object file (a module?), not a linked kernel".into())),
        other => Err(wrong(format!("of type {other}"))),
    }
}

fn segments(header: &Header, data: &[u8]) -> Result<Vec<Segment>, ImageError> {
    let headers = header.program_headers(LE, data).map_err(malformed("program headers"))?;
    let mut segments = Vec::new();
    for (index, p) in headers.iter().enumerate() {
        if p.p_type(LE) != elf::PT_LOAD || p.p_memsz(LE) == 0 {
            continue;
        }
        if segments.len() == MAX_SEGMENTS {
            return Err(ImageError::TooMany { what: "loadable segments", limit: MAX_SEGMENTS });
        }
        segments.push(segment(index, p, data.len())?);
    }
    if segments.is_empty() {
        return Err(ImageError::NoSegments);
    }
    let ranges = |key: fn(&Segment) -> u64, space| {
        let mut sorted: Vec<&Segment> = segments.iter().collect();
        sorted.sort_by_key(|s| key(s));
        match sorted.windows(2).find(|w| key(w[0]) + w[0].mem_size > key(w[1])) {
            Some(w) => Err(ImageError::Overlap { a: w[0].gva, b: w[1].gva, space }),
            None => Ok(()),
        }
    };
    ranges(|s| s.gva.0, "virtual")?;
    ranges(|s| s.gpa.0, "physical")?;
    segments.sort_by_key(|s| s.gva);
    Ok(segments)
}

fn segment(index: usize, p: &elf::ProgramHeader64<LE>, file_len: usize) -> Result<Segment, ImageError> {
    let (gva, gpa) = (Gva(p.p_vaddr(LE)), Gpa(p.p_paddr(LE)));
    let (offset, file_size, mem_size) = (p.p_offset(LE), p.p_filesz(LE), p.p_memsz(LE));
    let bad = |why: String| ImageError::BadSegment { index, gva, why };
    if file_size > mem_size {
        return Err(bad(format!("{file_size} bytes in the file but {mem_size} in memory")));
    }
    let from = usize::try_from(offset).ok();
    let to = from.and_then(|f| f.checked_add(usize::try_from(file_size).ok()?));
    let (Some(from), Some(to)) = (from, to.filter(|&t| t <= file_len)) else {
        return Err(bad(format!(
            "its {file_size} bytes at file offset {offset} run past the end of the file ({file_len} bytes)"
        )));
    };
    if gva.0.checked_add(mem_size).is_none() || gpa.checked_add(mem_size).is_none() {
        return Err(bad(format!("{mem_size} bytes run past the end of the address space")));
    }
    let flags = p.p_flags(LE);
    Ok(Segment {
        gva,
        gpa,
        file: from..to,
        mem_size,
        executable: flags.0 & elf::PF_X.0 != 0,
        writable: flags.0 & elf::PF_W.0 != 0,
    })
}

/// The ELF symbol table's symbols; `None` if it was stripped.
fn symbols(sections: &SectionTable<'_, Header>, data: &[u8]) -> Result<Option<Symbols>, ImageError> {
    let bad = malformed("symbol table");
    let table = sections.symbols(LE, data, elf::SHT_SYMTAB).map_err(&bad)?;
    if table.is_empty() {
        return Ok(None);
    }
    // The strings are cut here and not by the library: a hostile file may give a million symbols one endless name.
    let strings = sections.section(table.string_section()).and_then(|s| s.data(LE, data)).map_err(&bad)?;
    let executable: Vec<bool> = sections.iter().map(|s| s.sh_flags(LE).0 & elf::SHF_EXECINSTR.0 != 0).collect();
    let mut builder = SymbolsBuilder::default();
    for (i, sym) in table.symbols().iter().enumerate() {
        let section = table.symbol_section(LE, sym, SymbolIndex(i)).map_err(&bad)?.map(|s| s.0);
        let in_code = section.is_some_and(|s| executable.get(s) == Some(&true));
        let kind = match sym.st_type() {
            elf::STT_FUNC => SymbolKind::Function,
            elf::STT_OBJECT => SymbolKind::Object,
            elf::STT_NOTYPE if in_code => SymbolKind::CodeLabel,
            elf::STT_NOTYPE => SymbolKind::DataLabel,
            _ => continue,
        };
        let name = cut_name(strings, sym.st_name(LE));
        if sym.is_undefined(LE) || name.is_empty() || name.starts_with(b".L") {
            continue;
        }
        let global = sym.st_bind() != elf::STB_LOCAL;
        builder.add(name, Gva(sym.st_value(LE)), sym.st_size(LE), kind, global)?;
    }
    let symbols = builder.build();
    Ok((!symbols.is_empty()).then_some(symbols))
}

fn cut_name(strings: &[u8], at: u32) -> &[u8] {
    let rest = strings.get(at as usize..).unwrap_or_default();
    let rest = &rest[..rest.len().min(MAX_NAME_BYTES)];
    let end = rest.iter().position(|&b| b == 0).unwrap_or(rest.len());
    &rest[..end]
}

fn mcount_section<'a>(sections: &SectionTable<'a, Header>, data: &'a [u8]) -> Result<Option<&'a [u8]>, ImageError> {
    let section = sections.section_by_name(LE, MCOUNT_SECTION.as_bytes());
    section.map(|(_, s)| s.data(LE, data).map_err(malformed("__mcount_loc section"))).transpose()
}
