//! `exotrace sites`.

use std::io::{BufWriter, ErrorKind, Write, stdout};
use std::time::Instant;

use anyhow::Context;
use exotrace_patcher::filter::Filter;
use exotrace_patcher::image::{KernelImage, SiteTable, Unpacked};

use crate::args::SitesArgs;
use crate::exit::Exit;
use crate::run::read_image;

/// Lists the functions of a kernel image that could be traced.
///
/// # Errors
/// The image can't be read or decoded, the filter is wrong or matches nothing.
pub fn run(args: &SitesArgs) -> anyhow::Result<Exit> {
    let name = args.kernel.as_ref().map_or("embedded guest".into(), |p| p.display().to_string());
    let file = read_image(args.kernel.as_deref())?;
    let begin = Instant::now();
    let unpacked = Unpacked::open(file).with_context(|| name.clone())?;
    let unpacking = begin.elapsed();
    let image = KernelImage::from_unpacked(unpacked).with_context(|| name.clone())?;
    let sites = SiteTable::build(&image);
    let took = begin.elapsed();
    if args.summary {
        println!("{name}: {} sites, {} of them can be traced", sites.len(), sites.patchable_len());
        for (reason, n) in sites.skipped() {
            println!("{n} left out: {reason}");
        }
        println!("unpacked in {unpacking:.1?}, decoded in {:.1?}", took - unpacking);
        return Ok(Exit::Ok);
    }
    let (set, report) = Filter::parse(&args.filter)?.select(&sites);
    anyhow::ensure!(report.is_clean(), "{report}");
    let mut out = BufWriter::new(stdout().lock());
    let listed = set.iter().filter_map(|id| sites.get(id)).try_for_each(|s| match args.long {
        true => writeln!(out, "{:016x} {}", s.addr.0, s.name),
        false => writeln!(out, "{}", s.name),
    });
    match listed.and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(e).context("cannot write the list"),
        _ => Ok(Exit::Ok),
    }
}
