/* The benchmark: what a traced call costs next to an untraced one and a bare time stamp. See arch/bench.S. */
#include "work.h"

#define VARIANTS 4
#define MAX_ROUNDS 64
#define DEFAULT_ITERS 200000

u64 loop_empty(u64 iters);
u64 loop_rdtsc(u64 iters);
u64 loop_traced(u64 iters);
u64 loop_untraced(u64 iters);
void bench_traced(void);
void bench_untraced(void);

/* Read by the host. Cycles for all iterations. */
u64 bench_results[MAX_ROUNDS][VARIANTS];
u64 bench_rounds, bench_iters;

/* These two have a site but no counter: they are what is measured. */
__attribute__((aligned(64))) void bench_traced(void)
{
}

__attribute__((aligned(64))) void bench_untraced(void)
{
}

static void bench_quiet(void *unused __unused)
{
	TRACED;
	tick_stop_cpu();
}

static void bench_round(u64 *row, u64 iters)
{
	TRACED;
	row[0] = loop_empty(iters);
	row[1] = loop_rdtsc(iters);
	row[2] = loop_traced(iters);
	row[3] = loop_untraced(iters);
}

static int bench_thread(void *arg __unused)
{
	TRACED;
	u64 iters = params.iters ? params.iters : DEFAULT_ITERS, warm_up[VARIANTS];

	on_each_cpu(bench_quiet, NULL);
	bench_iters = iters;
	preempt_disable();
	bench_round(warm_up, min(iters, 10000UL));
	for (u64 r = 0; r < params.rounds; r++) {
		bench_round(bench_results[r], iters);
		WRITE_ONCE(bench_rounds, r + 1);
	}
	preempt_enable();
	return 0;
}

static u64 bench_best(u32 variant)
{
	TRACED;
	u64 best = ~0UL;

	for (u64 r = 0; r < bench_rounds; r++)
		best = min(best, bench_results[r][variant]);
	return best;
}

void work_bench(void)
{
	TRACED;
	static const char *const names[VARIANTS] = { "empty call", "bare rdtsc", "bench_traced", "bench_untraced" };
	struct task *p = kthread_create(bench_thread, NULL, 0, "bench");

	if (!p)
		panic("cannot start the benchmark");
	kthread_join(p);
	for (u32 i = 0; i < VARIANTS; i++) {
		u64 c = bench_best(i) * 100 / bench_iters;

		printk("bench: %-14s best %lu.%02lu cycles a call\n", names[i], c / 100, c % 100);
	}
}
