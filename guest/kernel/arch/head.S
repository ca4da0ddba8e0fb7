/*
 * Entry of every vCPU: rdi = CPU number, rsi = boot information (GVA), GS base set, no stack. Runs before per-CPU data
 * exists, so nothing here or called from here before the copy may be traced.
 */
#include "exo_abi.h"
#define BOOT_STACK_SHIFT 14

	.section .text.head, "ax"
	.globl _start
	.type _start, @function
_start:
	cld
	lea 1(%rdi), %rax
	shl $BOOT_STACK_SHIFT, %rax
	lea boot_stacks(%rip), %rsp
	add %rax, %rsp
	xor %ebp, %ebp
	mov %rdi, %r12
	mov %rsi, %r13
	test %rdi, %rdi
	jnz 2f
	/* CPU 0 fills the areas of all CPUs, so that it can hand things over in them. */
	mov 4(%rsi), %r14d
	cmp $EXO_MAX_CPUS, %r14
	jbe 1f
	mov $EXO_MAX_CPUS, %r14d
1:	dec %r14
	js 2f
	mov %r14, %rdi
	imul $EXO_PERCPU_STRIDE, %rdi, %rdi
	mov $(EXO_PERCPU_GPA + EXO_VIRT_OFFSET), %rax
	add %rax, %rdi
	lea __percpu_load(%rip), %rsi
	mov $__percpu_end, %ecx
	mov %r14, %r15
	mov %rdi, %rdx
	rep movsb
	mov %r15, pcpu_cpu_number(%rdx)
	jmp 1b
2:	mov %r12, %rdi
	mov %r13, %rsi
	call cpu_entry
	ud2
	.size _start, . - _start

	.text
	/* What every site calls until exotrace turns the sites into nops. */
	.globl __fentry__
	.type __fentry__, @function
__fentry__:
	ret
	.size __fentry__, . - __fentry__

	/* Aligned to their size: the backtrace finds a stack's bounds by masking. */
	.bss
	.balign 16384
	.globl boot_stacks
boot_stacks:
	.skip EXO_MAX_CPUS << BOOT_STACK_SHIFT

	.section .note.GNU-stack, "", @progbits
