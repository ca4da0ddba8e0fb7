/*
 * Interrupt, NMI and fault entry.
 *
 * The gates lead to CPL 0. When the kernel runs at CPL 3 (a PVM host, where CPL 0 is emulated instruction by
 * instruction), the stub copies the frame to the interrupted stack, below its top (there is no red zone), and returns
 * into the same handler at CPL 3, which ends with a native iretq. When the kernel runs at CPL 0 the stub simply falls
 * into the handler. Stubs keep to mov, push, pop, lea, test, jcc and iretq: the emulator knows these.
 */
#include "exo_abi.h"

.macro SAVE_ALL
	push %rax; push %rcx; push %rdx; push %rbx; push %rbp; push %rsi; push %rdi
	push %r8; push %r9; push %r10; push %r11; push %r12; push %r13; push %r14; push %r15
.endm
.macro RESTORE_ALL
	pop %r15; pop %r14; pop %r13; pop %r12; pop %r11; pop %r10; pop %r9; pop %r8
	pop %rdi; pop %rsi; pop %rbp; pop %rbx; pop %rdx; pop %rcx; pop %rax
.endm

/* Frame at rsp + 16: rip, cs, rflags, rsp, ss. Leaves for \to at CPL 3 on the interrupted stack. */
.macro TO_CPL3 to
	push %rax
	push %rcx
	mov 40(%rsp), %rax
	and $-16, %rax
	sub $40, %rax
	mov 16(%rsp), %rcx
	mov %rcx, (%rax)
	movq $EXO_SEL_CODE3, 8(%rax)
	mov 32(%rsp), %rcx
	mov %rcx, 16(%rax)
	mov 40(%rsp), %rcx
	mov %rcx, 24(%rax)
	movq $EXO_SEL_DATA3, 32(%rax)
	mov %rax, 40(%rsp)
	lea \to(%rip), %rcx
	mov %rcx, 16(%rsp)
	pop %rcx
	pop %rax
	iretq
.endm

	.text
.macro IRQ_STUB name, vec
	.balign 16
	.globl \name
	.type \name, @function
\name:
	testb $3, 8(%rsp)
	jz \name\()_handler
	TO_CPL3 \name\()_handler
\name\()_handler:
	push $0
	push $\vec
	jmp irq_common
	.size \name, . - \name
.endm
	IRQ_STUB irq_timer, EXO_VEC_TIMER
	IRQ_STUB irq_ipi, EXO_VEC_IPI
	IRQ_STUB irq_serial, EXO_VEC_SERIAL

	.type irq_common, @function
irq_common:
	SAVE_ALL
	cld
	mov %rsp, %rdi
	call irq_entry
	RESTORE_ALL
	add $16, %rsp
	iretq
	.size irq_common, . - irq_common

	/*
	 * From CPL 0 code while the kernel lives at CPL 3, an NMI has interrupted another stub: no C from here. The
	 * handler that the stub leads to sees the flag.
	 */
	.balign 16
	.globl nmi_stub
	.type nmi_stub, @function
nmi_stub:
	testb $3, 8(%rsp)
	jnz 1f
	cmpb $3, boot_cpl(%rip)
	jne nmi_handler
	movq $1, %gs:pcpu_nmi_deferred
	iretq
1:	TO_CPL3 nmi_handler
nmi_handler:
	push $0
	push $2
	SAVE_ALL
	cld
	mov %rsp, %rdi
	call nmi_entry
	RESTORE_ALL
	add $16, %rsp
	iretq
	.size nmi_stub, . - nmi_stub

	/* Faults: vector and error code on the stack, then as above, with CR2 put aside (only CPL 0 can read it). */
	.balign 16
	.type fault_entry, @function
fault_entry:
	push %rax
	lea cpl0_call_site(%rip), %rax
	cmp 24(%rsp), %rax
	je cpl0_stub
	mov %cr2, %rax
	mov %rax, %gs:pcpu_fault_cr2
	testb $3, 32(%rsp)
	jz 1f
	push %rcx
	/* rsp: rcx, rax, vector, error, rip, cs, rflags, rsp, ss */
	mov 56(%rsp), %rax
	and $-16, %rax
	sub $56, %rax
	mov 16(%rsp), %rcx
	mov %rcx, (%rax)
	mov 24(%rsp), %rcx
	mov %rcx, 8(%rax)
	mov 32(%rsp), %rcx
	mov %rcx, 16(%rax)
	mov 40(%rsp), %rcx
	mov %rcx, 24(%rax)
	mov 48(%rsp), %rcx
	mov %rcx, 32(%rax)
	mov 56(%rsp), %rcx
	mov %rcx, 40(%rax)
	mov 64(%rsp), %rcx
	mov %rcx, 48(%rax)
	mov %rax, 56(%rsp)
	lea fault_handler(%rip), %rcx
	mov %rcx, 32(%rsp)
	pop %rcx
	pop %rax
	lea 16(%rsp), %rsp
	iretq
1:	pop %rax
fault_handler:
	SAVE_ALL
	cld
	mov %rsp, %rdi
	call do_fault
	RESTORE_ALL
	add $16, %rsp
	iretq
	.size fault_entry, . - fault_entry

	.altmacro
.macro FAULT_STUB vec
	.balign 16
fault_\vec:
	.if (\vec == 8) || ((\vec >= 10) && (\vec <= 14)) || (\vec == 17) || (\vec == 21) || (\vec == 29) || (\vec == 30)
	.else
	push $0
	.endif
	push $\vec
	jmp fault_entry
.endm
.macro FAULT_ADDR vec
	.quad fault_\vec
.endm
	.set i, 0
	.rept 32
	FAULT_STUB %i
	.set i, i + 1
	.endr

	.section .rodata
	.balign 8
	.globl fault_stubs
fault_stubs:
	.set i, 0
	.rept 32
	FAULT_ADDR %i
	.set i, i + 1
	.endr

	/*
	 * The way down to CPL 0: an invalid instruction at a place that fault_entry knows (a PVM host has no `int n`).
	 * edi = 1: halt for good, 2: triple fault. It doesn't return.
	 */
	.text
	.balign 16
	.globl cpl0_call
	.type cpl0_call, @function
cpl0_call:
cpl0_call_site:
	ud2
	.size cpl0_call, . - cpl0_call

	.type cpl0_stub, @function
cpl0_stub:
	cmp $1, %edi
	jne cpl0_do_triple_fault
	.size cpl0_stub, . - cpl0_stub

	.type cpl0_do_hang, @function
cpl0_do_hang:
	cli
1:	hlt
	jmp 1b
	.size cpl0_do_hang, . - cpl0_do_hang

	.type cpl0_do_triple_fault, @function
cpl0_do_triple_fault:
	lidt empty_idt(%rip)
	ud2
	.size cpl0_do_triple_fault, . - cpl0_do_triple_fault

	.section .rodata
	.balign 8
empty_idt:
	.word 0
	.quad 0
	.section .note.GNU-stack, "", @progbits
