/*
 * The program in the Linux guests whose work is known exactly: each load makes the calls that its name says, as often as
 * asked for, and says so on standard output in one line that tests read.
 *
 *   exoload getppid N     N times getppid, by the system call itself (libc might remember the answer)
 *   exoload read N        N times read of one byte of /dev/zero; open and close around them
 *   exoload stat N        N times stat of /
 *   exoload fork N        N children, one after the other, each exits at once and is waited for
 *   exoload exec N        N children that start this program again
 *   exoload pipe N        N bytes to another process and back, one at a time
 *   exoload mix N         N rounds of all of these (N = 0: for ever), for switching under load
 *   exoload spin SECONDS  no system call at all but the clock's
 *
 * The line: "exoload: NAME N done in NANOSECONDS ns".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *self;

static void fail(const char *what)
{
	fprintf(stderr, "exoload: %s: %s\n", what, strerror(errno));
	exit(1);
}

static long long now_ns(void)
{
	struct timespec t;

	if (clock_gettime(CLOCK_MONOTONIC, &t))
		fail("clock_gettime");
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void do_getppid(long n)
{
	for (long i = 0; i < n; i++)
		syscall(SYS_getppid);
}

static void do_read(long n)
{
	int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	char c;

	if (fd < 0)
		fail("/dev/zero");
	for (long i = 0; i < n; i++)
		if (read(fd, &c, 1) != 1)
			fail("read");
	close(fd);
}

static void do_stat(long n)
{
	struct stat st;

	for (long i = 0; i < n; i++)
		if (stat("/", &st))
			fail("stat");
}

/* Waits for a child, which must have exited with 0. */
static void reap(pid_t child)
{
	int status;

	if (waitpid(child, &status, 0) != child || status != 0) {
		errno = ECHILD;
		fail("a child failed");
	}
}

static void do_fork(long n)
{
	for (long i = 0; i < n; i++) {
		pid_t child = fork();

		if (child < 0)
			fail("fork");
		if (child == 0)
			_exit(0);
		reap(child);
	}
}

/* Not inlined: its caller's variables must not live in what vfork's child shares. */
static __attribute__((noinline)) pid_t start_self(void)
{
	pid_t child = vfork();

	if (child == 0) {
		execl(self, "exoload", "nothing", "0", (char *)NULL);
		_exit(1);
	}
	return child;
}

static void do_exec(long n)
{
	for (long i = 0; i < n; i++) {
		pid_t child = start_self();

		if (child < 0)
			fail("vfork");
		reap(child);
	}
}

static void do_pipe(long n)
{
	int there[2], back[2];
	char c = 'x';
	pid_t child;

	if (pipe2(there, O_CLOEXEC) || pipe2(back, O_CLOEXEC))
		fail("pipe2");
	child = fork();
	if (child < 0)
		fail("fork");
	if (child == 0) {
		close(there[1]);
		while (read(there[0], &c, 1) == 1)
			if (write(back[1], &c, 1) != 1)
				_exit(1);
		_exit(0);
	}
	for (long i = 0; i < n; i++)
		if (write(there[1], &c, 1) != 1 || read(back[0], &c, 1) != 1)
			fail("pipe");
	close(there[1]);
	reap(child);
	close(there[0]);
	close(back[0]);
	close(back[1]);
}

static void do_mix(long n)
{
	for (long i = 0; n == 0 || i < n; i++) {
		do_getppid(20);
		do_read(20);
		do_stat(20);
		do_pipe(10);
		do_fork(2);
		do_exec(1);
	}
}

static void do_spin(long seconds)
{
	long long end = now_ns() + seconds * 1000000000LL;

	while (now_ns() < end)
		;
}

static void do_nothing(long n)
{
	(void)n;
}

static const struct {
	const char *name;
	void (*run)(long n);
} loads[] = {
	{ "getppid", do_getppid }, { "read", do_read }, { "stat", do_stat }, { "fork", do_fork },
	{ "exec", do_exec },	   { "pipe", do_pipe }, { "mix", do_mix },   { "spin", do_spin },
	{ "nothing", do_nothing },
};

int main(int argc, char **argv)
{
	char *end;
	long n;

	if (argc != 3 || (n = strtol(argv[2], &end, 10)) < 0 || *end || end == argv[2]) {
		fprintf(stderr, "usage: exoload LOAD N\n");
		return 2;
	}
	self = argv[0][0] == '/' ? argv[0] : "/bin/exoload";
	for (size_t i = 0; i < sizeof(loads) / sizeof(*loads); i++) {
		long long begun;

		if (strcmp(loads[i].name, argv[1]))
			continue;
		begun = now_ns();
		loads[i].run(n);
		if (strcmp(argv[1], "nothing"))
			printf("exoload: %s %ld done in %lld ns\n", argv[1], n, now_ns() - begun);
		return 0;
	}
	fprintf(stderr, "exoload: there is no load '%s'\n", argv[1]);
	return 2;
}
