//! Trampolines: the code that a switched-on site calls.
//!
//! A trampoline reserves a slot in the ring of the CPU it runs on, writes one 32-byte record and returns to the
//! function. It may be interrupted, hit by an NMI, preempted and moved to another CPU between any two of its
//! instructions; `docs/ring.md` argues why that is safe. It runs at a function's first instruction, where RAX (number
//! of vector arguments), RDX and the other argument registers are live, R10, R11 and the flags are free.
//!
//! # The `drop` and `block` trampoline
//!
//! ```text
//!           push   %rax
//!           push   %rdx
//!   retry:  mov    %gs:HEAD, %rax          cursor: ring number << 56 | index
//!           mov    %gs:SOFT_LAST, %r11
//!           lea    1(%rax), %r10
//!           sub    %rax, %r11              also negative or huge when a migration mixed two rings
//!           cmp    $RECORDS-1, %r11
//!           ja     slow
//!           cmpxchg %r10, %gs:HEAD         one instruction: atomic on its CPU without lock
//!           jne    retry                   interrupted or migrated: HEAD moved, or is another ring's
//!   write:  mov    %rax, %r11              the cursor alone names ring and slot: gs is not used any more
//!           mov    %eax, %r10d
//!           shr    $56, %r11
//!           and    $RECORDS-1, %r10d
//!           shl    $RING_SHIFT, %r11
//!           shl    $5, %r10d
//!           add    %r11, %r10
//!           prefetchw SLOTS+AHEAD(%r10)    past the last ring it prefetches nothing, which is no fault
//!           mov    %eax, %r11d             tag
//!           rdtsc
//!           mov    %eax, SLOTS+TSC(%r10)
//!           mov    %edx, SLOTS+TSC+4(%r10)
//!           mov    16(%rsp), %eax          return address: the site + 5
//!           mov    24(%rsp), %rdx          the function's own return address
//!           mov    %eax, SLOTS+IP(%r10)
//!           mov    %rdx, SLOTS+PARENT(%r10)
//!           mov    %esp, SLOTS+SP(%r10)    24 below RSP at the function's first instruction
//!           movl   $META, SLOTS+META(%r10)
//!           mov    %r11d, SLOTS+TAG(%r10)  last: the record is complete
//!           pop    %rdx
//!           pop    %rax
//!           ret                            or a jump to the guest's return thunk
//!   slow:   mov    %gs:HARD_LAST, %r11
//!           mov    %gs:HEAD, %rax
//!           lea    1(%rax), %r10
//!           sub    %rax, %r11
//!           cmp    $RECORDS-1, %r11
//!           ja     full
//!           cmpxchg %r10, %gs:HEAD
//!           jne    retry
//!           mov    %rax, %r11
//!           sub    %gs:SOFT_LAST, %r11
//!           cmp    $1, %r11                just the first one past the mark rings
//!           jne    write
//!           mov    $DOORBELL_PORT, %edx
//!           out    %al, %dx
//!           jmp    write
//!   full:   cmp    $-1, %r11
//!           jne    retry                   not full: the words were of two rings
//!   drop:   incq   %gs:LOST                block: mov $FULL_PORT, %edx
//!           pop    %rdx                           out %eax, %dx
//!           pop    %rax                           jmp retry
//!           ret
//! ```
//!
//! The `overwrite` trampoline reserves with `mov $1, %eax; xadd %rax, %gs:HEAD` and never looks at a limit.
//!
//! # Why `cmpxchg` and not `xadd` where a ring can be full
//!
//! An `xadd` has taken its slot before it can know whether there is room, and a slot taken but not written can't be
//! told from one whose writer is still on its way. With `cmpxchg` a slot is taken only when there is room, so there
//! are no holes, `HEAD` counts exactly the records written, `LOST` exactly those dropped, and both are incremented by
//! one instruction each. It costs about 0.12 x a bare `rdtsc` more than `xadd` without a check.

