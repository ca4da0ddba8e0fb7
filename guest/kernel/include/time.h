/* The tick, timers, and work that is put off. */
#pragma once
#include "sched.h"

/* time/tick.c */
extern u64 jiffies;
extern u64 tick_hz; /* jiffies per second, never 0 */
void time_init(void);
void tick_setup_cpu(void);
void tick_stop_cpu(void);
void tick_handler(void);
void tick_poll(void);
u64 ktime_get_ns(void);
u64 tsc_to_ns(u64 tsc);
u64 ns_to_tsc(u64 ns);
u64 msecs_to_jiffies(u64 ms);

/* time/timer.c */
struct timer_base;
struct timer {
	struct list_head entry;
	u64 expires; /* jiffies */
	void (*fn)(struct timer *t);
	struct timer_base *base; /* NULL: not queued */
	void *data;
};
void timers_init(void);
void timer_setup(struct timer *t, void (*fn)(struct timer *t), void *data);
void mod_timer(struct timer *t, u64 expires);
bool del_timer(struct timer *t);
bool del_timer_sync(struct timer *t);
void run_local_timers(void);
void run_timer_softirq(void);
u64 timers_queued(void);

/* time/hrtimer.c */
struct hrtimer_base;
struct hrtimer {
	struct rb_node node;
	u64 expires; /* TSC */
	bool (*fn)(struct hrtimer *t); /* true: expires was moved on, queue again */
	struct hrtimer_base *base;
	void *data;
};
void hrtimers_init(void);
void hrtimer_init(struct hrtimer *t, bool (*fn)(struct hrtimer *t), void *data);
void hrtimer_start(struct hrtimer *t, u64 expires);
bool hrtimer_cancel(struct hrtimer *t);
void hrtimer_forward(struct hrtimer *t, u64 interval);
void hrtimer_run_queues(void);
void run_hrtimer_softirq(void);
bool hrtimers_queued(void);

/* time/sleep.c */
u64 schedule_timeout(u64 ticks);
void msleep(u64 ms);
void nanosleep(u64 ns);

/* irq/softirq.c */
enum { HI_SOFTIRQ, TIMER_SOFTIRQ, HRTIMER_SOFTIRQ, TASKLET_SOFTIRQ, SCHED_SOFTIRQ, NR_SOFTIRQS };
DECLARE_PER_CPU(u64, softirq_pending);
DECLARE_PER_CPU(u64, in_softirq);
void softirq_init(void);
void open_softirq(u32 nr, void (*fn)(void));
void raise_softirq(u32 nr);
void do_softirq(void);
void softirq_start(void);
void softirq_stop(void);
struct tasklet {
	struct list_head entry;
	u32 scheduled;
	void (*fn)(void *arg);
	void *arg;
};
void tasklet_init(struct tasklet *t, void (*fn)(void *arg), void *arg);
void tasklet_schedule(struct tasklet *t);

/* irq/workqueue.c */
struct work {
	struct list_head entry;
	u32 pending;
	void (*fn)(struct work *w);
};
struct delayed_work {
	struct work work;
	struct timer timer;
};
void workqueue_start(void);
void workqueue_stop(void);
void init_work(struct work *w, void (*fn)(struct work *w));
bool queue_work(struct work *w);
void flush_workqueue(void);
void init_delayed_work(struct delayed_work *w, void (*fn)(struct work *w));
void schedule_delayed_work(struct delayed_work *w, u64 ticks);
void cancel_delayed_work_sync(struct delayed_work *w);
