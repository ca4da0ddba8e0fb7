#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::*;
use crate::image::KernelImage;
use crate::mock::linux_like;

fn table(names: &[&str]) -> SiteTable {
    let mut elf = linux_like(0x4010_0000, 0x10_0000, names.len(), 16);
    for (symbol, name) in elf.symbols[1..].iter_mut().zip(names) {
        symbol.name = (*name).into();
    }
    SiteTable::build(&KernelImage::from_elf(elf.to_bytes()).unwrap())
}

const NAMES: [&str; 8] =
    ["vfs_read", "vfs_write", "kmalloc", "kfree", "sys_open", "foo.constprop.0", "{closure#0}", "a/b"];

fn chosen(filter: &str) -> Vec<&'static str> {
    let sites = table(&NAMES);
    let filter = Filter::parse(filter).unwrap();
    let (set, _) = filter.select(&sites);
    for (id, site) in sites.iter() {
        assert_eq!(set.contains(id), filter.matches(&site.name), "{}", site.name);
    }
    set.iter().map(|id| NAMES[id.index()]).collect()
}

#[test]
fn globs_as_ftrace_users_know_them() {
    assert_eq!(chosen("vfs_*"), ["vfs_read", "vfs_write"]);
    assert_eq!(chosen("*alloc*"), ["kmalloc"]);
    assert_eq!(chosen("sys_?pen"), ["sys_open"]);
    assert_eq!(chosen("[k-s]*"), ["kmalloc", "kfree", "sys_open"]);
    assert_eq!(chosen("[!k-v]*"), ["foo.constprop.0", "{closure#0}", "a/b"]);
    assert_eq!(chosen("kfree"), ["kfree"]);
    assert_eq!(chosen("*").len(), NAMES.len());
    // Whole names, and no character of a symbol means anything else.
    assert_eq!(chosen("free"), [""; 0]);
    assert_eq!(chosen("foo.*"), ["foo.constprop.0"]);
    assert_eq!(chosen("fooxconst*"), [""; 0]);
    assert_eq!(chosen("{closure#0}"), ["{closure#0}"]);
    assert_eq!(chosen("a*b"), ["a/b"]);
    assert_eq!(chosen("\\k*"), ["kmalloc", "kfree"]);
    assert_eq!(chosen("\\*"), [""; 0]);
}

#[test]
fn lists_are_read_from_left_to_right() {
    assert_eq!(chosen("vfs_*,kfree"), ["vfs_read", "vfs_write", "kfree"]);
    assert_eq!(chosen("vfs_* \t kfree ,"), ["vfs_read", "vfs_write", "kfree"]);
    assert_eq!(chosen("vfs_* !*read"), ["vfs_write"]);
    assert_eq!(chosen("!*_* !*.* !*/*"), ["kmalloc", "kfree", "{closure#0}"]);
    assert_eq!(chosen("vfs_* !* vfs_read"), ["vfs_read"]);
    assert_eq!(chosen("vfs_read !vfs_*"), [""; 0]);
}

