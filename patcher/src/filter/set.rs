//! A set of sites, a bit each.

use exotrace_trace::ids::SiteId;

/// Sites of one table.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SiteSet {
    words: Vec<u64>,
    sites: usize,
}

impl SiteSet {
    /// An empty set for a table of that many sites.
    #[must_use]
    pub fn new(sites: usize) -> SiteSet {
        SiteSet { words: vec![0; sites.div_ceil(64)], sites }
    }

    /// Puts a site in or takes it out. Sites that the table doesn't have are ignored.
    pub fn set(&mut self, site: SiteId, is_in: bool) {
        if site.index() >= self.sites {
            return;
        }
        let bit = 1 << (site.index() % 64);
        let word = &mut self.words[site.index() / 64];
        if is_in {
            *word |= bit;
        } else {
            *word &= !bit;
        }
    }

    /// Whether a site is in it.
    #[must_use]
    pub fn contains(&self, site: SiteId) -> bool {
        let word = self.words.get(site.index() / 64).copied().unwrap_or(0);
        word >> (site.index() % 64) & 1 != 0
    }

    /// How many sites are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Whether no site is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&w| w == 0)
    }

    /// The sites in it, ascending.
    pub fn iter(&self) -> impl Iterator<Item = SiteId> + '_ {
        self.words.iter().enumerate().flat_map(|(i, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.checked_sub(1)?;
                Some(SiteId(i as u32 * 64 + bit))
            })
        })
    }
}

impl Extend<SiteId> for SiteSet {
    fn extend<T: IntoIterator<Item = SiteId>>(&mut self, sites: T) {
        sites.into_iter().for_each(|s| self.set(s, true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_was_put_in() {
        let mut set = SiteSet::new(130);
        set.extend([0, 63, 64, 129, 130, 5000].map(SiteId));
        assert_eq!(set.iter().map(|s| s.0).collect::<Vec<_>>(), [0, 63, 64, 129]);
        assert_eq!(set.len(), 4);
        set.set(SiteId(63), false);
        assert!(!set.contains(SiteId(63)) && set.contains(SiteId(64)));
        assert!(!set.contains(SiteId(130)) && !set.contains(SiteId(u32::MAX)));
        assert!(SiteSet::new(0).is_empty());
    }
}
