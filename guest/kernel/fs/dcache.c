/*
 * Names. A directory's entries exist only here. A hashed entry is counted once for that; it keeps its parent and its
 * inode counted.
 */
#include "fs.h"

#define HASH_BITS 8

static struct list_head dentry_hashtable[1 << HASH_BITS];
static spinlock_t dcache_lock = SPINLOCK_INIT;
static struct kmem_cache *dentry_cache;
struct dentry *root_dentry;

void dcache_init(void)
{
	TRACED;
	for (u32 i = 0; i < ARRAY_SIZE(dentry_hashtable); i++)
		list_init(&dentry_hashtable[i]);
	dentry_cache = kmem_cache_create("dentry", sizeof(struct dentry));
	struct inode *i = new_inode(S_IFDIR);

	root_dentry = d_alloc(NULL, "/", 1);
	if (!i || !root_dentry)
		panic("no memory for the root directory");
	root_dentry->inode = i;
}

static u32 d_hash(struct dentry *parent, const char *name, size_t len)
{
	TRACED;
	return (u32)hash_64((u64)parent ^ full_name_hash(name, len), HASH_BITS);
}

static void d_set_name(struct dentry *d, struct dentry *parent, const char *name, size_t len)
{
	TRACED;
	memcpy(d->name, name, len);
	d->name[len] = 0;
	d->parent = parent;
	d->hash = d_hash(parent, name, len);
}

/* `len` has been checked against NAME_MAX. */
struct dentry *d_alloc(struct dentry *parent, const char *name, size_t len)
{
	TRACED;
	struct dentry *d = kmem_cache_zalloc(dentry_cache);

	if (!d)
		return NULL;
	refcount_set(&d->count, 1);
	list_init(&d->hash_list);
	list_init(&d->children);
	list_init(&d->child);
	d_set_name(d, parent ? dget(parent) : NULL, name, len);
	return d;
}

static void __d_rehash(struct dentry *d)
{
	TRACED;
	list_add(&d->hash_list, &dentry_hashtable[d->hash]);
	list_add_tail(&d->child, &d->parent->children);
}

static void __d_unhash(struct dentry *d)
{
	TRACED;
	list_del_init(&d->hash_list);
	list_del_init(&d->child);
}

/* Makes the name visible. Takes over the inode's reference. The directory is locked. */
void d_add(struct dentry *d, struct inode *i)
{
	TRACED;
	d->inode = i;
	dget(d);
	spin_lock(&dcache_lock);
	__d_rehash(d);
	spin_unlock(&dcache_lock);
}

/* Takes the name away. The directory is locked. */
void d_drop(struct dentry *d)
{
	TRACED;
	spin_lock(&dcache_lock);
	__d_unhash(d);
	spin_unlock(&dcache_lock);
	dput(d);
}

/* Both directories are locked. */
void d_move(struct dentry *d, struct dentry *parent, const char *name, size_t len)
{
	TRACED;
	struct dentry *old = d->parent;

	dget(parent);
	spin_lock(&dcache_lock);
	__d_unhash(d);
	d_set_name(d, parent, name, len);
	__d_rehash(d);
	spin_unlock(&dcache_lock);
	dput(old);
}

static bool d_same_name(struct dentry *d, struct dentry *parent, const char *name, size_t len)
{
	TRACED;
	return d->parent == parent && !strncmp(d->name, name, len) && !d->name[len];
}

/* A counted reference, or NULL. */
struct dentry *d_lookup(struct dentry *parent, const char *name, size_t len)
{
	TRACED;
	u32 hash = d_hash(parent, name, len);
	struct dentry *found = NULL;
	struct list_head *l;

	spin_lock(&dcache_lock);
	list_for_each(l, &dentry_hashtable[hash]) {
		struct dentry *d = list_entry(l, struct dentry, hash_list);

		if (d_same_name(d, parent, name, len)) {
			found = dget(d);
			break;
		}
	}
	spin_unlock(&dcache_lock);
	return found;
}

struct dentry *dget(struct dentry *d)
{
	TRACED;
	refcount_inc(&d->count);
	return d;
}

struct dentry *dget_parent(struct dentry *d)
{
	TRACED;
	spin_lock(&dcache_lock);
	struct dentry *p = dget(d->parent ? d->parent : d);

	spin_unlock(&dcache_lock);
	return p;
}

static void d_free(struct dentry *d)
{
	TRACED;
	BUG_ON(!list_empty(&d->hash_list) || !list_empty(&d->children));
	if (d->inode)
		iput(d->inode);
	kmem_cache_free(dentry_cache, d);
}

void dput(struct dentry *d)
{
	TRACED;
	while (d && refcount_dec_and_test(&d->count)) {
		struct dentry *parent = d->parent;

		d_free(d);
		d = parent;
	}
}

/* Copies entries from number `from` on; the directory is locked. */
u32 dcache_readdir(struct dentry *dir, u64 from, struct dirent *out, u32 max)
{
	TRACED;
	struct list_head *l;
	u32 n = 0;

	list_for_each(l, &dir->children) {
		struct dentry *d = list_entry(l, struct dentry, child);

		if (from) {
			from--;
			continue;
		}
		if (n == max)
			break;
		out[n].ino = d->inode->ino;
		out[n].type = d->inode->mode;
		strlcpy(out[n].name, d->name, sizeof(out[n].name));
		n++;
	}
	return n;
}
