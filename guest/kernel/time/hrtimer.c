/* Timers in TSC time, ordered in a tree per CPU and looked at on each tick. */
#include "time.h"

struct hrtimer_base {
	spinlock_t lock;
	struct rb_root tree;
	struct hrtimer *running;
};

static struct hrtimer_base hr_bases[EXO_MAX_CPUS];

void hrtimers_init(void)
{
	TRACED;
	open_softirq(HRTIMER_SOFTIRQ, run_hrtimer_softirq);
}

void hrtimer_init(struct hrtimer *t, bool (*fn)(struct hrtimer *t), void *data)
{
	TRACED;
	t->fn = fn;
	t->data = data;
	t->base = NULL;
	t->expires = 0;
}

static void enqueue_hrtimer(struct hrtimer_base *b, struct hrtimer *t)
{
	TRACED;
	struct rb_node **link = &b->tree.node, *parent = NULL;

	while (*link) {
		parent = *link;
		if ((s64)(t->expires - container_of(parent, struct hrtimer, node)->expires) < 0)
			link = &parent->left;
		else
			link = &parent->right;
	}
	rb_link_node(&t->node, parent, link);
	rb_insert_color(&t->node, &b->tree);
	__atomic_store_n(&t->base, b, __ATOMIC_RELEASE);
}

static void __remove_hrtimer(struct hrtimer_base *b, struct hrtimer *t)
{
	TRACED;
	rb_erase(&t->node, &b->tree);
	__atomic_store_n(&t->base, NULL, __ATOMIC_RELEASE);
}

void hrtimer_start(struct hrtimer *t, u64 expires)
{
	TRACED;
	preempt_disable();
	struct hrtimer_base *b = &hr_bases[smp_processor_id()];

	spin_lock_irqsave(&b->lock);
	t->expires = expires;
	enqueue_hrtimer(b, t);
	spin_unlock_irqrestore(&b->lock);
	preempt_enable();
}

void hrtimer_forward(struct hrtimer *t, u64 interval)
{
	TRACED;
	t->expires += interval;
}

static bool hrtimer_try_to_cancel(struct hrtimer *t)
{
	TRACED;
	struct hrtimer_base *b = __atomic_load_n(&t->base, __ATOMIC_ACQUIRE);
	bool was = false;

	if (!b)
		return false;
	spin_lock_irqsave(&b->lock);
	if (t->base == b) {
		__remove_hrtimer(b, t);
		was = true;
	}
	spin_unlock_irqrestore(&b->lock);
	return was;
}

static bool hrtimer_callback_running(struct hrtimer *t)
{
	TRACED;
	for (u32 i = 0; i < nr_cpus; i++)
		if (__atomic_load_n(&hr_bases[i].running, __ATOMIC_ACQUIRE) == t)
			return true;
	return false;
}

/* After this the handler doesn't run and won't. Not from the handler itself. */
bool hrtimer_cancel(struct hrtimer *t)
{
	TRACED;
	bool was = hrtimer_try_to_cancel(t);

	while (hrtimer_callback_running(t)) {
		cpu_relax();
		was |= hrtimer_try_to_cancel(t);
	}
	return hrtimer_try_to_cancel(t) || was;
}

static void __run_hrtimer(struct hrtimer_base *b, struct hrtimer *t)
{
	TRACED;
	__atomic_store_n(&b->running, t, __ATOMIC_SEQ_CST);
	__remove_hrtimer(b, t);
	spin_unlock_irqrestore(&b->lock);
	bool again = t->fn(t);

	spin_lock_irqsave(&b->lock);
	/* One that doesn't want to be queued again may already be gone. */
	if (again)
		enqueue_hrtimer(b, t);
	__atomic_store_n(&b->running, NULL, __ATOMIC_RELEASE);
}

static struct hrtimer *hrtimer_due(struct hrtimer_base *b)
{
	TRACED;
	struct rb_node *n = rb_first(&b->tree);

	if (!n)
		return NULL;
	struct hrtimer *t = container_of(n, struct hrtimer, node);

	return (s64)(rdtsc() - t->expires) >= 0 ? t : NULL;
}

void run_hrtimer_softirq(void)
{
	TRACED;
	struct hrtimer_base *b = &hr_bases[smp_processor_id()];
	struct hrtimer *t;

	spin_lock_irqsave(&b->lock);
	while ((t = hrtimer_due(b)) != NULL)
		__run_hrtimer(b, t);
	spin_unlock_irqrestore(&b->lock);
}

/* From the tick: interrupts are off, the lock is this CPU's mostly. */
void hrtimer_run_queues(void)
{
	TRACED;
	struct hrtimer_base *b = &hr_bases[smp_processor_id()];

	spin_lock_irqsave(&b->lock);
	bool due = hrtimer_due(b) != NULL;

	spin_unlock_irqrestore(&b->lock);
	if (due)
		raise_softirq(HRTIMER_SOFTIRQ);
}

bool hrtimers_queued(void)
{
	TRACED;
	for (u32 i = 0; i < nr_cpus; i++)
		if (READ_ONCE(hr_bases[i].tree.node))
			return true;
	return false;
}
