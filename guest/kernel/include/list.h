/* Doubly linked circular lists. */
#pragma once
#include "types.h"

struct list_head {
	struct list_head *next, *prev;
};

#define LIST_HEAD_INIT(n) { &(n), &(n) }
#define list_entry(p, t, m) container_of(p, t, m)
#define list_for_each(p, h) for ((p) = (h)->next; (p) != (h); (p) = (p)->next)
#define list_for_each_safe(p, n, h) for ((p) = (h)->next, (n) = (p)->next; (p) != (h); (p) = (n), (n) = (p)->next)

static __always_inline void list_init(struct list_head *h)
{
	h->next = h;
	h->prev = h;
}

static __always_inline bool list_empty(const struct list_head *h)
{
	return READ_ONCE(h->next) == h;
}

void list_add(struct list_head *e, struct list_head *h);
void list_add_tail(struct list_head *e, struct list_head *h);
void list_del_init(struct list_head *e);
void list_move_tail(struct list_head *e, struct list_head *h);
void list_splice_init(struct list_head *from, struct list_head *to);
u64 list_count(struct list_head *h);
void list_sort(struct list_head *h, int (*cmp)(struct list_head *a, struct list_head *b));
