/* Who runs next: the thread that has had least, from a tree ordered by virtual run time. All under sched_lock. */
#include "time.h"

/* A thread that slept long gets this much (in TSC cycles) ahead of the others, no more. */
static u64 sched_latency(void)
{
	TRACED;
	return boot_info->tsc_hz / 200;
}

static bool entity_before(const struct task *a, const struct task *b)
{
	TRACED;
	return (s64)(a->vruntime - b->vruntime) < 0;
}

static void update_min_vruntime(struct rq *rq)
{
	TRACED;
	struct rb_node *n = rb_first(&rq->tree);
	u64 v = rq->curr->vruntime;

	if (n) {
		struct task *left = container_of(n, struct task, run_node);

		if (rq->curr == rq->idle || entity_before(left, rq->curr))
			v = left->vruntime;
	} else if (rq->curr == rq->idle) {
		return;
	}
	if ((s64)(v - rq->min_vruntime) > 0)
		rq->min_vruntime = v;
}

/* Charges the running thread. TSCs of CPUs may differ a little: never negative, never huge. */
void update_curr(struct rq *rq)
{
	TRACED;
	u64 now = rdtsc();
	s64 delta = (s64)(now - rq->curr->exec_start);

	rq->curr->exec_start = now;
	if (delta <= 0)
		return;
	if ((u64)delta > boot_info->tsc_hz)
		delta = (s64)boot_info->tsc_hz;
	rq->curr->sum_exec += (u64)delta;
	if (rq->curr == rq->idle)
		return;
	rq->curr->vruntime += (u64)delta;
	update_min_vruntime(rq);
}

static void __enqueue_entity(struct rq *rq, struct task *p)
{
	TRACED;
	struct rb_node **link = &rq->tree.node, *parent = NULL;

	while (*link) {
		parent = *link;
		if (entity_before(p, container_of(parent, struct task, run_node)))
			link = &parent->left;
		else
			link = &parent->right;
	}
	rb_link_node(&p->run_node, parent, link);
	rb_insert_color(&p->run_node, &rq->tree);
}

void enqueue_task(struct rq *rq, struct task *p)
{
	TRACED;
	BUG_ON(p->on_rq);
	__enqueue_entity(rq, p);
	p->on_rq = 1;
	rq->nr_running++;
}

void dequeue_task(struct rq *rq, struct task *p)
{
	TRACED;
	BUG_ON(!p->on_rq);
	rb_erase(&p->run_node, &rq->tree);
	p->on_rq = 0;
	rq->nr_running--;
}

/* Brings a thread's virtual time into the queue's window: it comes from sleep or from another queue. */
void place_entity(struct rq *rq, struct task *p)
{
	TRACED;
	u64 least = rq->min_vruntime - sched_latency();
	u64 most = rq->min_vruntime + sched_latency();

	if ((s64)(p->vruntime - least) < 0)
		p->vruntime = least;
	if ((s64)(p->vruntime - most) > 0)
		p->vruntime = most;
}

struct task *pick_next_task(struct rq *rq)
{
	TRACED;
	if (!rq->nr_running && !idle_balance(rq))
		return rq->idle;
	struct task *p = container_of(rb_first(&rq->tree), struct task, run_node);

	dequeue_task(rq, p);
	return p;
}

/* Whether the running thread has had its turn. */
bool check_preempt_tick(struct rq *rq)
{
	TRACED;
	if (!rq->nr_running)
		return false;
	if (rq->curr == rq->idle)
		return true;
	struct task *left = container_of(rb_first(&rq->tree), struct task, run_node);

	return entity_before(left, rq->curr);
}
