/* Tests of the library and of the allocators against known answers and naive models. */
#include "work.h"

static u64 tests;

static void check(bool ok, const char *what)
{
	TRACED;
	tests++;
	if (!ok)
		selfcheck_fail("selftest: %s", what);
}

static void test_strings(void)
{
	TRACED;
	char buf[64], list[] = "a,,b";
	char *rest = list;
	u64 v = 0;

	check(strlen("") == 0 && strlen("abc") == 3 && strnlen("abc", 2) == 2, "strlen");
	check(strcmp("a", "b") < 0 && strcmp("b", "a") > 0 && !strcmp("ab", "ab"), "strcmp");
	check(!strncmp("abc", "abd", 2) && strncmp("abc", "abd", 3) < 0, "strncmp");
	check(strlcpy(buf, "hello", 3) == 5 && !strcmp(buf, "he"), "strlcpy");
	check(!kstrtoull("0xfF", &v) && v == 255 && !kstrtoull("18446744073709551615", &v) && v == ~0UL, "kstrtoull");
	check(kstrtoull("18446744073709551616", &v) && kstrtoull("", &v) && kstrtoull("12a", &v), "kstrtoull refuses");
	check(!strcmp(strsep(&rest, ','), "a") && !*strsep(&rest, ',') && !strcmp(strsep(&rest, ','), "b") && !rest,
	      "strsep");
	snprintf(buf, sizeof(buf), "%5d|%-4s|%04x|%lu|%c|%%", -42, "ab", 0xbeef, 12345678901UL, 'z');
	check(!strcmp(buf, "  -42|ab  |beef|12345678901|z|%"), "snprintf");
	check(snprintf(buf, 4, "%s", "truncated") == 9 && !strcmp(buf, "tru"), "snprintf truncates");
	memcpy(buf, "0123456789", 11);
	memmove(buf + 2, buf, 5);
	check(!memcmp(buf, "0101234789", 10), "memmove");
}

static void test_checksums(void)
{
	TRACED;
	check(crc32_le(0, "123456789", 9) == 0xcbf43926U, "crc32");
	check(adler32(1, "Wikipedia", 9) == 0x11e60398U, "adler32");
	check(fnv1a64("a", 1) == 0xaf63dc4c8601ec8cUL, "fnv1a");
}

struct rb_item {
	struct rb_node node;
	u32 key;
};

static void rb_item_insert(struct rb_root *root, struct rb_item *n)
{
	TRACED;
	struct rb_node **link = &root->node, *parent = NULL;

	while (*link) {
		parent = *link;
		link = n->key < container_of(parent, struct rb_item, node)->key ? &parent->left : &parent->right;
	}
	rb_link_node(&n->node, parent, link);
	rb_insert_color(&n->node, root);
}

static void test_rbtree(void)
{
	TRACED;
	static struct rb_item items[256];
	static bool in[256];
	struct rb_root root = { NULL };
	struct rnd_state r;
	bool ok = true;

	prandom_seed_state(&r, params.seed);
	for (u32 i = 0; i < 256; i++)
		items[i].key = i;
	for (u32 i = 0; i < 4000; i++) {
		u32 k = prandom_u32_below(&r, 256);

		if (in[k])
			rb_erase(&items[k].node, &root);
		else
			rb_item_insert(&root, &items[k]);
		in[k] = !in[k];
		if (i % 16 == 0)
			ok &= rb_check(&root) >= 0;
	}
	u32 k = 0;

	for (struct rb_node *n = rb_first(&root); n; n = rb_next(n), k++) {
		while (k < 256 && !in[k])
			k++;
		ok &= k < 256 && container_of(n, struct rb_item, node)->key == k;
	}
	check(ok, "rbtree");
}

static void test_radix(void)
{
	TRACED;
	static const u64 keys[] = { 0, 1, 63, 64, 65, 4095, 4096, 1UL << 20, 1UL << 33 };
	struct radix_root root = { NULL, 0 };
	void *items[16];
	u64 indices[16];
	bool ok = true;

	for (u32 i = 0; i < ARRAY_SIZE(keys); i++)
		ok &= !radix_tree_insert(&root, keys[i], (void *)&keys[i]);
	ok &= radix_tree_insert(&root, 63, &root) == -EEXIST;
	for (u32 i = 0; i < ARRAY_SIZE(keys); i++)
		ok &= radix_tree_lookup(&root, keys[i]) == &keys[i];
	ok &= !radix_tree_lookup(&root, 2) && !radix_tree_lookup(&root, 1UL << 40);
	u32 n = radix_tree_gang_lookup(&root, items, indices, 60, 16);

	ok &= n == ARRAY_SIZE(keys) - 2;
	for (u32 i = 0; i < n; i++)
		ok &= indices[i] == keys[i + 2] && items[i] == &keys[i + 2];
	for (u32 i = 0; i < ARRAY_SIZE(keys); i++)
		ok &= radix_tree_delete(&root, keys[i]) == &keys[i];
	check(ok && !root.node && !radix_tree_delete(&root, 0), "radix tree");
}

static int cmp_u32(const void *a, const void *b)
{
	TRACED;
	u32 x = *(const u32 *)a, y = *(const u32 *)b;

	return x < y ? -1 : x > y;
}

