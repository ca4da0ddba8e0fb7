/* The terminal line: echo, erase, and a reader that gets whole lines. */
#include "time.h"

#define LINE_BYTES 128

static spinlock_t tty_lock = SPINLOCK_INIT;
static struct wait_queue_head tty_wait = WAIT_QUEUE_INIT(tty_wait);
static struct kfifo tty_fifo;
static u8 tty_buf[1024];
static char line[LINE_BYTES];
static u32 line_len;
static u32 lines_ready;

void tty_init(void)
{
	TRACED;
	kfifo_init(&tty_fifo, tty_buf, sizeof(tty_buf));
}

static void tty_echo(const char *s, size_t n)
{
	TRACED;
	console_write(s, n);
}

/* Hands the line to the reader; one that doesn't fit any more is dropped as a whole. */
static void n_tty_commit(void)
{
	TRACED;
	line[line_len++] = '\n';
	spin_lock_irqsave(&tty_lock);
	if (kfifo_avail(&tty_fifo) >= line_len) {
		kfifo_in(&tty_fifo, line, line_len);
		lines_ready++;
	}
	spin_unlock_irqrestore(&tty_lock);
	line_len = 0;
	wake_up(&tty_wait);
}

/* From the serial port's tasklet. */
void tty_receive(char c)
{
	TRACED;
	if (c == '\r' || c == '\n') {
		tty_echo("\r\n", 2);
		n_tty_commit();
	} else if ((c == 8 || c == 127) && line_len) {
		line_len--;
		tty_echo("\b \b", 3);
	} else if (c >= ' ' && c < 127 && line_len < LINE_BYTES - 1) {
		line[line_len++] = c;
		tty_echo(&c, 1);
	}
}

static bool tty_readable(void)
{
	TRACED;
	return READ_ONCE(lines_ready) || kthread_should_stop();
}

/* A line without its end, cut to fit; -EINTR when the reader is to stop. */
ssize_t tty_read(char *buf, size_t n)
{
	TRACED;
	ssize_t len = 0;
	char c;

	wait_event(tty_wait, tty_readable());
	spin_lock_irqsave(&tty_lock);
	if (!lines_ready) {
		len = -EINTR;
	} else {
		lines_ready--;
		while (kfifo_out(&tty_fifo, &c, 1) && c != '\n')
			if ((size_t)len + 1 < n)
				buf[len++] = c;
		buf[len] = 0;
	}
	spin_unlock_irqrestore(&tty_lock);
	return len;
}
