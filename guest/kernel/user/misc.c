/* Programs around the other system calls, pipes, and the mix of everything. */
#include "user.h"

#define PIPE_BUF 2048

static u64 pipe_bufs[MAX_WORKERS][PIPE_BUF / 8];

static notrace void sys_identity(struct worker *w)
{
	char name[32];
	u64 now[2];

	u_check(w, sys(getpid, 0, 0, 0, 0) > 0);
	u_check(w, sys(uname, name, 0, 0, 0) == 0 && name[0] == 'e');
	u_check(w, (u64)sys(getcpu, 0, 0, 0, 0) < nr_cpus);
	u_check(w, sys(gettimeofday, &now[0], 0, 0, 0) == 0 && sys(gettimeofday, &now[1], 0, 0, 0) == 0);
	u_check(w, now[1] + 1000000 >= now[0]);
	u_check(w, sys(times, 0, 0, 0, 0) >= 0);
	worker_sum(w, 1);
}

static notrace void sys_devices(struct worker *w)
{
	u64 *buf = pipe_bufs[w->id];
	s32 zero = (s32)sys(open, "/dev/zero", O_RDWR, 0, 0), rnd = (s32)sys(open, "/dev/urandom", O_RDONLY, 0, 0);
	u32 n = 8 + u_rand(w, 504);

	u_check(w, zero >= 0 && rnd >= 0);
	u_check(w, sys(read, rnd, buf, n, 0) == (s64)n);
	u_check(w, sys(write, zero, buf, n, 0) == (s64)n);
	u_check(w, sys(read, zero, buf, n, 0) == (s64)n && buf[0] == 0);
	u_check(w, sys(write, rnd, buf, n, 0) == -EBADF);
	s32 copy = (s32)sys(dup, zero, 0, 0, 0);

	u_check(w, copy >= 0 && sys(close, copy, 0, 0, 0) == 0);
	u_check(w, sys(close, zero, 0, 0, 0) == 0 && sys(close, rnd, 0, 0, 0) == 0);
	worker_sum(w, n);
}

/* What must be refused. */
static notrace void sys_errors(struct worker *w)
{
	u64 *buf = pipe_bufs[w->id];

	u_check(w, do_syscall(NR_SYSCALLS + u_rand(w, 1000), 0, 0, 0, 0) == -ENOSYS);
	u_check(w, sys(read, 31, buf, 8, 0) == -EBADF && sys(close, -1, 0, 0, 0) == -EBADF);
	u_check(w, sys(open, "relative", 0, 0, 0) == -EINVAL && sys(open, "/no/such", 0, 0, 0) == -ENOENT);
	u_check(w, sys(open, "/dev/null/x", 0, 0, 0) == -ENOTDIR && sys(open, "/dev", O_WRONLY, 0, 0) == -EISDIR);
	u_check(w, sys(open, 0, 0, 0, 0) == -EFAULT && sys(stat, "/dev", 16, 0, 0) == -EFAULT);
	u_check(w, sys(nanosleep, 1UL << 60, 0, 0, 0) == -EINVAL && sys(unlink, "/dev", 0, 0, 0) == -EISDIR);
	worker_sum(w, 2);
}

static notrace void sys_wait(struct worker *w)
{
	if (u_rand(w, 8) == 0)
		u_check(w, sys(nanosleep, u_rand(w, 200000), 0, 0, 0) == 0);
	else
		u_check(w, sys(sched_yield, 0, 0, 0, 0) == 0);
	worker_sum(w, 3);
}

static notrace void sys_memory(struct worker *w)
{
	u64 info[4];

	u_check(w, sys(sysinfo, info, 0, 0, 0) == 0 && info[0] <= nr_pages);
	worker_sum(w, 4);
}

notrace void user_syscall_step(struct worker *w)
{
	static void (*const kinds[])(struct worker *w) = {
		sys_identity, sys_identity, sys_devices, sys_devices, sys_errors, sys_wait, sys_memory,
	};

	kinds[u_rand(w, ARRAY_SIZE(kinds))](w);
}

/* Fills the buffer with what both ends expect next; returns its length. */
static notrace u32 pipe_chunk(struct worker *w, u64 *buf)
{
	u64 base = w->pipe_rnd.s[0] += 0x9e3779b97f4a7c15UL;
	u32 n = 1 + (u32)(u_hash(base ^ w->pipe_rnd.s[1]) % PIPE_BUF);

	for (u32 i = 0; i < PIPE_BUF / 8; i++)
		buf[i] = u_hash(base + i);
	return n;
}

static notrace void pipe_send(struct worker *w)
{
	u32 n = pipe_chunk(w, pipe_bufs[w->id]);
	s64 r = sys(write, w->pipe_fd, pipe_bufs[w->id], n, 0);

	/* The reader may stop first, but only when asked to. */
	if (r != (s64)n) {
		u_check(w, workload_stopping());
		w->ended = true;
		return;
	}
	worker_sum(w, n);
}

static notrace void pipe_receive(struct worker *w)
{
	u64 got[PIPE_BUF / 8];
	u32 n = pipe_chunk(w, pipe_bufs[w->id]), have = 0;

	while (have < n) {
		s64 r = sys(read, w->pipe_fd, (u8 *)got + have, n - have, 0);

		if (r <= 0) {
			u_check(w, r == 0 && workload_stopping());
			w->ended = true;
			return;
		}
		have += (u32)r;
	}
	u_check(w, !memcmp(got, pipe_bufs[w->id], n));
	worker_sum(w, u_hash(got[0] ^ n));
}

/* Through a pipe to oneself: a chunk always fits. */
static notrace void pipe_self(struct worker *w)
{
	u64 got[PIPE_BUF / 8];
	s32 fds[2];
	u32 n = pipe_chunk(w, pipe_bufs[w->id]);

	u_check(w, sys(pipe, fds, 0, 0, 0) == 0);
	u_check(w, sys(write, fds[1], pipe_bufs[w->id], n, 0) == (s64)n);
	u_check(w, sys(read, fds[0], got, PIPE_BUF, 0) == (s64)n && !memcmp(got, pipe_bufs[w->id], n));
	u_check(w, sys(lseek, fds[0], 0, 0, 0) == -ESPIPE);
	u_check(w, sys(close, fds[1], 0, 0, 0) == 0);
	u_check(w, sys(read, fds[0], got, 8, 0) == 0);
	u_check(w, sys(close, fds[0], 0, 0, 0) == 0);
	worker_sum(w, n);
}

notrace void user_pipe_step(struct worker *w)
{
	if (w->pipe_fd < 0)
		pipe_self(w);
	else if (w->pipe_writer)
		pipe_send(w);
	else
		pipe_receive(w);
}

notrace void user_mix_step(struct worker *w)
{
	switch (u_rand(w, 10)) {
	case 0 ... 3:
		user_fs_step(w);
		break;
	case 4 ... 5:
		user_syscall_step(w);
		break;
	case 6 ... 7:
		work_alloc_step(w);
		break;
	case 8:
		pipe_self(w);
		break;
	default:
		work_sched_step(w);
	}
}
