/*
 * The slab allocator. A cache has slabs of one to eight pages with a free list each, and a short list of free objects
 * per CPU. An object that is free carries a mark, so that freeing twice or writing after free is noticed.
 */
#include "mm.h"

#define MAX_CACHES 32
#define CPU_OBJECTS 16
#define FREE_MARK 0x6b6b6b6bdeadbee5UL

struct slab {
	struct list_head list;
	struct kmem_cache *cache;
	struct page *page;
	void *freelist;
	u32 inuse, order;
};

struct cpu_slab {
	void *objects[CPU_OBJECTS];
	u32 count;
	s64 active; /* handed out minus given back on this CPU */
};

struct kmem_cache {
	const char *name;
	u32 size, order, per_slab, used;
	spinlock_t lock;
	struct list_head partial, full, empty;
	u64 nr_slabs;
	struct cpu_slab cpu[EXO_MAX_CPUS];
};

struct free_object {
	void *next;
	u64 mark;
};

static struct kmem_cache caches[MAX_CACHES];
static spinlock_t caches_lock = SPINLOCK_INIT;

struct kmem_cache *kmem_cache_create(const char *name, u32 size)
{
	TRACED;
	struct kmem_cache *c = NULL;

	spin_lock(&caches_lock);
	for (u32 i = 0; i < MAX_CACHES && !c; i++)
		if (!caches[i].used)
			c = &caches[i];
	if (!c)
		panic("no room for the cache %s", name);
	memset(c, 0, sizeof(*c));
	c->used = 1;
	c->name = name;
	c->size = (max(size, (u32)sizeof(struct free_object)) + 15) & ~15U;
	while (c->order < 3 && (PAGE_SIZE << c->order) / c->size < 8)
		c->order++;
	/* The slab's own data is at the start of its first page. */
	c->per_slab = (u32)((PAGE_SIZE << c->order) - sizeof(struct slab)) / c->size;
	list_init(&c->partial);
	list_init(&c->full);
	list_init(&c->empty);
	spin_unlock(&caches_lock);
	return c;
}

static void set_freepointer(void *obj, void *next)
{
	TRACED;
	struct free_object *f = obj;

	f->next = next;
	f->mark = FREE_MARK;
}

static void *get_freepointer(struct kmem_cache *c, void *obj)
{
	TRACED;
	struct free_object *f = obj;

	if (f->mark != FREE_MARK)
		panic("slab %s: object %p was written after it was freed", c->name, obj);
	f->mark = 0;
	return f->next;
}

static struct slab *new_slab(struct kmem_cache *c)
{
	TRACED;
	struct page *page = alloc_pages(c->order);

	if (!page)
		return NULL;
	struct slab *s = page_address(page);

	s->cache = c;
	s->page = page;
	s->order = c->order;
	s->inuse = 0;
	s->freelist = NULL;
	list_init(&s->list);
	for (u32 i = c->per_slab; i-- > 0;) {
		void *obj = (u8 *)s + (PAGE_SIZE << c->order) - (u64)(i + 1) * c->size;

		set_freepointer(obj, s->freelist);
		s->freelist = obj;
	}
	for (u32 i = 0; i < BIT(c->order); i++) {
		page[i].slab = s;
		page[i].flags = PG_SLAB;
	}
	return s;
}

static void discard_slab(struct slab *s)
{
	TRACED;
	struct page *page = s->page;
	u32 order = s->order;

	for (u32 i = 0; i < BIT(order); i++) {
		page[i].slab = NULL;
		page[i].flags = 0;
	}
	free_pages(page, order);
}

/* A slab with a free object; c->lock held. */
static struct slab *get_partial(struct kmem_cache *c)
{
	TRACED;
	if (!list_empty(&c->partial))
		return list_entry(c->partial.next, struct slab, list);
	if (!list_empty(&c->empty)) {
		struct slab *s = list_entry(c->empty.next, struct slab, list);

		list_move_tail(&s->list, &c->partial);
		return s;
	}
	struct slab *s = new_slab(c);

