/* Wait queues and completions. Wake-ups come from interrupts too. */
#include "sched.h"

void init_waitqueue_head(struct wait_queue_head *q)
{
	TRACED;
	q->lock.locked = 0;
	list_init(&q->head);
}

static void add_wait_queue(struct wait_queue_head *q, struct wait_queue_entry *w)
{
	TRACED;
	w->task = current;
	list_add_tail(&w->entry, &q->head);
}

void prepare_to_wait(struct wait_queue_head *q, struct wait_queue_entry *w)
{
	TRACED;
	spin_lock_irqsave(&q->lock);
	if (!w->task)
		add_wait_queue(q, w);
	set_current_state(TASK_SLEEPING);
	spin_unlock_irqrestore(&q->lock);
}

void finish_wait(struct wait_queue_head *q, struct wait_queue_entry *w)
{
	TRACED;
	set_current_state(TASK_RUNNING);
	spin_lock_irqsave(&q->lock);
	list_del_init(&w->entry);
	spin_unlock_irqrestore(&q->lock);
	w->task = NULL;
}

/* q->lock held. */
static void __wake_up_locked(struct wait_queue_head *q, u32 max)
{
	TRACED;
	struct list_head *l;

	list_for_each(l, &q->head) {
		struct wait_queue_entry *w = list_entry(l, struct wait_queue_entry, entry);

		if (wake_up_process(w->task) && --max == 0)
			break;
	}
}

static void __wake_up_common(struct wait_queue_head *q, u32 max)
{
	TRACED;
	spin_lock_irqsave(&q->lock);
	__wake_up_locked(q, max);
	spin_unlock_irqrestore(&q->lock);
}

void wake_up(struct wait_queue_head *q)
{
	TRACED;
	__wake_up_common(q, 1);
}

void wake_up_all(struct wait_queue_head *q)
{
	TRACED;
	__wake_up_common(q, ~0U);
}

void init_completion(struct completion *c)
{
	TRACED;
	c->done = 0;
	init_waitqueue_head(&c->wait);
}

/* All under the lock: the waiter takes it once more before it goes, and c with it. */
void complete(struct completion *c)
{
	TRACED;
	spin_lock_irqsave(&c->wait.lock);
	__atomic_fetch_add(&c->done, 1, __ATOMIC_SEQ_CST);
	__wake_up_locked(&c->wait, 1);
	spin_unlock_irqrestore(&c->wait.lock);
}

static bool try_wait_for_completion(struct completion *c)
{
	TRACED;
	u32 n = READ_ONCE(c->done);

	while (n)
		if (__atomic_compare_exchange_n(&c->done, &n, n - 1, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
			return true;
	return false;
}

void wait_for_completion(struct completion *c)
{
	TRACED;
	wait_event(c->wait, try_wait_for_completion(c));
}
