/* A byte queue with free-running indices; the size is a power of two. */
#include "lib.h"

void kfifo_init(struct kfifo *f, void *buf, u32 size)
{
	TRACED;
	f->buf = buf;
	f->size = size;
	f->in = 0;
	f->out = 0;
}

u32 kfifo_len(struct kfifo *f)
{
	TRACED;
	return __atomic_load_n(&f->in, __ATOMIC_ACQUIRE) - __atomic_load_n(&f->out, __ATOMIC_ACQUIRE);
}

u32 kfifo_avail(struct kfifo *f)
{
	TRACED;
	return f->size - kfifo_len(f);
}

static void kfifo_copy_in(struct kfifo *f, u32 at, const u8 *p, u32 n)
{
	TRACED;
	u32 off = at & (f->size - 1), first = min(n, f->size - off);

	memcpy(f->buf + off, p, first);
	memcpy(f->buf, p + first, n - first);
}

static void kfifo_copy_out(struct kfifo *f, u32 at, u8 *p, u32 n)
{
	TRACED;
	u32 off = at & (f->size - 1), first = min(n, f->size - off);

	memcpy(p, f->buf + off, first);
	memcpy(p + first, f->buf, n - first);
}

u32 kfifo_in(struct kfifo *f, const void *p, u32 n)
{
	TRACED;
	n = min(n, kfifo_avail(f));
	kfifo_copy_in(f, f->in, p, n);
	__atomic_store_n(&f->in, f->in + n, __ATOMIC_RELEASE);
	return n;
}

u32 kfifo_out(struct kfifo *f, void *p, u32 n)
{
	TRACED;
	n = min(n, kfifo_len(f));
	kfifo_copy_out(f, f->out, p, n);
	__atomic_store_n(&f->out, f->out + n, __ATOMIC_RELEASE);
	return n;
}
