/* Memory: pages from a buddy allocator, objects from a slab allocator. */
#pragma once
#include "kernel.h"

#define PAGE_SHIFT 12
#define PAGE_SIZE 4096UL
#define MAX_ORDER 10

enum { PG_BUDDY = 1, PG_SLAB = 2, PG_DIRTY = 4, PG_COMPOUND = 8, PG_UPTODATE = 16, PG_CACHE = 32 };

struct kmem_cache;
struct slab;

struct page {
	struct list_head lru;
	u32 flags;
	u32 order;
	refcount_t count;
	u32 crc;	   /* page cache: checksum at the last writeback */
	struct slab *slab; /* of every page of a slab */
	u64 index;
};

extern struct page *mem_map;
extern u64 nr_pages;

static __always_inline u64 page_to_pfn(struct page *p)
{
	return (u64)(p - mem_map);
}

/* mm/page_alloc.c */
void mem_init(void);
struct page *alloc_pages(u32 order);
void free_pages(struct page *p, u32 order);
struct page *alloc_page(void);
void get_page(struct page *p);
void put_page(struct page *p);
void *page_address(struct page *p);
struct page *virt_to_page(const void *a);
void clear_page(void *a);
u64 get_zeroed_page(void);
u64 nr_free_pages(void);
void drain_local_pages(void *unused);
u64 check_buddy(void);

/* mm/slab.c */
void kmem_cache_init(void);
struct kmem_cache *kmem_cache_create(const char *name, u32 size);
void kmem_cache_destroy(struct kmem_cache *c);
void *kmem_cache_alloc(struct kmem_cache *c);
void *kmem_cache_zalloc(struct kmem_cache *c);
void kmem_cache_free(struct kmem_cache *c, void *obj);
struct kmem_cache *virt_to_cache(const void *obj);
s64 kmem_cache_active(struct kmem_cache *c);
void kmem_cache_shrink_all(void);
u64 slab_pages(void);
u64 check_slabs(void);
s64 slab_objects_active(void);
void slabinfo_show(void);

/* mm/kmalloc.c */
void kmalloc_init(void);
void *kmalloc(size_t n);
void *kzalloc(size_t n);
void *krealloc(void *p, size_t n);
char *kstrdup(const char *s);
void kfree(const void *p);
size_t ksize(const void *p);
