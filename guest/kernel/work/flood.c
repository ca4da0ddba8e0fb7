/* Calls of small functions as fast as it goes, one worker a CPU: the tracer's worst case. */
#include "work.h"

#define CALLS 256

static u64 flood_add(u64 v, u64 k)
{
	TRACED;
	return v + k;
}

static u64 flood_xor(u64 v, u64 k)
{
	TRACED;
	return v ^ k;
}

static u64 flood_rotate(u64 v)
{
	TRACED;
	return v << 7 | v >> 57;
}

static u64 flood_multiply(u64 v)
{
	TRACED;
	return v * 0x9e3779b97f4a7c15UL;
}

static u64 flood_round(u64 v, u64 k)
{
	TRACED;
	return flood_multiply(flood_rotate(flood_xor(flood_add(v, k), 0x5555)));
}

void work_flood_step(struct worker *w)
{
	TRACED;
	u64 v = w->sum;

	for (u64 i = 0; i < CALLS; i++)
		v = flood_round(v, i);
	worker_sum(w, v);
	if (!params.hz)
		cond_resched();
}
