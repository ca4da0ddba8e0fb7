#![allow(clippy::unwrap_used)]
use std::process::Command;

use exotrace_trace::ids::SiteId;
use proptest::prelude::*;

use super::*;
use crate::mock::{ElfImage, FENTRY_OFFSET, Placed, check_image, linux_like};
use crate::plan::NOP;

const GVA: u64 = 0xffff_ffff_8100_0000;
const GPA: u64 = 0x100_0000;

fn decode(image: &ElfImage) -> KernelImage {
    KernelImage::from_elf(image.to_bytes()).unwrap()
}

fn error(bytes: Vec<u8>) -> ImageError {
    KernelImage::from_elf(bytes).unwrap_err()
}

#[test]
fn decodes_a_whole_image() {
    let image = decode(&linux_like(GVA, GPA, 100, 32));
    let sites = SiteTable::build(&image);
    assert_eq!((sites.len(), sites.patchable_len()), (100, 100));
    assert!(sites.skipped().is_empty());
    assert_eq!(sites.span(), Some(Gva(GVA + 0x80)..Gva(GVA + 0x80 + 99 * 32 + 5)));
    for (id, site) in sites.iter() {
        assert_eq!(&*site.name, format!("fn_{}", id.0));
        assert_eq!(site.form, Ok(SiteForm::FentryCall));
        assert_eq!(image.bytes_at(site.addr, 5).unwrap(), site.original);
        assert_eq!(image.gpa_of(site.addr).unwrap().0 - GPA, site.addr.0 - GVA);
        assert_eq!(sites.by_ip(site.addr.0 as u32 + 5), Some(id));
        assert_eq!(sites.by_ip(site.addr.0 as u32), None);
        assert_eq!(sites.named(&site.name).collect::<Vec<_>>(), [id]);
    }
    assert_eq!(image.gpa_of(Gva(GVA - 1)), None);
    assert_eq!(image.bytes_at(Gva(GVA), usize::MAX), None);
}

#[test]
fn odd_sites_are_skipped_counted_and_never_found_by_ip() {
    let mut elf = linux_like(GVA, GPA, 10, 32);
    let site = |n: u64| GVA + 0x80 + n * 32;
    let at = |n: usize| 0x80 + n * 32;
    elf.text[at(1)..at(1) + 5].copy_from_slice(&NOP);
    elf.text[at(2)] = 0x90;
    elf.text[at(3) + 1..at(3) + 5].copy_from_slice(&[0; 4]);
    // A nop whose tail begins another nop of 5 bytes.
    elf.text[at(4)..at(4) + 8].copy_from_slice(&[0x0f, 0x1f, 0x44, 0x66, 0x66, 0x66, 0x66, 0x90]);
    // The rest of a weak function, without a symbol of its own any more.
    elf.text[at(7) + 8..at(7) + 13].copy_from_slice(&NOP);
    elf.symbol("inner", site(4) + 3, 0, 2);
    let mcount = elf.mcount.as_mut().unwrap();
    mcount.extend([site(5), site(5), 0, 0, GVA - 64, site(4) + 3, site(7) + 8, GVA + 8]);
    elf.text[8..13].copy_from_slice(&NOP);
    elf.symbol("_sinittext", site(9), 0, 0);
    elf.symbol("_einittext", site(10), 0, 0);
    let image = decode(&elf);
    assert_eq!(image.mcount().zeros, 2);
    let sites = SiteTable::build(&image);
    let of = |addr| sites.iter().find(|(_, s)| s.addr.0 == addr).unwrap();
    assert_eq!(of(site(1)).1.form, Ok(SiteForm::Nop));
    assert_eq!(of(site(2)).1.skip().map(|s| s.reason()), Some(SkipReason::NotFentryCall));
    assert_eq!(of(site(3)).1.skip(), Some(Skip::OtherTarget { target: Gva(site(3) + 5) }));
    assert_eq!(of(site(4)).1.form, Ok(SiteForm::Nop));
    assert_eq!(of(site(4) + 3).1.skip(), Some(Skip::Overlap));
    assert_eq!(of(site(7) + 8).1.skip(), Some(Skip::MidFunction { offset: 8 }));
    assert_eq!(of(GVA - 64).1.skip(), Some(Skip::OutsideText));
    assert_eq!(of(GVA + 8).1.skip(), Some(Skip::NoSymbol));
    assert_eq!((of(site(9)).1.skip(), of(site(9)).1.in_init_text), (None, true));
    assert!(!of(site(8)).1.in_init_text);
    assert_eq!(sites.skipped()[&SkipReason::Duplicate], 2);
    assert_eq!(sites.skipped().values().sum::<usize>(), 8);
    assert_eq!((sites.patchable_len(), sites.live_len()), (8, 7));
    for (id, s) in sites.iter() {
        let found = sites.by_ip((s.addr.0 + 5) as u32);
        assert_eq!(found, s.form.is_ok().then_some(id), "{}", s.name);
    }
}

