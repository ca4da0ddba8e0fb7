/* Inodes: all of them are on one list, so that writeback can walk it. */
#include "fs.h"

static struct kmem_cache *inode_cache;
static struct list_head sb_inodes = LIST_HEAD_INIT(sb_inodes);
static spinlock_t inode_lock = SPINLOCK_INIT;
static u64 next_ino;
static u64 inode_total;

void inode_init(void)
{
	TRACED;
	inode_cache = kmem_cache_create("inode", sizeof(struct inode));
}

struct inode *new_inode(u32 mode)
{
	TRACED;
	struct inode *i = kmem_cache_zalloc(inode_cache);

	if (!i)
		return NULL;
	i->ino = __atomic_add_fetch(&next_ino, 1, __ATOMIC_RELAXED);
	i->mode = mode;
	i->nlink = 1;
	refcount_set(&i->count, 1);
	mutex_init(&i->lock);
	if (mode == S_IFREG)
		i->fops = &ramfs_file_ops;
	spin_lock(&inode_lock);
	list_add_tail(&i->sb_list, &sb_inodes);
	inode_total++;
	spin_unlock(&inode_lock);
	return i;
}

void igrab(struct inode *i)
{
	TRACED;
	refcount_inc(&i->count);
}

static void evict(struct inode *i)
{
	TRACED;
	truncate_inode_pages(i, 0);
	if (i->mode == S_IFIFO)
		kfree(i->private);
	kmem_cache_free(inode_cache, i);
}

/* The last reference goes under the list's lock: what is on the list can be grabbed. */
void iput(struct inode *i)
{
	TRACED;
	spin_lock(&inode_lock);
	bool last = refcount_dec_and_test(&i->count);

	if (last) {
		list_del_init(&i->sb_list);
		inode_total--;
	}
	spin_unlock(&inode_lock);
	if (last)
		evict(i);
}

u64 nr_inodes(void)
{
	TRACED;
	return READ_ONCE(inode_total);
}

/* Walks all inodes: a reference to the next one, the one to `prev` is dropped. NULL starts and ends. */
struct inode *inode_next(struct inode *prev)
{
	TRACED;
	struct inode *next = NULL;

	spin_lock(&inode_lock);
	struct list_head *l = prev ? prev->sb_list.next : sb_inodes.next;

	if (l != &sb_inodes) {
		next = list_entry(l, struct inode, sb_list);
		igrab(next);
	}
	spin_unlock(&inode_lock);
	if (prev)
		iput(prev);
	return next;
}
