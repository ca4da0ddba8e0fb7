//! The trampolines, decoded again.
#![allow(clippy::unwrap_used)]

use super::*;
use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter, Instruction};

const RINGS: RingMap = RingMap { head_off: 0x2000_0000, slots: Gva(0x6040_0000), records: 1 << 16 };
const AT: Gva = Gva(0x6000_0000);

fn listing(t: &Trampoline) -> String {
    let mut out = String::new();
    let mut fmt = GasFormatter::new();
    fmt.options_mut().set_branch_leading_zeros(false);
    fmt.options_mut().set_uppercase_hex(false);
    fmt.options_mut().set_space_after_operand_separator(true);
    let mut d = Decoder::with_ip(64, &t.code, t.at.0, DecoderOptions::NONE);
    let mut i = Instruction::default();
    while d.can_decode() {
        d.decode_out(&mut i);
        assert!(!i.is_invalid(), "undecodable byte at {:#x}", i.ip());
        let mut s = String::new();
        fmt.format(&i, &mut s);
        out += &format!("{:4x}: {s}\n", i.ip() - t.at.0);
    }
    out
}

#[test]
fn drop_trampoline_decodes_to_what_the_docs_say() {
    insta::assert_snapshot!(listing(&assemble(FullPolicy::Drop, RINGS, 1, Tail::Ret, AT).unwrap()));
}

#[test]
fn block_trampoline_decodes_to_what_the_docs_say() {
    insta::assert_snapshot!(listing(&assemble(FullPolicy::Block, RINGS, 1, Tail::Ret, AT).unwrap()));
}

#[test]
fn overwrite_trampoline_decodes_to_what_the_docs_say() {
    insta::assert_snapshot!(listing(&assemble(FullPolicy::Overwrite, RINGS, 1, Tail::Ret, AT).unwrap()));
}

#[test]
fn kernel_half_addresses_are_sign_extended() {
    let rings = RingMap { head_off: -0x1000_0000, slots: Gva(0xffff_ffff_fa20_0000), records: 1 << 12 };
    let t = assemble(FullPolicy::Drop, rings, 7, Tail::Thunk(Gva(0xffff_ffff_8200_1000)), Gva(0xffff_ffff_fa00_0000))
        .unwrap();
    let text = listing(&t);
    assert!(text.contains("-0x5e00000(%r10)"), "{text}");
    // No address-size prefix: it would cut the address to 32 bits.
    assert!(text.contains("mov %gs:0xfffffffff0000000, %rax"), "{text}");
    assert!(text.contains("jmp 0xffffffff82001000") && !text.contains(": ret"), "{text}");
    assert!(text.contains("cmpxchg %r10, %gs:0xfffffffff0000000"), "{text}");
}

#[test]
fn impossible_rings_are_refused() {
    let bad = |rings| assemble(FullPolicy::Drop, rings, 1, Tail::Ret, AT).unwrap_err();
    assert!(matches!(bad(RingMap { records: 1000, ..RINGS }), TrampolineError::Records(1000)));
    assert!(matches!(bad(RingMap { records: 0, ..RINGS }), TrampolineError::Records(0)));
    assert!(matches!(bad(RingMap { records: MAX_RECORDS * 2, ..RINGS }), TrampolineError::Records(_)));
    assert!(matches!(bad(RingMap { slots: Gva(1 << 40), ..RINGS }), TrampolineError::SlotsOutOfReach { .. }));
    assert!(matches!(bad(RingMap { head_off: i32::MAX, ..RINGS }), TrampolineError::ControlOutOfReach { .. }));
}

#[test]
fn a_notice_decodes_to_what_the_docs_say() {
    let thunk = Tail::Thunk(Gva(0x6000_8000));
    insta::assert_snapshot!(listing(&assemble_notice(0xe78, thunk, AT).unwrap()), @r"
       0: push %rax
       1: push %rdx
       2: mov $0xe78, %edx
       7: out %al, %dx
       8: pop %rdx
       9: pop %rax
       a: jmp 0x60008000
    ");
    assert!(listing(&assemble_notice(0xe78, Tail::Ret, AT).unwrap()).ends_with("ret\n"));
}