#[test]
fn a_site_may_follow_an_endbr_only() {
    let mut elf = linux_like(GVA, GPA, 4, 32);
    let (first, second) = (GVA + 0x80, GVA + 0xa0);
    for (at, before) in [(0x80, [0xf3, 0x0f, 0x1e, 0xfa]), (0xa0, [0x90; 4])] {
        elf.text[at..at + 4].copy_from_slice(&before);
        elf.text[at + 4..at + 9].copy_from_slice(&NOP);
    }
    let mcount = elf.mcount.as_mut().unwrap();
    (mcount[0], mcount[1]) = (first + 4, second + 4);
    let sites = SiteTable::build(&decode(&elf));
    let site = |n: u32| sites.get(SiteId(n)).unwrap();
    assert_eq!((site(0).form, site(0).function, &*site(0).name), (Ok(SiteForm::Nop), Gva(first), "fn_0"));
    assert_eq!(site(1).skip(), Some(Skip::MidFunction { offset: 4 }));
}

#[test]
fn linux_keeps_the_table_between_labels() {
    let mut elf = linux_like(GVA, GPA, 4, 32);
    let table = elf.mcount.take().unwrap();
    assert_eq!(error(elf.to_bytes()), ImageError::NoMcountLoc);
    assert!(error(elf.to_bytes()).to_string().contains("CONFIG_FUNCTION_TRACER"));
    let at = elf.text.len() as u64;
    elf.text.extend(table.iter().flat_map(|a| a.to_le_bytes()));
    elf.symbol("__start_mcount_loc", GVA + at, 0, 0);
    elf.symbol("__stop_mcount_loc", GVA + at + 32, 0, 0);
    assert_eq!(SiteTable::build(&decode(&elf)).patchable_len(), 4);
    elf.symbols.last_mut().unwrap().addr = GVA + at - 8;
    assert!(matches!(error(elf.to_bytes()), ImageError::BadMcountLoc { .. }));
    elf.symbols.last_mut().unwrap().addr = GVA + at + (1 << 20);
    assert!(matches!(error(elf.to_bytes()), ImageError::BadMcountLoc { .. }));
}

#[test]
fn errors_say_what_is_missing() {
    let good = linux_like(GVA, GPA, 4, 32).to_bytes();
    let with = |at: usize, bytes: &[u8]| {
        let mut b = good.clone();
        b[at..at + bytes.len()].copy_from_slice(bytes);
        error(b)
    };
    assert_eq!(error(b"MZ\0\0 what".to_vec()), ImageError::NotElf { found: b"MZ\0\0".to_vec() });
    assert!(matches!(error(vec![]), ImageError::NotElf { .. }));
    assert!(matches!(error(good[..5].to_vec()), ImageError::Malformed { .. }));
    assert!(matches!(with(4, &[1]), ImageError::WrongKind { .. }));
    assert!(matches!(with(18, &[183]), ImageError::WrongKind { .. }));
    assert!(with(18, &[183]).to_string().contains("machine"), "{}", with(18, &[183]));
    assert!(with(16, &[1]).to_string().contains("object file"));
    assert_eq!(with(64, &[2]), ImageError::NoSegments);
    let past_end = with(64 + 32, &[0xff, 0xff, 0xff]);
    assert!(matches!(past_end, ImageError::BadSegment { index: 0, .. }), "{past_end}");
    let wraps = with(64 + 40, &[0xff; 8]);
    assert!(wraps.to_string().contains("address space"), "{wraps}");
    let cut = error(good[..good.len() - 100].to_vec());
    assert!(cut.to_string().contains("truncated"), "{cut}");
    let mut empty = linux_like(GVA, GPA, 1, 32);
    empty.mcount = Some(vec![0, 0]);
    assert!(matches!(error(empty.to_bytes()), ImageError::BadMcountLoc { .. }));
    empty.symbols.clear();
    assert_eq!(error(empty.to_bytes()), ImageError::NoSymbols(NoKallsyms::NoTokens));
}

#[test]
fn overlapping_segments_are_refused() {
    let mut bytes = linux_like(GVA, GPA, 4, 32).to_bytes();
    let header = bytes[64..120].to_vec();
    // A second program header in the unused space before the text.
    bytes[120..176].copy_from_slice(&header);
    bytes[56] = 2;
    let e = error(bytes.clone());
    assert!(matches!(e, ImageError::Overlap { space: "virtual", .. }), "{e}");
    bytes[120 + 16..120 + 24].copy_from_slice(&(GVA + 0x10_0000).to_le_bytes());
    let e = error(bytes.clone());
    assert!(matches!(e, ImageError::Overlap { space: "physical", .. }), "{e}");
    bytes[120 + 24..120 + 32].copy_from_slice(&(GPA + 0x10_0000).to_le_bytes());
    assert_eq!(KernelImage::from_elf(bytes).unwrap().segments().len(), 2);
}

