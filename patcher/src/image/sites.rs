//! The site table: every instrumented place of an image, decoded, named and judged.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use exotrace_trace::ids::{Gva, SiteId};
use iced_x86::{Code, Decoder, DecoderOptions, Mnemonic};

use super::{IpIndex, KernelImage, Symbol, Symbols};

/// Length of a site: one instruction, `call rel32` or a nop.
pub const SITE_BYTES: usize = 5;
/// What compilers name the function that instrumented code calls.
const FENTRY_NAMES: [&str; 3] = ["__fentry__", "mcount", "_mcount"];
/// What begins a function that may be called indirectly (IBT).
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// Code between these labels is given back as memory when Linux has booted.
const INIT_LABELS: (&str, &str) = ("_sinittext", "_einittext");

/// What lies at a site in the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteForm {
    /// `call` of the fentry function.
    FentryCall,
    /// A nop of 5 bytes (`-mnop-mcount`, or objtool was there before us).
    Nop,
}

/// Why a site is never patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// The bytes are neither a 5-byte call nor a 5-byte nop.
    NotFentryCall {
        /// What is there.
        found: [u8; SITE_BYTES],
    },
    /// A call, but of something else than the fentry function.
    OtherTarget {
        /// What it calls.
        target: Gva,
    },
    /// The address is not in an executable segment of the file.
    OutsideText,
    /// The same address stands in the table more than once (the first one counts).
    Duplicate,
    /// The site begins inside the 5 bytes of the one before.
    Overlap,
    /// No function symbol covers the address.
    NoSymbol,
    /// More than 2 GiB away from the first site, so one trampoline can't serve both.
    TooFar,
    /// Well inside the function before it: what is left of a weak function that another one replaced. Linux leaves these
    /// alone too.
    MidFunction {
        /// How far inside, in bytes.
        offset: u64,
    },
    /// In `.init.text`, which the kernel has freed by now. An image's own table never says so (see
    /// [`Site::in_init_text`]): it is for users of the table that know how far the guest has come.
    InitText,
}

/// [`Skip`] without its details, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SkipReason {
    /// See [`Skip::NotFentryCall`].
    NotFentryCall,
    /// See [`Skip::OtherTarget`].
    OtherTarget,
    /// See [`Skip::OutsideText`].
    OutsideText,
    /// See [`Skip::Duplicate`].
    Duplicate,
    /// See [`Skip::Overlap`].
    Overlap,
    /// See [`Skip::NoSymbol`].
    NoSymbol,
    /// See [`Skip::TooFar`].
    TooFar,
    /// See [`Skip::MidFunction`].
    MidFunction,
    /// See [`Skip::InitText`].
    InitText,
}

impl Skip {
    /// The reason without its details.
    #[must_use]
    pub fn reason(&self) -> SkipReason {
        match self {
            Skip::NotFentryCall { .. } => SkipReason::NotFentryCall,
            Skip::OtherTarget { .. } => SkipReason::OtherTarget,
            Skip::OutsideText => SkipReason::OutsideText,
            Skip::Duplicate => SkipReason::Duplicate,
            Skip::Overlap => SkipReason::Overlap,
            Skip::NoSymbol => SkipReason::NoSymbol,
            Skip::TooFar => SkipReason::TooFar,
            Skip::MidFunction { .. } => SkipReason::MidFunction,
            Skip::InitText => SkipReason::InitText,
        }
    }
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Skip::NotFentryCall { found } => {
                write!(f, "neither a call of __fentry__ nor a 5-byte nop but {}", HexBytes(found))
            }
            Skip::OtherTarget { target } => write!(f, "calls {target}, not __fentry__"),
            Skip::OutsideText => f.write_str("not in an executable segment of the image"),
            Skip::Duplicate => f.write_str("listed more than once"),
            Skip::Overlap => f.write_str("begins inside another site"),
            Skip::NoSymbol => f.write_str("no function symbol covers it"),
            Skip::TooFar => f.write_str("more than 2 GiB away from the other sites"),
            Skip::MidFunction { offset } => {
                write!(f, "{offset} bytes inside another function (a weak one that was replaced)")
            }
            Skip::InitText => f.write_str("init code, freed after boot"),
        }
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SkipReason::NotFentryCall => "neither a call of __fentry__ nor a 5-byte nop",
            SkipReason::OtherTarget => "a call of something else than __fentry__",
            SkipReason::OutsideText => "outside the image's text",
            SkipReason::Duplicate => "listed more than once",
            SkipReason::Overlap => "begins inside another site",
            SkipReason::NoSymbol => "no function symbol",
            SkipReason::TooFar => "too far from the other sites",
            SkipReason::MidFunction => "inside another function (a replaced weak one)",
            SkipReason::InitText => "init code",
        })
    }
}

/// Bytes as `e8 01 02 03 04`.
pub(crate) struct HexBytes<'a>(pub &'a [u8]);

