/*
 * The timer wheel: per CPU, 128 buckets by the low bits of the expiry. The tick raises the softirq only when the
 * earliest timer is due.
 */
#include "time.h"

#define WHEEL_SIZE 128

struct timer_base {
	spinlock_t lock;
	u64 clk; /* next tick to look at */
	u64 next_expiry;
	u64 count;
	struct timer *running;
	struct list_head wheel[WHEEL_SIZE];
};

static struct timer_base bases[EXO_MAX_CPUS];

void timers_init(void)
{
	TRACED;
	for (u32 i = 0; i < EXO_MAX_CPUS; i++)
		for (u32 j = 0; j < WHEEL_SIZE; j++)
			list_init(&bases[i].wheel[j]);
	open_softirq(TIMER_SOFTIRQ, run_timer_softirq);
}

void timer_setup(struct timer *t, void (*fn)(struct timer *t), void *data)
{
	TRACED;
	list_init(&t->entry);
	t->fn = fn;
	t->base = NULL;
	t->data = data;
}

static void enqueue_timer(struct timer_base *b, struct timer *t)
{
	TRACED;
	/* A time that is past is due at the next look. */
	u64 slot = (s64)(t->expires - b->clk) < 0 ? b->clk : t->expires;

	if (!b->count || (s64)(t->expires - b->next_expiry) < 0)
		b->next_expiry = t->expires;
	list_add_tail(&t->entry, &b->wheel[slot % WHEEL_SIZE]);
	b->count++;
	__atomic_store_n(&t->base, b, __ATOMIC_RELEASE);
}

static void detach_timer(struct timer_base *b, struct timer *t)
{
	TRACED;
	list_del_init(&t->entry);
	b->count--;
	__atomic_store_n(&t->base, NULL, __ATOMIC_RELEASE);
}

/* The base a timer is queued on, locked, or NULL. */
static struct timer_base *lock_timer_base(struct timer *t)
{
	TRACED;
	struct timer_base *b;

	while ((b = __atomic_load_n(&t->base, __ATOMIC_ACQUIRE)) != NULL) {
		spin_lock_irqsave(&b->lock);
		if (t->base == b)
			return b;
		spin_unlock_irqrestore(&b->lock);
	}
	return NULL;
}

bool del_timer(struct timer *t)
{
	TRACED;
	struct timer_base *b = lock_timer_base(t);

	if (!b)
		return false;
	detach_timer(b, t);
	spin_unlock_irqrestore(&b->lock);
	return true;
}

/* (Re)starts a timer. One caller at a time for each timer. */
void mod_timer(struct timer *t, u64 expires)
{
	TRACED;
	del_timer(t);
	preempt_disable();
	struct timer_base *b = &bases[smp_processor_id()];

	spin_lock_irqsave(&b->lock);
	t->expires = expires;
	enqueue_timer(b, t);
	spin_unlock_irqrestore(&b->lock);
	preempt_enable();
}

static bool timer_running(struct timer *t)
{
	TRACED;
	for (u32 i = 0; i < nr_cpus; i++)
		if (__atomic_load_n(&bases[i].running, __ATOMIC_ACQUIRE) == t)
			return true;
	return false;
}

/* After this the handler doesn't run and won't: the timer's memory may go. Not from a timer handler. */
bool del_timer_sync(struct timer *t)
{
	TRACED;
	bool was = false;

	do {
		was |= del_timer(t);
		if (!timer_running(t))
			break;
		cpu_relax();
	} while (true);
	/* A handler that ran meanwhile may have queued it again. */
	return del_timer(t) || was;
}

static void call_timer_fn(struct timer_base *b, struct timer *t)
{
	TRACED;
	__atomic_store_n(&b->running, t, __ATOMIC_SEQ_CST);
	detach_timer(b, t);
	spin_unlock_irqrestore(&b->lock);
	t->fn(t);
	spin_lock_irqsave(&b->lock);
	__atomic_store_n(&b->running, NULL, __ATOMIC_RELEASE);
}

static void expire_timers(struct timer_base *b, struct list_head *bucket, u64 now)
{
	TRACED;
	struct list_head due, *l, *n;

	list_init(&due);
	list_for_each_safe(l, n, bucket)
		if ((s64)(now - list_entry(l, struct timer, entry)->expires) >= 0)
			list_move_tail(l, &due);
	while (!list_empty(&due))
		call_timer_fn(b, list_entry(due.next, struct timer, entry));
}

static u64 next_timer_expiry(struct timer_base *b)
{
	TRACED;
	u64 best = b->clk + (1UL << 32);

	for (u32 i = 0; i < WHEEL_SIZE; i++) {
		struct list_head *l;

		list_for_each(l, &b->wheel[i]) {
			u64 e = list_entry(l, struct timer, entry)->expires;

			if ((s64)(e - best) < 0)
				best = e;
		}
	}
	return best;
}

void run_timer_softirq(void)
{
	TRACED;
	struct timer_base *b = &bases[smp_processor_id()];

	spin_lock_irqsave(&b->lock);
	u64 now = READ_ONCE(jiffies);
	u64 from = now - b->clk >= WHEEL_SIZE ? now - WHEEL_SIZE + 1 : b->clk;

	for (u64 j = from; (s64)(now - j) >= 0; j++)
		expire_timers(b, &b->wheel[j % WHEEL_SIZE], now);
	b->clk = now + 1;
	b->next_expiry = next_timer_expiry(b);
	spin_unlock_irqrestore(&b->lock);
}

/* From the tick. A stale look costs a tick at most. */
void run_local_timers(void)
{
	TRACED;
	struct timer_base *b = &bases[smp_processor_id()];

	if (READ_ONCE(b->count) && (s64)(READ_ONCE(jiffies) - READ_ONCE(b->next_expiry)) >= 0)
		raise_softirq(TIMER_SOFTIRQ);
}

u64 timers_queued(void)
{
	TRACED;
	u64 n = 0;

	for (u32 i = 0; i < nr_cpus; i++)
		n += READ_ONCE(bases[i].count);
	return n;
}
