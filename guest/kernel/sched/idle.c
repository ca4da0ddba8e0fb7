/* The idle threads, and where a CPU ends when the system stops. */
#include "time.h"

static void do_idle(void)
{
	TRACED;
	if (params.hz)
		idle_wait();
	else if (timers_queued() || hrtimers_queued())
		tick_poll(); /* no tick: someone has to look at the clock */
	else
		idle_wait();
	schedule_idle();
}

/*
 * Not traced, and never preempted: when the system stops, everything called from here has returned, so no CPU is left
 * between a site and its counter.
 */
notrace void cpu_idle_loop(void)
{
	for (;;) {
		if (READ_ONCE(system_stopping))
			stop_this_cpu();
		do_idle();
	}
}