#[test]
fn errors_point_at_the_fault() {
    let show = |text: &str| Filter::parse(text).unwrap_err().to_string();
    insta::assert_snapshot!(show("vfs_*, [abc"), @r"
    wrong filter: '[' has no matching ']'
      vfs_*, [abc
             ^^^^
    ");
    insta::assert_snapshot!(show("a,![z-a]x,b"), @r"
    wrong filter: this range runs backwards
      a,![z-a]x,b
          ^^^
    ");
    insta::assert_snapshot!(show("ä[] x"), @r"
    wrong filter: '[]' matches nothing
      ä[] x
       ^^
    ");
    insta::assert_snapshot!(show("vfs_* ! kfree"), @r"
    wrong filter: '!' must be followed by the glob to take away, without a space
      vfs_* ! kfree
            ^
    ");
    insta::assert_snapshot!(show("x\\"), @r"
    wrong filter: '\' must be followed by the character that it protects
      x\
       ^
    ");
    insta::assert_snapshot!(show(" , "), @r"
    wrong filter: it is empty; '*' means every function
       , 
      ^
    ");
    let long = format!("{} [", "name ".repeat(1000));
    assert!(show(&long).lines().all(|l| l.chars().count() < 100));
    assert!(show(&"x".repeat(MAX_GLOB_BYTES + 1)).contains("longer"));
    assert!(!show("a\x1b[31m[").contains('\x1b'));
}

#[test]
fn what_matches_nothing_is_reported() {
    let sites = table(&NAMES);
    let report = |text: &str| Filter::parse(text).unwrap().select(&sites).1;
    assert!(report("vfs_*,!kfree").is_clean());
    insta::assert_snapshot!(report("vsf_read,k*,zzz*,!kmaloc*").to_string(), @r"
    nothing matches 'vsf_read'; did you mean 'vfs_read'?
    nothing matches 'zzz*'
    nothing matches '!kmaloc*'; did you mean 'kmalloc'?
    ");
    let many = report("q1 q2 q3 q4 q5 q6 q7 q8 q9 q10");
    assert_eq!((many.problems.len(), many.more), (8, 2));
}

#[test]
fn skipped_sites_are_never_chosen() {
    let mut elf = linux_like(0x4010_0000, 0x10_0000, 3, 16);
    elf.text[0x80 + 16] = 0x90;
    let sites = SiteTable::build(&KernelImage::from_elf(elf.to_bytes()).unwrap());
    for text in ["*", "!fn_9", "fn_1 fn_0 fn_2"] {
        let (set, _) = Filter::parse(text).unwrap().select(&sites);
        assert_eq!(set.iter().map(|s| s.0).collect::<Vec<_>>(), [0, 2]);
    }
    let (_, report) = Filter::parse("fn_1").unwrap().select(&sites);
    assert!(report.to_string().contains("can't be traced ('fn_1'"), "{report}");
}

/// The definition of a glob, as slow as it gets.
fn naive(glob: &[char], name: &[char]) -> bool {
    match (glob.first(), name.first()) {
        (None, None) => true,
        (Some('*'), _) => naive(&glob[1..], name) || (!name.is_empty() && naive(glob, &name[1..])),
        (Some('?'), Some(_)) => naive(&glob[1..], &name[1..]),
        (Some('['), Some(c)) => {
            let end = glob.iter().position(|&c| c == ']').unwrap();
            glob[1..end].contains(c) && naive(&glob[end + 1..], &name[1..])
        }
        (Some(a), Some(b)) => a == b && naive(&glob[1..], &name[1..]),
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]
    #[test]
    fn globs_match_like_their_definition(glob in "([ab*?]|\\[ab\\]|\\[b\\]){1,8}", name in "[ab]{0,8}") {
        let chars = |s: &str| s.chars().collect::<Vec<_>>();
        let expected = naive(&chars(&glob), &chars(&name));
        prop_assert_eq!(Glob::parse(&glob).unwrap().matches(&name), expected, "{} {}", glob, name);
    }

    #[test]
    fn any_text_is_a_filter_or_an_error(text in "\\PC{0,40}|[\\[\\]!*?\\\\a-c, \n-]{0,30}") {
        match Filter::parse(&text) {
            Ok(filter) => _ = filter.matches(&text),
            Err(e) => prop_assert!(e.to_string().lines().count() == 3, "{}", e),
        }
    }
}

#[test]
fn a_glob_of_stars_is_fast() {
    let glob = Glob::parse(&"a*".repeat(200)).unwrap();
    let name = "a".repeat(199) + &"b".repeat(300);
    assert!(!glob.matches(&name));
}

/// A function is found by each of its names: which one an image shows is a matter of the order in its tables.
#[test]
fn other_names_of_a_function_select_it_as_well() {
    let mut elf = linux_like(0x4010_0000, 0x10_0000, 3, 16);
    let addr = elf.symbols[2].addr;
    elf.symbol("__x64_sys_getppid", addr, 0, 2);
    let sites = SiteTable::build(&KernelImage::from_elf(elf.to_bytes()).unwrap());
    let shown = |filter: &str| {
        let (set, report) = Filter::parse(filter).unwrap().select(&sites);
        assert!(report.is_clean(), "{report}");
        set.iter().map(|id| sites.get(id).unwrap().addr.0).collect::<Vec<_>>()
    };
    assert_eq!(shown("__x64_sys_getppid"), [addr]);
    assert_eq!(shown("__x64_*"), [addr]);
    assert_eq!(shown("fn_1"), [addr]);
    assert_eq!(shown("*,!__x64_sys_getppid").len(), 2);
}
