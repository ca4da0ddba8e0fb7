//! The token table and its index.

/// How many tokens there are: one for each value of a byte.
const TOKENS: usize = 256;
/// Bytes of the index: an offset of 16 bits for each token.
pub(super) const INDEX_BYTES: usize = TOKENS * 2;
/// Longest token accepted, in bytes.
const MAX_TOKEN_BYTES: u16 = 512;
/// The index is aligned to 8 bytes at most, so this much padding may lie before it.
const MAX_PADDING: usize = 7;

/// Indices whose strings are looked at, at most.
pub(super) const MAX_TRIES: u32 = 1000;

/// The token table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokens<'a> {
    /// Where the strings begin in the region.
    pub at: usize,
    /// Where the index begins.
    pub index_at: usize,
    strings: &'a [u8],
    index: [u16; TOKENS],
}

impl<'a> Tokens<'a> {
    /// The string of one token.
    pub fn text(&self, token: u8) -> &'a [u8] {
        let token = usize::from(token);
        let from = usize::from(self.index[token]);
        let to = self.index.get(token + 1).map_or(self.strings.len(), |&next| usize::from(next));
        &self.strings[from..to - 1]
    }

    /// Where the index ends in the region.
    pub fn end(&self) -> usize {
        self.index_at + INDEX_BYTES
    }

    /// A table whose index begins at `index_at`, if there is one.
    fn at(bytes: &'a [u8], index_at: usize, tries: &mut u32) -> Option<Tokens<'a>> {
        let raw = bytes.get(index_at..index_at + INDEX_BYTES)?;
        let mut index = [0; TOKENS];
        for (i, pair) in raw.as_chunks().0.iter().enumerate() {
            let offset = u16::from_le_bytes(*pair);
            let fits = match i.checked_sub(1) {
                None => offset == 0,
                Some(before) => (1..=MAX_TOKEN_BYTES).contains(&offset.wrapping_sub(index[before])),
            };
            if !fits || (i > 0 && offset < index[i - 1]) {
                return None;
            }
            index[i] = offset;
        }
        // A run of numbers that only counts up would be a table of empty strings.
        if usize::from(index[TOKENS - 1]) < TOKENS {
            return None;
        }
        *tries = tries.checked_sub(1)?;
        (0..=MAX_PADDING).find_map(|padding| {
            let end = index_at.checked_sub(padding)?;
            let padding_is_zero = bytes.get(end..index_at)?.iter().all(|&b| b == 0);
            let last = bytes[..end].strip_suffix(&[0])?;
            let last_len = last.iter().rev().take(MAX_TOKEN_BYTES.into()).position(|&b| b == 0)?;
            let at = (last.len() - last_len).checked_sub(index[TOKENS - 1].into())?;
            let tokens = Tokens { at, index_at, strings: &bytes[at..end], index };
            (padding_is_zero && tokens.strings_fit()).then_some(tokens)
        })
    }

    /// Whether each string ends where the next begins, and not before.
    fn strings_fit(&self) -> bool {
        let each = (0..=255u8).all(|token| !self.text(token).contains(&0));
        each && self.index[1..].iter().all(|&at| self.strings.get(usize::from(at) - 1) == Some(&0))
    }
}

/// The first token table whose index begins at `from` or later. `tries` counts down indices whose strings were looked
/// at, so that a file full of them can't cost much.
pub(super) fn find<'a>(bytes: &'a [u8], from: usize, tries: &mut u32) -> Option<Tokens<'a>> {
    let pairs = bytes.get(from..)?.as_chunks::<2>().0;
    let value = |i: usize| pairs.get(i).map_or(0, |p| u16::from_le_bytes(*p));
    (0..pairs.len().saturating_sub(TOKENS - 1)).find_map(|i| {
        let rising = value(i) == 0 && value(i + 1) > 0 && value(i + 2) > value(i + 1) && value(i + 3) > value(i + 2);
        if rising { Tokens::at(bytes, from + i * 2, tries) } else { None }
    })
}
