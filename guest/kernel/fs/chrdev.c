/* Character devices: null, zero, full of random numbers, and the console. */
#include "fs.h"

static spinlock_t pool_lock = SPINLOCK_INIT;
static struct rnd_state pool;

static ssize_t null_read(struct file *f __unused, void *buf __unused, size_t n __unused, u64 *pos __unused)
{
	TRACED;
	return 0;
}

static ssize_t null_write(struct file *f __unused, const void *buf __unused, size_t n, u64 *pos __unused)
{
	TRACED;
	return (ssize_t)n;
}

static ssize_t zero_read(struct file *f __unused, void *buf, size_t n, u64 *pos __unused)
{
	TRACED;
	memset(buf, 0, n);
	return (ssize_t)n;
}

static ssize_t urandom_read(struct file *f __unused, void *buf, size_t n, u64 *pos __unused)
{
	TRACED;
	n = min(n, PAGE_SIZE);
	spin_lock(&pool_lock);
	pool.s[0] ^= rdtsc();
	prandom_bytes_state(&pool, buf, n);
	spin_unlock(&pool_lock);
	return (ssize_t)n;
}

static ssize_t console_dev_write(struct file *f __unused, const void *buf, size_t n, u64 *pos __unused)
{
	TRACED;
	n = min(n, (size_t)256);
	console_write(buf, n);
	return (ssize_t)n;
}

static const struct file_operations null_ops = { .read = null_read, .write = null_write };
static const struct file_operations zero_ops = { .read = zero_read, .write = null_write };
static const struct file_operations urandom_ops = { .read = urandom_read, .write = null_write };
static const struct file_operations console_ops = { .read = null_read, .write = console_dev_write };

int chrdev_register(const char *path, const struct file_operations *ops)
{
	TRACED;
	const char *last;
	size_t len;
	struct dentry *dir = path_parent(path, &last, &len), *d;

	if (IS_ERR(dir))
		return (int)PTR_ERR(dir);
	int err = vfs_create(dir, last, len, S_IFCHR, &d);

	if (!err) {
		d->inode->fops = ops;
		dput(d);
	}
	dput(dir);
	return err;
}

void devfs_init(void)
{
	TRACED;
	prandom_seed_state(&pool, rdtsc());
	if (do_mkdir("/dev") || do_mkdir("/tmp") || chrdev_register("/dev/null", &null_ops) ||
	    chrdev_register("/dev/zero", &zero_ops) || chrdev_register("/dev/urandom", &urandom_ops) ||
	    chrdev_register("/dev/console", &console_ops))
		panic("cannot make /dev");
}