	if (s) {
		c->nr_slabs++;
		list_add(&s->list, &c->partial);
	}
	return s;
}

/* c->lock held. */
static void *slab_alloc_one(struct kmem_cache *c)
{
	TRACED;
	struct slab *s = get_partial(c);

	if (!s)
		return NULL;
	void *obj = s->freelist;

	s->freelist = get_freepointer(c, obj);
	s->inuse++;
	if (!s->freelist)
		list_move_tail(&s->list, &c->full);
	return obj;
}

/* c->lock held. */
static void slab_free_one(struct kmem_cache *c, void *obj)
{
	TRACED;
	struct slab *s = virt_to_page(obj)->slab;

	if (!s || s->cache != c)
		panic("slab %s: %p is not one of its objects", c->name, obj);
	set_freepointer(obj, s->freelist);
	s->freelist = obj;
	s->inuse--;
	list_move_tail(&s->list, s->inuse ? &c->partial : &c->empty);
}

/* Interrupts off. */
static void refill_cpu(struct kmem_cache *c, struct cpu_slab *cs)
{
	TRACED;
	spin_lock_irqsave(&c->lock);
	while (cs->count < CPU_OBJECTS / 2) {
		void *obj = slab_alloc_one(c);

		if (!obj)
			break;
		set_freepointer(obj, NULL);
		cs->objects[cs->count++] = obj;
	}
	spin_unlock_irqrestore(&c->lock);
}

/* Interrupts off. */
static void flush_cpu(struct kmem_cache *c, struct cpu_slab *cs, u32 keep)
{
	TRACED;
	spin_lock_irqsave(&c->lock);
	while (cs->count > keep) {
		void *obj = cs->objects[--cs->count];

		get_freepointer(c, obj);
		slab_free_one(c, obj);
	}
	spin_unlock_irqrestore(&c->lock);
}

/* NULL if memory is used up. */
void *kmem_cache_alloc(struct kmem_cache *c)
{
	TRACED;
	void *obj = NULL;

	local_irq_disable();
	struct cpu_slab *cs = &c->cpu[smp_processor_id()];

	if (!cs->count)
		refill_cpu(c, cs);
	if (cs->count) {
		obj = cs->objects[--cs->count];
		get_freepointer(c, obj);
		cs->active++;
	}
	local_irq_enable();
	return obj;
}

void *kmem_cache_zalloc(struct kmem_cache *c)
{
	TRACED;
	void *obj = kmem_cache_alloc(c);

	if (obj)
		memset(obj, 0, c->size);
	return obj;
}

static void check_object(struct kmem_cache *c, void *obj)
{
	TRACED;
	struct slab *s = virt_to_page(obj)->slab;
	struct free_object *f = obj;

	if (!s || s->cache != c)
		panic("slab %s: %p is not one of its objects", c->name, obj);
	u64 end = (u64)s + (PAGE_SIZE << s->order);

	if ((end - (u64)obj) % c->size)
		panic("slab %s: %p is not the start of an object", c->name, obj);
	if (f->mark == FREE_MARK)
		panic("slab %s: object %p freed twice", c->name, obj);
}

void kmem_cache_free(struct kmem_cache *c, void *obj)
{
	TRACED;
	check_object(c, obj);
	local_irq_disable();
	struct cpu_slab *cs = &c->cpu[smp_processor_id()];

	if (cs->count == CPU_OBJECTS)
		flush_cpu(c, cs, CPU_OBJECTS / 2);
	set_freepointer(obj, NULL);
	cs->objects[cs->count++] = obj;
	cs->active--;
	local_irq_enable();
}

/* The cache that an object is of, or NULL if it is not a slab object. */
struct kmem_cache *virt_to_cache(const void *obj)
{
	TRACED;
	struct slab *s = virt_to_page(obj)->slab;

