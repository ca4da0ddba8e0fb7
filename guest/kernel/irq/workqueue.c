/* Work in thread context: one queue, two workers. */
#include "time.h"

#define NR_KWORKERS 2

static spinlock_t wq_lock = SPINLOCK_INIT;
static struct list_head wq_list = LIST_HEAD_INIT(wq_list);
static struct wait_queue_head wq_wait = WAIT_QUEUE_INIT(wq_wait);
static struct wait_queue_head wq_idle = WAIT_QUEUE_INIT(wq_idle);
static u64 wq_queued, wq_done;
static struct task *kworkers[NR_KWORKERS];

void init_work(struct work *w, void (*fn)(struct work *w))
{
	TRACED;
	list_init(&w->entry);
	w->pending = 0;
	w->fn = fn;
}

/* false: it was queued already and has not begun. */
bool queue_work(struct work *w)
{
	TRACED;
	if (__atomic_exchange_n(&w->pending, 1, __ATOMIC_SEQ_CST))
		return false;
	spin_lock_irqsave(&wq_lock);
	list_add_tail(&w->entry, &wq_list);
	wq_queued++;
	spin_unlock_irqrestore(&wq_lock);
	wake_up(&wq_wait);
	return true;
}

static struct work *dequeue_work(void)
{
	TRACED;
	struct work *w = NULL;

	spin_lock_irqsave(&wq_lock);
	if (!list_empty(&wq_list)) {
		w = list_entry(wq_list.next, struct work, entry);
		list_del_init(&w->entry);
	}
	spin_unlock_irqrestore(&wq_lock);
	return w;
}

static void process_one_work(struct work *w)
{
	TRACED;
	void (*fn)(struct work *w) = w->fn;

	/* From here on it may be queued again, even by its own function. */
	__atomic_store_n(&w->pending, 0, __ATOMIC_SEQ_CST);
	fn(w);
	__atomic_fetch_add(&wq_done, 1, __ATOMIC_SEQ_CST);
	wake_up_all(&wq_idle);
}

static int worker_thread(void *arg __unused)
{
	TRACED;
	while (!kthread_should_stop()) {
		struct work *w = NULL;

		wait_event(wq_wait, (w = dequeue_work()) != NULL || kthread_should_stop());
		if (w)
			process_one_work(w);
	}
	return 0;
}

static bool workqueue_drained(u64 upto)
{
	TRACED;
	return (s64)(__atomic_load_n(&wq_done, __ATOMIC_ACQUIRE) - upto) >= 0;
}

/* Waits until as many items have ended as were queued when it was called. */
void flush_workqueue(void)
{
	TRACED;
	u64 upto = READ_ONCE(wq_queued);

	wait_event(wq_idle, workqueue_drained(upto));
}

static void delayed_work_timer_fn(struct timer *t)
{
	TRACED;
	queue_work(t->data);
}

void init_delayed_work(struct delayed_work *w, void (*fn)(struct work *w))
{
	TRACED;
	init_work(&w->work, fn);
	timer_setup(&w->timer, delayed_work_timer_fn, &w->work);
}

void schedule_delayed_work(struct delayed_work *w, u64 ticks)
{
	TRACED;
	mod_timer(&w->timer, READ_ONCE(jiffies) + ticks);
}

void cancel_delayed_work_sync(struct delayed_work *w)
{
	TRACED;
	del_timer_sync(&w->timer);
	flush_workqueue();
	del_timer_sync(&w->timer);
}

void workqueue_start(void)
{
	TRACED;
	for (u32 i = 0; i < NR_KWORKERS; i++)
		kworkers[i] = kthread_run(worker_thread, NULL, "kworker/u:%u", i);
}

void workqueue_stop(void)
{
	TRACED;
	flush_workqueue();
	for (u32 i = 0; i < NR_KWORKERS; i++)
		if (kworkers[i])
			kthread_stop(kworkers[i]);
}
