/* Open files and the tables of descriptors. */
#include "fs.h"

static struct kmem_cache *file_cache, *files_cache;

void files_init(void)
{
	TRACED;
	file_cache = kmem_cache_create("filp", sizeof(struct file));
	files_cache = kmem_cache_create("files_struct", sizeof(struct files_struct));
}

/* Takes references of its own. `d` may be NULL (pipes). */
struct file *alloc_file(struct dentry *d, struct inode *i, u32 flags)
{
	TRACED;
	struct file *f = kmem_cache_zalloc(file_cache);

	if (!f)
		return ERR_PTR(-ENFILE);
	refcount_set(&f->count, 1);
	f->flags = flags;
	f->inode = i;
	f->fops = i->fops;
	igrab(i);
	if (d)
		f->dentry = dget(d);
	return f;
}

static void __fput(struct file *f)
{
	TRACED;
	if (f->fops && f->fops->release)
		f->fops->release(f);
	iput(f->inode);
	if (f->dentry)
		dput(f->dentry);
	kmem_cache_free(file_cache, f);
}

void fput(struct file *f)
{
	TRACED;
	if (refcount_dec_and_test(&f->count))
		__fput(f);
}

/* A counted reference, or NULL. */
struct file *fget(s32 fd)
{
	TRACED;
	struct files_struct *files = current->files;
	struct file *f = NULL;

	if (!files || fd < 0 || fd >= NR_OPEN)
		return NULL;
	spin_lock(&files->lock);
	f = files->fd[fd];
	if (f)
		refcount_inc(&f->count);
	spin_unlock(&files->lock);
	return f;
}

static s32 alloc_fd(struct files_struct *files)
{
	TRACED;
	u32 fd = find_next_zero_bit(&files->open_fds, NR_OPEN, 0);

	if (fd >= NR_OPEN)
		return -EMFILE;
	bitmap_set(&files->open_fds, fd, 1);
	return (s32)fd;
}

/* Takes over the reference if it succeeds. */
s32 fd_install(struct file *f)
{
	TRACED;
	struct files_struct *files = current->files;

	if (!files)
		return -EBADF;
	spin_lock(&files->lock);
	s32 fd = alloc_fd(files);

	if (fd >= 0)
		files->fd[fd] = f;
	spin_unlock(&files->lock);
	return fd;
}

/* Takes the file out of the table; the reference is the caller's. */
struct file *fd_detach(s32 fd)
{
	TRACED;
	struct files_struct *files = current->files;

	if (!files || fd < 0 || fd >= NR_OPEN)
		return NULL;
	spin_lock(&files->lock);
	struct file *f = files->fd[fd];

	if (f) {
		files->fd[fd] = NULL;
		bitmap_clear(&files->open_fds, (u32)fd, 1);
	}
	spin_unlock(&files->lock);
	return f;
}

struct files_struct *files_alloc(void)
{
	TRACED;
	return kmem_cache_zalloc(files_cache);
}

static void close_files(void)
{
	TRACED;
	for (s32 fd = 0; fd < NR_OPEN; fd++) {
		struct file *f = fd_detach(fd);

		if (f)
			fput(f);
	}
}

void exit_files(struct task *p)
{
	TRACED;
	if (!p->files)
		return;
	close_files();
	kmem_cache_free(files_cache, p->files);
	p->files = NULL;
}
