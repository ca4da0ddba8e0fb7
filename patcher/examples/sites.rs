//! What could be traced in a kernel, and how long finding that out takes:
//! `cargo run --release -p exotrace-patcher --example sites -- /boot/vmlinuz-… ['vfs_*']`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use exotrace_patcher::filter::Filter;
use exotrace_patcher::image::btf::Kind;
use exotrace_patcher::image::{ImageError, KernelImage, SiteTable, Unpacked};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(file) = args.next() else {
        eprintln!("usage: sites KERNEL [FILTER]");
        return ExitCode::from(2);
    };
    let bytes = match std::fs::read(&file) {
        Ok(bytes) => bytes,
        Err(e) => return fail(&file, &e),
    };
    match show(bytes, args.next().as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => fail(&file, &e),
    }
}

fn fail(file: &str, e: &dyn std::error::Error) -> ExitCode {
    eprintln!("{file}: {e}");
    ExitCode::FAILURE
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let result = work();
    (result, began.elapsed())
}

/// Takes the type information for a walk: what a well-known function takes, where a well-known field lies.
fn show_types(image: &KernelImage) {
    let (btf, parse) = timed(|| image.btf());
    let btf = match btf {
        Some(Ok(btf)) => btf,
        Some(Err(e)) => return println!("BTF           {e}"),
        None => return println!("BTF           none"),
    };
    println!("BTF           {} types in {parse:.1?}", btf.len());
    if let Some(f) = btf.named(Kind::Func, "vfs_read").and_then(|id| btf.function(id)) {
        let params: Vec<String> = f.params.iter().map(|p| format!("{}: {}", p.name, btf.spell(p.ty))).collect();
        println!("  vfs_read({}) -> {}", params.join(", "), btf.spell(f.returns));
    }
    if let Some(f) = btf.named(Kind::Struct, "task_struct").and_then(|id| btf.field(id, "comm")) {
        println!("  task_struct.comm: {} at byte {}", btf.spell(f.ty), f.bit_offset / 8);
    }
}

fn show(bytes: Vec<u8>, filter: Option<&str>) -> Result<(), ImageError> {
    let (unpacked, decompress) = timed(|| Unpacked::open(bytes));
    let (image, tables) = timed(|| KernelImage::from_unpacked(unpacked?));
    let image = image?;
    let (sites, judge) = timed(|| SiteTable::build(&image));
    if let Some((at, banner)) = image.banner() {
        println!("{} at {at}", String::from_utf8_lossy(banner));
    }
    println!("payload       {} -> {} bytes", image.codec(), image.vmlinux().len());
    println!("symbols       {}", image.symbols().len());
    println!("mcount table  {} entries, {} zero", sites.len() + image.mcount().zeros, image.mcount().zeros);
    println!(
        "sites         {}, patchable {}, of them live after boot {}",
        sites.len(),
        sites.patchable_len(),
        sites.live_len()
    );
    for (reason, n) in sites.skipped() {
        println!("  skipped     {n}: {reason}");
    }
    println!("return sites  {}", image.return_sites().len());
    show_types(&image);
    println!("time          decompress {decompress:.1?}, symbols and tables {tables:.1?}, sites {judge:.1?}");
    match filter.map(Filter::parse) {
        Some(Ok(filter)) => {
            for (_, s) in sites.iter().filter(|(_, s)| filter.matches(&s.name)) {
                println!("{} {}{}", s.addr, s.name, s.skip().map_or(String::new(), |why| format!(" ({why})")));
            }
        }
        Some(Err(e)) => eprintln!("{e}"),
        None => {}
    }
    Ok(())
}
