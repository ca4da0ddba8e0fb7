/* Memory of any size: from a cache up to 4 KiB, above that whole pages. */
#include "mm.h"

#define MIN_SHIFT 4
#define MAX_SHIFT 12

static struct kmem_cache *kmalloc_caches[MAX_SHIFT + 1];

void kmalloc_init(void)
{
	TRACED;
	static const char *const names[] = {
		"kmalloc-16", "kmalloc-32", "kmalloc-64", "kmalloc-128", "kmalloc-256", "kmalloc-512", "kmalloc-1k",
		"kmalloc-2k", "kmalloc-4k",
	};

	for (u32 i = MIN_SHIFT; i <= MAX_SHIFT; i++)
		kmalloc_caches[i] = kmem_cache_create(names[i - MIN_SHIFT], 1U << i);
}

static u32 kmalloc_index(size_t n)
{
	TRACED;
	return n <= BIT(MIN_SHIFT) ? MIN_SHIFT : 64 - (u32)__builtin_clzl(n - 1);
}

static void *kmalloc_large(size_t n)
{
	TRACED;
	u32 order = 0;

	while ((PAGE_SIZE << order) < n)
		if (++order > MAX_ORDER)
			return NULL;
	struct page *p = alloc_pages(order);

	if (!p)
		return NULL;
	p->flags |= PG_COMPOUND;
	return page_address(p);
}

void *kmalloc(size_t n)
{
	TRACED;
	if (n > BIT(MAX_SHIFT))
		return kmalloc_large(n);
	return kmem_cache_alloc(kmalloc_caches[kmalloc_index(n)]);
}

void *kzalloc(size_t n)
{
	TRACED;
	void *p = kmalloc(n);

	if (p)
		memset(p, 0, n);
	return p;
}

size_t ksize(const void *p)
{
	TRACED;
	struct kmem_cache *c = virt_to_cache(p);

	if (!c)
		return PAGE_SIZE << virt_to_page(p)->order;
	for (u32 i = MIN_SHIFT; i <= MAX_SHIFT; i++)
		if (kmalloc_caches[i] == c)
			return BIT(i);
	return 0;
}

void *krealloc(void *p, size_t n)
{
	TRACED;
	if (p && n <= ksize(p))
		return p;
	void *q = kmalloc(n);

	if (q && p) {
		memcpy(q, p, ksize(p));
		kfree(p);
	}
	return q;
}

char *kstrdup(const char *s)
{
	TRACED;
	size_t n = strlen(s) + 1;
	char *p = kmalloc(n);

	if (p)
		memcpy(p, s, n);
	return p;
}

static void kfree_large(struct page *p)
{
	TRACED;
	BUG_ON(!(p->flags & PG_COMPOUND));
	p->flags &= ~(u32)PG_COMPOUND;
	free_pages(p, p->order);
}

void kfree(const void *p)
{
	TRACED;
	if (!p)
		return;
	struct kmem_cache *c = virt_to_cache(p);

	if (c)
		kmem_cache_free(c, (void *)p);
	else
		kfree_large(virt_to_page(p));
}
