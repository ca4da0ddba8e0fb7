/* The workload: starts the workers, waits for them, checks that nothing went wrong, and ends the run. */
#include "work.h"

#define DISASTER_MS 50 /* when panic, hang and triplefault strike */
#define STATUS_MS 5000

struct workload {
	const char *name;
	void (*step)(struct worker *w);
	bool pinned; /* one worker a CPU, on that CPU */
};

static const struct workload workloads[] = {
	{ "mix", user_mix_step, false },	 { "fs", user_fs_step, false },
	{ "alloc", work_alloc_step, false },	 { "sched", work_sched_step, false },
	{ "syscall", user_syscall_step, false }, { "pipe", user_pipe_step, false },
	{ "flood", work_flood_step, true },	 { "panic", user_mix_step, false },
	{ "hang", user_mix_step, false },	 { "triplefault", user_mix_step, false },
};

u64 selfcheck_sum, selfcheck_failures;
static struct worker workers[MAX_WORKERS];
static u32 nr_workers;
static u32 stopping;

void selfcheck_fail(const char *fmt, ...)
{
	TRACED;
	char msg[128];
	__builtin_va_list ap;

	/* The first few say enough. */
	if (__atomic_fetch_add(&selfcheck_failures, 1, __ATOMIC_RELAXED) >= 8)
		return;
	__builtin_va_start(ap, fmt);
	vsnprintf(msg, sizeof(msg), fmt, ap);
	__builtin_va_end(ap);
	pr_emerg("selfcheck: %s\n", msg);
}

bool workload_stopping(void)
{
	TRACED;
	return READ_ONCE(stopping) != 0;
}

void workload_stop(void)
{
	TRACED;
	__atomic_store_n(&stopping, 1, __ATOMIC_SEQ_CST);
}

/* load=N: the worker sleeps so that it works N percent of the time. Sleeps shorter than a tick are saved up. */
static void worker_throttle(struct worker *w, u64 cycles)
{
	TRACED;
	if (params.load >= 100)
		return;
	w->sleep_debt += min(cycles, boot_info->tsc_hz) * (100 - params.load) / params.load;
	u64 ms = tsc_to_ns(w->sleep_debt) / 1000000;

	if (ms * tick_hz >= 2000) {
		w->sleep_debt = 0;
		msleep(ms);
	}
}

static bool worker_done(struct worker *w)
{
	TRACED;
	return w->ended || workload_stopping() || (params.iters && w->iters >= params.iters);
}

static int worker_main(void *arg)
{
	TRACED;
	struct worker *w = arg;

	current->files = files_alloc();
	user_begin(w);
	while (!worker_done(w)) {
		u64 start = current->sum_exec;

		w->step(w);
		w->iters++;
		worker_throttle(w, current->sum_exec - start);
	}
	work_alloc_end(w);
	user_end(w);
	return 0;
}

static void worker_init(struct worker *w, u32 id, void (*step)(struct worker *w))
{
	TRACED;
	memset(w, 0, sizeof(*w));
	w->id = id;
	w->step = step;
	w->pipe_fd = -1;
	prandom_seed_state(&w->rnd, mix64(params.seed) + id);
	worker_sum(w, params.seed + id);
}

/* Workers 2n and 2n+1 are the ends of a pipe; a last one without a partner has none. */
static void pair_pipes(void)
{
	TRACED;
	for (u32 i = 0; i + 1 < nr_workers; i += 2) {
		struct file *ends[2];

		if (create_pipe_files(ends))
			panic("no memory for pipes");
		workers[i].pipe_file = ends[1];
		workers[i].pipe_writer = true;
		workers[i + 1].pipe_file = ends[0];
		prandom_seed_state(&workers[i].pipe_rnd, mix64(params.seed ^ 0x70697065) + i);
		workers[i + 1].pipe_rnd = workers[i].pipe_rnd;
	}
}

static void start_workers(const struct workload *wl)
{
	TRACED;
	nr_workers = params.threads ? (u32)params.threads : wl->pinned ? nr_cpus : 2 * nr_cpus + 2;
	nr_workers = min(nr_workers, (u32)MAX_WORKERS);
	for (u32 i = 0; i < nr_workers; i++)
		worker_init(&workers[i], i, wl->step);
	if (wl->step == user_pipe_step)
		pair_pipes();
	work_sched_begin();
	for (u32 i = 0; i < nr_workers; i++) {
		s32 cpu = wl->pinned ? (s32)(i % nr_cpus) : -1;

		workers[i].task = kthread_create(worker_main, &workers[i], cpu, "%s/%u", wl->name, i);
		if (!workers[i].task)
			panic("cannot start worker %u", i);
	}
}

static void join_workers(void)
{
	TRACED;
	selfcheck_sum = 0;
	for (u32 i = 0; i < nr_workers; i++) {
		kthread_join(workers[i].task);
		selfcheck_sum += mix64(workers[i].sum ^ mix64(i));
	}
}

