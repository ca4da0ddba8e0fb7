/* The console's commands. */
#include "work.h"

struct command {
	const char *name, *help;
	void (*fn)(char *args);
};

static struct task *shell;

static void ps_one(struct task *p, void *arg __unused)
{
	TRACED;
	static const char *const states[] = { "R", "S", "X" };

	/* Straight to the log: the list is locked, but nothing here sleeps. */
	pr_emerg("%5u %s cpu %u %8lu ms %8lu switches  %s\n", p->pid, p->state < 3 ? states[p->state] : "?", p->cpu,
		 tsc_to_ns(p->sum_exec) / 1000000, p->nr_switches, p->comm);
}

static void cmd_ps(char *args __unused)
{
	TRACED;
	for_each_task(ps_one, NULL);
}

static void cmd_uptime(char *args __unused)
{
	TRACED;
	u64 ms = ktime_get_ns() / 1000000;

	pr_emerg("up %lu.%03lu s, %u CPUs, %u threads, %lu jiffies, %lu NMIs\n", ms / 1000, ms % 1000, num_online_cpus(),
		 nr_threads(), jiffies, nmi_total());
}

static void cmd_free(char *args __unused)
{
	TRACED;
	pr_emerg("pages: %lu of %lu free, %lu slab, %lu page cache\n", nr_free_pages(), nr_pages, slab_pages(),
		 nr_cache_pages());
}

static void cmd_slabinfo(char *args __unused)
{
	TRACED;
	slabinfo_show();
}

static void cmd_ls(char *args)
{
	TRACED;
	struct dirent ents[8];
	struct file *f = do_filp_open(*args ? args : "/", O_RDONLY);
	ssize_t n;

	if (IS_ERR(f)) {
		pr_emerg("ls: error %ld\n", PTR_ERR(f));
		return;
	}
	while ((n = vfs_readdir(f, ents, ARRAY_SIZE(ents))) > 0)
		for (ssize_t i = 0; i < n; i++)
			pr_emerg("%6lu %c %s\n", ents[i].ino, "?-dpc"[min(ents[i].type, 4U)], ents[i].name);
	fput(f);
}

static void cmd_panic(char *args)
{
	TRACED;
	panic("panic requested from the console%s%s", *args ? ": " : "", args);
}

static void cmd_hang(char *args __unused)
{
	TRACED;
	cpl0_hang();
}

static void cmd_poweroff(char *args __unused)
{
	TRACED;
	workload_stop();
}

static void cmd_help(char *args);

static const struct command commands[] = {
	{ "help", "this list", cmd_help },
	{ "ps", "threads", cmd_ps },
	{ "uptime", "time, CPUs, threads", cmd_uptime },
	{ "free", "memory", cmd_free },
	{ "slabinfo", "object caches", cmd_slabinfo },
	{ "ls", "[path]: a directory", cmd_ls },
	{ "panic", "[text]: panic", cmd_panic },
	{ "hang", "cli; hlt", cmd_hang },
	{ "poweroff", "end the workload, check, power off", cmd_poweroff },
};

static void cmd_help(char *args __unused)
{
	TRACED;
	for (u32 i = 0; i < ARRAY_SIZE(commands); i++)
		pr_emerg("%-10s %s\n", commands[i].name, commands[i].help);
}

static void run_command(char *line)
{
	TRACED;
	line = skip_spaces(line);
	char *name = strsep(&line, ' ');

	if (!*name)
		return;
	for (u32 i = 0; i < ARRAY_SIZE(commands); i++) {
		if (!strcmp(name, commands[i].name)) {
			commands[i].fn(line ? skip_spaces(line) : "");
			return;
		}
	}
	pr_emerg("%s: no such command, try help\n", name);
}

static int shell_thread(void *arg __unused)
{
	TRACED;
	char line[128];

	while (!kthread_should_stop())
		if (tty_read(line, sizeof(line)) >= 0)
			run_command(line);
	return 0;
}

void shell_start(void)
{
	TRACED;
	shell = kthread_run(shell_thread, NULL, "sh");
}

void shell_stop(void)
{
	TRACED;
	if (shell)
		kthread_stop(shell);
}
