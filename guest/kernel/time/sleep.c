/* Sleeping for a time. */
#include "time.h"

static void process_timeout(struct timer *t)
{
	TRACED;
	wake_up_process(t->data);
}

/* Sleeps up to `ticks` jiffies if the caller has set its state; returns what was left. */
u64 schedule_timeout(u64 ticks)
{
	TRACED;
	struct timer t;
	u64 until = READ_ONCE(jiffies) + ticks;

	timer_setup(&t, process_timeout, current);
	mod_timer(&t, until);
	schedule();
	del_timer_sync(&t);
	s64 left = (s64)(until - READ_ONCE(jiffies));

	return left > 0 ? (u64)left : 0;
}

void msleep(u64 ms)
{
	TRACED;
	u64 ticks = msecs_to_jiffies(ms) + 1;

	while (ticks) {
		set_current_state(TASK_SLEEPING);
		ticks = schedule_timeout(ticks);
	}
	set_current_state(TASK_RUNNING);
}

struct sleeper {
	struct hrtimer timer;
	struct task *task;
	u32 done;
};

static bool hrtimer_wakeup(struct hrtimer *t)
{
	TRACED;
	struct sleeper *s = container_of(t, struct sleeper, timer);
	struct task *p = s->task;

	__atomic_store_n(&s->done, 1, __ATOMIC_SEQ_CST);
	wake_up_process(p);
	return false;
}

void nanosleep(u64 ns)
{
	TRACED;
	struct sleeper s = { .task = current, .done = 0 };

	hrtimer_init(&s.timer, hrtimer_wakeup, NULL);
	set_current_state(TASK_SLEEPING);
	hrtimer_start(&s.timer, rdtsc() + ns_to_tsc(ns));
	while (!__atomic_load_n(&s.done, __ATOMIC_ACQUIRE)) {
		schedule();
		set_current_state(TASK_SLEEPING);
	}
	set_current_state(TASK_RUNNING);
	hrtimer_cancel(&s.timer);
}
