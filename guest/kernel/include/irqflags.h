/*
 * Soft interrupt masking. At CPL 3 the real interrupt flag can't be cleared, so "interrupts off" is a per-CPU count; an
 * interrupt that finds it non-zero notes itself in irq_pending and returns. The same code runs at CPL 0.
 */
#pragma once
#include "percpu.h"

void irq_run_pending(void);
void preempt_schedule(void);

static __always_inline void local_irq_disable(void)
{
	this_cpu_inc(irq_off);
}

/*
 * Between the two instructions an interrupt may come, run what is pending and even migrate this thread; the check is
 * then made on another CPU, which is harmless.
 */
static __always_inline void local_irq_enable(void)
{
	this_cpu_dec(irq_off);
	if (unlikely(this_cpu_read(irq_pending)))
		irq_run_pending();
}

static __always_inline void preempt_disable(void)
{
	this_cpu_inc(preempt_count);
}

static __always_inline void preempt_enable(void)
{
	this_cpu_dec(preempt_count);
	if (unlikely(this_cpu_read(need_resched)))
		preempt_schedule();
}
