/* Pipes: a byte queue between readers and writers that wait for each other. */
#include "fs.h"

#define PIPE_BYTES 4096

struct pipe {
	struct mutex lock;
	struct wait_queue_head rd_wait, wr_wait;
	u32 readers, writers;
	struct kfifo fifo;
	u8 buf[PIPE_BYTES];
};

static bool pipe_readable(struct pipe *p)
{
	TRACED;
	return kfifo_len(&p->fifo) || !READ_ONCE(p->writers);
}

static bool pipe_writable(struct pipe *p)
{
	TRACED;
	return kfifo_avail(&p->fifo) || !READ_ONCE(p->readers);
}

/* Waits for at least a byte; 0 when all writers are gone. */
static ssize_t pipe_read(struct file *f, void *buf, size_t n, u64 *pos __unused)
{
	TRACED;
	struct pipe *p = f->inode->private;
	ssize_t got = 0;

	if (!n)
		return 0;
	for (;;) {
		wait_event(p->rd_wait, pipe_readable(p));
		mutex_lock(&p->lock);
		got = kfifo_out(&p->fifo, buf, (u32)min(n, (size_t)PIPE_BYTES));
		bool eof = !p->writers;

		mutex_unlock(&p->lock);
		if (got || eof)
			break;
	}
	if (got)
		wake_up(&p->wr_wait);
	return got;
}

/* Writes everything, waiting for room; -EPIPE when all readers are gone. */
static ssize_t pipe_write(struct file *f, const void *buf, size_t n, u64 *pos __unused)
{
	TRACED;
	struct pipe *p = f->inode->private;
	size_t done = 0;

	while (done < n) {
		wait_event(p->wr_wait, pipe_writable(p));
		mutex_lock(&p->lock);
		if (!p->readers) {
			mutex_unlock(&p->lock);
			return done ? (ssize_t)done : -EPIPE;
		}
		done += kfifo_in(&p->fifo, (const u8 *)buf + done, (u32)min(n - done, (size_t)PIPE_BYTES));
		mutex_unlock(&p->lock);
		wake_up(&p->rd_wait);
	}
	return (ssize_t)done;
}

static void pipe_release_end(struct pipe *p, u32 *end)
{
	TRACED;
	mutex_lock(&p->lock);
	WRITE_ONCE(*end, *end - 1);
	mutex_unlock(&p->lock);
	wake_up_all(&p->rd_wait);
	wake_up_all(&p->wr_wait);
}

static void pipe_release_read(struct file *f)
{
	TRACED;
	struct pipe *p = f->inode->private;

	pipe_release_end(p, &p->readers);
}

static void pipe_release_write(struct file *f)
{
	TRACED;
	struct pipe *p = f->inode->private;

	pipe_release_end(p, &p->writers);
}

const struct file_operations pipe_read_ops = { .read = pipe_read, .release = pipe_release_read };
const struct file_operations pipe_write_ops = { .write = pipe_write, .release = pipe_release_write };

static struct inode *alloc_pipe_inode(void)
{
	TRACED;
	struct pipe *p = kzalloc(sizeof(*p));
	struct inode *i = p ? new_inode(S_IFIFO) : NULL;

	if (!i) {
		kfree(p);
		return NULL;
	}
	mutex_init(&p->lock);
	init_waitqueue_head(&p->rd_wait);
	init_waitqueue_head(&p->wr_wait);
	kfifo_init(&p->fifo, p->buf, PIPE_BYTES);
	i->private = p;
	return i;
}

static struct file *pipe_file(struct inode *i, u32 flags, const struct file_operations *ops, u32 *end)
{
	TRACED;
	struct file *f = alloc_file(NULL, i, flags);

	if (!IS_ERR(f)) {
		f->fops = ops;
		WRITE_ONCE(*end, *end + 1);
	}
	return f;
}

int create_pipe_files(struct file *out[2])
{
	TRACED;
	struct inode *i = alloc_pipe_inode();

	if (!i)
		return -ENOMEM;
	struct pipe *p = i->private;

	out[0] = pipe_file(i, O_RDONLY, &pipe_read_ops, &p->readers);
	out[1] = pipe_file(i, O_WRONLY, &pipe_write_ops, &p->writers);
	iput(i); /* the files have their own references */
	for (u32 k = 0; k < 2; k++) {
		if (IS_ERR(out[k])) {
			if (!IS_ERR(out[!k]))
				fput(out[!k]);
			return -ENFILE;
		}
	}
	return 0;
}

int do_pipe(s32 fds[2])
{
	TRACED;
	struct file *f[2];
	int err = create_pipe_files(f);

	if (err)
		return err;
	fds[0] = fd_install(f[0]);
	fds[1] = fds[0] < 0 ? -EMFILE : fd_install(f[1]);
	if (fds[1] >= 0)
		return 0;
	if (fds[0] >= 0)
		fd_detach(fds[0]);
	fput(f[0]);
	fput(f[1]);
	return -EMFILE;
}
