/* From the first C instruction on CPU 0 to the workload. */
#include "work.h"

#define BANNER "exotrace guest kernel"

static void setup_arch(void)
{
	TRACED;
	if (boot_info->magic != EXO_BOOT_MAGIC)
		panic("boot information has the magic %x, not %x", boot_info->magic, EXO_BOOT_MAGIC);
	if (!nr_cpus || boot_info->nr_cpus > EXO_MAX_CPUS)
		panic("%u CPUs, can run 1 to %lu", boot_info->nr_cpus, EXO_MAX_CPUS);
}

static void mm_init(void)
{
	TRACED;
	mem_init();
	kmalloc_init();
	radix_tree_init();
}

static void vfs_caches_init(void)
{
	TRACED;
	inode_init();
	files_init();
	dcache_init();
	devfs_init();
	printk("vfs: root mounted, %lu inodes\n", nr_inodes());
}

static int kernel_init(void *arg __unused)
{
	TRACED;
	smp_init();
	vfs_caches_init();
	serial_init();
	tty_init();
	run_workload();
	return 0;
}

static void sched_start(void)
{
	TRACED;
	struct task *init = kthread_run(kernel_init, NULL, "init");

	if (!init)
		panic("no memory for the init thread");
}

notrace void start_kernel(void)
{
	extern u8 boot_stacks[][THREAD_SIZE];

	local_irq_disable();
	idt_init();
	if (boot_cpl == 0)
		asm volatile("sti");
	sched_init();
	struct task *idle = idle_task_init(0, (u64)boot_stacks[0]);

	this_cpu_write(current_task, idle);
	this_cpu_write(curr_is_idle, 1);
	parse_cmdline(boot_info->cmdline);
	time_init();
	crc32_init();
	setup_arch();
	printk(BANNER ", %u CPUs, CPL %lu, TSC %lu kHz\n", nr_cpus, boot_cpl, boot_info->tsc_hz / 1000);
	printk("command line: %s\n", boot_info->cmdline);
	mm_init();
	fork_init();
	softirq_init();
	timers_init();
	hrtimers_init();
	tick_setup_cpu();
	sched_start();
	local_irq_enable();
	cpu_idle_loop();
}