/* The shell has to be able to end an endless run; meanwhile this thread shows that the system lives. */
static int status_thread(void *arg __unused)
{
	TRACED;
	u64 last = ktime_get_ns();

	while (!kthread_should_stop()) {
		msleep(100);
		if (ktime_get_ns() - last < STATUS_MS * 1000000UL)
			continue;
		last = ktime_get_ns();
		u64 iters = 0;

		for (u32 i = 0; i < nr_workers; i++)
			iters += READ_ONCE(workers[i].iters);
		printk("status: %lu iterations, %u threads, %lu pages free, %lu cached, %lu inodes\n", iters, nr_threads(),
		       nr_free_pages(), nr_cache_pages(), nr_inodes());
	}
	return 0;
}

static int disaster_thread(void *arg __unused)
{
	TRACED;
	msleep(DISASTER_MS);
	if (!strcmp(params.workload, "panic"))
		panic("panic requested by workload=panic");
	if (!strcmp(params.workload, "hang"))
		cpl0_hang();
	if (!strcmp(params.workload, "triplefault"))
		cpl0_triple_fault();
	return 0;
}

static const struct workload *find_workload(const char *name)
{
	TRACED;
	for (u32 i = 0; i < ARRAY_SIZE(workloads); i++)
		if (!strcmp(name, workloads[i].name))
			return &workloads[i];
	return NULL;
}

static void run_workers(const struct workload *wl)
{
	TRACED;
	bool disaster = !strcmp(wl->name, "panic") || !strcmp(wl->name, "hang") || !strcmp(wl->name, "triplefault");

	if (disaster)
		params.iters = 0;
	start_workers(wl);
	struct task *status = kthread_run(status_thread, NULL, "status");
	struct task *bad = disaster ? kthread_create(disaster_thread, NULL, 0, "disaster") : NULL;

	join_workers();
	if (bad)
		kthread_join(bad);
	if (status)
		kthread_stop(status);
	work_sched_check();
}

static void run_idle(void)
{
	TRACED;
	for (u64 ms = 0; !workload_stopping() && (!params.iters || ms < params.iters); ms += 10)
		msleep(10);
}

static void dispatch_workload(void)
{
	TRACED;
	const struct workload *wl = find_workload(params.workload);

	if (!strcmp(params.workload, "bench")) {
		work_bench();
	} else if (!strcmp(params.workload, "idle")) {
		run_idle();
	} else if (!strcmp(params.workload, "selftest")) {
		work_selftest();
	} else if (wl) {
		run_workers(wl);
	} else {
		selfcheck_fail("unknown workload \"%s\"", params.workload);
	}
}

static void start_services(void)
{
	TRACED;
	softirq_start();
	workqueue_start();
	writeback_start();
	shell_start();
}

/* After this only this thread and the idle ones are left. */
static void stop_services(void)
{
	TRACED;
	shell_stop();
	writeback_stop();
	workqueue_stop();
	softirq_stop();
}

/* Everything the workload took must have come back. */
static void check_leaks(u64 pages, s64 objects, u64 inodes)
{
	TRACED;
	kmem_cache_shrink_all();
	if (nr_free_pages() != pages)
		selfcheck_fail("%lu pages free, %lu before the workload", nr_free_pages(), pages);
	if (slab_objects_active() != objects)
		selfcheck_fail("%ld objects in use, %ld before the workload", slab_objects_active(), objects);
	if (nr_inodes() != inodes || nr_cache_pages())
		selfcheck_fail("%lu inodes and %lu cached pages left", nr_inodes(), nr_cache_pages());
	u64 buddy = check_buddy(), slabs = check_slabs();

	if (buddy || slabs)
		selfcheck_fail("%lu broken buddy blocks, %lu broken slabs", buddy, slabs);
	if (nr_threads() != 1)
		selfcheck_fail("%u threads left", nr_threads());
	sched_check();
}

void run_workload(void)
{
	TRACED;
	kmem_cache_shrink_all();
	u64 pages = nr_free_pages(), inodes = nr_inodes();
	s64 objects = slab_objects_active();

	start_services();
	printk("workload %s, seed %lu, iters %lu\n", params.workload, params.seed, params.iters);
	outl(EXO_PORT_MARK, EXO_MARK_WORK_BEGIN);
	dispatch_workload();
	outl(EXO_PORT_MARK, EXO_MARK_WORK_END);
	stop_services();
	check_leaks(pages, objects, inodes);
	if (selfcheck_failures)
		pr_emerg("selfcheck: FAILED %lu checks, sum=%016lx\n", selfcheck_failures, selfcheck_sum);
	else
		pr_emerg("selfcheck: ok sum=%016lx\n", selfcheck_sum);
	machine_halt(selfcheck_failures ? EXO_EXIT_SELFCHECK : EXO_EXIT_POWEROFF);
}
