/* Linked lists, out of line so that they can be traced. */
#include "lib.h"

void list_add(struct list_head *e, struct list_head *h)
{
	TRACED;
	e->next = h->next;
	e->prev = h;
	h->next->prev = e;
	h->next = e;
}

void list_add_tail(struct list_head *e, struct list_head *h)
{
	TRACED;
	e->next = h;
	e->prev = h->prev;
	h->prev->next = e;
	h->prev = e;
}

void list_del_init(struct list_head *e)
{
	TRACED;
	e->prev->next = e->next;
	e->next->prev = e->prev;
	list_init(e);
}

void list_move_tail(struct list_head *e, struct list_head *h)
{
	TRACED;
	list_del_init(e);
	list_add_tail(e, h);
}

/* Moves everything to the end of `to`. */
void list_splice_init(struct list_head *from, struct list_head *to)
{
	TRACED;
	while (!list_empty(from))
		list_move_tail(from->next, to);
}

u64 list_count(struct list_head *h)
{
	TRACED;
	struct list_head *l;
	u64 n = 0;

	list_for_each(l, h)
		n++;
	return n;
}

static void list_merge(struct list_head *a, struct list_head *b, struct list_head *out,
		       int (*cmp)(struct list_head *a, struct list_head *b))
{
	TRACED;
	while (!list_empty(a) && !list_empty(b))
		list_move_tail(cmp(a->next, b->next) <= 0 ? a->next : b->next, out);
	list_splice_init(a, out);
	list_splice_init(b, out);
}

/* Merge sort, stable. */
void list_sort(struct list_head *h, int (*cmp)(struct list_head *a, struct list_head *b))
{
	TRACED;
	struct list_head a, b;
	u64 half = list_count(h) / 2;

	if (!half)
		return;
	list_init(&a);
	list_init(&b);
	while (half--)
		list_move_tail(h->next, &a);
	list_splice_init(h, &b);
	list_sort(&a, cmp);
	list_sort(&b, cmp);
	list_merge(&a, &b, h, cmp);
}
