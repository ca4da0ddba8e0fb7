//! The guard around a Linux guest's own text patching.
//!
//! Linux's ftrace compares a site's bytes before it changes them, and gives up for good when they are not its own. So
//! while it patches, exotrace's sites must hold what they held before: the exits of
//! `ftrace_arch_code_modify_prepare` (it has taken `text_mutex` then) and of `ftrace_arch_code_modify_post_process`
//! are led over stubs that tell exotrace. Between the two all traced sites are nops; afterwards those that the guest
//! left alone are calls again. kprobes on function entries, live patching and BPF trampolines go through the same two
//! functions.
//!
//! A return is 5 bytes (`jmp thunk`, or at run time `ret` and padding), and so is a tail call, so both are changed like
//! any site. Nothing happens on the stack: the stub is jumped to and goes on in the function's place.

use exotrace_trace::ids::{Gpa, Gva};
use exotrace_trace::ring::RingMemory;
use exotrace_trace::ring::layout::{PATCH_BEGIN_PORT, PATCH_END_PORT};

use super::session::SessionError;
use iced_x86::{Code, Decoder, DecoderOptions, Instruction};

use crate::image::{KernelImage, SITE_BYTES};
use crate::machine::Stopped;
use crate::paging::Paging;
use crate::trampoline::{Tail, assemble_notice};

/// Room for a stub.
const STUB_BYTES: u64 = 64;
/// Exits per function at most: both functions have one in every kernel so far.
const MOST_EXITS: usize = 8;
/// Longest function that is looked at.
const MOST_BYTES: u64 = 1024;

const FUNCTIONS: [(&str, u16); 2] =
    [("ftrace_arch_code_modify_prepare", PATCH_BEGIN_PORT), ("ftrace_arch_code_modify_post_process", PATCH_END_PORT)];

/// A return site that is led over a stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hook {
    at: Gpa,
    original: [u8; SITE_BYTES],
    hooked: [u8; SITE_BYTES],
}

/// The hooks of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Guard {
    hooks: Vec<Hook>,
}

/// How a return site returns, by its bytes.
pub(super) fn tail_of(site: Gva, bytes: [u8; SITE_BYTES]) -> Option<Tail> {
    match bytes {
        [0xc3, ..] => Some(Tail::Ret),
        [0xe9, a, b, c, d] => {
            let by = i64::from(i32::from_le_bytes([a, b, c, d]));
            Some(Tail::Thunk(Gva(site.0.wrapping_add(SITE_BYTES as u64).wrapping_add_signed(by))))
        }
        _ => None,
    }
}

impl Guard {
    /// Prepares the hooks: writes their stubs into the injected code area (`stubs`: its free part, as an offset and as
    /// the guest sees it). Nothing of the guest's is changed. `None` if this kernel has nothing to hook.
    pub(super) fn prepare<S: Stopped, R: RingMemory>(
        guest: &S,
        paging: &Paging,
        image: &KernelImage,
        injected: &R,
        stubs: (usize, Gva),
    ) -> Result<Option<Guard>, SessionError> {
        let mut hooks = Vec::new();
        for (function, port) in FUNCTIONS {
            let before = hooks.len();
            for site in exits_of(image, function) {
                let Some((at, original)) = read_site(guest, paging, site) else { return Ok(None) };
                let Some(tail) = tail_of(site, original) else { return Ok(None) };
                let offset = hooks.len() as u64 * STUB_BYTES;
                let stub = assemble_notice(port, tail, stubs.1.offset(offset))?;
                let Some(hooked) = jump(site, stub.at) else { return Ok(None) };
                injected.copy_in(stubs.0 + offset as usize, &stub.code);
                hooks.push(Hook { at, original, hooked });
            }
            if hooks.len() == before {
                return Ok(None);
            }
        }
        Ok(Some(Guard { hooks }))
    }

    /// Puts the hooks in, or takes them out: all of them, or none if one does not hold what it should. True if done.
    pub(super) fn set<S: Stopped>(&self, guest: &mut S, on: bool) -> bool {
        let pairs = |h: &Hook| if on { (h.original, h.hooked) } else { (h.hooked, h.original) };
        let holds = |h: &Hook| {
            let mut now = [0; SITE_BYTES];
            guest.read(h.at, &mut now).is_ok() && now == pairs(h).0
        };
        if !self.hooks.iter().all(holds) {
            return false;
        }
        for (n, h) in self.hooks.iter().enumerate() {
            if guest.write(h.at, &pairs(h).1).is_err() {
                for done in &self.hooks[..n] {
                    // It could be written a moment ago.
                    let _ = guest.write(done.at, &pairs(done).0);
                }
                return false;
            }
        }
        true
    }
}

/// Where a function is left: its return sites (in the image each is a jump to the return thunk, whatever the kernel
/// makes of it at boot) and its tail calls, all of them 5-byte jumps out of it.
fn exits_of(image: &KernelImage, function: &str) -> Vec<Gva> {
    let Some(symbol) = image.symbols().named(function).next() else { return Vec::new() };
    let next = image.symbols().code().map(|s| s.addr).find(|a| *a > symbol.addr);
    let to_next = next.map_or(MOST_BYTES, |n| n.0 - symbol.addr.0).min(MOST_BYTES);
    let len = if symbol.size == 0 { to_next } else { symbol.size.min(to_next) };
    let Some(code) = image.bytes_at(symbol.addr, len as usize) else { return Vec::new() };
    let inside = symbol.addr.0..symbol.addr.0 + len;
    let decoder = Decoder::with_ip(64, code, symbol.addr.0, DecoderOptions::NONE);
    let leaves = |i: &Instruction| i.code() == Code::Jmp_rel32_64 && !inside.contains(&i.near_branch_target());
    // What lies behind the last instruction of a function is padding, in which nothing jumps.
    decoder.into_iter().filter(leaves).map(|i| Gva(i.ip())).take(MOST_EXITS).collect()
}

fn read_site<S: Stopped>(guest: &S, paging: &Paging, site: Gva) -> Option<(Gpa, [u8; SITE_BYTES])> {
    let first = paging.walk(guest, site).ok()?.gpa;
    let last = paging.walk(guest, site.offset(SITE_BYTES as u64 - 1)).ok()?.gpa;
    // One that lies in two pages which are no neighbours is none that could be changed at once.
    (first.checked_add(SITE_BYTES as u64 - 1) == Some(last)).then_some(())?;
    let mut bytes = [0; SITE_BYTES];
    guest.read(first, &mut bytes).ok()?;
    Some((first, bytes))
}

fn jump(from: Gva, to: Gva) -> Option<[u8; SITE_BYTES]> {
    let by = i128::from(to.0) - (i128::from(from.0) + SITE_BYTES as i128);
    let [a, b, c, d] = i32::try_from(by).ok()?.to_le_bytes();
    Some([0xe9, a, b, c, d])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tails_are_what_the_site_had() {
        let site = Gva(0xffff_ffff_8100_1000);
        assert_eq!(tail_of(site, [0xc3, 0xcc, 0xcc, 0xcc, 0xcc]), Some(Tail::Ret));
        let thunk = Gva(0xffff_ffff_8200_0000);
        assert_eq!(tail_of(site, jump(site, thunk).unwrap()), Some(Tail::Thunk(thunk)));
        let before = Gva(0xffff_ffff_8000_0000);
        assert_eq!(tail_of(site, jump(site, before).unwrap()), Some(Tail::Thunk(before)));
        assert_eq!(tail_of(site, [0xcc; 5]), None);
        assert_eq!(jump(site, Gva(0x1000)), None);
    }
}
