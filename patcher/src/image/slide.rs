//! KASLR: a kernel that runs elsewhere than where it was linked.
//!
//! The whole image moves by one distance. What is not part of the image does not: per-CPU symbols of kernels that link
//! their per-CPU area at 0, absolute values, the fixed pages at the end of the address space.

use std::ops::Range;

use exotrace_trace::ids::Gva;

use super::ImageError;

/// Addresses that an image may be linked to or moved to: the window of 1 GiB that Linux maps its image into.
const IMAGE_WINDOW: Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_c000_0000;
/// Slides are a multiple of this: a page.
const GRAIN: u64 = 4096;

/// How far an image was moved up, in bytes; 0 by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Slide(u64);

impl Slide {
    /// A slide of so many bytes.
    pub fn new(bytes: u64) -> Result<Slide, ImageError> {
        let window = IMAGE_WINDOW.end - IMAGE_WINDOW.start;
        if bytes >= window || !bytes.is_multiple_of(GRAIN) {
            return Err(ImageError::BadSlide { slide: bytes });
        }
        Ok(Slide(bytes))
    }

    pub fn bytes(self) -> u64 {
        self.0
    }

    /// Where something is that was linked to an address.
    pub fn run_address(self, link: Gva) -> Gva {
        // Twice the window is exactly what is left of the address space, so this can't overflow.
        if IMAGE_WINDOW.contains(&link.0) { Gva(link.0 + self.0) } else { link }
    }

    /// What address something was linked to; `None` where the image was but is no more.
    pub fn link_address(self, run: Gva) -> Option<Gva> {
        let moved = run.0.wrapping_sub(self.0);
        if IMAGE_WINDOW.contains(&moved) {
            Some(Gva(moved))
        } else if IMAGE_WINDOW.contains(&run.0) {
            None
        } else {
            Some(run)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_image_moves() {
        let slide = Slide::new(0x1a20_0000).unwrap();
        assert_eq!(slide.run_address(Gva(0xffff_ffff_8100_0000)), Gva(0xffff_ffff_9b20_0000));
        for fixed in [0, 0x1f000, 0xffff_ffff_ff60_0000, 0xffff_ffff_c000_0000] {
            assert_eq!(slide.run_address(Gva(fixed)), Gva(fixed));
        }
        assert_eq!(slide.link_address(Gva(0xffff_ffff_8100_0000)), None);
        assert!(Slide::new(1 << 30).is_err());
        assert!(Slide::new(0x1234).is_err());
    }

    proptest! {
        #[test]
        fn run_and_link_agree(slide in 0u64..(1 << 18), addr in IMAGE_WINDOW) {
            let slide = Slide::new(slide * GRAIN).unwrap();
            prop_assert_eq!(slide.link_address(slide.run_address(Gva(addr))), Some(Gva(addr)));
        }
    }
}
