/* Bringing CPUs up, and calls from one to another. */
#include "time.h"

struct call_data {
	void (*fn)(void *arg);
	void *arg;
	u32 pending; /* CPUs that have yet to run it */
};

static spinlock_t call_lock = SPINLOCK_INIT;
static struct call_data call_data;
static u64 call_mask;
static u64 online_mask;
extern u8 boot_stacks[EXO_MAX_CPUS][THREAD_SIZE];
struct boot_info *boot_info;
u64 boot_cpl;
u32 nr_cpus;
void cpu_entry(u64 cpu, struct boot_info *bi) __noreturn;

u32 num_online_cpus(void)
{
	TRACED;
	return bitmap_weight(&online_mask, EXO_MAX_CPUS);
}

void smp_send_ipi(u32 cpu)
{
	TRACED;
	outl(EXO_PORT_IPI, cpu);
}

static void set_cpu_online(u32 cpu)
{
	TRACED;
	__atomic_fetch_or(&online_mask, BIT(cpu), __ATOMIC_RELEASE);
}

static void flush_smp_call_function_queue(void)
{
	TRACED;
	u64 me = BIT(smp_processor_id());

	if (!(__atomic_fetch_and(&call_mask, ~me, __ATOMIC_ACQ_REL) & me))
		return;
	call_data.fn(call_data.arg);
	__atomic_fetch_sub(&call_data.pending, 1, __ATOMIC_RELEASE);
}

/* A reschedule IPI needs no work of its own: need_resched is set and looked at on the way out. */
void handle_ipi(void)
{
	TRACED;
	if (READ_ONCE(panicking))
		stop_this_cpu();
	flush_smp_call_function_queue();
}

/* Runs fn on every CPU, in interrupt context on the others, and waits for all. Called with interrupts on. */
void on_each_cpu(void (*fn)(void *arg), void *arg)
{
	TRACED;
	spin_lock(&call_lock);
	u32 me = smp_processor_id();
	u64 others = READ_ONCE(online_mask) & ~BIT(me);

	call_data.fn = fn;
	call_data.arg = arg;
	call_data.pending = bitmap_weight(&others, EXO_MAX_CPUS);
	__atomic_store_n(&call_mask, others, __ATOMIC_RELEASE);
	for (u32 i = 0; i < nr_cpus; i++)
		if (others & BIT(i))
			smp_send_ipi(i);
	local_irq_disable();
	fn(arg);
	local_irq_enable();
	while (__atomic_load_n(&call_data.pending, __ATOMIC_ACQUIRE))
		cpu_relax();
	spin_unlock(&call_lock);
}

/* Every CPU comes here from head.S, on its boot stack, which is also its idle thread's. */
notrace void cpu_entry(u64 cpu, struct boot_info *bi)
{
	if (cpu == 0) {
		boot_info = bi;
		boot_cpl = bi->cpl;
		nr_cpus = bi->nr_cpus > EXO_MAX_CPUS ? (u32)EXO_MAX_CPUS : bi->nr_cpus;
		start_kernel();
	}
	local_irq_disable();
	if (boot_cpl == 0)
		asm volatile("sti");
	set_cpu_online((u32)cpu);
	tick_setup_cpu();
	local_irq_enable();
	cpu_idle_loop();
}

static bool wait_cpu_online(u32 cpu)
{
	TRACED;
	u64 deadline = rdtsc() + 10 * boot_info->tsc_hz;

	while (!(READ_ONCE(online_mask) & BIT(cpu))) {
		if (rdtsc() > deadline)
			return false;
		cpu_relax();
	}
	return true;
}

static void cpu_up(u32 cpu)
{
	TRACED;
	struct task *idle = idle_task_init(cpu, (u64)boot_stacks[cpu]);

	per_cpu(current_task, cpu) = idle;
	per_cpu(curr_is_idle, cpu) = 1;
	outl(EXO_PORT_CPU_ON, cpu);
	if (!wait_cpu_online(cpu))
		panic("CPU %u did not come up within 10 s", cpu);
}

void smp_init(void)
{
	TRACED;
	set_cpu_online(0);
	for (u32 i = 1; i < nr_cpus; i++)
		cpu_up(i);
	printk("smp: %u of %u CPUs online\n", num_online_cpus(), nr_cpus);
	outl(EXO_PORT_MARK, EXO_MARK_SMP_UP);
}
