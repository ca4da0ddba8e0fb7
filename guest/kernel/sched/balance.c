/* Which CPU: at wake-up, when a CPU runs dry, and from time to time. All but the triggers under sched_lock. */
#include "time.h"

DEFINE_PER_CPU(u64, balance_ticks);

static bool cpu_allowed(struct task *p, u32 cpu)
{
	TRACED;
	return p->affinity < 0 || (u32)p->affinity == cpu;
}

static u32 find_idlest_cpu(struct task *p)
{
	TRACED;
	u32 best = p->cpu, least = ~0U;

	for (u32 i = 0; i < nr_cpus; i++) {
		struct rq *rq = &runqueues[i];

		if (!rq->idle || !cpu_allowed(p, i))
			continue;
		u32 load = rq->nr_running * 2 + (rq->curr != rq->idle);

		/* Its last CPU wins a draw. */
		if (load < least || (load == least && i == p->cpu)) {
			least = load;
			best = i;
		}
	}
	return best;
}

u32 select_task_rq(struct task *p)
{
	TRACED;
	if (p->affinity >= 0)
		return (u32)p->affinity;
	return find_idlest_cpu(p);
}

static struct rq *find_busiest_queue(struct rq *self)
{
	TRACED;
	struct rq *busiest = NULL;

	for (u32 i = 0; i < nr_cpus; i++) {
		struct rq *rq = &runqueues[i];

		if (rq != self && rq->nr_running && (!busiest || rq->nr_running > busiest->nr_running))
			busiest = rq;
	}
	return busiest;
}

static bool detach_one_task(struct rq *from, struct rq *to)
{
	TRACED;
	/* From the back: it would have waited longest. */
	for (struct rb_node *n = rb_last(&from->tree); n; n = rb_prev(n)) {
		struct task *p = container_of(n, struct task, run_node);

		if (!cpu_allowed(p, to->cpu))
			continue;
		dequeue_task(from, p);
		p->vruntime = p->vruntime - from->min_vruntime + to->min_vruntime;
		place_entity(to, p);
		enqueue_task(to, p);
		to->nr_balance++;
		return true;
	}
	return false;
}

bool idle_balance(struct rq *rq)
{
	TRACED;
	struct rq *busiest = find_busiest_queue(rq);

	return busiest && detach_one_task(busiest, rq);
}

static void load_balance(struct rq *rq)
{
	TRACED;
	struct rq *busiest = find_busiest_queue(rq);

	if (busiest && busiest->nr_running > rq->nr_running + 1)
		detach_one_task(busiest, rq);
}

void trigger_load_balance(void)
{
	TRACED;
	this_cpu_inc(balance_ticks);
	if (nr_cpus > 1 && this_cpu_read(balance_ticks) % 8 == 0)
		raise_softirq(SCHED_SOFTIRQ);
}

void run_rebalance_domains(void)
{
	TRACED;
	local_irq_disable();
	arch_spin_lock(&sched_lock);
	load_balance(&runqueues[smp_processor_id()]);
	arch_spin_unlock(&sched_lock);
	local_irq_enable();
}

/* Self-check: every queue's count and tree agree and nothing dead is queued. */
void sched_check(void)
{
	TRACED;
	local_irq_disable();
	arch_spin_lock(&sched_lock);
	for (u32 i = 0; i < nr_cpus; i++) {
		struct rq *rq = &runqueues[i];
		u32 n = 0;

		BUG_ON(rb_check(&rq->tree) < 0);
		for (struct rb_node *r = rb_first(&rq->tree); r; r = rb_next(r)) {
			struct task *p = container_of(r, struct task, run_node);

			BUG_ON(!p->on_rq || p->on_cpu);
			n++;
		}
		BUG_ON(n != rq->nr_running);
	}
	arch_spin_unlock(&sched_lock);
	local_irq_enable();
}
