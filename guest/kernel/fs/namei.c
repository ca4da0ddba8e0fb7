/* From paths to names: lookup, create, remove, rename. Paths are absolute. */
#include "fs.h"

static struct mutex rename_mutex = MUTEX_INIT(rename_mutex);

/* The next component: its length, 0 at the end, < 0 if it is too long. */
static ssize_t next_component(const char **path)
{
	TRACED;
	const char *p = *path;
	ssize_t n = 0;

	while (*p == '/')
		p++;
	*path = p;
	while (p[n] && p[n] != '/')
		if (++n > NAME_MAX)
			return -ENAMETOOLONG;
	return n;
}

static struct dentry *walk_component(struct dentry *dir, const char *name, size_t len)
{
	TRACED;
	if (dir->inode->mode != S_IFDIR)
		return ERR_PTR(-ENOTDIR);
	if (len == 1 && name[0] == '.')
		return dget(dir);
	if (len == 2 && name[0] == '.' && name[1] == '.')
		return dget_parent(dir);
	struct dentry *d = d_lookup(dir, name, len);

	return d ? d : ERR_PTR(-ENOENT);
}

/* With `last`: stops at the directory of the last component, which is handed back. */
static struct dentry *link_path_walk(const char *path, const char **last, size_t *len)
{
	TRACED;
	if (path[0] != '/' || strnlen(path, PATH_MAX) == PATH_MAX)
		return ERR_PTR(-EINVAL);
	struct dentry *d = dget(root_dentry);

	for (;;) {
		ssize_t n = next_component(&path);

		if (n <= 0) {
			if (!n && !last)
				return d;
			dput(d);
			return ERR_PTR(n ? n : -EINVAL);
		}
		const char *rest = path + n;

		if (last && next_component(&rest) == 0) {
			*last = path;
			*len = (size_t)n;
			return d;
		}
		struct dentry *next = walk_component(d, path, (size_t)n);

		dput(d);
		if (IS_ERR(next))
			return next;
		d = next;
		path += n;
	}
}

struct dentry *path_lookup(const char *path)
{
	TRACED;
	return link_path_walk(path, NULL, NULL);
}

struct dentry *path_parent(const char *path, const char **last, size_t *len)
{
	TRACED;
	struct dentry *d = link_path_walk(path, last, len);

	if (!IS_ERR(d) && d->inode->mode != S_IFDIR) {
		dput(d);
		return ERR_PTR(-ENOTDIR);
	}
	return d;
}

/* The directory is locked. */
static int may_create(struct dentry *dir, const char *name, size_t len)
{
	TRACED;
	if (!dir->inode->nlink)
		return -ENOENT;
	struct dentry *d = d_lookup(dir, name, len);

	if (!d)
		return 0;
	dput(d);
	return -EEXIST;
}

int vfs_create(struct dentry *dir, const char *name, size_t len, u32 mode, struct dentry **out)
{
	TRACED;
	mutex_lock(&dir->inode->lock);
	int err = may_create(dir, name, len);
	struct inode *i = err ? NULL : new_inode(mode);
	struct dentry *d = i ? d_alloc(dir, name, len) : NULL;

	if (d) {
		d_add(d, i);
		dir->inode->mtime++;
	} else if (!err) {
		err = -ENOMEM;
		if (i)
			iput(i);
	}
	mutex_unlock(&dir->inode->lock);
	if (!err)
		*out = d;
	return err;
}

static struct dentry *lookup_open(const char *path, u32 flags)
{
	TRACED;
	const char *last;
	size_t len;

	if (!(flags & O_CREAT))
		return path_lookup(path);
	struct dentry *dir = path_parent(path, &last, &len), *d = NULL;

	if (IS_ERR(dir))
		return dir;
	int err;

	do {
		err = vfs_create(dir, last, len, S_IFREG, &d);
		if (err == -EEXIST && !(flags & O_EXCL)) {
			d = d_lookup(dir, last, len);
			err = d ? 0 : -EAGAIN; /* removed in between: try again */
		}
	} while (err == -EAGAIN);
	dput(dir);
	return err ? ERR_PTR(err) : d;
}

struct file *do_filp_open(const char *path, u32 flags)
{
	TRACED;
	struct dentry *d = lookup_open(path, flags);

