/* Context switch, idle and the byte-moving routines that the compiler calls by itself. None has a site. */
#include "exo_abi.h"
	.text
	/* struct task *context_switch(prev, next): runs on as next. */
	.globl context_switch
	.type context_switch, @function
	.balign 16
context_switch:
	push %rbp
	push %rbx
	push %r12
	push %r13
	push %r14
	push %r15
	mov %rsp, (%rdi)
	mov (%rsi), %rsp
	pop %r15
	pop %r14
	pop %r13
	pop %r12
	pop %rbx
	pop %rbp
	mov %rdi, %rax
	ret
	.size context_switch, . - context_switch

	/* First thing a new thread does. */
	.globl ret_from_fork
	.type ret_from_fork, @function
ret_from_fork:
	xor %ebp, %ebp
	call thread_start
	ud2
	.size ret_from_fork, . - ret_from_fork

	/*
	 * Sleeps unless there is something to do. An interrupt that comes between the checks and the `out` would be
	 * slept through: the handlers send whoever they interrupt in here to idle_wait_end (idle_fixup).
	 */
	.globl idle_wait, idle_wait_end
	.type idle_wait, @function
	.balign 16
idle_wait:
	cmpq $0, %gs:pcpu_need_resched
	jne idle_wait_end
	cmpq $0, %gs:pcpu_irq_pending
	jne idle_wait_end
	cmpq $0, system_stopping(%rip)
	jne idle_wait_end
	mov $EXO_PORT_IDLE, %edx
	xor %eax, %eax
	out %eax, %dx
idle_wait_end:
	ret
	.size idle_wait, . - idle_wait

	.globl memcpy
	.type memcpy, @function
memcpy:
	mov %rdi, %rax
	mov %rdx, %rcx
	shr $3, %rcx
	and $7, %edx
	rep movsq
	mov %edx, %ecx
	rep movsb
	ret
	.size memcpy, . - memcpy

	.globl memmove
	.type memmove, @function
memmove:
	mov %rdi, %rax
	sub %rsi, %rax
	cmp %rdx, %rax
	jae memcpy
	mov %rdi, %rax
	lea -1(%rsi, %rdx), %rsi
	lea -1(%rdi, %rdx), %rdi
	mov %rdx, %rcx
	std
	rep movsb
	cld
	ret
	.size memmove, . - memmove

	.globl memset
	.type memset, @function
memset:
	mov %rdi, %r9
	movzbl %sil, %eax
	mov $0x0101010101010101, %rcx
	imul %rcx, %rax
	mov %rdx, %rcx
	shr $3, %rcx
	and $7, %edx
	rep stosq
	mov %edx, %ecx
	rep stosb
	mov %r9, %rax
	ret
	.size memset, . - memset

	.globl memcmp
	.type memcmp, @function
memcmp:
	xor %eax, %eax
1:	test %rdx, %rdx
	jz 2f
	movzbl (%rdi), %eax
	movzbl (%rsi), %ecx
	sub %ecx, %eax
	jnz 2f
	inc %rdi
	inc %rsi
	dec %rdx
	jmp 1b
2:	ret
	.size memcmp, . - memcmp

	.section .note.GNU-stack, "", @progbits
