//! Filters: which functions a user means.
//!
//! A filter is a list of globs separated by commas or blanks, read from left to right: a glob adds the functions that
//! match it, `!glob` takes them away again. One that begins with `!` starts from everything. Globs are those of ftrace:
//! `*`, `?`, `[a-c]`, `[!a-c]` and a backslash before a character that shall be itself; they match whole names.

mod glob;
mod report;
mod set;

use std::fmt;

use exotrace_trace::ids::SiteId;

use crate::image::{SiteTable, Skip};

pub use glob::{Glob, GlobProblem};
pub use report::{Problem, Report};
pub use set::SiteSet;

/// Longest filter text, in bytes: enough to name every function of a kernel.
pub const MAX_TEXT_BYTES: usize = 4 << 20;
/// Longest single glob, in bytes.
pub const MAX_GLOB_BYTES: usize = 512;

/// A filter's text is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    /// The text around the fault, at most a line.
    pub excerpt: String,
    /// Column in the excerpt where the fault begins, in characters.
    pub column: usize,
    /// How many characters are at fault, at least 1.
    pub width: usize,
    /// What is wrong.
    pub problem: GlobProblem,
}

impl std::error::Error for FilterError {}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (column, width) = (self.column, self.width);
        write!(f, "wrong filter: {}\n  {}\n  {:column$}{}", self.problem, self.excerpt, "", "^".repeat(width))
    }
}

/// One item of a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    pub text: String,
    pub negated: bool,
    pub glob: Glob,
}

/// A parsed filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    terms: Vec<Term>,
}

impl Filter {
    /// Parses a filter.
    ///
    /// # Errors
    /// Says what is wrong and points at it.
    pub fn parse(text: &str) -> Result<Filter, FilterError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(fault(text, 0, 1, GlobProblem::TooLong { limit: MAX_TEXT_BYTES }));
        }
        let mut terms = Vec::new();
        for (at, token) in tokens(text) {
            terms.push(term(text, at, token)?);
        }
        if terms.is_empty() {
            return Err(fault(text, 0, 1, GlobProblem::Empty));
        }
        Ok(Filter { terms })
    }

    /// Whether a function of that name is meant.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let from = self.starts_full();
        let last = self.terms.iter().rev().find(|t| t.glob.matches(name));
        last.map_or(from, |t| !t.negated)
    }

    /// The patchable sites that are meant, and what there is to say about the filter.
    #[must_use]
    pub fn select(&self, sites: &SiteTable) -> (SiteSet, Report) {
        let mut set = SiteSet::new(sites.len());
        if self.starts_full() {
            set.extend(sites.patchable().map(|(id, _)| id));
        }
        let mut report = Report::default();
        for term in &self.terms {
            let mut matched = 0usize;
            let mut left_out: Option<(SiteId, Skip)> = None;
            let mut take = |id: SiteId, form: Option<Skip>| match form {
                Some(skip) => _ = left_out.get_or_insert((id, skip)),
                None => {
                    matched += 1;
                    set.set(id, !term.negated);
                }
            };
            match term.glob.literal() {
                Some(name) => sites
                    .named(name)
                    .chain(sites.aliased(name))
                    .for_each(|id| take(id, sites.get(id).and_then(|s| s.skip()))),
                None => {
                    let shown = sites.iter().map(|(id, s)| (&*s.name, id));
                    shown
                        .chain(sites.aliases())
                        .filter(|(name, _)| term.glob.matches(name))
                        .for_each(|(_, id)| take(id, sites.get(id).and_then(|s| s.skip())));
                }
            }
            if matched == 0 {
                report.add(term, left_out, sites);
            }
        }
        (set, report)
    }

    fn starts_full(&self) -> bool {
        self.terms.first().is_some_and(|t| t.negated)
    }
}

/// The parts between commas and blanks, with where each begins (in bytes).
fn tokens(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let base = text.as_ptr() as usize;
    text.split(|c: char| c == ',' || c.is_whitespace())
        .filter(|t| !t.is_empty())
        .map(move |t| (t.as_ptr() as usize - base, t))
}

fn term(text: &str, at: usize, token: &str) -> Result<Term, FilterError> {
    let negated = token.starts_with('!');
    let body = token.strip_prefix('!').unwrap_or(token);
    if body.is_empty() {
        return Err(fault(text, at, 1, GlobProblem::NothingToTakeAway));
    }
    if body.len() > MAX_GLOB_BYTES {
        let limit = MAX_GLOB_BYTES;
        return Err(fault(text, at, 1, GlobProblem::TooLong { limit }));
    }
    let body_at = at + token.len() - body.len();
    let glob = Glob::parse(body).map_err(|(range, problem)| {
        let chars = body[range.clone()].chars().count();
        fault(text, body_at + range.start, chars, problem)
    })?;
    Ok(Term { text: body.to_owned(), negated, glob })
}

/// Cuts a line out of the text, so that the caret of a filter that fills pages still points at something.
fn fault(text: &str, at: usize, width: usize, problem: GlobProblem) -> FilterError {
    const BEFORE: usize = 40;
    const LINE: usize = 76;
    let plain = |c: char| if c.is_whitespace() || c.is_control() { ' ' } else { c };
    let before: Vec<char> = text[..at].chars().rev().take(BEFORE).collect();
    let column = before.len();
    let after = text[at..].chars().take(LINE - column);
    let excerpt: String = before.iter().rev().copied().chain(after).map(plain).collect();
    let room = excerpt.chars().count().saturating_sub(column);
    FilterError { excerpt, column, width: width.clamp(1, room.max(1)), problem }
}

#[cfg(test)]
mod tests;
