//! What the rest of the project relies on in the guest's image: one plain call of `__fentry__` at the start of each
//! instrumented function, one counter for each, and nothing that the compiler has cloned, split or merged.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::{BTreeMap, BTreeSet};

use exotrace_guest::{IMAGE, abi};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

/// These two are what the benchmark measures: a site and nothing else.
const NO_COUNTER: [&str; 2] = ["bench_traced", "bench_untraced"];
const SITE_BYTES: u64 = 5;

struct Image {
    file: object::File<'static>,
    /// Name and end, by start.
    functions: BTreeMap<u64, (String, u64)>,
    sites: Vec<u64>,
    /// (address of the counting instruction, per-CPU offset of the counter)
    counters: Vec<(u64, u64)>,
}

fn words(bytes: &[u8]) -> Vec<u64> {
    assert_eq!(bytes.len() % 8, 0);
    bytes.chunks(8).map(|b| u64::from_le_bytes(b.try_into().unwrap())).collect()
}

impl Image {
    fn load() -> Image {
        let file = object::File::parse(IMAGE).unwrap();
        let mut functions = BTreeMap::new();
        for s in file.symbols().filter(|s| s.kind() == SymbolKind::Text && s.size() > 0) {
            let old = functions.insert(s.address(), (s.name().unwrap().to_owned(), s.address() + s.size()));
            assert!(old.is_none(), "two functions at {:#x}: {old:?} and {:?}", s.address(), s.name());
        }
        let section = |name| words(file.section_by_name(name).unwrap().data().unwrap());
        let sites = section("__mcount_loc");
        let counters = section(".gt_table").chunks(2).map(|c| (c[0], c[1])).collect();
        Image { file, functions, sites, counters }
    }

    fn symbol(&self, name: &str) -> u64 {
        self.file.symbols().find(|s| s.name() == Ok(name)).unwrap_or_else(|| panic!("no symbol {name}")).address()
    }

    /// The function that an address lies in: start, name, end.
    fn function_at(&self, addr: u64) -> (u64, &str, u64) {
        let (start, (name, end)) = self.functions.range(..=addr).next_back().unwrap();
        assert!(addr < *end, "{addr:#x} is in no function");
        (*start, name, *end)
    }

    fn code(&self, start: u64, end: u64) -> &'static [u8] {
        let text = self.file.section_by_name(".text").unwrap();
        let from = (start - text.address()) as usize;
        &text.data().unwrap()[from..from + (end - start) as usize]
    }

    fn decode(&self, start: u64, end: u64) -> Vec<Instruction> {
        let code = self.code(start, end);
        Decoder::with_ip(64, code, start, DecoderOptions::NONE).into_iter().collect()
    }
}

#[test]
fn each_site_is_the_call_at_the_start_of_a_function() {
    let image = Image::load();
    assert!(image.sites.len() >= 300, "only {} sites", image.sites.len());
    let fentry = image.symbol("__fentry__");
    assert_eq!(image.code(fentry, fentry + 1), [0xc3], "__fentry__ is a bare ret");
    let mut seen = BTreeSet::new();
    for &site in &image.sites {
        let (start, name, _) = image.function_at(site);
        assert_eq!(site, start, "{name}: the site is not its first instruction");
        assert!(seen.insert(site), "{name}: listed twice");
        let code = image.code(site, site + SITE_BYTES);
        let target =
            (site + SITE_BYTES).wrapping_add_signed(i64::from(i32::from_le_bytes(code[1..5].try_into().unwrap())));
        assert_eq!((code[0], target), (0xe8, fentry), "{name}: no plain call of __fentry__");
    }
}

#[test]
fn no_call_of_fentry_is_missing_from_the_list() {
    let image = Image::load();
    let fentry = image.symbol("__fentry__");
    for (start, (name, end)) in &image.functions {
        for i in image.decode(*start, *end) {
            if i.is_call_near() && i.near_branch_target() == fentry {
                assert!(image.sites.contains(&i.ip()), "{name}: call at {:#x} is not in __mcount_loc", i.ip());
            }
        }
    }
}

