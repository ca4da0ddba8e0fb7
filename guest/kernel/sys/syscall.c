/* System calls by number. "User" threads call do_syscall as a function: they share the address space. */
#include "fs.h"
#include "time.h"

typedef s64 (*syscall_fn)(u64 a, u64 b, u64 c, u64 d);

#define SYSCALL(n) s64 sys_##n(u64 a, u64 b, u64 c, u64 d)
SYSCALL(read); SYSCALL(write); SYSCALL(open); SYSCALL(close); SYSCALL(stat); SYSCALL(fstat); SYSCALL(lseek);
SYSCALL(pipe); SYSCALL(dup); SYSCALL(getpid); SYSCALL(sched_yield); SYSCALL(nanosleep); SYSCALL(gettimeofday);
SYSCALL(mkdir); SYSCALL(rmdir); SYSCALL(unlink); SYSCALL(rename); SYSCALL(ftruncate); SYSCALL(getdents);
SYSCALL(fsync); SYSCALL(uname); SYSCALL(getcpu); SYSCALL(sysinfo); SYSCALL(times); SYSCALL(pread); SYSCALL(pwrite);

#define ENTRY(n) [SYS_##n] = sys_##n
static const syscall_fn sys_call_table[NR_SYSCALLS] = {
	ENTRY(read), ENTRY(write), ENTRY(open), ENTRY(close), ENTRY(stat), ENTRY(fstat), ENTRY(lseek), ENTRY(pipe),
	ENTRY(dup), ENTRY(getpid), ENTRY(sched_yield), ENTRY(nanosleep), ENTRY(gettimeofday), ENTRY(mkdir),
	ENTRY(rmdir), ENTRY(unlink), ENTRY(rename), ENTRY(ftruncate), ENTRY(getdents), ENTRY(fsync), ENTRY(uname),
	ENTRY(getcpu), ENTRY(sysinfo), ENTRY(times), ENTRY(pread), ENTRY(pwrite),
};

static u64 syscall_enter(u64 nr)
{
	TRACED;
	current->nr_syscalls++;
	return nr < NR_SYSCALLS ? nr : NR_SYSCALLS;
}

static void syscall_exit(void)
{
	TRACED;
	cond_resched();
}

s64 do_syscall(u64 nr, u64 a, u64 b, u64 c, u64 d)
{
	TRACED;
	s64 r = -ENOSYS;

	nr = syscall_enter(nr);
	if (nr < NR_SYSCALLS)
		r = sys_call_table[nr](a, b, c, d);
	syscall_exit();
	return r;
}