	return s ? s->cache : NULL;
}

/* Objects in use. Exact only while nobody allocates. */
s64 kmem_cache_active(struct kmem_cache *c)
{
	TRACED;
	s64 n = 0;

	for (u32 i = 0; i < EXO_MAX_CPUS; i++)
		n += READ_ONCE(c->cpu[i].active);
	return n;
}

static void kmem_cache_flush_local(void *unused __unused)
{
	TRACED;
	for (u32 i = 0; i < MAX_CACHES; i++)
		if (caches[i].used)
			flush_cpu(&caches[i], &caches[i].cpu[smp_processor_id()], 0);
	drain_local_pages(NULL);
}

static void kmem_cache_shrink(struct kmem_cache *c)
{
	TRACED;
	spin_lock_irqsave(&c->lock);
	while (!list_empty(&c->empty)) {
		struct slab *s = list_entry(c->empty.next, struct slab, list);

		list_del_init(&s->list);
		c->nr_slabs--;
		discard_slab(s);
	}
	spin_unlock_irqrestore(&c->lock);
}

/* Gives everything back that no one uses, the lists of all CPUs included. */
void kmem_cache_shrink_all(void)
{
	TRACED;
	on_each_cpu(kmem_cache_flush_local, NULL);
	for (u32 i = 0; i < MAX_CACHES; i++)
		if (caches[i].used)
			kmem_cache_shrink(&caches[i]);
	on_each_cpu(drain_local_pages, NULL);
}

void kmem_cache_destroy(struct kmem_cache *c)
{
	TRACED;
	kmem_cache_shrink_all();
	if (kmem_cache_active(c))
		panic("slab %s: destroyed with %ld objects in use", c->name, kmem_cache_active(c));
	c->used = 0;
}

u64 slab_pages(void)
{
	TRACED;
	u64 n = 0;

	for (u32 i = 0; i < MAX_CACHES; i++)
		if (caches[i].used)
			n += caches[i].nr_slabs << caches[i].order;
	return n;
}

s64 slab_objects_active(void)
{
	TRACED;
	s64 n = 0;

	for (u32 i = 0; i < MAX_CACHES; i++)
		if (caches[i].used)
			n += kmem_cache_active(&caches[i]);
	return n;
}

/* A slab's free list must have exactly the objects that are not in use. */
static u64 check_slab(struct kmem_cache *c, struct slab *s)
{
	TRACED;
	u32 n = 0;

	for (struct free_object *f = s->freelist; f; f = f->next) {
		if (f->mark != FREE_MARK || virt_to_page(f)->slab != s || ++n > c->per_slab)
			return 1;
	}
	return n + s->inuse != c->per_slab;
}

static u64 check_slab_list(struct kmem_cache *c, struct list_head *h)
{
	TRACED;
	struct list_head *l;
	u64 bad = 0;

	list_for_each(l, h)
		bad += check_slab(c, list_entry(l, struct slab, list));
	return bad;
}

/* How many slabs are inconsistent. */
u64 check_slabs(void)
{
	TRACED;
	u64 bad = 0;

	for (u32 i = 0; i < MAX_CACHES; i++) {
		struct kmem_cache *c = &caches[i];

		if (!c->used)
			continue;
		spin_lock_irqsave(&c->lock);
		bad += check_slab_list(c, &c->partial) + check_slab_list(c, &c->full) + check_slab_list(c, &c->empty);
		spin_unlock_irqrestore(&c->lock);
	}
	return bad;
}

void slabinfo_show(void)
{
	TRACED;
	for (u32 i = 0; i < MAX_CACHES; i++)
		if (caches[i].used)
			printk("%-16s size %5u active %6ld slabs %4lu\n", caches[i].name, caches[i].size,
			       kmem_cache_active(&caches[i]), caches[i].nr_slabs);
}