#[test]
fn sites_too_far_for_one_trampoline_are_skipped() {
    let low = 0x4010_0000u64;
    let far = low + (5 << 30);
    let mut elf = linux_like(low, GPA, 4, 32);
    elf.symbol("__fentry__", far + FENTRY_OFFSET, 1, 2);
    elf.symbol("far_fn", far + 0x80, 32, 2);
    elf.mcount.as_mut().unwrap().push(far + 0x80);
    let mut bytes = elf.to_bytes();
    // The same text a second time, 5 GiB further on.
    let header = bytes[64..120].to_vec();
    bytes[120..176].copy_from_slice(&header);
    bytes[56] = 2;
    bytes[120 + 16..120 + 24].copy_from_slice(&far.to_le_bytes());
    bytes[120 + 24..120 + 32].copy_from_slice(&(GPA + 0x10_0000).to_le_bytes());
    let sites = SiteTable::build(&KernelImage::from_elf(bytes).unwrap());
    let (id, site) = sites.iter().last().unwrap();
    assert_eq!((id, &*site.name, site.skip()), (SiteId(4), "far_fn", Some(Skip::TooFar)));
    assert_eq!(sites.patchable_len(), 4);
    assert_eq!(sites.by_ip((far + 0x85) as u32), None);
    assert_eq!(sites.span(), Some(Gva(low + 0x80)..Gva(low + 0x80 + 3 * 32 + 5)));
}

#[test]
fn a_table_that_nothing_names_is_found() {
    let mut elf = linux_like(GVA, GPA, 40, 32);
    let mut table = elf.mcount.take().unwrap();
    table.splice(10..10, [0, 0, 0]);
    elf.text.resize(elf.text.len().next_multiple_of(8), 0xcc);
    // A shorter row of the same kind, and one of addresses of something else.
    for row in [&table[15..35], &[0; 50], &[GVA + 0x80 + 5; 60], &table, &[0; 9]] {
        elf.text.extend(row.iter().flat_map(|a: &u64| a.to_le_bytes()));
        elf.text.extend([0xcc; 8]);
    }
    let image = decode(&elf);
    assert_eq!((image.mcount().entries.len(), image.mcount().zeros), (40, 3));
    assert_eq!(SiteTable::build(&image).patchable_len(), 40);
    elf.symbols.retain(|s| s.name != "__fentry__");
    assert_eq!(error(elf.to_bytes()), ImageError::NoMcountLoc);
}

#[test]
fn a_slid_image_is_the_same_image_elsewhere() {
    let mut elf = linux_like(GVA, GPA, 20, 32);
    elf.symbol("pcpu", 0x1f000, 8, 1);
    elf.symbol("linux_banner", GVA, 0, 1);
    elf.text[..27].copy_from_slice(b"Linux version 6.12 (test)\n\0");
    let image = decode(&elf);
    let slid = image.slid(0x1a20_0000).unwrap();
    assert_eq!(
        (slid.slide(), slid.banner()),
        (0x1a20_0000, Some((Gva(GVA + 0x1a20_0000), &b"Linux version 6.12 (test)"[..])))
    );
    let (here, there) = (SiteTable::build(&image), SiteTable::build(&slid));
    assert_eq!(there.patchable_len(), 20);
    for ((id, a), (_, b)) in here.iter().zip(there.iter()) {
        assert_eq!((a.addr.0 + 0x1a20_0000, &a.name, a.original), (b.addr.0, &b.name, b.original));
        assert_eq!(there.by_ip((b.addr.0 + 5) as u32), Some(id));
        assert_eq!(image.gpa_of(a.addr), slid.gpa_of(b.addr));
    }
    assert_eq!(slid.symbols().named("pcpu").next().unwrap().addr, Gva(0x1f000));
    assert_eq!(slid.symbols().resolve(Gva(GVA + 0x80)), None);
    assert_eq!(slid.slid(0).unwrap().symbols().resolve(Gva(GVA + 0x80)).unwrap().0.name, "fn_0");
    assert_eq!(image.slid(0x1001).unwrap_err(), ImageError::BadSlide { slide: 0x1001 });
}

