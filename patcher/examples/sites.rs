//! What could be traced in a kernel, and how long finding that out takes:
//! `cargo run --release -p exotrace-patcher --example sites -- /boot/vmlinuz-… ['vfs_*']`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use exotrace_patcher::filter::Filter;
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
    println!("BTF           {} bytes", image.btf().map_or(0, <[u8]>::len));
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
