/*
 * The scheduler's core. One lock guards all run queues and all task states and is held across the switch itself, so no
 * CPU can pick a thread whose stack another one is still on.
 */
#include "time.h"

spinlock_t sched_lock = SPINLOCK_INIT;
struct rq runqueues[EXO_MAX_CPUS];

void sched_init(void)
{
	TRACED;
	for (u32 i = 0; i < EXO_MAX_CPUS; i++) {
		runqueues[i].cpu = i;
		runqueues[i].tree.node = NULL;
	}
}

/* A full barrier lies between the store and the caller's check of what it waits for. */
void set_current_state(u32 state)
{
	TRACED;
	__atomic_store_n(&current->state, state, __ATOMIC_SEQ_CST);
	smp_mb();
}

/* Under sched_lock. Tells whether the CPU sleeps and needs an IPI: it does only for the first that sets the flag. */
static bool set_need_resched(struct rq *rq)
{
	TRACED;
	u64 *flag = per_cpu_ptr(need_resched, rq->cpu);
	bool first = !*flag;

	*flag = 1;
	return first && rq->curr == rq->idle && rq->cpu != smp_processor_id();
}

void resched_curr(struct rq *rq)
{
	TRACED;
	if (set_need_resched(rq))
		smp_send_ipi(rq->cpu);
}

static void check_stack(struct task *p)
{
	TRACED;
	if (*(u64 *)p->stack != STACK_MAGIC)
		panic("stack of %s (pid %u) overflowed", p->comm, p->pid);
}

static void put_prev_task(struct rq *rq, struct task *prev, bool preempt)
{
	TRACED;
	check_stack(prev);
	prev->on_cpu = 0;
	if (prev == rq->idle)
		return;
	/* One preempted on its way to sleep goes on from there later. */
	if (preempt || prev->state == TASK_RUNNING)
		enqueue_task(rq, prev);
}

static void set_next_task(struct rq *rq, struct task *next)
{
	TRACED;
	if (next->cpu != rq->cpu) {
		next->nr_migrations++;
		next->cpu = rq->cpu;
	}
	next->on_cpu = 1;
	next->exec_start = rdtsc();
	rq->curr = next;
	this_cpu_write(curr_is_idle, next == rq->idle);
	this_cpu_write(current_task, next);
}

/* What every thread does first when it gets the CPU, new ones included: sched_lock and the mask are handed over. */
void finish_task_switch(void)
{
	TRACED;
	arch_spin_unlock(&sched_lock);
	local_irq_enable();
}

static void __schedule(bool preempt)
{
	TRACED;
	local_irq_disable();
	arch_spin_lock(&sched_lock);
	struct rq *rq = &runqueues[smp_processor_id()];
	struct task *prev = rq->curr;

	this_cpu_write(need_resched, 0);
	update_curr(rq);
	put_prev_task(rq, prev, preempt);
	struct task *next = pick_next_task(rq);

	set_next_task(rq, next);
	if (next != prev) {
		rq->nr_switches++;
		next->nr_switches++;
		context_switch(prev, next);
	}
	finish_task_switch();
}

static void schedule_debug(void)
{
	TRACED;
	if (this_cpu_read(preempt_count) || this_cpu_read(irq_off))
		panic("scheduling while atomic: %s, preempt count %lu, irq off %lu", current->comm,
		      this_cpu_read(preempt_count), this_cpu_read(irq_off));
}

/* Gives the CPU away: until woken if the caller has set its state, for a turn if not. */
void schedule(void)
{
	TRACED;
	schedule_debug();
	do {
		__schedule(false);
	} while (this_cpu_read(need_resched));
}

void schedule_idle(void)
{
	TRACED;
	while (this_cpu_read(need_resched))
		__schedule(false);
}

/* At the end of an interrupt and wherever preemption is switched on again. Not traced: it is a check most of the time. */
notrace void preempt_schedule(void)
{
	while (this_cpu_read(need_resched)) {
		if (this_cpu_read(preempt_count) || this_cpu_read(irq_off) || this_cpu_read(curr_is_idle))
			return;
		preempt_schedule_irq();
	}
}

void preempt_schedule_irq(void)
{
	TRACED;
	__schedule(true);
}

static int try_to_wake_up(struct task *p)
{
	TRACED;
	bool ipi = false;
	u32 cpu = 0;

	local_irq_disable();
	arch_spin_lock(&sched_lock);
	int woken = p->state == TASK_SLEEPING;

	if (woken) {
		p->state = TASK_RUNNING;
		if (!p->on_rq && !p->on_cpu) {
			cpu = select_task_rq(p);
			place_entity(&runqueues[cpu], p);
			enqueue_task(&runqueues[cpu], p);
			ipi = set_need_resched(&runqueues[cpu]);
		}
	}
	arch_spin_unlock(&sched_lock);
	/* A port write takes long; not under the lock. */
	if (ipi)
		smp_send_ipi(cpu);
	local_irq_enable();
	return woken;
}

int wake_up_process(struct task *p)
{
	TRACED;
	int woken = try_to_wake_up(p);

	/* A wake-up from a thread may be reason enough to give way. */
	if (this_cpu_read(need_resched))
		preempt_schedule();
	return woken;
}

void wake_up_new_task(struct task *p)
{
	TRACED;
	wake_up_process(p);
}

void sched_yield(void)
{
	TRACED;
	current->vruntime += boot_info->tsc_hz / 2000;
	schedule();
}

/* A place where a long computation gives way if it must; without a tick, now and then by itself. */
void cond_resched(void)
{
	TRACED;
	if (!params.hz) {
		tick_poll();
		if (current->nr_syscalls % 16 == 0) {
			schedule();
			return;
		}
	}
	if (this_cpu_read(need_resched) && !this_cpu_read(preempt_count))
		schedule();
}

/* From the tick. */
void scheduler_tick(void)
{
	TRACED;
	arch_spin_lock(&sched_lock);
	struct rq *rq = &runqueues[smp_processor_id()];

	update_curr(rq);
	if (check_preempt_tick(rq))
		this_cpu_write(need_resched, 1);
	arch_spin_unlock(&sched_lock);
	trigger_load_balance();
}

/* Whether a dead thread has left its stack for good. */
bool task_is_gone(struct task *p)
{
	TRACED;
	local_irq_disable();
	arch_spin_lock(&sched_lock);
	bool gone = p->state == TASK_DEAD && !p->on_cpu && !p->on_rq;

	arch_spin_unlock(&sched_lock);
	local_irq_enable();
	return gone;
}