/// Compiles a small instrumented program the way the guest kernel is compiled.
fn compiled() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (dir.path().join("k.c"), dir.path().join("k.elf"));
    let code = "
        volatile unsigned long results[3] = {1, 2, 3};
        int counter;
        __asm__(\".globl __fentry__\\n.type __fentry__,@function\\n__fentry__: ret\\n.size __fentry__,1\\n\");
        __attribute__((noinline)) static int helper(int x) { return x * 3 + counter; }
        __attribute__((noinline)) int vfs_read(int x) { counter++; return helper(x); }
        __attribute__((no_instrument_function)) void bare(void) { counter--; }
        void _start(void) { bare(); results[1] = vfs_read(counter); for (;;) ; }";
    std::fs::write(&source, code).unwrap();
    let flags = "-O2 -pg -mfentry -mrecord-mcount -fno-pie -no-pie -static -nostdlib -ffreestanding \
                 -fcf-protection=none -fno-asynchronous-unwind-tables -mcmodel=small -Wl,--build-id=none \
                 -Wl,-Ttext-segment=0x40100000 -o";
    let status = Command::new("gcc").args(flags.split_whitespace()).arg(&out).arg(&source).status();
    assert!(status.expect("gcc is needed: apt-get install gcc").success());
    std::fs::read(out).unwrap()
}

#[test]
fn a_compiled_image_decodes() {
    let image = KernelImage::from_elf(compiled()).unwrap();
    let sites = SiteTable::build(&image);
    let names: Vec<&str> = sites.iter().map(|(_, s)| &*s.name).collect();
    assert_eq!(sites.patchable_len(), 3, "{names:?} {:?}", sites.skipped());
    assert_eq!(sites.named("bare").count(), 0);
    for (_, site) in sites.patchable() {
        assert_eq!(site.form, Ok(SiteForm::FentryCall));
        assert_eq!(site.addr, site.function);
    }
    let results = image.symbols().object("results").unwrap();
    assert_eq!((results.size, results.kind), (24, SymbolKind::Object));
    let bytes = image.bytes_at(results.addr, 24).unwrap();
    assert_eq!(bytes[8], 2);
    assert_eq!(image.symbols().resolve(image.entry()).unwrap().0.name, "_start");
}

#[test]
fn every_truncation_survives() {
    let small = linux_like(GVA, GPA, 3, 16).to_bytes();
    for len in 0..small.len() {
        check_image(small[..len].to_vec());
    }
    let real = compiled();
    for len in (0..real.len()).step_by(97) {
        check_image(real[..len].to_vec());
    }
}

fn mutate(bytes: &mut [u8], changes: &[(usize, u8, u64)]) {
    for &(at, width, value) in changes {
        let at = at % bytes.len();
        let end = (at + (1 << (width % 4))).min(bytes.len());
        bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
    }
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0u64..256, Just(u64::MAX), Just(1u64 << 63), (0u64..64).prop_map(|b| 1 << b)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn mutations_survive(changes in proptest::collection::vec((any::<usize>(), any::<u8>(), value()), 1..12)) {
        let mut bytes = linux_like(GVA, GPA, 5, 16).to_bytes();
        mutate(&mut bytes, &changes);
        check_image(bytes);
    }

    #[test]
    fn mutated_headers_survive(changes in proptest::collection::vec((0usize..120, any::<u8>(), value()), 1..4)) {
        let mut bytes = linux_like(GVA, GPA, 5, 16).to_bytes();
        mutate(&mut bytes, &changes);
        check_image(bytes);
    }

    #[test]
    fn mutated_section_headers_survive(
        changes in proptest::collection::vec((any::<usize>(), any::<u8>(), value()), 1..4)
    ) {
        let mut bytes = linux_like(GVA, GPA, 5, 16).to_bytes();
        let headers = bytes.len() - 6 * 64;
        mutate(&mut bytes[headers..], &changes);
        check_image(bytes);
    }
}

#[test]
fn hostile_names_cost_little() {
    // A million symbols that share one string of a megabyte without an end.
    let mut elf = linux_like(GVA, GPA, 1, 16);
    elf.symbols.extend((0..200_000).map(|n| Placed { name: String::new(), addr: GVA + n, size: 1, kind: 2 }));
    elf.symbol(&"x".repeat(1 << 20), GVA, 1, 2);
    let mut bytes = elf.to_bytes();
    let string = bytes.windows(64).position(|w| w == [b'x'; 64]).unwrap();
    let table = bytes[..string].windows(11).rposition(|w| w == b"__fentry__\0").unwrap() - 1;
    let at = (string - table) as u32;
    let start = bytes.windows(8).position(|w| w == (GVA + FENTRY_OFFSET).to_le_bytes()).unwrap() - 8;
    for n in 0..200_000 {
        let entry = start + (n + 2) * 24;
        bytes[entry..entry + 4].copy_from_slice(&at.to_le_bytes());
    }
    let began = std::time::Instant::now();
    let e = error(bytes);
    assert!(matches!(e, ImageError::TooMany { .. }), "{e}");
    assert!(began.elapsed().as_secs() < 5);
}
