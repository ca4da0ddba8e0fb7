/* System calls on files. */
#include "fs.h"

/* Copies a path in; the result is freed with kfree. */
static char *getname(u64 user)
{
	TRACED;
	char *p = kmalloc(PATH_MAX);

	if (!p)
		return ERR_PTR(-ENOMEM);
	ssize_t n = strncpy_from_user(p, (const char *)user, PATH_MAX);

	if (n >= 0 && n < PATH_MAX)
		return p;
	kfree(p);
	return ERR_PTR(n < 0 ? n : -ENAMETOOLONG);
}

static ssize_t ksys_read(s32 fd, void *buf, size_t n)
{
	TRACED;
	struct file *f = fget(fd);

	if (!f)
		return -EBADF;
	ssize_t r = vfs_read(f, buf, n, &f->pos);

	fput(f);
	return r;
}

static ssize_t ksys_write(s32 fd, const void *buf, size_t n)
{
	TRACED;
	struct file *f = fget(fd);

	if (!f)
		return -EBADF;
	ssize_t r = vfs_write(f, buf, n, &f->pos);

	fput(f);
	return r;
}

#define SYSCALL(n) s64 sys_##n(u64 a __unused, u64 b __unused, u64 c __unused, u64 d __unused)
#define DECLARE(n) s64 sys_##n(u64 a, u64 b, u64 c, u64 d)
DECLARE(read); DECLARE(write); DECLARE(open); DECLARE(close); DECLARE(stat); DECLARE(fstat); DECLARE(lseek);
DECLARE(pipe); DECLARE(dup); DECLARE(mkdir); DECLARE(rmdir); DECLARE(unlink); DECLARE(rename); DECLARE(ftruncate);
DECLARE(getdents); DECLARE(fsync); DECLARE(pread); DECLARE(pwrite);

SYSCALL(read)
{
	TRACED;
	return ksys_read((s32)a, (void *)b, c);
}

SYSCALL(write)
{
	TRACED;
	return ksys_write((s32)a, (const void *)b, c);
}

SYSCALL(pread)
{
	TRACED;
	struct file *f = fget((s32)a);

	if (!f)
		return -EBADF;
	u64 pos = d;
	ssize_t r = f->inode->mode == S_IFIFO ? -ESPIPE : vfs_read(f, (void *)b, c, &pos);

	fput(f);
	return r;
}

SYSCALL(pwrite)
{
	TRACED;
	struct file *f = fget((s32)a);

	if (!f)
		return -EBADF;
	u64 pos = d;
	ssize_t r = f->inode->mode == S_IFIFO ? -ESPIPE : vfs_write(f, (const void *)b, c, &pos);

	fput(f);
	return r;
}

static s32 do_sys_open(const char *path, u32 flags)
{
	TRACED;
	struct file *f = do_filp_open(path, flags);

	if (IS_ERR(f))
		return (s32)PTR_ERR(f);
	s32 fd = fd_install(f);

	if (fd < 0)
		fput(f);
	return fd;
}

SYSCALL(open)
{
	TRACED;
	char *path = getname(a);

	if (IS_ERR(path))
		return PTR_ERR(path);
	s32 fd = do_sys_open(path, (u32)b);

	kfree(path);
	return fd;
}

static int filp_close(struct file *f)
{
	TRACED;
	fput(f);
	return 0;
}

SYSCALL(close)
{
	TRACED;
	struct file *f = fd_detach((s32)a);

	return f ? filp_close(f) : -EBADF;
}

SYSCALL(dup)
{
	TRACED;
	struct file *f = fget((s32)a);

	if (!f)
		return -EBADF;
	s32 fd = fd_install(f);

	if (fd < 0)
		fput(f);
	return fd;
}

static s64 cp_new_stat(struct inode *i, u64 user)
{
	TRACED;
	struct kstat st = { 0 };

	vfs_getattr(i, &st);
	return copy_to_user((void *)user, &st, sizeof(st)) ? -EFAULT : 0;
}

static s64 vfs_statx(const char *path, u64 user)
{
	TRACED;
	struct dentry *d = path_lookup(path);

	if (IS_ERR(d))
		return PTR_ERR(d);
	s64 r = cp_new_stat(d->inode, user);

	dput(d);
	return r;
}

SYSCALL(stat)
{
	TRACED;
	char *path = getname(a);

	if (IS_ERR(path))
		return PTR_ERR(path);
	s64 r = vfs_statx(path, b);

	kfree(path);
	return r;
}

SYSCALL(fstat)
{
	TRACED;
	struct file *f = fget((s32)a);

	if (!f)
		return -EBADF;
	s64 r = cp_new_stat(f->inode, b);

	fput(f);
	return r;
}

SYSCALL(lseek)
{
	TRACED;
	struct file *f = fget((s32)a);

	if (!f)
		return -EBADF;
	s64 r = vfs_llseek(f, (s64)b, (u32)c);

	fput(f);
	return r;
}

SYSCALL(pipe)
{
	TRACED;
	s32 fds[2];
	int err = do_pipe(fds);

	if (err)
		return err;
	return copy_to_user((void *)a, fds, sizeof(fds)) ? -EFAULT : 0;
}

static s64 path_op(u64 user, int (*op)(const char *path))
{
	TRACED;
	char *path = getname(user);

	if (IS_ERR(path))
		return PTR_ERR(path);
	s64 r = op(path);

	kfree(path);
	return r;
}

static int rmdir_op(const char *path)
{
	TRACED;
	return do_unlink(path, true);
}

static int unlink_op(const char *path)
{
	TRACED;
	return do_unlink(path, false);
}

SYSCALL(mkdir)
{
	TRACED;
	return path_op(a, do_mkdir);
}

SYSCALL(rmdir)
{
	TRACED;
	return path_op(a, rmdir_op);
}

SYSCALL(unlink)
{
	TRACED;
	return path_op(a, unlink_op);
}

SYSCALL(rename)
{
	TRACED;
	char *from = getname(a);

	if (IS_ERR(from))
		return PTR_ERR(from);
	char *to = getname(b);

	if (IS_ERR(to)) {
		kfree(from);
		return PTR_ERR(to);
	}
	s64 r = do_rename(from, to);

	kfree(to);
	kfree(from);
	return r;
}

SYSCALL(ftruncate)
{
	TRACED;
	struct file *f = fget((s32)a);

	if (!f)
		return -EBADF;
	s64 r = (f->flags & O_ACCMODE) == O_RDONLY ? -EINVAL : vfs_truncate(f->inode, b);

	fput(f);
	return r;
}

SYSCALL(getdents)
{
	TRACED;
	struct file *f = fget((s32)a);

	if (!f)
		return -EBADF;
	ssize_t r = vfs_readdir(f, (struct dirent *)b, (u32)c);

	fput(f);
	return r;
}

SYSCALL(fsync)
{
	TRACED;
	struct file *f = fget((s32)a);

	if (!f)
		return -EBADF;
	s64 r = vfs_fsync(f);

	fput(f);
	return r;
}
