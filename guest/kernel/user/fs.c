/*
 * File system program. Each worker has a directory of its own with eight files and knows what must be in each: byte i
 * of a file with key k is a hash of (k, i / 8), so any piece can be checked at any time.
 */
#include "user.h"

#define NR_FILES 8
#define MAX_SIZE 20000
#define BUF 1024

struct model {
	bool exists;
	u32 size;
	u64 key;
};

static struct model models[MAX_WORKERS][NR_FILES];
static u64 buffers[MAX_WORKERS][BUF / 8];
static struct dirent entries[MAX_WORKERS][NR_FILES + 2];

static notrace void dir_path(struct worker *w, char *p)
{
	u_putn(u_puts(p, "/tmp/w"), w->id);
}

static notrace void file_path(struct worker *w, u32 n, char *p)
{
	u_putn(u_puts(u_putn(u_puts(p, "/tmp/w"), w->id), "/file"), n);
}

static notrace u8 pattern(u64 key, u32 i)
{
	return (u8)(u_hash(key + i / 8) >> (i % 8 * 8));
}

static notrace s32 open_file(struct worker *w, u32 n, u32 flags)
{
	char path[64];

	file_path(w, n, path);
	return (s32)sys(open, path, flags, 0, 0);
}

/* Writes [from, to) of the file's pattern. */
static notrace void write_range(struct worker *w, struct model *m, s32 fd, u32 from, u32 to)
{
	u8 *buf = (u8 *)buffers[w->id];

	while (from < to) {
		u32 n = min(to - from, (u32)BUF);

		for (u32 i = 0; i < n; i++)
			buf[i] = pattern(m->key, from + i);
		u_check(w, sys(write, fd, buf, n, 0) == (s64)n);
		from += n;
	}
}

static notrace void verify_bytes(struct worker *w, struct model *m, u32 from, u32 n)
{
	const u8 *buf = (const u8 *)buffers[w->id];
	u64 sum = 0;

	for (u32 i = 0; i < n; i++) {
		if (buf[i] != pattern(m->key, from + i)) {
			selfcheck_fail("worker %u: byte %u of a file of %u is wrong", w->id, from + i, m->size);
			return;
		}
		sum = sum * 31 + buf[i];
	}
	worker_sum(w, sum);
}

static notrace void fs_rewrite(struct worker *w, u32 n)
{
	struct model *m = &models[w->id][n];
	s32 fd = open_file(w, n, O_RDWR | O_CREAT | O_TRUNC);

	u_check(w, fd >= 0);
	m->exists = true;
	m->key = u_hash(w->rnd.s[0] + n);
	m->size = u_rand(w, MAX_SIZE);
	write_range(w, m, fd, 0, m->size);
	u_check(w, sys(close, fd, 0, 0, 0) == 0);
	worker_sum(w, m->size);
}

static notrace void fs_append(struct worker *w, u32 n)
{
	struct model *m = &models[w->id][n];
	u32 more = u_rand(w, 3000);

	if (!m->exists || m->size + more > MAX_SIZE)
		return;
	s32 fd = open_file(w, n, O_WRONLY | O_APPEND);

	write_range(w, m, fd, m->size, m->size + more);
	m->size += more;
	if (more % 4 == 0)
		u_check(w, sys(fsync, fd, 0, 0, 0) == 0);
	u_check(w, sys(close, fd, 0, 0, 0) == 0);
}

static notrace void fs_read_all(struct worker *w, u32 n)
{
	struct model *m = &models[w->id][n];
	s32 fd = open_file(w, n, O_RDONLY);
	u32 at = 0;

	if (!m->exists) {
		u_check(w, fd == -ENOENT);
		return;
	}
	for (;;) {
		s64 r = sys(read, fd, buffers[w->id], BUF, 0);

		u_check(w, r >= 0 && at + (u64)r <= m->size);
		if (r <= 0)
			break;
		verify_bytes(w, m, at, (u32)r);
		at += (u32)r;
	}
	u_check(w, at == m->size);
	u_check(w, sys(close, fd, 0, 0, 0) == 0);
}

