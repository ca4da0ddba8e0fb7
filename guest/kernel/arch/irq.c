/*
 * Interrupts and NMIs from the assembly stubs on. The soft mask and its pending bits are the heart: read irqflags.h first.
 */
#include "time.h"

DEFINE_PER_CPU(u64, cpu_number);
DEFINE_PER_CPU(u64, irq_off);
DEFINE_PER_CPU(u64, irq_pending);
DEFINE_PER_CPU(u64, preempt_count);
DEFINE_PER_CPU(u64, need_resched);
DEFINE_PER_CPU(u64, curr_is_idle);
DEFINE_PER_CPU(u64, nmi_deferred);
DEFINE_PER_CPU(u64, nmi_quiet);
DEFINE_PER_CPU(u64, nmi_depth);
DEFINE_PER_CPU(u64, fault_cr2);
DEFINE_PER_CPU(u64, irq_count);
DEFINE_PER_CPU(struct task *, current_task);

extern const u8 idle_wait_end[];
void irq_entry(struct pt_regs *regs);
void nmi_entry(struct pt_regs *regs);

/* See idle_wait: whoever is interrupted on the way to sleep doesn't sleep. */
static __always_inline void idle_fixup(struct pt_regs *regs)
{
	if (regs->rip >= (u64)idle_wait && regs->rip < (u64)idle_wait_end)
		regs->rip = (u64)idle_wait_end;
}

static void handle_timer_irq(void)
{
	TRACED;
	tick_handler();
}

void do_irq(u64 vector)
{
	TRACED;
	this_cpu_inc(irq_count);
	switch (vector) {
	case EXO_VEC_TIMER:
		handle_timer_irq();
		break;
	case EXO_VEC_IPI:
		handle_ipi();
		break;
	case EXO_VEC_SERIAL:
		serial_interrupt();
		break;
	}
}

/* Softirqs run with interrupts on and preemption off, at most once a CPU at a time. */
static __always_inline void irq_exit_softirq(void)
{
	if (!this_cpu_read(softirq_pending) || this_cpu_read(in_softirq))
		return;
	do_softirq();
}

/* Runs everything that is pending. Interrupts are masked (count 1) on entry and open on exit. */
static notrace void irq_process(void)
{
	u64 mask;

	do {
		while ((mask = this_cpu_xchg(irq_pending, 0)) != 0) {
			while (mask) {
				u64 bit = (u64)__builtin_ctzl(mask);

				mask &= mask - 1;
				do_irq(EXO_VEC_TIMER + bit);
			}
		}
		irq_exit_softirq();
		this_cpu_dec(irq_off);
		/* One that came just before the dec found the mask set; take it too. */
	} while (this_cpu_read(irq_pending) && this_cpu_xadd(irq_off, 1) == 0);
}

static __always_inline void irq_exit_preempt(void)
{
	if (this_cpu_read(need_resched))
		preempt_schedule();
}

static notrace void run_deferred_nmi(void)
{
	if (this_cpu_xchg(nmi_deferred, 0) && !this_cpu_read(nmi_quiet)) {
		this_cpu_inc(nmi_depth);
		do_nmi(NULL);
		this_cpu_dec(nmi_depth);
	}
}

notrace void irq_entry(struct pt_regs *regs)
{
	u64 bit = BIT(regs->vector - EXO_VEC_TIMER);

	idle_fixup(regs);
	this_cpu_or(irq_pending, bit);
	if (this_cpu_xadd(irq_off, 1)) {
		this_cpu_dec(irq_off);
		return;
	}
	/* From here on it is the soft mask that counts; a switch to another thread must find the real flag set. */
	if (boot_cpl == 0)
		asm volatile("sti");
	run_deferred_nmi();
	irq_process();
	irq_exit_preempt();
}

/* The slow path of local_irq_enable. */
notrace void irq_run_pending(void)
{
	if (this_cpu_xadd(irq_off, 1)) {
		this_cpu_dec(irq_off);
		return;
	}
	irq_process();
	irq_exit_preempt();
}

/*
 * At CPL 3 nothing blocks interrupts or further NMIs in here but the soft mask; until it is set this is an ordinary
 * piece of the interrupted thread and may even be preempted. At CPL 0 the processor blocks both until iretq.
 */
notrace void nmi_entry(struct pt_regs *regs)
{
	idle_fixup(regs);
	this_cpu_inc(irq_off);
	if (!this_cpu_read(nmi_quiet)) {
		this_cpu_inc(nmi_depth);
		do_nmi(regs);
		this_cpu_dec(nmi_depth);
	}
	this_cpu_dec(irq_off);
	if (boot_cpl == 3 && this_cpu_read(irq_pending))
		irq_run_pending();
}
