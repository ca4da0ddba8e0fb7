/* The end: a message, a backtrace, and the machine is told. */
#include "time.h"

#define MAX_FRAMES 16

u64 panicking;

/*
 * Follows frame pointers within [lo, hi). The stack may be anything (an NMI comes between two instructions): every
 * pointer is checked and has to lead upwards.
 */
u32 stack_walk(u64 rbp, u64 lo, u64 hi, u64 *out, u32 max)
{
	TRACED;
	u32 n = 0;
	u64 ram_lo = EXO_IMAGE_GPA + EXO_VIRT_OFFSET, ram_hi = EXO_VIRT_OFFSET + boot_info->ram_bytes;

	if (lo < ram_lo || hi > ram_hi)
		return 0;
	while (n < max && rbp >= lo && rbp <= hi - 16 && !(rbp & 7)) {
		u64 *frame = (u64 *)rbp;

		out[n++] = frame[1];
		if (frame[0] <= rbp)
			break;
		rbp = frame[0];
	}
	return n;
}

static void dump_stack(void)
{
	TRACED;
	u64 frames[MAX_FRAMES];
	u64 rbp = (u64)__builtin_frame_address(0), lo = rbp & ~(THREAD_SIZE - 1);
	u32 n = stack_walk(rbp, lo, lo + THREAD_SIZE, frames, MAX_FRAMES);

	pr_emerg("Call trace:\n");
	for (u32 i = 0; i < n; i++)
		pr_emerg(" [<%016lx>]\n", frames[i]);
}

void panic(const char *fmt, ...)
{
	TRACED;
	char msg[192];
	__builtin_va_list ap;

	local_irq_disable();
	/* The first one reports; others stand still. A panic in a panic just ends it. */
	if (__atomic_exchange_n(&panicking, smp_processor_id() + 1, __ATOMIC_SEQ_CST)) {
		if (READ_ONCE(panicking) == smp_processor_id() + 1)
			machine_halt(EXO_EXIT_PANIC);
		stop_this_cpu();
	}
	__builtin_va_start(ap, fmt);
	vsnprintf(msg, sizeof(msg), fmt, ap);
	__builtin_va_end(ap);
	stop_other_cpus();
	console_force_unlock();
	pr_emerg("Kernel panic - not syncing: %s\n", msg);
	struct task *p = current;

	if (p)
		pr_emerg("CPU: %u PID: %u Comm: %s\n", smp_processor_id(), p->pid, p->comm);
	dump_stack();
	pr_emerg("---[ end Kernel panic ]---\n");
	machine_halt(EXO_EXIT_PANIC);
}
