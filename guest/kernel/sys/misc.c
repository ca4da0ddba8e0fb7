/* System calls on threads, time and the system. */
#include "fs.h"
#include "time.h"

#define SYSCALL(n) s64 sys_##n(u64 a __unused, u64 b __unused, u64 c __unused, u64 d __unused)
#define DECLARE(n) s64 sys_##n(u64 a, u64 b, u64 c, u64 d)
DECLARE(getpid); DECLARE(sched_yield); DECLARE(nanosleep); DECLARE(gettimeofday); DECLARE(uname); DECLARE(getcpu);
DECLARE(sysinfo); DECLARE(times);

SYSCALL(getpid)
{
	TRACED;
	return current->pid;
}

SYSCALL(sched_yield)
{
	TRACED;
	sched_yield();
	return 0;
}

SYSCALL(nanosleep)
{
	TRACED;
	if (a > 10000000000UL)
		return -EINVAL;
	nanosleep(a);
	return 0;
}

SYSCALL(gettimeofday)
{
	TRACED;
	u64 now = ktime_get_ns();

	return copy_to_user((void *)a, &now, sizeof(now)) ? -EFAULT : 0;
}

SYSCALL(uname)
{
	TRACED;
	static const char name[] = "exotrace-guest";

	return copy_to_user((void *)a, name, sizeof(name)) ? -EFAULT : 0;
}

SYSCALL(getcpu)
{
	TRACED;
	return smp_processor_id();
}

SYSCALL(sysinfo)
{
	TRACED;
	u64 info[4] = { nr_free_pages(), slab_pages(), nr_cache_pages(), nr_threads() };

	return copy_to_user((void *)a, info, sizeof(info)) ? -EFAULT : 0;
}

SYSCALL(times)
{
	TRACED;
	return (s64)tsc_to_ns(current->sum_exec);
}
