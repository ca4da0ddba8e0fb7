/* Scheduler workload: every way to wait for each other, with shared counters that must come out right. */
#include "work.h"

#define NR_COUNTERS 4

struct shared_counter {
	struct mutex lock;
	u64 value; /* under the lock */
	u64 expected; /* atomic */
};

static struct shared_counter counters[NR_COUNTERS];
static struct semaphore sem;
static s64 sem_inside;
static struct rw_semaphore rwsem;
static u64 rw_a, rw_b; /* always equal outside of a writer */
static u64 rw_writes;

void work_sched_begin(void)
{
	TRACED;
	for (u32 i = 0; i < NR_COUNTERS; i++)
		mutex_init(&counters[i].lock);
	sema_init(&sem, 2);
	init_rwsem(&rwsem);
}

static void sched_mutex(struct worker *w)
{
	TRACED;
	struct shared_counter *c = &counters[prandom_u32_below(&w->rnd, NR_COUNTERS)];
	u32 n = 1 + prandom_u32_below(&w->rnd, 16);

	__atomic_fetch_add(&c->expected, n, __ATOMIC_RELAXED);
	mutex_lock(&c->lock);
	for (u32 i = 0; i < n; i++) {
		/* Read and write apart, now and then far apart, so that two at once would show. */
		u64 v = READ_ONCE(c->value);

		if (i == 12)
			sched_yield();
		WRITE_ONCE(c->value, v + 1);
	}
	mutex_unlock(&c->lock);
	worker_sum(w, n);
}

static void sched_semaphore(struct worker *w)
{
	TRACED;
	down(&sem);
	s64 inside = __atomic_add_fetch(&sem_inside, 1, __ATOMIC_SEQ_CST);

	if (inside > 2)
		selfcheck_fail("%ld in a semaphore of 2", inside);
	sched_yield();
	__atomic_fetch_sub(&sem_inside, 1, __ATOMIC_SEQ_CST);
	up(&sem);
	worker_sum(w, 2);
}

static void sched_rwsem(struct worker *w)
{
	TRACED;
	if (prandom_u32_below(&w->rnd, 4) == 0) {
		down_write(&rwsem);
		u64 n = ++rw_writes;

		WRITE_ONCE(rw_a, n);
		sched_yield();
		WRITE_ONCE(rw_b, n);
		up_write(&rwsem);
		worker_sum(w, 3);
		return;
	}
	down_read(&rwsem);
	u64 a = READ_ONCE(rw_a);

	if (w->iters % 4 == 0)
		sched_yield();
	if (a != READ_ONCE(rw_b))
		selfcheck_fail("a writer was seen halfway by a reader");
	up_read(&rwsem);
	worker_sum(w, 4);
}

struct work_item {
	struct work work;
	struct completion done;
	u64 in, out;
};

static void sched_work_fn(struct work *work)
{
	TRACED;
	struct work_item *item = container_of(work, struct work_item, work);

	item->out = mix64(item->in);
	complete(&item->done);
}

static void sched_workqueue(struct worker *w)
{
	TRACED;
	struct work_item item = { .in = prandom_u64_state(&w->rnd) };

	init_work(&item.work, sched_work_fn);
	init_completion(&item.done);
	queue_work(&item.work);
	wait_for_completion(&item.done);
	if (item.out != mix64(item.in))
		selfcheck_fail("a work item was not done");
	worker_sum(w, item.out);
}

static int sched_child(void *arg)
{
	TRACED;
	u64 n = (u64)arg, sum = 0;

	for (u64 i = 0; i < n; i++)
		sum += mix64(i) & 0xff;
	return (int)sum;
}

static void sched_fork(struct worker *w)
{
	TRACED;
	u64 n = prandom_u32_below(&w->rnd, 200), sum = 0;
	struct task *p = kthread_run(sched_child, (void *)n, "child/%u", w->id);

	if (!p)
		panic("worker %u: cannot start a thread", w->id);
	for (u64 i = 0; i < n; i++)
		sum += mix64(i) & 0xff;
	int got = kthread_join(p);

	if (got != (int)sum)
		selfcheck_fail("a child returned %d, not %d", got, (int)sum);
	worker_sum(w, sum);
}

static void sched_sleep(struct worker *w)
{
	TRACED;
	u64 us = prandom_u32_below(&w->rnd, 300), start = ktime_get_ns();

	nanosleep(us * 1000);
	/* Clocks of CPUs may differ a little. */
	if (ktime_get_ns() + 1000000 < start + us * 1000)
		selfcheck_fail("slept less than %lu us", us);
	worker_sum(w, us);
}

struct timer_wait {
	struct timer timer;
	struct completion done;
};

static void sched_timer_fn(struct timer *t)
{
	TRACED;
	struct timer_wait *tw = container_of(t, struct timer_wait, timer);

	complete(&tw->done);
}

static void sched_timer(struct worker *w)
{
	TRACED;
	struct timer_wait tw;

	timer_setup(&tw.timer, sched_timer_fn, NULL);
	init_completion(&tw.done);
	mod_timer(&tw.timer, READ_ONCE(jiffies) + prandom_u32_below(&w->rnd, 3));
	/* Half of them are taken back; whichever happens, the sum is the same. */
	if (prandom_u32_below(&w->rnd, 2) == 0)
		wait_for_completion(&tw.done);
	del_timer_sync(&tw.timer);
	worker_sum(w, 5);
}

void work_sched_step(struct worker *w)
{
	TRACED;
	static void (*const kinds[])(struct worker *w) = {
		sched_mutex, sched_mutex, sched_mutex, sched_mutex, sched_semaphore, sched_semaphore, sched_rwsem,
		sched_rwsem, sched_rwsem, sched_workqueue, sched_workqueue, sched_fork, sched_sleep, sched_timer,
	};

	kinds[prandom_u32_below(&w->rnd, ARRAY_SIZE(kinds))](w);
	cond_resched();
}

void work_sched_check(void)
{
	TRACED;
	for (u32 i = 0; i < NR_COUNTERS; i++)
		if (counters[i].value != counters[i].expected)
			selfcheck_fail("shared counter %u is %lu, not %lu", i, counters[i].value, counters[i].expected);
	if (rw_a != rw_b || rw_a != rw_writes)
		selfcheck_fail("writers were not alone: %lu, %lu of %lu", rw_a, rw_b, rw_writes);
	if (sem.count != 2 || sem_inside)
		selfcheck_fail("semaphore at %d with %ld inside", sem.count, sem_inside);
}