static notrace void fs_pread(struct worker *w, u32 n)
{
	struct model *m = &models[w->id][n];

	if (!m->exists)
		return;
	s32 fd = open_file(w, n, O_RDONLY);
	u32 at = u_rand(w, MAX_SIZE), len = 1 + u_rand(w, BUF);
	u32 want = at >= m->size ? 0 : min(len, m->size - at);

	u_check(w, sys(pread, fd, buffers[w->id], len, at) == (s64)want);
	verify_bytes(w, m, at, want);
	u_check(w, sys(lseek, fd, 0, SEEK_END, 0) == (s64)m->size);
	u_check(w, sys(close, fd, 0, 0, 0) == 0);
}

static notrace void fs_truncate(struct worker *w, u32 n)
{
	struct model *m = &models[w->id][n];

	if (!m->exists)
		return;
	s32 fd = open_file(w, n, O_RDWR);

	m->size = u_rand(w, m->size + 1);
	u_check(w, sys(ftruncate, fd, m->size, 0, 0) == 0);
	u_check(w, sys(close, fd, 0, 0, 0) == 0);
}

static notrace void fs_stat(struct worker *w, u32 n)
{
	struct model *m = &models[w->id][n];
	struct kstat st;
	char path[64];

	file_path(w, n, path);
	s64 r = sys(stat, path, &st, 0, 0);

	u_check(w, m->exists ? r == 0 && st.size == m->size : r == -ENOENT);
}

static notrace void fs_unlink(struct worker *w, u32 n)
{
	struct model *m = &models[w->id][n];
	char path[64];

	file_path(w, n, path);
	u_check(w, sys(unlink, path, 0, 0, 0) == (m->exists ? 0 : -ENOENT));
	m->exists = false;
}

static notrace void fs_rename(struct worker *w, u32 n)
{
	u32 k = u_rand(w, NR_FILES);
	struct model *from = &models[w->id][n], *to = &models[w->id][k];
	char a[64], b[64];

	file_path(w, n, a);
	file_path(w, k, b);
	s64 r = sys(rename, a, b, 0, 0);

	u_check(w, r == (from->exists ? 0 : -ENOENT));
	if (from->exists && n != k) {
		*to = *from;
		from->exists = false;
	}
}

static notrace void fs_readdir(struct worker *w, u32 n __unused)
{
	char path[64];
	s64 r, found = 0;
	u32 want = 0;

	dir_path(w, path);
	s32 fd = (s32)sys(open, path, O_RDONLY, 0, 0);

	u_check(w, fd >= 0);
	while ((r = sys(getdents, fd, entries[w->id], 3, 0)) > 0)
		found += r;
	for (u32 i = 0; i < NR_FILES; i++)
		want += models[w->id][i].exists;
	u_check(w, found == want);
	u_check(w, sys(close, fd, 0, 0, 0) == 0);
	worker_sum(w, want);
}

notrace void user_fs_step(struct worker *w)
{
	static void (*const ops[])(struct worker *w, u32 n) = {
		fs_rewrite, fs_rewrite, fs_append,  fs_append, fs_read_all, fs_read_all, fs_read_all,
		fs_pread,   fs_pread,	fs_truncate, fs_stat,  fs_stat,	    fs_unlink,	 fs_rename, fs_readdir,
	};

	ops[u_rand(w, ARRAY_SIZE(ops))](w, u_rand(w, NR_FILES));
}

notrace void user_begin(struct worker *w)
{
	char path[64];

	dir_path(w, path);
	u_check(w, sys(mkdir, path, 0, 0, 0) == 0);
	u_check(w, sys(mkdir, path, 0, 0, 0) == -EEXIST);
	if (w->pipe_file)
		w->pipe_fd = fd_install(w->pipe_file);
}

/* Checks what is there once more, then removes it. */
notrace void user_end(struct worker *w)
{
	char path[64];

	if (w->pipe_fd >= 0)
		sys(close, w->pipe_fd, 0, 0, 0);
	for (u32 i = 0; i < NR_FILES; i++) {
		fs_read_all(w, i);
		if (models[w->id][i].exists) {
			dir_path(w, path);
			u_check(w, sys(rmdir, path, 0, 0, 0) == -ENOTEMPTY);
			fs_unlink(w, i);
		}
	}
	dir_path(w, path);
	u_check(w, sys(rmdir, path, 0, 0, 0) == 0);
}
