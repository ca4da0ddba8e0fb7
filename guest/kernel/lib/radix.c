/* Radix tree: 64 slots a node, as high as its largest index needs. The caller locks. */
#include "mm.h"

#define SHIFT 6
#define SLOTS (1U << SHIFT)
#define MAX_HEIGHT 8

struct radix_node {
	u32 count;
	u32 offset; /* in the parent */
	struct radix_node *parent;
	void *slots[SLOTS];
};

static struct kmem_cache *node_cache;

void radix_tree_init(void)
{
	TRACED;
	node_cache = kmem_cache_create("radix_node", sizeof(struct radix_node));
}

static u64 radix_max_index(u32 height)
{
	TRACED;
	return height * SHIFT >= 64 ? ~0UL : (1UL << (height * SHIFT)) - 1;
}

static u32 radix_offset(u64 index, u32 level)
{
	TRACED;
	return index >> ((level - 1) * SHIFT) & (SLOTS - 1);
}

static struct radix_node *radix_node_alloc(struct radix_node *parent, u32 offset)
{
	TRACED;
	struct radix_node *n = kmem_cache_zalloc(node_cache);

	if (n) {
		n->parent = parent;
		n->offset = offset;
	}
	return n;
}

/* Puts new roots on top until the index fits. */
static int radix_tree_extend(struct radix_root *r, u64 index)
{
	TRACED;
	if (!r->node) {
		r->node = radix_node_alloc(NULL, 0);
		if (!r->node)
			return -ENOMEM;
		r->height = 1;
	}
	while (index > radix_max_index(r->height)) {
		struct radix_node *top;

		if (r->height == MAX_HEIGHT || !(top = radix_node_alloc(NULL, 0)))
			return -ENOMEM;
		top->slots[0] = r->node;
		top->count = 1;
		r->node->parent = top;
		r->node->offset = 0;
		r->node = top;
		r->height++;
	}
	return 0;
}

static struct radix_node *radix_leaf(struct radix_root *r, u64 index)
{
	TRACED;
	struct radix_node *n = r->node;

	if (!n || index > radix_max_index(r->height))
		return NULL;
	for (u32 level = r->height; n && level > 1; level--)
		n = n->slots[radix_offset(index, level)];
	return n;
}

void *radix_tree_lookup(struct radix_root *r, u64 index)
{
	TRACED;
	struct radix_node *n = radix_leaf(r, index);

	return n ? n->slots[radix_offset(index, 1)] : NULL;
}

/* Frees nodes that have become empty, from n upwards. */
static void radix_node_shrink(struct radix_root *r, struct radix_node *n)
{
	TRACED;
	while (n && !n->count) {
		struct radix_node *parent = n->parent;

		if (parent) {
			parent->slots[n->offset] = NULL;
			parent->count--;
		} else {
			r->node = NULL;
			r->height = 0;
		}
		kmem_cache_free(node_cache, n);
		n = parent;
	}
}

int radix_tree_insert(struct radix_root *r, u64 index, void *item)
{
	TRACED;
	int err = radix_tree_extend(r, index);
	struct radix_node *n = r->node;

	for (u32 level = r->height; !err && level > 1; level--) {
		u32 off = radix_offset(index, level);

		if (!n->slots[off]) {
			n->slots[off] = radix_node_alloc(n, off);
			if (!n->slots[off]) {
				err = -ENOMEM;
				break;
			}
			n->count++;
		}
		n = n->slots[off];
	}
	if (!err && n->slots[radix_offset(index, 1)])
		return -EEXIST;
	if (err) {
		radix_node_shrink(r, n);
		return err;
	}
	n->slots[radix_offset(index, 1)] = item;
	n->count++;
	return 0;
}

void *radix_tree_delete(struct radix_root *r, u64 index)
{
	TRACED;
	struct radix_node *n = radix_leaf(r, index);
	u32 off = radix_offset(index, 1);

	if (!n || !n->slots[off])
		return NULL;
	void *item = n->slots[off];

	n->slots[off] = NULL;
	n->count--;
	radix_node_shrink(r, n);
	return item;
}

/* The smallest index >= first that is present in the subtree, or ~0. */
static u64 radix_next(struct radix_node *n, u32 level, u64 first)
{
	TRACED;
	u64 span = 1UL << ((level - 1) * SHIFT);

	for (u32 off = radix_offset(first, level); off < SLOTS; off++) {
		u64 base = (first & ~(span * SLOTS - 1)) | off * span;

		if (n->slots[off]) {
			u64 found = level == 1 ? base : radix_next(n->slots[off], level - 1, max(first, base));

			if (found != ~0UL)
				return found;
		}
	}
	return ~0UL;
}

/* Up to max items from index `first` on, in order; returns how many. */
u32 radix_tree_gang_lookup(struct radix_root *r, void **items, u64 *indices, u64 first, u32 max)
{
	TRACED;
	u32 n = 0;

	while (n < max && r->node && first <= radix_max_index(r->height)) {
		u64 i = radix_next(r->node, r->height, first);

		if (i == ~0UL)
			break;
		items[n] = radix_tree_lookup(r, i);
		indices[n++] = i;
		first = i + 1;
	}
	return n;
}
