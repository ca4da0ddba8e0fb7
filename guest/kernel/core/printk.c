/* The log: straight to the serial port, a line at a time (every port access is an exit, so one `rep outsb` a line). */
#include "time.h"

#define LINE_MAX 256

static spinlock_t console_lock = SPINLOCK_INIT;

/* Not masked by a lock that a stopped CPU may hold. */
void console_force_unlock(void)
{
	TRACED;
	arch_spin_unlock(&console_lock);
}

static void serial_write(const char *s, size_t n)
{
	TRACED;
	asm volatile("cld; rep outsb" : "+S"(s), "+c"(n) : "d"(EXO_PORT_SERIAL) : "memory");
}

void console_write(const char *s, size_t n)
{
	TRACED;
	local_irq_disable();
	arch_spin_lock(&console_lock);
	serial_write(s, n);
	arch_spin_unlock(&console_lock);
	local_irq_enable();
}

static void vprintk(const char *fmt, __builtin_va_list ap)
{
	TRACED;
	char line[LINE_MAX];
	u64 us = ktime_get_ns() / 1000;
	int n = snprintf(line, sizeof(line), "[%5lu.%06lu] ", us / 1000000, us % 1000000);

	n += vsnprintf(line + n, sizeof(line) - (size_t)n, fmt, ap);
	if (n >= LINE_MAX) {
		n = LINE_MAX - 1;
		line[n - 1] = '\n';
	}
	console_write(line, (size_t)n);
}

/* With `quiet` on the command line these are not shown. */
void printk(const char *fmt, ...)
{
	TRACED;
	__builtin_va_list ap;

	if (params.quiet)
		return;
	__builtin_va_start(ap, fmt);
	vprintk(fmt, ap);
	__builtin_va_end(ap);
}

void pr_emerg(const char *fmt, ...)
{
	TRACED;
	__builtin_va_list ap;

	__builtin_va_start(ap, fmt);
	vprintk(fmt, ap);
	__builtin_va_end(ap);
}