impl fmt::Display for HexBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, b) in self.0.iter().enumerate() {
            let space = if i == 0 { "" } else { " " };
            write!(f, "{space}{b:02x}")?;
        }
        Ok(())
    }
}

/// One instrumented place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Where the 5 bytes are.
    pub addr: Gva,
    /// Where the function begins ([`Site::addr`] if no symbol covers it): at the site, or an `endbr64` before it.
    pub function: Gva,
    /// The function's name (the bare address if no symbol covers it).
    pub name: Box<str>,
    /// The bytes in the image; zeros if the site is outside its text.
    pub original: [u8; SITE_BYTES],
    /// What they are, or why the site is left alone.
    pub form: Result<SiteForm, Skip>,
    /// Whether it is in `.init.text`: when Linux has booted it frees this memory and puts other things there.
    pub in_init_text: bool,
}

impl Site {
    /// Why the site is never patched; `None` if it may be.
    #[must_use]
    pub fn skip(&self) -> Option<Skip> {
        self.form.err()
    }
}

/// All sites of an image, sorted by address; a site's index is its [`SiteId`].
#[derive(Clone, Debug, Default)]
pub struct SiteTable {
    sites: Vec<Site>,
    by_name: Vec<SiteId>,
    /// Other names of the functions, sorted.
    aliases: Vec<(Box<str>, SiteId)>,
    index: IpIndex,
    skipped: BTreeMap<SkipReason, usize>,
    patchable: usize,
    init: usize,
}

/// The names of code symbols at functions' addresses that are not the ones shown, sorted.
fn aliases(table: &SiteTable, image: &KernelImage) -> Vec<(Box<str>, SiteId)> {
    let functions: HashMap<Gva, SiteId> = table.iter().map(|(id, s)| (s.function, id)).collect();
    let other = |symbol: Symbol<'_>| {
        let id = *functions.get(&symbol.addr)?;
        let shown = &*table.get(id)?.name;
        (symbol.kind.is_code() && symbol.name != shown).then(|| (symbol.name.into(), id))
    };
    let mut list: Vec<(Box<str>, SiteId)> = image.symbols().iter().filter_map(other).collect();
    list.sort_unstable();
    list.dedup();
    list
}

impl SiteTable {
    /// Decodes and judges every entry of the image's mcount table.
    #[must_use]
    pub fn build(image: &KernelImage) -> SiteTable {
        let mut addrs = image.mcount().entries.clone();
        addrs.sort_unstable();
        let listed = addrs.len();
        addrs.dedup();
        let judge = Judge::new(image);
        let mut table = SiteTable::default();
        let mut first: Option<Gva> = None;
        let mut free_from = 0u64;
        for &addr in &addrs {
            let mut site = judge.site(addr);
            if site.form.is_ok() {
                let base = *first.get_or_insert(addr);
                if addr.0 < free_from {
                    site.form = Err(Skip::Overlap);
                } else if addr.0 - base.0 > i32::MAX as u64 {
                    site.form = Err(Skip::TooFar);
                } else {
                    // Can't overflow: the bytes lie in a segment, whose end doesn't.
                    free_from = addr.0 + SITE_BYTES as u64;
                }
            }
            match site.form {
                Ok(_) => {
                    table.patchable += 1;
                    table.init += usize::from(site.in_init_text);
                }
                Err(skip) => *table.skipped.entry(skip.reason()).or_default() += 1,
            }
            table.sites.push(site);
        }
        if listed > addrs.len() {
            table.skipped.insert(SkipReason::Duplicate, listed - addrs.len());
        }
        table.index = IpIndex::new(table.patchable().map(|(id, s)| (s.addr.0.wrapping_add(SITE_BYTES as u64), id)));
        table.by_name = table.iter().map(|(id, _)| id).collect();
        table.by_name.sort_by(|a, b| table.sites[a.index()].name.cmp(&table.sites[b.index()].name));
        table.aliases = aliases(&table, image);
        table
    }

    /// Other names that functions have: Linux's `__x64_sys_getppid` is `__do_sys_getppid` as well.
    pub fn aliases(&self) -> impl Iterator<Item = (&str, SiteId)> {
        self.aliases.iter().map(|(name, id)| (&**name, *id))
    }

    /// All sites of functions that have this as another name.
    pub fn aliased<'a>(&'a self, name: &'a str) -> impl Iterator<Item = SiteId> + 'a {
        let from = self.aliases.partition_point(|(n, _)| &**n < name);
        self.aliases[from..].iter().take_while(move |(n, _)| &**n == name).map(|(_, id)| *id)
    }

    /// How many sites there are, skipped ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sites.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }

    /// One site.
    #[must_use]
    pub fn get(&self, id: SiteId) -> Option<&Site> {
        self.sites.get(id.index())
    }

