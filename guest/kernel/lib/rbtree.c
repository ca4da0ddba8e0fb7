/* Red-black trees. The caller finds the place and links the node, as only it knows the order. */
#include "lib.h"

void rb_link_node(struct rb_node *n, struct rb_node *parent, struct rb_node **link)
{
	TRACED;
	n->parent = parent;
	n->left = NULL;
	n->right = NULL;
	n->red = 1;
	*link = n;
}

static bool is_red(const struct rb_node *n)
{
	TRACED;
	return n && n->red;
}

static void rb_change_child(struct rb_node *old, struct rb_node *new, struct rb_node *parent, struct rb_root *root)
{
	TRACED;
	if (!parent)
		root->node = new;
	else if (parent->left == old)
		parent->left = new;
	else
		parent->right = new;
}

static void rb_rotate_left(struct rb_node *x, struct rb_root *root)
{
	TRACED;
	struct rb_node *y = x->right;

	x->right = y->left;
	if (y->left)
		y->left->parent = x;
	y->parent = x->parent;
	rb_change_child(x, y, x->parent, root);
	y->left = x;
	x->parent = y;
}

static void rb_rotate_right(struct rb_node *x, struct rb_root *root)
{
	TRACED;
	struct rb_node *y = x->left;

	x->left = y->right;
	if (y->right)
		y->right->parent = x;
	y->parent = x->parent;
	rb_change_child(x, y, x->parent, root);
	y->right = x;
	x->parent = y;
}

void rb_insert_color(struct rb_node *n, struct rb_root *root)
{
	TRACED;
	while (is_red(n->parent)) {
		struct rb_node *p = n->parent, *g = p->parent;
		bool left = p == g->left;
		struct rb_node *uncle = left ? g->right : g->left;

		if (is_red(uncle)) {
			p->red = 0;
			uncle->red = 0;
			g->red = 1;
			n = g;
			continue;
		}
		if (left && n == p->right) {
			rb_rotate_left(p, root);
			p = n;
		} else if (!left && n == p->left) {
			rb_rotate_right(p, root);
			p = n;
		}
		p->red = 0;
		g->red = 1;
		if (left)
			rb_rotate_right(g, root);
		else
			rb_rotate_left(g, root);
		break;
	}
	root->node->red = 0;
}

/* One step of the repair on the side where a black node is missing; returns where to go on, NULL when done. */
static struct rb_node *rb_erase_step(struct rb_node *parent, bool left, struct rb_root *root)
{
	TRACED;
	struct rb_node *s = left ? parent->right : parent->left;

	if (is_red(s)) {
		s->red = 0;
		parent->red = 1;
		if (left)
			rb_rotate_left(parent, root);
		else
			rb_rotate_right(parent, root);
		s = left ? parent->right : parent->left;
	}
	if (!is_red(s->left) && !is_red(s->right)) {
		s->red = 1;
		return parent;
	}
	if (left && !is_red(s->right)) {
		s->left->red = 0;
		s->red = 1;
		rb_rotate_right(s, root);
		s = parent->right;
	} else if (!left && !is_red(s->left)) {
		s->right->red = 0;
		s->red = 1;
		rb_rotate_left(s, root);
		s = parent->left;
	}
	s->red = parent->red;
	parent->red = 0;
	if (left) {
		s->right->red = 0;
		rb_rotate_left(parent, root);
	} else {
		s->left->red = 0;
		rb_rotate_right(parent, root);
	}
	return NULL;
}

static void rb_erase_color(struct rb_node *n, struct rb_node *parent, struct rb_root *root)
{
	TRACED;
	while (parent && !is_red(n)) {
		n = rb_erase_step(parent, parent->left == n, root);
		if (!n)
			return;
		parent = n->parent;
	}
	if (n)
		n->red = 0;
}

/* Puts `s`, the next node in order, in the place of `n`, which has two children. */
static void rb_replace(struct rb_node *n, struct rb_node *s, struct rb_root *root)
{
	TRACED;
	s->parent = n->parent;
	s->left = n->left;
	s->right = n->right;
	s->red = n->red;
	rb_change_child(n, s, n->parent, root);
	s->left->parent = s;
	if (s->right)
		s->right->parent = s;
}

void rb_erase(struct rb_node *n, struct rb_root *root)
{
	TRACED;
	struct rb_node *child, *parent;
	u64 red;

	if (n->left && n->right) {
		struct rb_node *s = n->right;

		while (s->left)
			s = s->left;
		child = s->right;
		parent = s->parent;
		red = s->red;
		rb_change_child(s, child, parent, root);
		if (child)
			child->parent = parent;
		if (parent == n)
			parent = s;
		rb_replace(n, s, root);
	} else {
		child = n->left ? n->left : n->right;
		parent = n->parent;
		red = n->red;
		rb_change_child(n, child, parent, root);
		if (child)
			child->parent = parent;
	}
	if (!red)
		rb_erase_color(child, parent, root);
}

struct rb_node *rb_first(const struct rb_root *root)
{
	TRACED;
	struct rb_node *n = root->node;

	while (n && n->left)
		n = n->left;
	return n;
}

struct rb_node *rb_last(const struct rb_root *root)
{
	TRACED;
	struct rb_node *n = root->node;

	while (n && n->right)
		n = n->right;
	return n;
}

struct rb_node *rb_next(const struct rb_node *n)
{
	TRACED;
	if (n->right) {
		n = n->right;
		while (n->left)
			n = n->left;
		return (struct rb_node *)n;
	}
	while (n->parent && n == n->parent->right)
		n = n->parent;
	return n->parent;
}

struct rb_node *rb_prev(const struct rb_node *n)
{
	TRACED;
	if (n->left) {
		n = n->left;
		while (n->right)
			n = n->right;
		return (struct rb_node *)n;
	}
	while (n->parent && n == n->parent->left)
		n = n->parent;
	return n->parent;
}

static int rb_check_node(const struct rb_node *n, const struct rb_node *parent)
{
	TRACED;
	if (!n)
		return 1;
	if (n->parent != parent || (n->red && (is_red(n->left) || is_red(n->right))))
		return -1;
	int l = rb_check_node(n->left, n), r = rb_check_node(n->right, n);

	return l < 0 || l != r ? -1 : l + !n->red;
}

/* The black height, or -1 if the tree is not a red-black tree. */
int rb_check(const struct rb_root *root)
{
	TRACED;
	if (is_red(root->node))
		return -1;
	return rb_check_node(root->node, NULL);
}
