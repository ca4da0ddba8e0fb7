/* Workloads: what the threads do, and the self-check at the end. */
#pragma once
#include "fs.h"
#include "time.h"

struct worker {
	u32 id;
	struct task *task;
	struct rnd_state rnd;
	u64 sum;   /* depends on the seed and the id only */
	u64 iters; /* done so far */
	bool ended; /* the other end of the pipe is gone */
	void (*step)(struct worker *w);
	struct file *pipe_file; /* handed to the thread's table when it starts */
	struct rnd_state pipe_rnd; /* the same at both ends */
	bool pipe_writer;
	s32 pipe_fd;
	u64 sleep_debt; /* TSC cycles that `load` owes */
	void *slots[32]; /* alloc: what is held */
	u32 sizes[32];
};

#define MAX_WORKERS 64

extern u64 selfcheck_sum, selfcheck_failures;
void selfcheck_fail(const char *fmt, ...) __printf(1, 2);

/* Folds a value into a worker's sum. */
static __always_inline void worker_sum(struct worker *w, u64 v)
{
	u64 x = (w->sum ^ v) * 0x9e3779b97f4a7c15UL;
	w->sum = x ^ (x >> 29);
}

/* work/main.c */
void run_workload(void);
bool workload_stopping(void);
void workload_stop(void);

/* work/alloc.c, work/sched.c, work/flood.c, work/bench.c, work/selftest.c */
void work_alloc_step(struct worker *w);
void work_alloc_end(struct worker *w);
void work_sched_begin(void);
void work_sched_step(struct worker *w);
void work_sched_check(void);
void work_flood_step(struct worker *w);
void work_bench(void);
void work_selftest(void);

/* user/: not traced, as a user's program is not */
void user_begin(struct worker *w);
void user_end(struct worker *w);
void user_fs_step(struct worker *w);
void user_syscall_step(struct worker *w);
void user_pipe_step(struct worker *w);
void user_mix_step(struct worker *w);
