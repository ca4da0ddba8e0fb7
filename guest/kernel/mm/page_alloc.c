/* The buddy page allocator, with a list of single pages per CPU in front of it. */
#include "mm.h"

#define PCP_HIGH 64
#define PCP_BATCH 16

struct pcp {
	struct list_head pages;
	u32 count;
};

static spinlock_t zone_lock = SPINLOCK_INIT;
static struct list_head free_area[MAX_ORDER + 1];
static u64 nr_free[MAX_ORDER + 1];
static struct pcp pcps[EXO_MAX_CPUS];
struct page *mem_map;
u64 nr_pages;
static u64 mem_base; /* GVA of page 0 */

void *page_address(struct page *p)
{
	TRACED;
	return (void *)(mem_base + (page_to_pfn(p) << PAGE_SHIFT));
}

struct page *virt_to_page(const void *a)
{
	TRACED;
	u64 pfn = ((u64)a - mem_base) >> PAGE_SHIFT;

	BUG_ON(pfn >= nr_pages);
	return &mem_map[pfn];
}

static void add_to_free_list(struct page *p, u32 order)
{
	TRACED;
	p->flags = PG_BUDDY;
	p->order = order;
	list_add(&p->lru, &free_area[order]);
	nr_free[order]++;
}

static void del_from_free_list(struct page *p)
{
	TRACED;
	BUG_ON(!(p->flags & PG_BUDDY));
	list_del_init(&p->lru);
	nr_free[p->order]--;
	p->flags = 0;
}

static struct page *find_buddy(struct page *p, u32 order)
{
	TRACED;
	u64 pfn = page_to_pfn(p) ^ BIT(order);

	if (pfn + BIT(order) > nr_pages)
		return NULL;
	struct page *b = &mem_map[pfn];

	return b->flags == PG_BUDDY && b->order == order ? b : NULL;
}

/* zone_lock held. */
static void __free_one_page(struct page *p, u32 order)
{
	TRACED;
	struct page *buddy;

	BUG_ON(p->flags & PG_BUDDY);
	while (order < MAX_ORDER && (buddy = find_buddy(p, order)) != NULL) {
		del_from_free_list(buddy);
		if (buddy < p)
			p = buddy;
		order++;
	}
	add_to_free_list(p, order);
}

/* Gives back the upper halves. zone_lock held. */
static void expand(struct page *p, u32 low, u32 high)
{
	TRACED;
	while (high > low) {
		high--;
		add_to_free_list(p + BIT(high), high);
	}
}

/* zone_lock held. */
static struct page *__rmqueue(u32 order)
{
	TRACED;
	for (u32 o = order; o <= MAX_ORDER; o++) {
		if (list_empty(&free_area[o]))
			continue;
		struct page *p = list_entry(free_area[o].next, struct page, lru);

		del_from_free_list(p);
		expand(p, order, o);
		return p;
	}
	return NULL;
}

static void rmqueue_bulk(struct pcp *pcp)
{
	TRACED;
	spin_lock_irqsave(&zone_lock);
	for (u32 i = 0; i < PCP_BATCH; i++) {
		struct page *p = __rmqueue(0);

		if (!p)
			break;
		list_add_tail(&p->lru, &pcp->pages);
		pcp->count++;
	}
	spin_unlock_irqrestore(&zone_lock);
}

static void free_pcppages_bulk(struct pcp *pcp, u32 n)
{
	TRACED;
	spin_lock_irqsave(&zone_lock);
	while (n-- && pcp->count) {
		struct page *p = list_entry(pcp->pages.prev, struct page, lru);

		list_del_init(&p->lru);
		pcp->count--;
		__free_one_page(p, 0);
	}
	spin_unlock_irqrestore(&zone_lock);
}

static struct page *rmqueue_pcplist(void)
{
	TRACED;
	struct page *p = NULL;

	local_irq_disable();
	struct pcp *pcp = &pcps[smp_processor_id()];

	if (!pcp->count)
		rmqueue_bulk(pcp);
	if (pcp->count) {
		p = list_entry(pcp->pages.next, struct page, lru);
		list_del_init(&p->lru);
		pcp->count--;
	}
	local_irq_enable();
	return p;
}

static struct page *rmqueue_buddy(u32 order)
{
	TRACED;
	spin_lock_irqsave(&zone_lock);
	struct page *p = __rmqueue(order);

	spin_unlock_irqrestore(&zone_lock);
	return p;
}

static void prep_new_page(struct page *p, u32 order)
{
	TRACED;
	p->flags = 0;
	p->order = order;
	p->slab = NULL;
	p->index = 0;
	p->crc = 0;
	list_init(&p->lru);
	refcount_set(&p->count, 1);
}

