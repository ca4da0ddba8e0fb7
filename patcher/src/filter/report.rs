//! What is to be said about a filter after it was applied: globs that matched nothing, and what may have been meant.

use std::fmt;

use exotrace_trace::ids::SiteId;

use super::Term;
use crate::image::{SiteTable, Skip};

/// Problems that are worked out and named; the rest is counted.
const NAMED_AT_MOST: usize = 8;

/// One glob that matched no traceable function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// No function has such a name.
    NoMatch {
        /// The glob, with its `!` if it has one.
        glob: String,
        /// A function with a similar name.
        near: Option<Box<str>>,
    },
    /// Only functions that can't be traced do.
    OnlySkipped {
        /// The glob.
        glob: String,
        /// The first such function.
        name: Box<str>,
        /// Why it can't be traced.
        why: Skip,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::NoMatch { glob, near: None } => write!(f, "nothing matches '{glob}'"),
            Problem::NoMatch { glob, near: Some(near) } => {
                write!(f, "nothing matches '{glob}'; did you mean '{near}'?")
            }
            Problem::OnlySkipped { glob, name, why } => {
                write!(f, "'{glob}' matches only functions that can't be traced ('{name}': {why})")
            }
        }
    }
}

/// What is to be said about a filter. Displays as one line per problem.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Report {
    /// The first problems.
    pub problems: Vec<Problem>,
    /// How many more there are.
    pub more: usize,
}

impl Report {
    /// Whether every glob matched something.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    pub(super) fn add(&mut self, term: &Term, skipped: Option<(SiteId, Skip)>, sites: &SiteTable) {
        if self.problems.len() == NAMED_AT_MOST {
            self.more += 1;
            return;
        }
        let sign = if term.negated { "!" } else { "" };
        let glob = format!("{sign}{}", term.text);
        let skipped = skipped.and_then(|(id, why)| Some((sites.get(id)?, why)));
        self.problems.push(match skipped {
            Some((site, why)) => Problem::OnlySkipped { glob, name: site.name.clone(), why },
            None => Problem::NoMatch { glob, near: nearest(&term.glob.plain(), sites) },
        });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            let newline = if i == 0 { "" } else { "\n" };
            write!(f, "{newline}{problem}")?;
        }
        if self.more > 0 {
            write!(f, "\n… and {} more", self.more)?;
        }
        Ok(())
    }
}

/// The traceable function whose name needs the fewest edits to become `text`: at most a third of its length.
fn nearest(text: &str, sites: &SiteTable) -> Option<Box<str>> {
    let text = text.as_bytes();
    let mut limit = text.len() / 3;
    if limit == 0 {
        return None;
    }
    let mut best = None;
    for (_, site) in sites.patchable() {
        if let Some(edits) = distance(text, site.name.as_bytes(), limit) {
            best = Some(&site.name);
            if edits == 0 {
                break;
            }
            limit = edits - 1;
        }
    }
    best.cloned()
}

/// Edits (insert, delete, replace, swap of neighbours) from `a` to `b`, or `None` when more than `limit`.
fn distance(a: &[u8], b: &[u8], limit: usize) -> Option<usize> {
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replace = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut cost = replace.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                cost = cost.min(before[j - 2] + 1);
            }
            row.push(cost);
        }
        if row.iter().min().is_some_and(|&m| m > limit) {
            return None;
        }
        before = std::mem::replace(&mut above, row);
    }
    above.last().copied().filter(|&d| d <= limit)
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn edits_are_counted() {
        let d = |a: &str, b: &str| distance(a.as_bytes(), b.as_bytes(), 3);
        assert_eq!(d("vfs_read", "vfs_read"), Some(0));
        assert_eq!(d("vfs_raed", "vfs_read"), Some(1));
        assert_eq!(d("vsf_rea", "vfs_read"), Some(2));
        assert_eq!(d("kmalloc", "kfree"), None);
        assert_eq!(d("", "abc"), Some(3));
    }
}