use exotrace_trace::ids::Gva;
use exotrace_trace::ring::layout::{
    CURSOR_RING_SHIFT, DOORBELL_PORT, FULL_PORT, FullPolicy, KIND_ENTRY, MAX_RECORDS, MAX_RINGS, MIN_RECORDS,
    RECORD_SHIFT, SP_BELOW_ENTRY, ctrl, rec,
};
use iced_x86::code_asm::{
    AsmMemoryOperand, CodeAssembler, CodeLabel, al, byte_ptr, dword_ptr, dx, eax, edx, esp, ptr, qword_ptr, r10, r10d,
    r11, r11d, rax, rdx, rsp,
};
use iced_x86::{Code, Instruction, MemoryOperand, Register};

#[cfg(test)]
mod tests;

/// How far ahead of the slot being written the next cache lines are fetched, in bytes: about 300 ns at full rate, what it
/// takes to get a line back from the consumer's cache. Saves 0.1 x `rdtsc` a record on rings larger than the cache.
const PREFETCH_AHEAD: i32 = 1024;

/// Where a trampoline finds the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingMap {
    /// Distance from a CPU's GS base to its control page.
    pub head_off: i32,
    /// Address of the slots of ring 0; the others follow.
    pub slots: Gva,
    /// Slots per ring, a power of two.
    pub records: u32,
}

/// What can't be assembled.
#[derive(Debug, thiserror::Error)]
pub enum TrampolineError {
    /// The number of records is not a power of two within the limits.
    #[error("a ring of {0} records is not possible: use a power of two from {MIN_RECORDS} to {MAX_RECORDS}")]
    Records(u32),
    /// The slots can't be addressed by a sign-extended 32-bit displacement.
    #[error("ring slots at {slots} are out of reach: they must lie within 2 GiB of address 0 or of the top")]
    SlotsOutOfReach {
        /// Address of the slots.
        slots: Gva,
    },
    /// The offset of a control page word does not fit.
    #[error("control pages at GS base {head_off:+#x} are out of reach of a 32-bit displacement")]
    ControlOutOfReach {
        /// The offset.
        head_off: i32,
    },
    /// The assembler refused.
    #[error("assembling a trampoline at {at}: {why}")]
    Assemble {
        /// Address it was for.
        at: Gva,
        /// What iced-x86 said.
        why: String,
    },
}

/// How a trampoline returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// With a plain `ret`.
    Ret,
    /// Through the guest's return thunk, which keeps the guest's mitigation of speculative returns complete.
    Thunk(Gva),
}

/// A trampoline, ready to be written at its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trampoline {
    /// Its address: what a site calls.
    pub at: Gva,
    /// Its code.
    pub code: Vec<u8>,
}

/// The `meta` word of records: kind and tracer mask id.
#[must_use]
pub const fn meta_word(mask_id: u16) -> u32 {
    KIND_ENTRY as u32 | (mask_id as u32) << 16
}

/// Assembles the trampoline for one tracer mask at address `at`.
///
/// # Errors
/// When the rings are out of reach of the addressing used, the thunk of a jump, or the ring size is impossible.
pub fn assemble(
    policy: FullPolicy,
    rings: RingMap,
    mask_id: u16,
    tail: Tail,
    at: Gva,
) -> Result<Trampoline, TrampolineError> {
    let emitter = Emitter::new(rings, mask_id, tail)?;
    let code = emitter.emit(policy, at).map_err(|e| TrampolineError::Assemble { at, why: e.to_string() })?;
    Ok(Trampoline { at, code })
}

