/* NMI work: a lockup watchdog and a sampling profiler. Takes no lock and sleeps nowhere: it interrupts everything. */
#include "time.h"

#define NMI_SAMPLES 64
#define NMI_STACK_DEPTH 8

DEFINE_PER_CPU(u64, nmi_count);
DEFINE_PER_CPU(u64, nmi_nested);
DEFINE_PER_CPU(u64, nmi_last_jiffies);
DEFINE_PER_CPU(u64, nmi_stuck);

struct nmi_sample {
	u64 rip;
	u32 depth, cpu;
	u64 frames[NMI_STACK_DEPTH];
};

static struct nmi_sample samples[EXO_MAX_CPUS][NMI_SAMPLES];

/* Counts NMIs between which time stood still; only a hint, a slow host does that too. */
static void watchdog_overflow_callback(void)
{
	TRACED;
	u64 now = READ_ONCE(jiffies);

	if (now == this_cpu_read(nmi_last_jiffies))
		this_cpu_inc(nmi_stuck);
	else
		this_cpu_write(nmi_stuck, 0);
	this_cpu_write(nmi_last_jiffies, now);
}

static u32 perf_callchain_kernel(struct pt_regs *regs, u64 *frames, u32 max)
{
	TRACED;
	u64 base = regs->rsp & ~(THREAD_SIZE - 1);

	return stack_walk(regs->rbp, base, base + THREAD_SIZE, frames, max);
}

static struct nmi_sample *perf_output_begin(void)
{
	TRACED;
	return &samples[smp_processor_id()][this_cpu_read(nmi_count) % NMI_SAMPLES];
}

static void perf_output_end(struct nmi_sample *s)
{
	TRACED;
	s->cpu = smp_processor_id();
}

static void perf_event_overflow(struct pt_regs *regs)
{
	TRACED;
	struct nmi_sample *s = perf_output_begin();

	s->rip = regs->rip;
	s->depth = perf_callchain_kernel(regs, s->frames, NMI_STACK_DEPTH);
	perf_output_end(s);
}

static void nmi_handle(struct pt_regs *regs)
{
	TRACED;
	watchdog_overflow_callback();
	if (regs)
		perf_event_overflow(regs);
}

/* regs is NULL for one that was put off (it interrupted a CPL 0 stub). */
void do_nmi(struct pt_regs *regs)
{
	TRACED;
	this_cpu_inc(nmi_count);
	if (this_cpu_read(nmi_depth) > 1) {
		this_cpu_inc(nmi_nested);
		return;
	}
	nmi_handle(regs);
}

u64 nmi_total(void)
{
	TRACED;
	u64 n = 0;

	for (u32 i = 0; i < nr_cpus; i++)
		n += per_cpu(nmi_count, i);
	return n;
}
