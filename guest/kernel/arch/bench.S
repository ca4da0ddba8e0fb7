/*
 * The benchmark's loops: rdi = iterations, rax = cycles taken. All have the same shape and alignment, so that what is
 * measured is the called function.
 */
	.text
.macro BENCH_LOOP name, callee
	.balign 64
	.globl \name
	.type \name, @function
\name:
	push %rbx
	push %r12
	mov %rdi, %rbx
	lfence
	rdtsc
	lfence
	shl $32, %rdx
	or %rdx, %rax
	mov %rax, %r12
	.balign 64
1:	call \callee
	dec %rbx
	jnz 1b
	lfence
	rdtsc
	lfence
	shl $32, %rdx
	or %rdx, %rax
	sub %r12, %rax
	pop %r12
	pop %rbx
	ret
	.size \name, . - \name
.endm
	BENCH_LOOP loop_empty, bench_callee_empty
	BENCH_LOOP loop_rdtsc, bench_callee_rdtsc
	BENCH_LOOP loop_traced, bench_traced
	BENCH_LOOP loop_untraced, bench_untraced

	.balign 64
	.type bench_callee_empty, @function
bench_callee_empty:
	ret
	.size bench_callee_empty, . - bench_callee_empty

	.balign 64
	.type bench_callee_rdtsc, @function
bench_callee_rdtsc:
	rdtsc
	ret
	.size bench_callee_rdtsc, . - bench_callee_rdtsc

	.section .note.GNU-stack, "", @progbits
