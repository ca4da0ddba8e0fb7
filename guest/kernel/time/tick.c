/* The tick and the clock. Jiffies follow the TSC, so a tick that comes late or not at all costs no time. */
#include "time.h"

#define DEFAULT_HZ 250

u64 jiffies;
u64 tick_hz;
static u64 tick_period; /* TSC cycles */
static u64 boot_tsc;
static u64 last_tick_tsc;
static spinlock_t jiffies_lock = SPINLOCK_INIT;
DEFINE_PER_CPU(u64, ticks);

void time_init(void)
{
	TRACED;
	if (!boot_info->tsc_hz)
		boot_info->tsc_hz = 1000000000;
	tick_hz = params.hz ? params.hz : DEFAULT_HZ;
	tick_period = boot_info->tsc_hz / tick_hz;
	boot_tsc = rdtsc();
	last_tick_tsc = boot_tsc;
}

void tick_setup_cpu(void)
{
	TRACED;
	if (params.hz)
		outl(EXO_PORT_TIMER, (u32)(1000000 / params.hz));
	if (params.nmi_hz)
		outl(EXO_PORT_NMI_TIMER, (u32)(1000000 / params.nmi_hz));
}

void tick_stop_cpu(void)
{
	TRACED;
	outl(EXO_PORT_TIMER, 0);
	outl(EXO_PORT_NMI_TIMER, 0);
}

/* n * mul / div without overflow for any n that a 64-bit clock reaches. */
static u64 scale(u64 n, u64 mul, u64 div)
{
	TRACED;
	return n / div * mul + n % div * mul / div;
}

u64 tsc_to_ns(u64 tsc)
{
	TRACED;
	return scale(tsc, 1000000000, boot_info->tsc_hz);
}

u64 ns_to_tsc(u64 ns)
{
	TRACED;
	return scale(ns, boot_info->tsc_hz, 1000000000);
}

u64 ktime_get_ns(void)
{
	TRACED;
	s64 d = (s64)(rdtsc() - boot_tsc);

	return d > 0 ? tsc_to_ns((u64)d) : 0;
}

u64 msecs_to_jiffies(u64 ms)
{
	TRACED;
	return (ms * tick_hz + 999) / 1000;
}

/* Interrupts off. Whoever comes first counts; the others need not wait. */
static void do_timer(void)
{
	TRACED;
	if (__atomic_exchange_n(&jiffies_lock.locked, 1, __ATOMIC_ACQUIRE))
		return;
	s64 late = (s64)(rdtsc() - last_tick_tsc);

	if (late >= (s64)tick_period) {
		u64 n = (u64)late / tick_period;

		last_tick_tsc += n * tick_period;
		__atomic_store_n(&jiffies, jiffies + n, __ATOMIC_RELEASE);
	}
	arch_spin_unlock(&jiffies_lock);
}

static void update_process_times(void)
{
	TRACED;
	this_cpu_inc(ticks);
	scheduler_tick();
	run_local_timers();
	hrtimer_run_queues();
}

void tick_handler(void)
{
	TRACED;
	do_timer();
	update_process_times();
}

/* Without a tick the clock is looked at here: by the idle loop and wherever threads give way. */
void tick_poll(void)
{
	TRACED;
	local_irq_disable();
	do_timer();
	run_local_timers();
	hrtimer_run_queues();
	do_softirq();
	local_irq_enable();
}
