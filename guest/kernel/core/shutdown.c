/*
 * How a run ends. Everything here is untraced on purpose: after it no CPU may enter a traced function any more, and none
 * may stand between a site and its counter, so that the counters are exact at EXIT. For a power-off all threads have
 * been joined before; what is left are idle threads, which stop in their loop.
 */
#include "kernel.h"

u64 system_stopping;
static u64 parked;

/* Interrupts and NMIs may still come; they return at once. */
static notrace void quiet_this_cpu(void)
{
	local_irq_disable();
	this_cpu_write(nmi_quiet, 1);
	outl(EXO_PORT_TIMER, 0);
	outl(EXO_PORT_NMI_TIMER, 0);
}

notrace void stop_this_cpu(void)
{
	quiet_this_cpu();
	__atomic_fetch_add(&parked, 1, __ATOMIC_SEQ_CST);
	for (;;)
		outl(EXO_PORT_PARK, 0);
}

/* In a panic it waits half a second at most: a CPU that hangs must not keep this one from reporting. */
notrace void stop_other_cpus(void)
{
	u32 me = smp_processor_id();
	u64 deadline = rdtsc() + (READ_ONCE(panicking) ? boot_info->tsc_hz / 2 : 60 * boot_info->tsc_hz);
	u32 others = 0;

	__atomic_store_n(&system_stopping, 1, __ATOMIC_SEQ_CST);
	for (u32 i = 0; i < nr_cpus; i++) {
		if (i == me || !per_cpu(current_task, i))
			continue;
		others++;
		outl(EXO_PORT_IPI, i);
	}
	while (__atomic_load_n(&parked, __ATOMIC_ACQUIRE) < others && (s64)(deadline - rdtsc()) > 0)
		cpu_relax();
}

notrace void machine_halt(u32 code)
{
	quiet_this_cpu();
	if (!READ_ONCE(system_stopping))
		stop_other_cpus();
	for (;;)
		outl(EXO_PORT_EXIT, code);
}