/* NULL if there is no such block. */
struct page *alloc_pages(u32 order)
{
	TRACED;
	if (order > MAX_ORDER)
		return NULL;
	struct page *p = order ? rmqueue_buddy(order) : rmqueue_pcplist();

	if (p)
		prep_new_page(p, order);
	return p;
}

struct page *alloc_page(void)
{
	TRACED;
	return alloc_pages(0);
}

static void free_unref_page(struct page *p)
{
	TRACED;
	local_irq_disable();
	struct pcp *pcp = &pcps[smp_processor_id()];

	list_add(&p->lru, &pcp->pages);
	if (++pcp->count > PCP_HIGH)
		free_pcppages_bulk(pcp, PCP_BATCH);
	local_irq_enable();
}

void free_pages(struct page *p, u32 order)
{
	TRACED;
	BUG_ON(p->flags & (PG_BUDDY | PG_SLAB) || p->order != order);
	p->flags = 0;
	if (!order) {
		free_unref_page(p);
		return;
	}
	spin_lock_irqsave(&zone_lock);
	__free_one_page(p, order);
	spin_unlock_irqrestore(&zone_lock);
}

void get_page(struct page *p)
{
	TRACED;
	refcount_inc(&p->count);
}

void put_page(struct page *p)
{
	TRACED;
	if (refcount_dec_and_test(&p->count))
		free_pages(p, p->order);
}

void clear_page(void *a)
{
	TRACED;
	memset(a, 0, PAGE_SIZE);
}

u64 get_zeroed_page(void)
{
	TRACED;
	struct page *p = alloc_page();

	if (!p)
		return 0;
	clear_page(page_address(p));
	return (u64)page_address(p);
}

/* Hands this CPU's list back; run on each CPU. */
void drain_local_pages(void *unused __unused)
{
	TRACED;
	struct pcp *pcp = &pcps[smp_processor_id()];

	free_pcppages_bulk(pcp, pcp->count);
}

/* What the per-CPU lists hold counts as free. */
u64 nr_free_pages(void)
{
	TRACED;
	u64 n = 0;

	spin_lock_irqsave(&zone_lock);
	for (u32 o = 0; o <= MAX_ORDER; o++)
		n += nr_free[o] << o;
	spin_unlock_irqrestore(&zone_lock);
	for (u32 i = 0; i < nr_cpus; i++)
		n += READ_ONCE(pcps[i].count);
	return n;
}

static u64 check_free_area(u32 order)
{
	TRACED;
	struct list_head *l;
	u64 n = 0, bad = 0;

	list_for_each(l, &free_area[order]) {
		struct page *p = list_entry(l, struct page, lru);

		n++;
		if (p->flags != PG_BUDDY || p->order != order || page_to_pfn(p) & (BIT(order) - 1))
			bad++;
		/* Two free buddies would have been merged. */
		if (order < MAX_ORDER && find_buddy(p, order))
			bad++;
	}
	return bad + (n != nr_free[order]);
}

/* How many inconsistencies there are. */
u64 check_buddy(void)
{
	TRACED;
	u64 bad = 0;

	spin_lock_irqsave(&zone_lock);
	for (u32 o = 0; o <= MAX_ORDER; o++)
		bad += check_free_area(o);
	spin_unlock_irqrestore(&zone_lock);
	return bad;
}

static void free_area_init(void)
{
	TRACED;
	for (u32 o = 0; o <= MAX_ORDER; o++)
		list_init(&free_area[o]);
	for (u32 i = 0; i < EXO_MAX_CPUS; i++)
		list_init(&pcps[i].pages);
}

/* Frees [from, nr_pages) in the largest aligned blocks that fit. */
static void memblock_free_all(u64 from)
{
	TRACED;
	while (from < nr_pages) {
		u32 order = MAX_ORDER;

		while (from & (BIT(order) - 1) || from + BIT(order) > nr_pages)
			order--;
		__free_one_page(&mem_map[from], order);
		from += BIT(order);
	}
}

void mem_init(void)
{
	TRACED;
	u64 ram = boot_info->ram_bytes;

	if (ram < EXO_MIN_RAM_BYTES || ram > EXO_MAX_RAM_BYTES)
		panic("%lu bytes of RAM, need %lu to %lu", ram, EXO_MIN_RAM_BYTES, EXO_MAX_RAM_BYTES);
	mem_base = EXO_FREE_GPA + EXO_VIRT_OFFSET;
	nr_pages = (ram - EXO_FREE_GPA) >> PAGE_SHIFT;
	mem_map = (struct page *)mem_base;
	u64 map_bytes = nr_pages * sizeof(struct page);

	memset(mem_map, 0, map_bytes);
	free_area_init();
	memblock_free_all((map_bytes + PAGE_SIZE - 1) >> PAGE_SHIFT);
	printk("mem: %lu KiB, %lu pages free\n", ram >> 10, nr_free_pages());
}
