//! From a recorded instruction pointer to its site: asked once per record, so it has to be fast, and asked with
//! numbers that the guest made up, so no number may make it slow.
//!
//! Keys are the low halves of the addresses right after the sites, sorted, with the distance from the lowest one cut
//! into equal buckets, about two for each site. Kernel text is dense, so a bucket holds none, one or two keys. Whatever
//! an image does (all sites in one bucket), a look-up costs at most a binary search of all keys; there is no hash to
//! attack.

use exotrace_trace::ids::SiteId;

/// Keys of a bucket that are compared one by one; more are searched in halves.
const LINEAR: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    /// Distance from the lowest key.
    offset: u32,
    site: SiteId,
}

/// Maps the low 32 bits of `site + 5` to the site.
#[derive(Clone, Debug, Default)]
pub struct IpIndex {
    base: u32,
    shift: u32,
    /// First slot of each bucket, and one more at the end.
    starts: Vec<u32>,
    slots: Vec<Slot>,
}

impl IpIndex {
    /// Builds the index from addresses right after sites, in ascending order. All of them must lie within 4 GiB of
    /// the first, else low halves would be ambiguous; those that don't are left out.
    #[must_use]
    pub fn new(ips: impl IntoIterator<Item = (u64, SiteId)>) -> IpIndex {
        let mut ips = ips.into_iter().peekable();
        let Some(&(first, _)) = ips.peek() else {
            return IpIndex::default();
        };
        let mut slots: Vec<Slot> = ips
            .filter_map(|(ip, site)| {
                let offset = u32::try_from(ip.checked_sub(first)?).ok()?;
                Some(Slot { offset, site })
            })
            .collect();
        slots.sort_by_key(|s| s.offset);
        slots.dedup_by_key(|s| s.offset);
        let span = u64::from(slots.last().map_or(0, |s| s.offset)) + 1;
        let wanted = (slots.len() as u64 * 2).next_power_of_two();
        let shift = span.div_ceil(wanted).next_power_of_two().trailing_zeros();
        let buckets = ((span - 1) >> shift) as usize + 1;
        let mut starts = vec![0u32; buckets + 1];
        for s in &slots {
            starts[(s.offset >> shift) as usize + 1] += 1;
        }
        for b in 1..starts.len() {
            starts[b] += starts[b - 1];
        }
        IpIndex { base: first as u32, shift, starts, slots }
    }

    /// The site before an address, given the address's low half. Unknown addresses give `None`.
    #[inline]
    #[must_use]
    pub fn lookup(&self, ip_low: u32) -> Option<SiteId> {
        let offset = ip_low.wrapping_sub(self.base);
        let bucket = (offset >> self.shift) as usize;
        let [from, to] = *self.starts.get(bucket..bucket + 2)? else {
            return None;
        };
        let slots = self.slots.get(from as usize..to as usize)?;
        if slots.len() > LINEAR {
            let at = slots.binary_search_by_key(&offset, |s| s.offset).ok()?;
            return Some(slots[at].site);
        }
        slots.iter().find(|s| s.offset == offset).map(|s| s.site)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn empty_and_single() {
        assert_eq!(IpIndex::new([]).lookup(0), None);
        let one = IpIndex::new([(0xffff_ffff_8100_0005, SiteId(7))]);
        assert_eq!(one.lookup(0x8100_0005), Some(SiteId(7)));
        assert_eq!(one.lookup(0x8100_0004), None);
        assert_eq!(one.lookup(0x8100_0006), None);
    }

    #[test]
    fn wraps_at_a_4_gib_boundary() {
        let index = IpIndex::new([(0x1_ffff_fff0, SiteId(0)), (0x2_0000_0010, SiteId(1))]);
        assert_eq!(index.lookup(0xffff_fff0), Some(SiteId(0)));
        assert_eq!(index.lookup(0x10), Some(SiteId(1)));
        assert_eq!(index.lookup(0), None);
    }

    #[test]
    fn the_widest_span_is_bounded_in_memory() {
        let index = IpIndex::new([(0, SiteId(0)), (0xffff_ffff, SiteId(1)), (1 << 32, SiteId(2))]);
        assert!(index.starts.len() <= 9);
        assert_eq!(index.lookup(0xffff_ffff), Some(SiteId(1)));
        assert_eq!(index.lookup(0), Some(SiteId(0)));
    }

    proptest! {
        #[test]
        fn equals_a_map(
            base in any::<u64>().prop_map(|b| b >> 1),
            offsets in proptest::collection::vec(
                prop_oneof![0u64..64, 0u64..0x10_0000, 0u64..0xffff_ffff], 1..200),
            asked in proptest::collection::vec(any::<u32>(), 50),
        ) {
            let mut sorted = offsets.clone();
            sorted.sort_unstable();
            sorted.dedup();
            let low = sorted[0];
            let sites: Vec<(u64, SiteId)> =
                sorted.iter().enumerate().map(|(i, o)| (base + o, SiteId(i as u32))).collect();
            let index = IpIndex::new(sites.iter().copied());
            let oracle: BTreeMap<u32, SiteId> = sites.iter().map(|&(ip, s)| (ip as u32, s)).collect();
            for &(ip, _) in &sites {
                for d in [-1i64, 0, 1] {
                    let ip = ip.wrapping_add_signed(d) as u32;
                    prop_assert_eq!(index.lookup(ip), oracle.get(&ip).copied(), "low {}", low);
                }
            }
            for ip in asked {
                prop_assert_eq!(index.lookup(ip), oracle.get(&ip).copied());
            }
        }
    }
}