#[test]
fn each_traced_function_counts_once_per_entry() {
    let image = Image::load();
    assert_eq!(image.counters.len() + NO_COUNTER.len(), image.sites.len());
    let mut by_function = BTreeMap::new();
    for &(at, counter) in &image.counters {
        let (start, name, _) = image.function_at(at);
        assert!(by_function.insert(start, (at, counter)).is_none(), "{name}: two counters");
    }
    for &site in &image.sites {
        let (_, name, end) = image.function_at(site);
        let Some(&(at, counter)) = by_function.get(&site) else {
            assert!(NO_COUNTER.contains(&name), "{name}: a site but no counter");
            continue;
        };
        let mut want = vec![0x65, 0x48, 0xff, 0x04, 0x25]; // incq %gs:disp32
        want.extend((counter as u32).to_le_bytes());
        assert_eq!(image.code(at, at + 9), want, "{name}: not the counting instruction");
        for i in image.decode(site, end) {
            let before = i.ip() < at;
            assert!(
                i.ip() == site || !before || i.flow_control() == FlowControl::Next,
                "{name}: a branch before it counts"
            );
            // A tail call turned into a loop would count without an entry.
            if i.is_jmp_short_or_near() || i.is_jcc_short_or_near() {
                let target = i.near_branch_target();
                assert!(target < site || target > at, "{name}: {:#x} jumps back to before the counter", i.ip());
            }
        }
    }
}

#[test]
fn counters_are_distinct_and_per_cpu() {
    let image = Image::load();
    let area = image.file.section_by_name(".data..percpu").unwrap();
    assert_eq!(area.address(), 0, "per-CPU symbols are offsets");
    assert!(area.size() <= abi::PERCPU_STRIDE);
    let distinct: BTreeSet<u64> = image.counters.iter().map(|c| c.1).collect();
    assert_eq!(distinct.len(), image.counters.len());
    assert!(distinct.iter().all(|c| c % 8 == 0 && *c >= 64 && c + 8 <= area.size()));
    assert_eq!(image.symbol("gt_table_end") - image.symbol("gt_table_start"), 16 * image.counters.len() as u64);
}

#[test]
fn functions_are_as_they_were_written() {
    let image = Image::load();
    let mut names = BTreeSet::new();
    for s in image.file.symbols() {
        let name = s.name().unwrap();
        for banned in [".cold", ".part", ".isra", ".constprop", ".lto_priv"] {
            assert!(!name.contains(banned), "{name} was made by the compiler");
        }
    }
    for &site in &image.sites {
        let (_, name, _) = image.function_at(site);
        assert!(names.insert(name.to_owned()), "two traced functions are called {name}");
    }
    for name in
        ["vfs_read", "kmalloc", "schedule", "preempt_schedule_irq", "tick_handler", "do_nmi", "do_syscall", "panic"]
    {
        assert!(names.contains(name), "{name} is not traced");
    }
    // Where a CPU ends must not be traced, see core/shutdown.c.
    for name in ["machine_halt", "stop_this_cpu", "stop_other_cpus", "cpu_idle_loop", "irq_entry", "nmi_entry"] {
        assert!(!names.contains(name), "{name} is traced");
    }
}

#[test]
fn segments_lie_where_the_vmm_puts_them() {
    let image = Image::load();
    assert_eq!(image.file.entry(), abi::IMAGE_GPA + abi::VIRT_OFFSET);
    let header = object::elf::FileHeader64::<object::LittleEndian>::parse(IMAGE).unwrap();
    let segments = header.program_headers(object::LittleEndian, IMAGE).unwrap();
    let mut end = abi::IMAGE_GPA;
    for s in segments.iter().filter(|s| s.p_type(object::LittleEndian) == object::elf::PT_LOAD) {
        let (gva, gpa) = (s.p_vaddr(object::LittleEndian), s.p_paddr(object::LittleEndian));
        // The per-CPU template is linked at 0 and loaded behind the rest.
        assert!(gva == 0 || gva == gpa + abi::VIRT_OFFSET, "{gva:#x} at {gpa:#x}");
        assert!(gpa >= end, "segments overlap at {gpa:#x}");
        end = gpa + s.p_memsz(object::LittleEndian);
    }
    assert!(end > abi::IMAGE_GPA && end <= abi::PERCPU_GPA);
    for name in ["selfcheck_sum", "selfcheck_failures", "bench_results", "bench_rounds", "bench_iters"] {
        assert!(image.symbol(name) > abi::IMAGE_GPA + abi::VIRT_OFFSET, "{name}");
    }
}
