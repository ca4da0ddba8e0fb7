//! The CPUID that a vCPU of a Linux guest sees: what KVM supports, made into one socket of `vcpus` single-threaded cores.
//!
//! KVM hands out the host's topology, leaves out what depends on the in-kernel APIC (the TSC deadline timer), and a
//! nested KVM may pass on an inconsistent leaf 0xD. Nested virtualisation is hidden: nothing here was tried with it.

use exotrace_trace::ids::VcpuId;
use kvm_bindings::{CpuId, kvm_cpuid_entry2};

/// 1:ECX.
const MONITOR: u32 = 1 << 3;
const VMX: u32 = 1 << 5;
const TSC_DEADLINE: u32 = 1 << 24;
const HYPERVISOR: u32 = 1 << 31;
/// 1:EDX.
const HTT: u32 = 1 << 28;
/// 0x8000_0001:ECX.
const SVM: u32 = 1 << 2;
/// 0x8000_0007:EDX.
const INVARIANT_TSC: u32 = 1 << 8;
/// Levels of leaf 0xB, in ECX bits 15 to 8.
const LEVEL_THREAD: u32 = 1;
const LEVEL_CORE: u32 = 2;
/// Bytes of the legacy area and header that every XSAVE image begins with.
const XSAVE_HEADER_END: u32 = 576;

/// What of the host matters here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) vcpus: u8,
    /// KVM's APIC has a TSC deadline timer.
    pub(crate) tsc_deadline: bool,
}

/// The CPUID of one vCPU.
pub(crate) fn for_vcpu(supported: &CpuId, id: VcpuId, facts: Facts) -> Option<CpuId> {
    let mut all: Vec<kvm_cpuid_entry2> = supported.as_slice().to_vec();
    // Leaf 0x1F repeats 0xB where there are dies and tiles; topology leaves are written anew.
    all.retain(|e| !matches!(e.function, 0xb | 0x1f));
    for e in &mut all {
        adapt(e, id, facts);
    }
    if all.iter().any(|e| e.function == 0 && e.eax >= 0xb) {
        all.extend(topology(id, facts.vcpus));
    }
    repair_xsave(&mut all);
    CpuId::from_entries(&all).ok()
}

/// Bits of an APIC id that number the cores of the one socket.
fn core_bits(vcpus: u8) -> u32 {
    u32::from(vcpus).next_power_of_two().trailing_zeros()
}

fn adapt(e: &mut kvm_cpuid_entry2, id: VcpuId, facts: Facts) {
    let (apic, vcpus) = (u32::from(id.0), u32::from(facts.vcpus));
    match e.function {
        1 => {
            e.ebx = e.ebx & 0x0000_ffff | apic << 24 | vcpus.next_power_of_two() << 16;
            e.ecx = e.ecx & !(MONITOR | VMX | TSC_DEADLINE) | HYPERVISOR;
            e.ecx |= if facts.tsc_deadline { TSC_DEADLINE } else { 0 };
            e.edx = if vcpus > 1 { e.edx | HTT } else { e.edx & !HTT };
        }
        // Intel's caches: levels 1 and 2 belong to one core, the others to the socket.
        4 if e.eax & 0x1f != 0 => {
            let level = e.eax >> 5 & 7;
            let sharing = if level >= 3 { (1 << core_bits(facts.vcpus)) - 1 } else { 0 };
            e.eax = e.eax & 0x3fff | sharing << 14 | ((1 << core_bits(facts.vcpus)) - 1) << 26;
        }
        0x8000_0001 => e.ecx &= !SVM,
        0x8000_0007 => e.edx |= INVARIANT_TSC,
        // AMD: core count, and how many bits of the APIC id number cores.
        0x8000_0008 => e.ecx = e.ecx & !0xf0ff | (vcpus - 1) | core_bits(facts.vcpus) << 12,
        // AMD: features of the virtualisation that is hidden.
        0x8000_000a => (e.eax, e.ebx, e.ecx, e.edx) = (0, 0, 0, 0),
        // AMD's caches, as above.
        0x8000_001d if e.eax & 0x1f != 0 => {
            let level = e.eax >> 5 & 7;
            let sharing = if level >= 3 { vcpus - 1 } else { 0 };
            e.eax = e.eax & !(0xfff << 14) | sharing << 14;
        }
        // AMD: APIC id, core id with one thread each, node 0 of 1.
        0x8000_001e => (e.eax, e.ebx, e.ecx) = (apic, apic & 0xff, 0),
        _ => {}
    }
}

/// Leaf 0xB: one thread a core, all cores in one socket.
fn topology(id: VcpuId, vcpus: u8) -> Vec<kvm_cpuid_entry2> {
    let level = |index: u32, kind: u32, shift: u32, count: u32| kvm_cpuid_entry2 {
        function: 0xb,
        index,
        // KVM_CPUID_FLAG_SIGNIFCANT_INDEX.
        flags: 1,
        eax: shift,
        ebx: count,
        ecx: index | kind << 8,
        edx: id.0.into(),
        ..Default::default()
    };
    vec![level(0, LEVEL_THREAD, 0, 1), level(1, LEVEL_CORE, core_bits(vcpus), vcpus.into()), level(2, 0, 0, 0)]
}

/// Makes leaf 0xD consistent: features whose component is not described are taken away, and the sizes are those that
/// follow from the components.
fn repair_xsave(all: &mut [kvm_cpuid_entry2]) {
    let part = |all: &[kvm_cpuid_entry2], n: u32| {
        all.iter().find(|e| e.function == 0xd && e.index == n).filter(|e| e.eax != 0).map(|e| (e.eax, e.ebx))
    };
    // Components 0 and 1 (x87, SSE) are in the legacy area.
    let mut features = 0b11;
    let mut end = XSAVE_HEADER_END;
    let offered = all.iter().find(|e| e.function == 0xd && e.index == 0).map_or(0, |e| e.eax);
    for n in (2..32).filter(|n| offered & 1 << n != 0) {
        if let Some((size, offset)) = part(all, n) {
            features |= 1 << n;
            end = end.max(offset.saturating_add(size));
        }
    }
    for e in all.iter_mut().filter(|e| e.function == 0xd && e.index == 0) {
        e.eax &= features;
        e.ecx = end;
    }
}
