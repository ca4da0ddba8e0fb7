/* The flusher: twice a second all dirty pages are written back. */
#include "fs.h"
#include "time.h"

#define INTERVAL_MS 500

static struct task *flusher;
static u64 pages_written;

static u32 wb_writeback(void)
{
	TRACED;
	struct inode *i = NULL;
	u32 n = 0;

	while ((i = inode_next(i)) != NULL)
		if (i->mode == S_IFREG)
			n += writeback_inode(i);
	__atomic_fetch_add(&pages_written, n, __ATOMIC_RELAXED);
	return n;
}

static void flusher_timeout(struct timer *t)
{
	TRACED;
	wake_up_process(t->data);
}

static int wb_workfn(void *arg __unused)
{
	TRACED;
	struct timer timer;

	timer_setup(&timer, flusher_timeout, current);
	while (!kthread_should_stop()) {
		set_current_state(TASK_SLEEPING);
		mod_timer(&timer, READ_ONCE(jiffies) + msecs_to_jiffies(INTERVAL_MS));
		if (!kthread_should_stop())
			schedule();
		set_current_state(TASK_RUNNING);
		wb_writeback();
	}
	del_timer_sync(&timer);
	return 0;
}

int vfs_fsync(struct file *f)
{
	TRACED;
	if (f->inode->mode != S_IFREG)
		return -EINVAL;
	__atomic_fetch_add(&pages_written, writeback_inode(f->inode), __ATOMIC_RELAXED);
	return 0;
}

void writeback_start(void)
{
	TRACED;
	flusher = kthread_run(wb_workfn, NULL, "flush-0");
}

void writeback_stop(void)
{
	TRACED;
	if (flusher)
		kthread_stop(flusher);
}