/// Assembles a stub that tells the VMM that the guest came by, and goes on as the return that it stands in for:
///
/// ```text
///   push %rax
///   push %rdx
///   mov  $PORT, %edx
///   out  %al, %dx        the flags stay as they are: some code returns results in them
///   pop  %rdx
///   pop  %rax
///   ret                  or a jump to the thunk that this return site jumped to
/// ```
///
/// # Errors
/// The thunk is out of reach.
pub fn assemble_notice(port: u16, tail: Tail, at: Gva) -> Result<Trampoline, TrampolineError> {
    let emit = || {
        let mut a = CodeAssembler::new(64)?;
        a.push(rax)?;
        a.push(rdx)?;
        a.mov(edx, u32::from(port))?;
        a.out(dx, al)?;
        a.pop(rdx)?;
        a.pop(rax)?;
        match tail {
            Tail::Ret => a.ret()?,
            Tail::Thunk(thunk) => a.jmp(thunk.0)?,
        }
        a.assemble(at.0)
    };
    let code = emit().map_err(|e: iced_x86::IcedError| TrampolineError::Assemble { at, why: e.to_string() })?;
    Ok(Trampoline { at, code })
}

struct Emitter {
    records: u32,
    slots: i32,
    head_off: i32,
    meta: u32,
    tail: Tail,
}

impl Emitter {
    fn new(rings: RingMap, mask_id: u16, tail: Tail) -> Result<Emitter, TrampolineError> {
        if !rings.records.is_power_of_two() || !(MIN_RECORDS..=MAX_RECORDS).contains(&rings.records) {
            return Err(TrampolineError::Records(rings.records));
        }
        let out_of_reach = TrampolineError::SlotsOutOfReach { slots: rings.slots };
        let all = (u64::from(rings.records) << RECORD_SHIFT) * MAX_RINGS as u64;
        let Ok(slots) = i32::try_from(rings.slots.0.cast_signed()) else {
            return Err(out_of_reach);
        };
        // A slot's own offset is added at run time in 64 bits; only the displacement must fit.
        if rings.slots.0.checked_add(all).is_none() || slots > i32::MAX - PREFETCH_AHEAD {
            return Err(out_of_reach);
        }
        if rings.head_off.checked_add(ctrl::BYTES as i32).is_none() {
            return Err(TrampolineError::ControlOutOfReach { head_off: rings.head_off });
        }
        Ok(Emitter { records: rings.records, slots, head_off: rings.head_off, meta: meta_word(mask_id), tail })
    }

    /// `%gs:word`, a word of this CPU's control page.
    fn ctrl(&self, word: usize) -> AsmMemoryOperand {
        qword_ptr(i64::from(self.head_off) + word as i64).gs()
    }

    /// `mov %gs:HEAD, %rax` in the 9-byte form. Of its own accord the assembler takes the form for absolute 64-bit
    /// addresses, which is longer and takes a decoder longer.
    fn load_head(&self, a: &mut CodeAssembler) -> Result<(), iced_x86::IcedError> {
        let head = MemoryOperand::new(
            Register::None,
            Register::None,
            1,
            i64::from(self.head_off) + ctrl::HEAD as i64,
            8,
            false,
            Register::GS,
        );
        a.add_instruction(Instruction::with2(Code::Mov_r64_rm64, Register::RAX, head)?)
    }

    fn emit(&self, policy: FullPolicy, at: Gva) -> Result<Vec<u8>, iced_x86::IcedError> {
        let mut a = CodeAssembler::new(64)?;
        let mut write = a.create_label();
        a.push(rax)?;
        a.push(rdx)?;
        if policy == FullPolicy::Overwrite {
            a.mov(eax, 1)?;
            a.xadd(self.ctrl(ctrl::HEAD), rax)?;
            self.emit_write(&mut a, &mut write)?;
        } else {
            let mut retry = a.create_label();
            let slow = a.create_label();
            a.set_label(&mut retry)?;
            self.load_head(&mut a)?;
            a.mov(r11, self.ctrl(ctrl::SOFT_LAST))?;
            a.lea(r10, ptr(rax + 1))?;
            a.sub(r11, rax)?;
            a.cmp(r11, self.records as i32 - 1)?;
            a.ja(slow)?;
            a.cmpxchg(self.ctrl(ctrl::HEAD), r10)?;
            a.jne(retry)?;
            self.emit_write(&mut a, &mut write)?;
            self.emit_slow(&mut a, policy, [retry, write, slow].as_mut_slice())?;
        }
        a.assemble(at.0)
    }

