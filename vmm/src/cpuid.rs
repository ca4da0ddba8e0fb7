//! The CPUID that a vCPU of a Linux guest sees: what KVM supports, made into one socket of `vcpus` single-threaded cores.
//!
//! KVM hands out the host's topology and leaves out what depends on the in-kernel APIC (the TSC deadline timer). Nested
//! virtualisation is hidden: nothing here was tried with it.

use std::arch::x86_64::__cpuid;

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

/// The extended states that a vCPU can have, if KVM has to be told that the guest switched them on.
///
/// QEMU's emulation of SVM (10.x and before) does not intercept XSETBV, so the KVM inside keeps the reset value of XCR0:
/// it would answer CPUID leaf 0xD with sizes that the guest finds inconsistent, and load that value at every entry. A
/// vCPU that begins with all states on is right from the moment that Linux switches them on.
pub(crate) fn xcr0_to_preset(supported: &CpuId) -> Option<u64> {
    if !host_is_emulated() {
        return None;
    }
    let leaf = supported.as_slice().iter().find(|e| e.function == 0xd && e.index == 0)?;
    Some(u64::from(leaf.edx) << 32 | u64::from(leaf.eax)).filter(|xcr0| xcr0 & 1 != 0)
}

/// Whether this program runs on a processor that QEMU emulates: the hypervisor leaves say so.
fn host_is_emulated() -> bool {
    let basic = __cpuid(1);
    let hypervisor = __cpuid(0x4000_0000);
    let name = [hypervisor.ebx, hypervisor.ecx, hypervisor.edx].map(u32::to_le_bytes).concat();
    basic.ecx & HYPERVISOR != 0 && name == b"TCGTCGTCGTCG"
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn entry(function: u32, index: u32, regs: [u32; 4]) -> kvm_cpuid_entry2 {
        let [eax, ebx, ecx, edx] = regs;
        kvm_cpuid_entry2 { function, index, eax, ebx, ecx, edx, ..Default::default() }
    }

    fn get(c: &CpuId, function: u32, index: u32) -> [u32; 4] {
        let e = c.as_slice().iter().find(|e| (e.function, e.index) == (function, index)).unwrap();
        [e.eax, e.ebx, e.ecx, e.edx]
    }

    fn supported() -> CpuId {
        CpuId::from_entries(&[
            entry(0, 0, [0x1f, 0, 0, 0]),
            entry(1, 0, [0, 0xff12_3456, VMX | MONITOR, 0]),
            // A first-level and a third-level cache.
            entry(4, 1, [0xffff_c121, 0, 0, 0]),
            entry(4, 3, [0xffff_c163, 0, 0, 0]),
            entry(0xb, 0, [7, 7, 7, 7]),
            entry(0x1f, 0, [7, 7, 7, 7]),
            entry(0x8000_0001, 0, [0, 0, SVM | 1, 0]),
            entry(0x8000_0007, 0, [0; 4]),
            entry(0x8000_0008, 0, [0x3030, 0, 0xf0ff, 0]),
            entry(0x8000_001e, 0, [9, 9, 9, 9]),
        ])
        .unwrap()
    }

    #[test]
    fn every_vcpu_has_its_place_in_one_socket() {
        let facts = Facts { vcpus: 3, tsc_deadline: true };
        for id in 0..3 {
            let c = for_vcpu(&supported(), VcpuId(id), facts).unwrap();
            let n = u32::from(id);
            assert_eq!(get(&c, 1, 0), [0, n << 24 | 4 << 16 | 0x3456, HYPERVISOR | TSC_DEADLINE, HTT]);
            assert_eq!(get(&c, 0xb, 0), [0, 1, 0x100, n]);
            assert_eq!(get(&c, 0xb, 1), [2, 3, 0x201, n]);
            assert_eq!(get(&c, 0xb, 2)[1], 0);
            assert_eq!(get(&c, 0x8000_0008, 0)[2], 2 | 2 << 12);
            assert_eq!(get(&c, 0x8000_001e, 0), [n, n, 0, 9]);
            assert!(!c.as_slice().iter().any(|e| e.function == 0x1f));
        }
    }

    #[test]
    fn caches_and_features() {
        let c = for_vcpu(&supported(), VcpuId(0), Facts { vcpus: 4, tsc_deadline: false }).unwrap();
        assert_eq!(get(&c, 4, 1)[0], 3 << 26 | 0x121, "a cache of its own");
        assert_eq!(get(&c, 4, 3)[0], 3 << 26 | 3 << 14 | 0x163, "shared by all four");
        assert_eq!(get(&c, 1, 0)[2], HYPERVISOR);
        assert_eq!(get(&c, 0x8000_0001, 0)[2], 1, "SVM is hidden");
        assert_eq!(get(&c, 0x8000_0007, 0)[3], INVARIANT_TSC);
        let one = for_vcpu(&supported(), VcpuId(0), Facts { vcpus: 1, tsc_deadline: false }).unwrap();
        assert_eq!((get(&one, 1, 0)[3], get(&one, 0xb, 1)[..2].to_vec()), (0, vec![0, 1]));
    }
}