	if (IS_ERR(d))
		return (struct file *)d;
	struct file *f;

	if (d->inode->mode == S_IFDIR && (flags & O_ACCMODE) != O_RDONLY) {
		f = ERR_PTR(-EISDIR);
	} else {
		if (flags & O_TRUNC && d->inode->mode == S_IFREG)
			vfs_truncate(d->inode, 0);
		f = alloc_file(d, d->inode, flags);
	}
	dput(d);
	return f;
}

int do_mkdir(const char *path)
{
	TRACED;
	const char *last;
	size_t len;
	struct dentry *dir = path_parent(path, &last, &len), *d;

	if (IS_ERR(dir))
		return (int)PTR_ERR(dir);
	int err = vfs_create(dir, last, len, S_IFDIR, &d);

	if (!err)
		dput(d);
	dput(dir);
	return err;
}

/* Both locked. A directory that has been removed takes no new entries. */
static int may_delete(struct dentry *d, bool dir)
{
	TRACED;
	if (dir != (d->inode->mode == S_IFDIR))
		return dir ? -ENOTDIR : -EISDIR;
	if (dir && !list_empty(&d->children))
		return -ENOTEMPTY;
	return 0;
}

/* The directory is locked. */
static int vfs_unlink(struct dentry *parent, struct dentry *d, bool dir)
{
	TRACED;
	mutex_lock(&d->inode->lock);
	int err = may_delete(d, dir);

	if (!err) {
		d->inode->nlink--;
		parent->inode->mtime++;
	}
	mutex_unlock(&d->inode->lock);
	if (!err)
		d_drop(d);
	return err;
}

int do_unlink(const char *path, bool dir)
{
	TRACED;
	const char *last;
	size_t len;
	struct dentry *parent = path_parent(path, &last, &len);

	if (IS_ERR(parent))
		return (int)PTR_ERR(parent);
	mutex_lock(&parent->inode->lock);
	struct dentry *d = d_lookup(parent, last, len);
	int err = d ? vfs_unlink(parent, d, dir) : -ENOENT;

	mutex_unlock(&parent->inode->lock);
	if (d)
		dput(d);
	dput(parent);
	return err;
}

/* Always in the same order, so that two renames can't wait for each other. */
static void lock_rename(struct dentry *a, struct dentry *b)
{
	TRACED;
	mutex_lock(&rename_mutex);
	if (a > b) {
		struct dentry *t = a;

		a = b;
		b = t;
	}
	mutex_lock(&a->inode->lock);
	if (a != b)
		mutex_lock(&b->inode->lock);
}

static void unlock_rename(struct dentry *a, struct dentry *b)
{
	TRACED;
	if (a != b)
		mutex_unlock(&b->inode->lock);
	mutex_unlock(&a->inode->lock);
	mutex_unlock(&rename_mutex);
}

static int vfs_rename(struct dentry *from, const char *old, size_t old_len, struct dentry *to, const char *new,
		      size_t new_len)
{
	TRACED;
	struct dentry *d = d_lookup(from, old, old_len), *target = d_lookup(to, new, new_len);
	int err = 0;

	if (!d || !to->inode->nlink)
		err = -ENOENT;
	else if (d->inode->mode == S_IFDIR)
		err = -EISDIR; /* moving directories could make a loop */
	else if (target && target != d)
		err = vfs_unlink(to, target, false);
	if (!err && target != d)
		d_move(d, to, new, new_len);
	if (target)
		dput(target);
	if (d)
		dput(d);
	return err;
}

/* Files only. What has the new name is replaced. */
int do_rename(const char *from, const char *to)
{
	TRACED;
	const char *old, *new;
	size_t old_len, new_len;
	struct dentry *a = path_parent(from, &old, &old_len);

	if (IS_ERR(a))
		return (int)PTR_ERR(a);
	struct dentry *b = path_parent(to, &new, &new_len);

	if (IS_ERR(b)) {
		dput(a);
		return (int)PTR_ERR(b);
	}
	lock_rename(a, b);
	int err = vfs_rename(a, old, old_len, b, new, new_len);

	unlock_rename(a, b);
	dput(b);
	dput(a);
	return err;
}
