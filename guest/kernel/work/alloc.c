/* Allocator workload: a worker holds up to 32 pieces of memory, each filled with a pattern of its own. */
#include "work.h"

#define SLOTS 32

static __always_inline u8 alloc_pattern(const struct worker *w, u32 slot, u32 i)
{
	return (u8)(w->id * 31 + slot * 7 + w->sizes[slot] + i);
}

static void alloc_fill(struct worker *w, u32 slot)
{
	TRACED;
	u8 *p = w->slots[slot];

	for (u32 i = 0; i < w->sizes[slot]; i++)
		p[i] = alloc_pattern(w, slot, i);
}

static void alloc_verify(struct worker *w, u32 slot)
{
	TRACED;
	const u8 *p = w->slots[slot];

	for (u32 i = 0; i < w->sizes[slot]; i++) {
		if (p[i] != alloc_pattern(w, slot, i)) {
			selfcheck_fail("worker %u: byte %u of %u at %p is not its own", w->id, i, w->sizes[slot],
				       (const void *)p);
			return;
		}
	}
}

static void alloc_get(struct worker *w, u32 slot)
{
	TRACED;
	/* Mostly small, now and then pages. */
	u32 shift = 3 + prandom_u32_below(&w->rnd, prandom_u32_below(&w->rnd, 8) ? 8 : 12);

	w->sizes[slot] = (1U << shift) + prandom_u32_below(&w->rnd, 1U << shift);
	w->slots[slot] = w->sizes[slot] & 1 ? kmalloc(w->sizes[slot]) : kzalloc(w->sizes[slot]);
	if (!w->slots[slot])
		panic("worker %u: no memory for %u bytes", w->id, w->sizes[slot]);
	alloc_fill(w, slot);
}

static void alloc_put(struct worker *w, u32 slot)
{
	TRACED;
	alloc_verify(w, slot);
	worker_sum(w, adler32(1, w->slots[slot], w->sizes[slot]));
	kfree(w->slots[slot]);
	w->slots[slot] = NULL;
}

static void alloc_pages_test(struct worker *w)
{
	TRACED;
	u32 order = prandom_u32_below(&w->rnd, 4);
	struct page *p = alloc_pages(order);

	if (!p)
		panic("worker %u: no memory for order %u", w->id, order);
	u64 *a = page_address(p);

	for (u32 i = 0; i < 1U << order; i++)
		a[i * PAGE_SIZE / 8] = w->id + i;
	for (u32 i = 0; i < 1U << order; i++)
		if (a[i * PAGE_SIZE / 8] != w->id + i)
			selfcheck_fail("worker %u: page of order %u changed", w->id, order);
	worker_sum(w, order);
	free_pages(p, order);
}

static void alloc_realloc(struct worker *w)
{
	TRACED;
	char name[32];

	snprintf(name, sizeof(name), "worker %u iteration %lu", w->id, w->iters);
	char *p = kstrdup(name), *q = p ? krealloc(p, 4 * strlen(name)) : NULL;

	if (!q)
		panic("worker %u: no memory", w->id);
	worker_sum(w, fnv1a64(q, strlen(name)));
	kfree(q);
}

void work_alloc_step(struct worker *w)
{
	TRACED;
	for (u32 i = 0; i < 8; i++) {
		u32 slot = prandom_u32_below(&w->rnd, SLOTS);

		if (w->slots[slot])
			alloc_put(w, slot);
		else
			alloc_get(w, slot);
	}
	alloc_pages_test(w);
	alloc_realloc(w);
	cond_resched();
}

void work_alloc_end(struct worker *w)
{
	TRACED;
	for (u32 i = 0; i < SLOTS; i++)
		if (w->slots[i])
			alloc_put(w, i);
}