    /// All sites, by address.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (SiteId, &Site)> {
        self.sites.iter().enumerate().map(|(i, s)| (SiteId(i as u32), s))
    }

    /// The sites that may be patched, by address.
    pub fn patchable(&self) -> impl Iterator<Item = (SiteId, &Site)> {
        self.iter().filter(|(_, s)| s.form.is_ok())
    }

    /// How many sites may be patched.
    #[must_use]
    pub fn patchable_len(&self) -> usize {
        self.patchable
    }

    /// How many of those are still there when Linux has booted and freed its init code.
    #[must_use]
    pub fn live_len(&self) -> usize {
        self.patchable - self.init
    }

    /// How many entries of the image's table are left alone, by reason (duplicates included, which have no site).
    #[must_use]
    pub fn skipped(&self) -> &BTreeMap<SkipReason, usize> {
        &self.skipped
    }

    /// All sites of functions of that name.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = SiteId> + 'a {
        let name_of = |id: &SiteId| &*self.sites[id.index()].name;
        let from = self.by_name.partition_point(|id| name_of(id) < name);
        self.by_name[from..].iter().take_while(move |id| name_of(id) == name).copied()
    }

    /// The patchable site of a recorded instruction pointer: the low half of the address right after the site.
    #[inline]
    #[must_use]
    pub fn by_ip(&self, ip_low: u32) -> Option<SiteId> {
        self.index.lookup(ip_low)
    }

    /// From the first patchable site to the end of the last; `None` if there are none.
    #[must_use]
    pub fn span(&self) -> Option<std::ops::Range<Gva>> {
        let mut all = self.sites.iter().filter(|s| s.form.is_ok());
        let first = all.next()?.addr;
        let last = all.next_back().map_or(first, |s| s.addr);
        Some(first..last.offset(SITE_BYTES as u64))
    }
}

/// Decides what a single address of the table is.
struct Judge<'a> {
    image: &'a KernelImage,
    fentry: Vec<Gva>,
    /// Whether sites come first in their functions (`-mfentry`).
    at_start: bool,
    init: std::ops::Range<Gva>,
}

impl<'a> Judge<'a> {
    fn new(image: &'a KernelImage) -> Judge<'a> {
        let symbols = image.symbols();
        let label = |name| symbols.named(name).next().map_or(Gva(0), |s| s.addr);
        Judge {
            image,
            fentry: fentry_targets(symbols),
            at_start: symbols.named(FENTRY_NAMES[0]).next().is_some(),
            init: label(INIT_LABELS.0)..label(INIT_LABELS.1),
        }
    }

    fn site(&self, addr: Gva) -> Site {
        let symbol = self.image.symbols().resolve(addr);
        let bytes = self.image.site_bytes(addr);
        let form = match (bytes, symbol) {
            (None, _) => Err(Skip::OutsideText),
            (Some(_), None) => Err(Skip::NoSymbol),
            (Some(bytes), Some((_, offset))) => decode_site(bytes, addr, &self.fentry).and_then(|form| {
                if self.begins_function(addr, offset) { Ok(form) } else { Err(Skip::MidFunction { offset }) }
            }),
        };
        Site {
            addr,
            function: symbol.map_or(addr, |(s, _)| s.addr),
            name: symbol.map_or_else(|| addr.to_string().into(), |(s, _)| s.name.into()),
            original: bytes.unwrap_or_default(),
            form,
            in_init_text: self.init.contains(&addr),
        }
    }

    /// Whether nothing but an `endbr64` lies between the beginning of a function and its site. (Code that calls the old
    /// `mcount` sets up its frame first, so there it may be anywhere.)
    fn begins_function(&self, addr: Gva, offset: u64) -> bool {
        let endbr = || {
            let before = addr.0.checked_sub(ENDBR64.len() as u64).map(Gva);
            before.and_then(|gva| self.image.bytes_at(gva, ENDBR64.len())) == Some(&ENDBR64)
        };
        !self.at_start || offset == 0 || (offset == ENDBR64.len() as u64 && endbr())
    }
}

/// Where the functions are that instrumented code calls.
pub(super) fn fentry_targets(symbols: &Symbols) -> Vec<Gva> {
    FENTRY_NAMES.iter().flat_map(|name| symbols.named(name)).map(|s| s.addr).collect()
}

fn decode_site(bytes: [u8; SITE_BYTES], addr: Gva, fentry: &[Gva]) -> Result<SiteForm, Skip> {
    let found = Skip::NotFentryCall { found: bytes };
    let instruction = Decoder::with_ip(64, &bytes, addr.0, DecoderOptions::NONE).decode();
    if instruction.len() != SITE_BYTES {
        return Err(found);
    }
    match (instruction.code(), instruction.mnemonic()) {
        (Code::Call_rel32_64, _) => {
            let target = Gva(instruction.near_branch_target());
            if fentry.contains(&target) { Ok(SiteForm::FentryCall) } else { Err(Skip::OtherTarget { target }) }
        }
        (_, Mnemonic::Nop) => Ok(SiteForm::Nop),
        _ => Err(found),
    }
}
