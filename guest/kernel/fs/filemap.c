/* The page cache, where the contents of regular files live. */
#include "fs.h"

#define BATCH 16

static u64 cache_pages;

u64 nr_cache_pages(void)
{
	TRACED;
	return READ_ONCE(cache_pages);
}

/* A counted reference, or NULL where the file has a hole. */
struct page *find_get_page(struct inode *i, u64 index)
{
	TRACED;
	spin_lock(&i->pages_lock);
	struct page *p = radix_tree_lookup(&i->pages, index);

	if (p)
		get_page(p);
	spin_unlock(&i->pages_lock);
	return p;
}

static int add_to_page_cache(struct inode *i, struct page *p, u64 index)
{
	TRACED;
	spin_lock(&i->pages_lock);
	int err = radix_tree_insert(&i->pages, index, p);

	if (!err) {
		p->index = index;
		p->flags |= PG_CACHE;
		i->nr_pages++;
		get_page(p);
		__atomic_fetch_add(&cache_pages, 1, __ATOMIC_RELAXED);
	}
	spin_unlock(&i->pages_lock);
	return err;
}

static void delete_from_page_cache(struct inode *i, struct page *p)
{
	TRACED;
	spin_lock(&i->pages_lock);
	BUG_ON(radix_tree_delete(&i->pages, p->index) != p);
	i->nr_pages--;
	p->flags &= ~(u32)(PG_CACHE | PG_DIRTY);
	__atomic_fetch_sub(&cache_pages, 1, __ATOMIC_RELAXED);
	spin_unlock(&i->pages_lock);
	put_page(p);
}

struct page *find_or_create_page(struct inode *i, u64 index)
{
	TRACED;
	struct page *p = find_get_page(i, index);

	if (p)
		return p;
	p = alloc_page();
	if (!p)
		return NULL;
	clear_page(page_address(p));
	if (add_to_page_cache(i, p, index)) {
		put_page(p);
		return NULL;
	}
	return p;
}

static void set_page_dirty(struct inode *i, struct page *p)
{
	TRACED;
	spin_lock(&i->pages_lock);
	p->flags |= PG_DIRTY;
	spin_unlock(&i->pages_lock);
}

static bool clear_page_dirty(struct inode *i, struct page *p)
{
	TRACED;
	spin_lock(&i->pages_lock);
	bool was = (p->flags & (PG_DIRTY | PG_CACHE)) == (PG_DIRTY | PG_CACHE);

	p->flags &= ~(u32)PG_DIRTY;
	spin_unlock(&i->pages_lock);
	return was;
}

static u32 find_get_pages(struct inode *i, u64 first, struct page **pages)
{
	TRACED;
	u64 indices[BATCH];

	spin_lock(&i->pages_lock);
	u32 n = radix_tree_gang_lookup(&i->pages, (void **)pages, indices, first, BATCH);

	for (u32 k = 0; k < n; k++)
		get_page(pages[k]);
	spin_unlock(&i->pages_lock);
	return n;
}

/* Removes the pages from index `first` on. The inode is locked, or on its way out. */
void truncate_inode_pages(struct inode *i, u64 first)
{
	TRACED;
	struct page *pages[BATCH];
	u32 n;

	while ((n = find_get_pages(i, first, pages)) != 0) {
		for (u32 k = 0; k < n; k++) {
			delete_from_page_cache(i, pages[k]);
			put_page(pages[k]);
		}
		cond_resched();
	}
}

static void writepage(struct page *p)
{
	TRACED;
	p->crc = crc32_le(0, page_address(p), PAGE_SIZE);
}

/* "Writes" dirty pages: their checksum is what a disk would get. Returns how many. */
u32 writeback_inode(struct inode *i)
{
	TRACED;
	struct page *pages[BATCH];
	u32 n, written = 0;
	u64 first = 0;

	while ((n = find_get_pages(i, first, pages)) != 0) {
		first = pages[n - 1]->index + 1;
		for (u32 k = 0; k < n; k++) {
			if (clear_page_dirty(i, pages[k])) {
				writepage(pages[k]);
				written++;
			}
			put_page(pages[k]);
		}
		cond_resched();
	}
	return written;
}

/* One page's worth at most; what is not there reads as zero. */
static ssize_t filemap_read_page(struct inode *i, u8 *buf, u64 pos, size_t n)
{
	TRACED;
	struct page *p = find_get_page(i, pos >> PAGE_SHIFT);

	if (!p) {
		memset(buf, 0, n);
		return (ssize_t)n;
	}
	size_t left = copy_to_user(buf, (u8 *)page_address(p) + (pos & (PAGE_SIZE - 1)), n);

	put_page(p);
	return left ? -EFAULT : (ssize_t)n;
}

static ssize_t generic_file_read(struct file *f, void *buf, size_t n, u64 *pos)
{
	TRACED;
	size_t done = 0;

	while (done < n) {
		u64 size = READ_ONCE(f->inode->size);
		size_t k = min(n - done, PAGE_SIZE - (*pos & (PAGE_SIZE - 1)));

		if (*pos >= size)
			break;
		k = min(k, size - *pos);
		ssize_t r = filemap_read_page(f->inode, (u8 *)buf + done, *pos, k);

		if (r < 0)
			return done ? (ssize_t)done : r;
		done += k;
		*pos += k;
	}
	return (ssize_t)done;
}

static ssize_t filemap_write_page(struct inode *i, const u8 *buf, u64 pos, size_t n)
{
	TRACED;
	struct page *p = find_or_create_page(i, pos >> PAGE_SHIFT);

	if (!p)
		return -ENOMEM;
	size_t left = copy_from_user((u8 *)page_address(p) + (pos & (PAGE_SIZE - 1)), buf, n);

	set_page_dirty(i, p);
	put_page(p);
	return left ? -EFAULT : (ssize_t)n;
}

/* The inode is locked. */
static ssize_t generic_perform_write(struct inode *i, const u8 *buf, size_t n, u64 *pos)
{
	TRACED;
	size_t done = 0;

	while (done < n) {
		size_t k = min(n - done, PAGE_SIZE - (*pos & (PAGE_SIZE - 1)));
		ssize_t r = filemap_write_page(i, buf + done, *pos, k);

		if (r < 0)
			return done ? (ssize_t)done : r;
		done += k;
		*pos += k;
		if (*pos > i->size)
			WRITE_ONCE(i->size, *pos);
	}
	return (ssize_t)done;
}

static ssize_t generic_file_write(struct file *f, const void *buf, size_t n, u64 *pos)
{
	TRACED;
	struct inode *i = f->inode;

	mutex_lock(&i->lock);
	if (f->flags & O_APPEND)
		*pos = i->size;
	ssize_t r = *pos > FILE_MAX_BYTES || n > FILE_MAX_BYTES - *pos ? -EFBIG : generic_perform_write(i, buf, n, pos);

	i->mtime++;
	mutex_unlock(&i->lock);
	return r;
}

const struct file_operations ramfs_file_ops = { .read = generic_file_read, .write = generic_file_write };