    /// From a reservation in RAX to the return.
    fn emit_write(&self, a: &mut CodeAssembler, write: &mut CodeLabel) -> Result<(), iced_x86::IcedError> {
        let slot = |field: usize| r10 + (self.slots + field as i32);
        let ring_shift = self.records.trailing_zeros() + RECORD_SHIFT;
        a.set_label(write)?;
        a.mov(r11, rax)?;
        a.mov(r10d, eax)?;
        a.shr(r11, CURSOR_RING_SHIFT)?;
        a.and(r10d, self.records as i32 - 1)?;
        a.shl(r11, ring_shift)?;
        a.shl(r10d, RECORD_SHIFT)?;
        a.add(r10, r11)?;
        a.prefetchw(byte_ptr(r10 + (self.slots + PREFETCH_AHEAD)))?;
        a.mov(r11d, eax)?;
        a.rdtsc()?;
        a.mov(dword_ptr(slot(rec::TSC)), eax)?;
        a.mov(dword_ptr(slot(rec::TSC + 4)), edx)?;
        a.mov(eax, dword_ptr(rsp + 16))?;
        a.mov(rdx, qword_ptr(rsp + SP_BELOW_ENTRY as i32))?;
        a.mov(dword_ptr(slot(rec::IP)), eax)?;
        a.mov(qword_ptr(slot(rec::PARENT)), rdx)?;
        a.mov(dword_ptr(slot(rec::SP)), esp)?;
        a.mov(dword_ptr(slot(rec::META)), self.meta)?;
        a.mov(dword_ptr(slot(rec::TAG)), r11d)?;
        self.emit_return(a)
    }

    fn emit_return(&self, a: &mut CodeAssembler) -> Result<(), iced_x86::IcedError> {
        a.pop(rdx)?;
        a.pop(rax)?;
        match self.tail {
            Tail::Ret => a.ret(),
            Tail::Thunk(thunk) => a.jmp(thunk.0),
        }
    }

    /// Past the soft mark: doorbell, or the ring is full.
    fn emit_slow(
        &self,
        a: &mut CodeAssembler,
        policy: FullPolicy,
        labels: &mut [CodeLabel],
    ) -> Result<(), iced_x86::IcedError> {
        let [retry, write, slow] = labels else { unreachable!("three labels") };
        let mut full = a.create_label();
        a.set_label(slow)?;
        a.mov(r11, self.ctrl(ctrl::HARD_LAST))?;
        self.load_head(a)?;
        a.lea(r10, ptr(rax + 1))?;
        a.sub(r11, rax)?;
        a.cmp(r11, self.records as i32 - 1)?;
        a.ja(full)?;
        a.cmpxchg(self.ctrl(ctrl::HEAD), r10)?;
        a.jne(*retry)?;
        a.mov(r11, rax)?;
        a.sub(r11, self.ctrl(ctrl::SOFT_LAST))?;
        a.cmp(r11, 1)?;
        a.jne(*write)?;
        a.mov(edx, u32::from(DOORBELL_PORT))?;
        a.out(dx, al)?;
        a.jmp(*write)?;
        a.set_label(&mut full)?;
        a.cmp(r11, -1)?;
        a.jne(*retry)?;
        if policy == FullPolicy::Drop {
            a.inc(self.ctrl(ctrl::LOST))?;
            self.emit_return(a)
        } else {
            a.mov(edx, u32::from(FULL_PORT))?;
            a.out(dx, eax)?;
            a.jmp(*retry)
        }
    }
}
