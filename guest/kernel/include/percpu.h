/*
 * Per-CPU data: the section is linked at address 0, so a symbol's value is its offset from the CPU's GS base. Each
 * accessor is one instruction: atomic against interrupts, NMIs and migration (which see it before or after, never half).
 */
#pragma once
#include "types.h"
#include "exo_abi.h"

#define DECLARE_PER_CPU(t, n) extern t pcpu_##n
#define DEFINE_PER_CPU(t, n) __attribute__((section(".data..percpu"), used)) t pcpu_##n = 0

/* The address of a CPU's instance, from any CPU. */
#define per_cpu_ptr(n, cpu)                                                                        \
	((__typeof__(pcpu_##n) *)((u64)&pcpu_##n + EXO_PERCPU_GPA + EXO_VIRT_OFFSET +               \
				  (u64)(cpu) * EXO_PERCPU_STRIDE))
#define per_cpu(n, cpu) (*per_cpu_ptr(n, cpu))

#define this_cpu_read(n)                                                                           \
	({                                                                                         \
		u64 _v;                                                                            \
		asm volatile("movq %%gs:%1, %0" : "=r"(_v) : "m"(pcpu_##n));                       \
		(__typeof__(pcpu_##n))_v;                                                          \
	})
#define this_cpu_write(n, v) asm volatile("movq %1, %%gs:%0" : "=m"(pcpu_##n) : "r"((u64)(v)) : "memory")
#define this_cpu_inc(n) asm volatile("incq %%gs:%0" : "+m"(pcpu_##n)::"memory", "cc")
#define this_cpu_dec(n) asm volatile("decq %%gs:%0" : "+m"(pcpu_##n)::"memory", "cc")
#define this_cpu_add(n, v) asm volatile("addq %1, %%gs:%0" : "+m"(pcpu_##n) : "r"((u64)(v)) : "memory", "cc")
#define this_cpu_or(n, v) asm volatile("orq %1, %%gs:%0" : "+m"(pcpu_##n) : "r"((u64)(v)) : "memory", "cc")
#define this_cpu_xadd(n, v)                                                                        \
	({                                                                                         \
		u64 _v = (u64)(v);                                                                 \
		asm volatile("xaddq %0, %%gs:%1" : "+r"(_v), "+m"(pcpu_##n)::"memory", "cc");      \
		_v;                                                                                \
	})
#define this_cpu_xchg(n, v)                                                                        \
	({                                                                                         \
		u64 _v = (u64)(v);                                                                 \
		asm volatile("xchgq %0, %%gs:%1" : "+r"(_v), "+m"(pcpu_##n)::"memory");            \
		_v;                                                                                \
	})

struct task;
DECLARE_PER_CPU(u64, cpu_number);
DECLARE_PER_CPU(u64, irq_off);	     /* soft interrupt mask: 0 = enabled */
DECLARE_PER_CPU(u64, irq_pending);   /* interrupts that came while masked, bit = vector - 0x20 */
DECLARE_PER_CPU(u64, preempt_count); /* 0 = this CPU's thread may be preempted */
DECLARE_PER_CPU(u64, need_resched);
DECLARE_PER_CPU(u64, curr_is_idle); /* the idle thread is never preempted, it gives way by itself */
DECLARE_PER_CPU(u64, nmi_deferred);
DECLARE_PER_CPU(u64, nmi_quiet);
DECLARE_PER_CPU(u64, nmi_depth);
DECLARE_PER_CPU(u64, fault_cr2);
DECLARE_PER_CPU(struct task *, current_task);

#define current this_cpu_read(current_task)
/* Stays true only while preemption or interrupts are off. */
#define smp_processor_id() ((u32)this_cpu_read(cpu_number))
