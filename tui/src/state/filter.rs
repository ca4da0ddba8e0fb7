//! The filter of the function list: text, globs and `!` in front of what is to go, separated by commas or spaces.

use globset::{GlobBuilder, GlobMatcher};

/// The longest filter that can be typed, in characters.
pub const MAX_CHARS: usize = 200;

#[derive(Clone, Debug)]
enum Term {
    Text(String),
    Glob(GlobMatcher),
}

impl Term {
    fn matches(&self, name: &str) -> bool {
        match self {
            Term::Text(text) => name.contains(text.as_str()),
            Term::Glob(glob) => glob.is_match(name),
        }
    }
}

/// A parsed filter. The empty one matches everything.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    include: Vec<Term>,
    exclude: Vec<Term>,
}

impl Filter {
    /// Parses what was typed. The error is one line.
    pub fn parse(text: &str) -> Result<Filter, String> {
        let mut filter = Filter::default();
        for word in text.split(|c: char| c == ',' || c.is_whitespace()) {
            let (list, word) = match word.strip_prefix('!') {
                Some(rest) => (&mut filter.exclude, rest),
                None => (&mut filter.include, word),
            };
            if word.is_empty() {
                continue;
            }
            if word.contains(['*', '?', '[']) {
                let glob = GlobBuilder::new(word).literal_separator(false).build().map_err(|e| e.kind().to_string())?;
                list.push(Term::Glob(glob.compile_matcher()));
            } else {
                list.push(Term::Text(word.to_owned()));
            }
        }
        Ok(filter)
    }

    /// Whether a name passes.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        (self.include.is_empty() || self.include.iter().any(|t| t.matches(name)))
            && !self.exclude.iter().any(|t| t.matches(name))
    }

    /// Whether every name passes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }

    /// Whether all that passes this one surely passes `old` too, so that only what `old` let through needs a look.
    #[must_use]
    pub fn narrows(&self, old: &Filter) -> bool {
        if old.is_empty() {
            return true;
        }
        match (&self.include[..], &old.include[..], old.exclude.is_empty()) {
            ([Term::Text(new)], [Term::Text(old)], true) => new.contains(old.as_str()),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn hits(text: &str) -> Vec<&'static str> {
        let f = Filter::parse(text).unwrap();
        ["vfs_read", "vfs_write", "ksys_read", "kmem_alloc"].into_iter().filter(|n| f.matches(n)).collect()
    }

    #[test]
    fn text_globs_and_exclusion() {
        assert_eq!(hits("").len(), 4);
        assert_eq!(hits("read"), ["vfs_read", "ksys_read"]);
        assert_eq!(hits("vfs_*"), ["vfs_read", "vfs_write"]);
        assert_eq!(hits("?fs_read"), ["vfs_read"]);
        assert_eq!(hits("read !vfs*"), ["ksys_read"]);
        assert_eq!(hits("!vfs"), ["ksys_read", "kmem_alloc"]);
        assert_eq!(hits("alloc,vfs_w"), ["vfs_write", "kmem_alloc"]);
        assert_eq!(hits("read*"), [""; 0], "a glob matches the whole name");
        assert_eq!(hits("!"), hits(""));
        assert!(Filter::parse("[").is_err());
    }

    #[test]
    fn narrowing_is_claimed_only_when_true() {
        let names = ["vfs_read", "vfs_write", "ksys_read", "kmem_alloc", "a", ""];
        let texts = ["", "v", "vf", "read", "!v", "!vf", "vfs*", "vfs_*", "read !k", "v k", "r"];
        for old in texts.map(|t| Filter::parse(t).unwrap()) {
            for new in texts.map(|t| Filter::parse(t).unwrap()) {
                if new.narrows(&old) {
                    assert!(names.iter().all(|n| !new.matches(n) || old.matches(n)), "{new:?} {old:?}");
                }
            }
        }
    }
}
