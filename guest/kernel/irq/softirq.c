/* Work put off from interrupts: softirqs per CPU, tasklets on top, and a thread that takes over when they pile up. */
#include "time.h"

#define MAX_RESTART 8

static void (*softirq_vec[NR_SOFTIRQS])(void);
DEFINE_PER_CPU(u64, softirq_pending);
DEFINE_PER_CPU(u64, in_softirq);
DEFINE_PER_CPU(u64, softirq_count);
static struct task *ksoftirqd_tasks[EXO_MAX_CPUS];
static spinlock_t tasklet_lock = SPINLOCK_INIT;
static struct list_head tasklets = LIST_HEAD_INIT(tasklets);

void open_softirq(u32 nr, void (*fn)(void))
{
	TRACED;
	softirq_vec[nr] = fn;
}

static void wakeup_softirqd(void)
{
	TRACED;
	struct task *p = READ_ONCE(ksoftirqd_tasks[smp_processor_id()]);

	if (p)
		wake_up_process(p);
}

static void handle_softirqs(u64 pending)
{
	TRACED;
	while (pending) {
		u32 nr = (u32)__builtin_ctzl(pending);

		pending &= pending - 1;
		this_cpu_inc(softirq_count);
		softirq_vec[nr]();
	}
}

/* Interrupts are masked (count 1) on entry and on exit, open while the handlers run; they are never preempted. */
void do_softirq(void)
{
	TRACED;
	u64 pending;
	u32 restart = MAX_RESTART;

	if (this_cpu_read(in_softirq))
		return;
	this_cpu_write(in_softirq, 1);
	this_cpu_inc(preempt_count);
	while (restart-- && (pending = this_cpu_xchg(softirq_pending, 0)) != 0) {
		local_irq_enable();
		handle_softirqs(pending);
		local_irq_disable();
	}
	this_cpu_dec(preempt_count);
	this_cpu_write(in_softirq, 0);
	if (this_cpu_read(softirq_pending))
		wakeup_softirqd();
}

/* Runs at the end of the interrupt; raised by a thread, in this CPU's ksoftirqd. */
void raise_softirq(u32 nr)
{
	TRACED;
	bool thread = !this_cpu_read(irq_off) && !this_cpu_read(in_softirq);

	local_irq_disable();
	this_cpu_or(softirq_pending, BIT(nr));
	if (thread)
		wakeup_softirqd();
	local_irq_enable();
}

static int ksoftirqd(void *arg __unused)
{
	TRACED;
	while (!kthread_should_stop()) {
		set_current_state(TASK_SLEEPING);
		if (!this_cpu_read(softirq_pending) && !kthread_should_stop())
			schedule();
		set_current_state(TASK_RUNNING);
		local_irq_disable();
		do_softirq();
		local_irq_enable();
		cond_resched();
	}
	return 0;
}

static void tasklet_action(void)
{
	TRACED;
	struct list_head todo;

	list_init(&todo);
	spin_lock_irqsave(&tasklet_lock);
	list_splice_init(&tasklets, &todo);
	spin_unlock_irqrestore(&tasklet_lock);
	while (!list_empty(&todo)) {
		struct tasklet *t = list_entry(todo.next, struct tasklet, entry);

		list_del_init(&t->entry);
		__atomic_store_n(&t->scheduled, 0, __ATOMIC_SEQ_CST);
		t->fn(t->arg);
	}
}

void tasklet_init(struct tasklet *t, void (*fn)(void *arg), void *arg)
{
	TRACED;
	list_init(&t->entry);
	t->scheduled = 0;
	t->fn = fn;
	t->arg = arg;
}

void tasklet_schedule(struct tasklet *t)
{
	TRACED;
	if (__atomic_exchange_n(&t->scheduled, 1, __ATOMIC_SEQ_CST))
		return;
	spin_lock_irqsave(&tasklet_lock);
	list_add_tail(&t->entry, &tasklets);
	spin_unlock_irqrestore(&tasklet_lock);
	raise_softirq(TASKLET_SOFTIRQ);
}

void softirq_init(void)
{
	TRACED;
	open_softirq(TASKLET_SOFTIRQ, tasklet_action);
	open_softirq(HI_SOFTIRQ, tasklet_action);
	open_softirq(SCHED_SOFTIRQ, run_rebalance_domains);
}

void softirq_start(void)
{
	TRACED;
	for (u32 i = 0; i < nr_cpus; i++)
		ksoftirqd_tasks[i] = kthread_create(ksoftirqd, NULL, (s32)i, "ksoftirqd/%u", i);
}

static void softirq_sync(void *unused __unused)
{
	TRACED;
}

void softirq_stop(void)
{
	TRACED;
	for (u32 i = 0; i < nr_cpus; i++) {
		struct task *p = ksoftirqd_tasks[i];

		WRITE_ONCE(ksoftirqd_tasks[i], NULL);
		/* wakeup_softirqd runs with interrupts off: once all have taken an interrupt, none holds the pointer. */
		on_each_cpu(softirq_sync, NULL);
		if (p)
			kthread_stop(p);
	}
}