static void test_sort(void)
{
	TRACED;
	static u32 v[200];
	struct rnd_state r;
	bool ok = true;

	prandom_seed_state(&r, params.seed);
	for (u32 i = 0; i < 200; i++)
		v[i] = prandom_u32_below(&r, 1000) * 2;
	sort(v, 200, sizeof(u32), cmp_u32);
	for (u32 i = 1; i < 200; i++)
		ok &= v[i - 1] <= v[i];
	u32 miss = v[77] + 1, *hit = bsearch(&v[77], v, 200, sizeof(u32), cmp_u32);

	check(ok && hit && *hit == v[77] && !bsearch(&miss, v, 200, sizeof(u32), cmp_u32), "sort, bsearch");
}

struct list_item {
	struct list_head list;
	u32 key;
};

static int cmp_list_item(struct list_head *a, struct list_head *b)
{
	TRACED;
	return cmp_u32(&list_entry(a, struct list_item, list)->key, &list_entry(b, struct list_item, list)->key);
}

static void test_lists(void)
{
	TRACED;
	static struct list_item items[50];
	struct list_head head, *l;
	bool ok = true;
	u32 last = 0;

	list_init(&head);
	for (u32 i = 0; i < 50; i++) {
		items[i].key = (i * 37) % 50;
		list_add(&items[i].list, &head);
	}
	list_sort(&head, cmp_list_item);
	list_for_each(l, &head)
		ok &= list_entry(l, struct list_item, list)->key == last++;
	check(ok && list_count(&head) == 50, "list_sort");
}

static void test_bitmap(void)
{
	TRACED;
	u64 map[3] = { 0 };

	bitmap_set(map, 60, 70);
	check(bitmap_weight(map, 192) == 70 && bitmap_weight(map, 64) == 4, "bitmap weight");
	check(find_next_bit(map, 192, 0) == 60 && find_next_zero_bit(map, 192, 60) == 130, "bitmap find");
	check(find_next_bit(map, 192, 130) == 192 && find_next_zero_bit(map, 130, 60) == 130, "bitmap ends");
	bitmap_clear(map, 64, 64);
	check(!test_and_set_bit(64, map) && test_and_set_bit(64, map) && bitmap_weight(map, 192) == 7, "bitmap bits");
	clear_bit(64, map);
	check(bitmap_weight(map, 192) == 6, "bitmap clear");
}

static void test_kfifo(void)
{
	TRACED;
	u8 buf[16], in[10], out[10];
	struct kfifo f;
	bool ok = true;
	u8 next_in = 0, next_out = 0;

	kfifo_init(&f, buf, sizeof(buf));
	for (u32 i = 0; i < 100; i++) {
		for (u32 k = 0; k < 7; k++)
			in[k] = (u8)(next_in + k);
		next_in += (u8)kfifo_in(&f, in, 7);
		u32 n = kfifo_out(&f, out, i % 10);

		for (u32 k = 0; k < n; k++)
			ok &= out[k] == next_out++;
	}
	check(ok && kfifo_len(&f) == (u8)(next_in - next_out), "kfifo");
}

static void test_kmem(void)
{
	TRACED;
	struct kmem_cache *c = kmem_cache_create("selftest", 100);
	static void *objs[200];
	u32 got = 0;

	for (u32 i = 0; i < 200; i++) {
		objs[i] = kmem_cache_zalloc(c);
		got += objs[i] != NULL;
		memset(objs[i], (int)i, 100);
	}
	bool ok = got == 200 && kmem_cache_active(c) == 200;

	for (u32 i = 0; i < 200; i++) {
		ok &= ((u8 *)objs[i])[0] == (u8)i && ((u8 *)objs[i])[99] == (u8)i;
		kmem_cache_free(c, objs[i]);
	}
	check(ok && !kmem_cache_active(c), "kmem_cache");
	kmem_cache_destroy(c);
	void *big = kmalloc(100000);

	check(big && ksize(big) == 131072 && !kmalloc(1UL << 30), "kmalloc of pages");
	kfree(big);
}

static void test_delayed_fn(struct work *w __unused)
{
	TRACED;
	__atomic_fetch_add(&tests, 1000, __ATOMIC_SEQ_CST);
}

static void test_delayed_work(void)
{
	TRACED;
	struct delayed_work dw;
	u64 before = tests;

	init_delayed_work(&dw, test_delayed_fn);
	schedule_delayed_work(&dw, 2);
	msleep(50);
	flush_workqueue();
	u64 ran = READ_ONCE(tests) - before;

	tests = before;
	check(ran == 1000, "delayed work runs once");
	schedule_delayed_work(&dw, 1UL << 30);
	cancel_delayed_work_sync(&dw);
	check(!timers_queued() || tests == before + 1, "delayed work is cancelled");
}

static bool test_hr_fn(struct hrtimer *t)
{
	TRACED;
	u64 *n = t->data;

	hrtimer_forward(t, ns_to_tsc(1000000));
	return __atomic_add_fetch(n, 1, __ATOMIC_SEQ_CST) < 5;
}

static void test_hrtimer(void)
{
	TRACED;
	struct hrtimer t;
	u64 n = 0;

	hrtimer_init(&t, test_hr_fn, &n);
	hrtimer_start(&t, rdtsc());
	for (u32 i = 0; i < 500 && READ_ONCE(n) < 5; i++)
		msleep(2);
	hrtimer_cancel(&t);
	check(READ_ONCE(n) == 5, "periodic hrtimer");
}

void work_selftest(void)
{
	TRACED;
	test_strings();
	test_checksums();
	test_rbtree();
	test_radix();
	test_sort();
	test_lists();
	test_bitmap();
	test_kfifo();
	test_kmem();
	test_delayed_work();
	test_hrtimer();
	selfcheck_sum = tests;
	printk("selftest: %lu checks\n", tests);
}
