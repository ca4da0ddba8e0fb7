/* The operations on open files that don't depend on what kind of file it is. */
#include "fs.h"

static bool access_ok(const void *p, size_t n)
{
	TRACED;
	u64 lo = EXO_IMAGE_GPA + EXO_VIRT_OFFSET, hi = EXO_VIRT_OFFSET + boot_info->ram_bytes;

	return (u64)p >= lo && (u64)p < hi && n <= hi - (u64)p;
}

/* Like their namesakes: how many bytes could not be copied. */
size_t copy_to_user(void *to, const void *from, size_t n)
{
	TRACED;
	if (!access_ok(to, n))
		return n;
	memcpy(to, from, n);
	return 0;
}

size_t copy_from_user(void *to, const void *from, size_t n)
{
	TRACED;
	if (!access_ok(from, n))
		return n;
	memcpy(to, from, n);
	return 0;
}

/* The length without the end, `n` if there is no end within n bytes, -EFAULT. */
ssize_t strncpy_from_user(char *to, const char *from, size_t n)
{
	TRACED;
	if (!access_ok(from, 1))
		return -EFAULT;
	/* Up to the end of memory at most. */
	size_t room = EXO_VIRT_OFFSET + boot_info->ram_bytes - (u64)from, i;

	for (i = 0; i < n && i < room; i++)
		if (!(to[i] = from[i]))
			return (ssize_t)i;
	return i < n ? -EFAULT : (ssize_t)n;
}

static int rw_verify_area(struct file *f, const void *buf, size_t n, bool write)
{
	TRACED;
	u32 mode = f->flags & O_ACCMODE;

	if (write ? mode == O_RDONLY : mode == O_WRONLY)
		return -EBADF;
	if (f->inode->mode == S_IFDIR)
		return -EISDIR;
	return access_ok(buf, n) ? 0 : -EFAULT;
}

ssize_t vfs_read(struct file *f, void *buf, size_t n, u64 *pos)
{
	TRACED;
	int err = rw_verify_area(f, buf, n, false);

	if (err)
		return err;
	return f->fops && f->fops->read ? f->fops->read(f, buf, n, pos) : -EINVAL;
}

ssize_t vfs_write(struct file *f, const void *buf, size_t n, u64 *pos)
{
	TRACED;
	int err = rw_verify_area(f, buf, n, true);

	if (err)
		return err;
	return f->fops && f->fops->write ? f->fops->write(f, buf, n, pos) : -EINVAL;
}

s64 vfs_llseek(struct file *f, s64 off, u32 whence)
{
	TRACED;
	if (f->inode->mode == S_IFIFO)
		return -ESPIPE;
	u64 base = whence == SEEK_CUR ? f->pos : whence == SEEK_END ? f->inode->size : 0;
	s64 pos;

	if (whence > SEEK_END || __builtin_add_overflow((s64)base, off, &pos) || pos < 0)
		return -EINVAL;
	f->pos = (u64)pos;
	return pos;
}

static void truncate_partial_page(struct inode *i, u64 size)
{
	TRACED;
	u64 off = size & (PAGE_SIZE - 1);
	struct page *p = off ? find_get_page(i, size >> PAGE_SHIFT) : NULL;

	if (!p)
		return;
	memset((u8 *)page_address(p) + off, 0, PAGE_SIZE - off);
	put_page(p);
}

int vfs_truncate(struct inode *i, u64 size)
{
	TRACED;
	if (i->mode != S_IFREG)
		return -EINVAL;
	if (size > FILE_MAX_BYTES)
		return -EFBIG;
	mutex_lock(&i->lock);
	if (size < i->size) {
		truncate_inode_pages(i, (size + PAGE_SIZE - 1) >> PAGE_SHIFT);
		truncate_partial_page(i, size);
	}
	WRITE_ONCE(i->size, size);
	i->mtime++;
	mutex_unlock(&i->lock);
	return 0;
}

void vfs_getattr(struct inode *i, struct kstat *st)
{
	TRACED;
	st->ino = i->ino;
	st->size = READ_ONCE(i->size);
	st->blocks = i->nr_pages * (PAGE_SIZE / 512);
	st->mode = i->mode;
	st->nlink = i->nlink;
}

ssize_t vfs_readdir(struct file *f, struct dirent *out, u32 max)
{
	TRACED;
	if (f->inode->mode != S_IFDIR)
		return -ENOTDIR;
	if (max > 1024 || !access_ok(out, max * sizeof(*out)))
		return -EFAULT;
	mutex_lock(&f->inode->lock);
	u32 n = dcache_readdir(f->dentry, f->pos, out, max);

	f->pos += n;
	mutex_unlock(&f->inode->lock);
	return n;
}
