//! What real kernels decode to. They are not part of the repository: `EXOTRACE_KERNELS` names a directory with `vmlinuz*`
//! files, and `cargo test -p exotrace-patcher --release real_kernels -- --ignored --nocapture` looks at all of them.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use super::btf::Kind;
use super::*;

/// What decoding may take without decompression, on a machine that does nothing else.
const LIMIT: Duration = Duration::from_millis(250);

#[test]
#[ignore = "needs EXOTRACE_KERNELS=DIR with vmlinuz files of Linux 5.x to 6.18"]
fn kernels_of_distributions_decode() {
    let dir = std::env::var_os("EXOTRACE_KERNELS").expect("EXOTRACE_KERNELS names a directory with vmlinuz files");
    let mut seen = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("vmlinuz")) {
            println!("{}", path.display());
            check(std::fs::read(path).unwrap());
            seen += 1;
        }
    }
    assert!(seen > 0, "no vmlinuz files in the directory");
}

fn check(file: Vec<u8>) {
    let unpacked = Unpacked::open(file).unwrap();
    let began = Instant::now();
    let image = KernelImage::from_unpacked(unpacked).unwrap();
    let sites = SiteTable::build(&image);
    let took = began.elapsed();
    println!("  {} symbols, {} sites, {took:.1?}", image.symbols().len(), sites.len());
    assert!(cfg!(debug_assertions) || took < LIMIT, "{took:?}");
    assert!(image.banner().is_some() && image.setup().is_some());
    assert!(image.symbols().len() > 50_000);
    check_sites(&image, &sites);
    let symbols = image.symbols();
    let in_code = |r: &Gva| segment_at(image.segments(), *r).is_some_and(|s| s.executable);
    assert!(image.return_sites().iter().all(in_code));
    assert!(symbols.named("__x86_return_thunk").count() == 0 || image.return_sites().len() > 10_000);
    if let Some(btf) = image.btf() {
        let btf = btf.unwrap();
        let task = btf.named(Kind::Struct, "task_struct").unwrap();
        assert_eq!(btf.size_of(btf.field(task, "comm").unwrap().ty), Some(16));
        let read = btf.function(btf.named(Kind::Func, "vfs_read").unwrap()).unwrap();
        assert_eq!(read.params.len(), 4);
    }
}

fn check_sites(image: &KernelImage, sites: &SiteTable) {
    assert!(sites.patchable_len() * 100 >= sites.len() * 97, "{:?}", sites.skipped());
    assert!(sites.live_len() < sites.patchable_len());
    assert_eq!(sites.named("vfs_read").count(), 1);
    let slide = 0x1a20_0000;
    let slid = SiteTable::build(&image.slid(slide).unwrap());
    for ((_, site), (_, moved)) in sites.iter().zip(slid.iter()) {
        assert!(site.form.is_err() || site.addr.0 - site.function.0 <= 4, "{}", site.name);
        assert_eq!(
            (site.addr.0 + slide, &site.name, site.form.is_ok()),
            (moved.addr.0, &moved.name, moved.form.is_ok())
        );
    }
}
