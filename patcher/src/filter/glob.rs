//! One glob. Written here because ready-made ones are for file names: `/`, `.` and `{}` mean something to them, and
//! symbols have such characters (`foo.constprop.0`, `{closure#0}`).

use std::ops::Range;

/// What is wrong with a filter or one of its globs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GlobProblem {
    /// No glob at all.
    #[error("it is empty; '*' means every function")]
    Empty,
    /// A lone `!`.
    #[error("'!' must be followed by the glob to take away, without a space")]
    NothingToTakeAway,
    /// `[` without `]`.
    #[error("'[' has no matching ']'")]
    Unclosed,
    /// `[]`.
    #[error("'[]' matches nothing")]
    EmptyClass,
    /// `[z-a]`.
    #[error("this range runs backwards")]
    Backwards,
    /// A backslash at the end.
    #[error("'\\' must be followed by the character that it protects")]
    DanglingEscape,
    /// Longer than any name.
    #[error("it is longer than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    Char(char),
    Any,
    Star,
    Class { negated: bool, ranges: Vec<(char, char)> },
}

/// A pattern that matches whole names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    items: Vec<Item>,
    literal: Option<String>,
}

impl Glob {
    /// Parses a glob.
    ///
    /// # Errors
    /// What is wrong, and the byte range of the text that is at fault.
    pub fn parse(text: &str) -> Result<Glob, (Range<usize>, GlobProblem)> {
        let mut items = Vec::new();
        let mut rest = text.char_indices().peekable();
        while let Some((at, c)) = rest.next() {
            let item = match c {
                '*' => Item::Star,
                '?' => Item::Any,
                '\\' => match rest.next() {
                    Some((_, c)) => Item::Char(c),
                    None => return Err((at..text.len(), GlobProblem::DanglingEscape)),
                },
                '[' => {
                    let (class, len) = class(&text[at + 1..]).map_err(|(r, p)| (at + r.start..at + 1 + r.end, p))?;
                    let end = at + 1 + len;
                    while rest.next_if(|&(i, _)| i < end).is_some() {}
                    class
                }
                c => Item::Char(c),
            };
            // A run of stars is one star; so matching takes no more than |name| x |glob| steps.
            if item != Item::Star || items.last() != Some(&Item::Star) {
                items.push(item);
            }
        }
        let chars = items.iter().map(|i| match i {
            Item::Char(c) => Some(*c),
            _ => None,
        });
        let literal = chars.collect();
        Ok(Glob { items, literal })
    }

    /// The name, if only one can match.
    #[must_use]
    pub fn literal(&self) -> Option<&str> {
        self.literal.as_deref()
    }

    /// Whether the whole name matches.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let items = &self.items;
        let mut rest = name.chars();
        let mut at = 0;
        // Where to go on when a later item fails: after the last star, one character further.
        let mut retry: Option<(usize, std::str::Chars<'_>)> = None;
        loop {
            let item = items.get(at);
            if item == Some(&Item::Star) {
                at += 1;
                retry = Some((at, rest.clone()));
                continue;
            }
            let c = rest.clone().next();
            match (item, c) {
                (None, None) => return true,
                (Some(item), Some(c)) if item.matches(c) => {
                    at += 1;
                    rest.next();
                }
                _ => {
                    let Some((after_star, from)) = &mut retry else { return false };
                    if from.next().is_none() {
                        return false;
                    }
                    at = *after_star;
                    rest = from.clone();
                }
            }
        }
    }

    /// The characters that are not wild, to compare with names when nothing matched.
    pub(super) fn plain(&self) -> String {
        let plain = |i: &Item| match i {
            Item::Char(c) => Some(*c),
            _ => None,
        };
        self.items.iter().filter_map(plain).collect()
    }
}

impl Item {
    fn matches(&self, c: char) -> bool {
        match self {
            Item::Char(own) => *own == c,
            Item::Any => true,
            Item::Star => false,
            Item::Class { negated, ranges } => ranges.iter().any(|&(a, b)| (a..=b).contains(&c)) != *negated,
        }
    }
}

/// Parses what follows a `[`, and says how many bytes that is, `]` included. Ranges in errors begin at the `[`.
fn class(text: &str) -> Result<(Item, usize), (Range<usize>, GlobProblem)> {
    let negated = text.starts_with(['!', '^']);
    let skip = usize::from(negated);
    let mut ranges = Vec::new();
    let mut rest = text[skip..].char_indices().map(|(i, c)| (i + skip, c)).peekable();
    while let Some((at, c)) = rest.next() {
        if c == ']' {
            if ranges.is_empty() {
                return Err((0..at + 1, GlobProblem::EmptyClass));
            }
            return Ok((Item::Class { negated, ranges }, at + 1));
        }
        let mut end = c;
        let mut after = rest.clone();
        if after.next_if(|&(_, c)| c == '-').is_some()
            && let Some((to, c)) = after.next().filter(|&(_, c)| c != ']')
        {
            if c < end {
                return Err((at + 1..to + c.len_utf8(), GlobProblem::Backwards));
            }
            end = c;
            rest = after;
        }
        ranges.push((c, end));
    }
    Err((0..text.len(), GlobProblem::Unclosed))
}
