//! The other direction, for tests: lays symbols out the way the versions of `scripts/kallsyms.c` do, as far as a reader
//! can tell. Compression is simpler: the tokens that no character needs stand for the most frequent pairs.

use std::collections::BTreeMap;

/// A symbol as `nm` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sym {
    pub addr: u64,
    pub letter: u8,
    pub name: String,
}

/// First address of the image.
pub const BASE: u64 = 0xffff_ffff_8100_0000;
/// First address behind its text.
pub const DATA: u64 = BASE + 0x100_0000;

/// Where tables lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Up to 6.1: addresses, names, markers, tokens.
    Old,
    /// 6.2 and 6.3: the index of names between markers and tokens.
    Seqs,
    /// From 6.4 on: names, markers, tokens, addresses, index of names.
    New,
}

/// How addresses are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// 64-bit addresses.
    Absolute,
    /// Offsets from a base.
    Relative,
    /// Signed offsets: absolute values and distances below the base.
    AbsolutePercpu,
}

pub struct Tables {
    pub bytes: Vec<u8>,
    /// Where the token table is.
    #[cfg_attr(not(test), allow(dead_code))]
    pub tokens_at: usize,
}

/// Symbols the way a kernel has them: per-CPU variables at 0, text with aliases, data.
pub fn symbols(count: usize, percpu: bool) -> Vec<Sym> {
    let word = ["vfs", "read", "tcp", "sched", "__x64_sys", "alloc", "ext4", "irq", "mm", "lock"];
    let name = |i: usize| format!("{}_{}_{}", word[i % 10], word[i / 10 % 10], i);
    let sym = |addr, letter, name| Sym { addr, letter, name };
    let mut all = Vec::new();
    if percpu {
        all.extend((0..count / 20).map(|i| sym(i as u64 * 64, b'A', format!("pcpu_{}", name(i)))));
    }
    all.push(sym(BASE, b'T', "startup_64".into()));
    all.push(sym(BASE, b'T', "_stext".into()));
    let text = count - count / 4 - all.len();
    // Every 16th address has two names.
    let addr = |i: usize| BASE + 0x1000 + (i - usize::from(i % 16 == 1)) as u64 * 48;
    all.extend((0..text).map(|i| sym(addr(i), if i % 3 == 0 { b'T' } else { b't' }, name(i))));
    let data = count - all.len();
    let letters = b"dDbBrRV";
    all.extend((0..data).map(|i| sym(DATA + i as u64 * 8, letters[i % 7], format!("data_{}", name(i)))));
    all
}

/// The tables of symbols that are sorted by address. `base` is the image's first address, `variable` says whether
/// lengths may take two bytes.
pub fn encode(syms: &[Sym], order: Order, form: Form, base: u64, variable: bool) -> Tables {
    let tokens = tokens(syms);
    let (names, markers) = names(syms, &tokens, variable);
    let mut out = Out(Vec::new());
    if order != Order::New {
        out.addresses(syms, form, base);
    }
    out.align();
    out.0.extend_from_slice(&(syms.len() as u32).to_le_bytes());
    out.align();
    out.0.extend_from_slice(&names);
    out.align();
    for m in markers {
        out.0.extend_from_slice(&m.to_le_bytes());
    }
    out.align();
    if order == Order::Seqs {
        out.seqs(syms);
    }
    let tokens_at = out.0.len();
    out.tokens(&tokens);
    if order == Order::New {
        out.addresses(syms, form, base);
        out.seqs(syms);
    }
    Tables { bytes: out.0, tokens_at }
}

/// Each character that occurs is its own token; the others are pairs.
fn tokens(syms: &[Sym]) -> Vec<Vec<u8>> {
    let mut tokens = vec![Vec::new(); 256];
    let mut pairs: BTreeMap<[u8; 2], usize> = BTreeMap::new();
    for s in syms {
        let text: Vec<u8> = [s.letter].into_iter().chain(s.name.bytes()).collect();
        text.iter().for_each(|&b| tokens[usize::from(b)] = vec![b]);
        text.windows(2).for_each(|w| *pairs.entry([w[0], w[1]]).or_default() += 1);
    }
    let mut pairs: Vec<_> = pairs.into_iter().collect();
    pairs.sort_by_key(|&(_, n)| std::cmp::Reverse(n));
    for (token, (pair, _)) in tokens.iter_mut().filter(|t| t.is_empty()).zip(pairs) {
        *token = pair.to_vec();
    }
    tokens
}

fn names(syms: &[Sym], tokens: &[Vec<u8>], variable: bool) -> (Vec<u8>, Vec<u32>) {
    let of: BTreeMap<&[u8], u8> =
        tokens.iter().enumerate().filter(|(_, t)| !t.is_empty()).map(|(i, t)| (&t[..], i as u8)).collect();
    let (mut names, mut markers) = (Vec::new(), Vec::new());
    for (i, s) in syms.iter().enumerate() {
        if i % 256 == 0 {
            markers.push(names.len() as u32);
        }
        let text: Vec<u8> = [s.letter].into_iter().chain(s.name.bytes()).collect();
        let (mut packed, mut at) = (Vec::new(), 0);
        while at < text.len() {
            let pair = text.get(at..at + 2).and_then(|p| of.get(p));
            packed.push(pair.copied().unwrap_or_else(|| of[&text[at..=at]]));
            at += if pair.is_some() { 2 } else { 1 };
        }
        if variable && packed.len() > 0x7f {
            names.extend_from_slice(&[(packed.len() & 0x7f) as u8 | 0x80, (packed.len() >> 7) as u8]);
        } else {
            names.push(u8::try_from(packed.len()).expect("too long for a length of one byte"));
        }
        names.extend_from_slice(&packed);
    }
    (names, markers)
}

struct Out(Vec<u8>);

impl Out {
    fn align(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
    }

    fn addresses(&mut self, syms: &[Sym], form: Form, base: u64) {
        self.align();
        for s in syms {
            match form {
                Form::Absolute => self.0.extend_from_slice(&s.addr.to_le_bytes()),
                Form::Relative => self.0.extend_from_slice(&((s.addr - base) as u32).to_le_bytes()),
                Form::AbsolutePercpu if s.addr < base => {
                    self.0.extend_from_slice(&(s.addr as u32).to_le_bytes());
                }
                Form::AbsolutePercpu => {
                    let offset = i32::try_from(base as i128 - 1 - s.addr as i128).expect("out of range");
                    self.0.extend_from_slice(&offset.to_le_bytes());
                }
            }
        }
        self.align();
        if form != Form::Absolute {
            self.0.extend_from_slice(&base.to_le_bytes());
        }
    }

    /// Numbers of symbols in the order of their names, 3 bytes each, the highest first.
    fn seqs(&mut self, syms: &[Sym]) {
        let mut order: Vec<usize> = (0..syms.len()).collect();
        order.sort_by_key(|&i| &syms[i].name);
        for i in order {
            self.0.extend_from_slice(&(i as u32).to_be_bytes()[1..]);
        }
        self.align();
    }

    fn tokens(&mut self, tokens: &[Vec<u8>]) {
        let mut index = Vec::new();
        let from = self.0.len();
        for t in tokens {
            index.extend_from_slice(&((self.0.len() - from) as u16).to_le_bytes());
            self.0.extend_from_slice(t);
            self.0.push(0);
        }
        self.align();
        self.0.extend_from_slice(&index);
        self.align();
    }
}
