/* Threads come and go. Whoever creates one joins it; there are no orphans. */
#include "fs.h"

#define MAX_PIDS 1024
#define THREAD_ORDER 2

static struct kmem_cache *task_cache;
static struct list_head all_tasks = LIST_HEAD_INIT(all_tasks);
static spinlock_t tasks_lock = SPINLOCK_INIT;
static u64 pid_map[MAX_PIDS / 64];
static u32 nr_tasks;
static struct task idle_tasks[EXO_MAX_CPUS];
void ret_from_fork(void);
void thread_start(void) __noreturn;

void fork_init(void)
{
	TRACED;
	task_cache = kmem_cache_create("task_struct", sizeof(struct task));
	bitmap_set(pid_map, 0, 1);
}

static u32 alloc_pid(void)
{
	TRACED;
	u32 pid = find_next_zero_bit(pid_map, MAX_PIDS, 1);

	if (pid >= MAX_PIDS)
		return 0;
	bitmap_set(pid_map, pid, 1);
	return pid;
}

static void free_pid(u32 pid)
{
	TRACED;
	bitmap_clear(pid_map, pid, 1);
}

static bool attach_pid(struct task *p)
{
	TRACED;
	spin_lock(&tasks_lock);
	p->pid = alloc_pid();
	if (p->pid) {
		list_add_tail(&p->tasks, &all_tasks);
		nr_tasks++;
	}
	spin_unlock(&tasks_lock);
	return p->pid != 0;
}

static void detach_pid(struct task *p)
{
	TRACED;
	spin_lock(&tasks_lock);
	list_del_init(&p->tasks);
	free_pid(p->pid);
	nr_tasks--;
	spin_unlock(&tasks_lock);
}

/* As if the thread had called context_switch: six registers and where to go. */
static void copy_thread(struct task *p)
{
	TRACED;
	u64 *sp = (u64 *)(p->stack + THREAD_SIZE);

	*(u64 *)p->stack = STACK_MAGIC;
	*--sp = 0; /* keeps the stack aligned as after a call */
	*--sp = (u64)ret_from_fork;
	for (u32 i = 0; i < 6; i++)
		*--sp = 0;
	p->rsp = (u64)sp;
}

static struct task *dup_task_struct(void)
{
	TRACED;
	struct task *p = kmem_cache_zalloc(task_cache);

	if (!p)
		return NULL;
	struct page *stack = alloc_pages(THREAD_ORDER);

	if (!stack) {
		kmem_cache_free(task_cache, p);
		return NULL;
	}
	p->stack = (u64)page_address(stack);
	return p;
}

static void free_task(struct task *p)
{
	TRACED;
	free_pages(virt_to_page((void *)p->stack), THREAD_ORDER);
	kmem_cache_free(task_cache, p);
}

static struct task *kthread_new(int (*fn)(void *arg), void *arg, s32 affinity)
{
	TRACED;
	struct task *p = dup_task_struct();

	if (!p)
		return NULL;
	p->fn = fn;
	p->arg = arg;
	p->affinity = affinity;
	p->state = TASK_SLEEPING;
	list_init(&p->tasks);
	init_waitqueue_head(&p->exit_wait);
	copy_thread(p);
	if (!attach_pid(p)) {
		free_task(p);
		return NULL;
	}
	return p;
}

struct task *kthread_create(int (*fn)(void *arg), void *arg, s32 affinity, const char *fmt, ...)
{
	TRACED;
	struct task *p = kthread_new(fn, arg, affinity);
	__builtin_va_list ap;

	if (!p)
		return NULL;
	__builtin_va_start(ap, fmt);
	vsnprintf(p->comm, sizeof(p->comm), fmt, ap);
	__builtin_va_end(ap);
	wake_up_new_task(p);
	return p;
}

struct task *kthread_run(int (*fn)(void *arg), void *arg, const char *fmt, ...)
{
	TRACED;
	struct task *p = kthread_new(fn, arg, -1);
	__builtin_va_list ap;

	if (!p)
		return NULL;
	__builtin_va_start(ap, fmt);
	vsnprintf(p->comm, sizeof(p->comm), fmt, ap);
	__builtin_va_end(ap);
	wake_up_new_task(p);
	return p;
}

/* The idle thread is what the CPU already runs on its boot stack (or will, once it is started). */
struct task *idle_task_init(u32 cpu, u64 stack)
{
	TRACED;
	struct task *p = &idle_tasks[cpu];

	p->stack = stack;
	p->cpu = cpu;
	p->affinity = (s32)cpu;
	p->on_cpu = 1;
	p->exec_start = rdtsc();
	list_init(&p->tasks);
	snprintf(p->comm, sizeof(p->comm), "swapper/%u", cpu);
	*(u64 *)stack = STACK_MAGIC;
	arch_spin_lock(&sched_lock);
	runqueues[cpu].idle = p;
	runqueues[cpu].curr = p;
	arch_spin_unlock(&sched_lock);
	return p;
}

notrace void thread_start(void)
{
	finish_task_switch();
	do_exit(current->fn(current->arg));
}

void do_exit(int code)
{
	TRACED;
	struct task *p = current;

	exit_files(p);
	p->exit_code = code;
	__atomic_store_n(&p->exited, 1, __ATOMIC_SEQ_CST);
	wake_up_all(&p->exit_wait);
	for (;;) {
		/* In the loop: a late waker may have overwritten it. */
		set_current_state(TASK_DEAD);
		schedule();
	}
}

static void wait_task_gone(struct task *p)
{
	TRACED;
	while (!task_is_gone(p))
		sched_yield();
}

int kthread_join(struct task *p)
{
	TRACED;
	wait_event(p->exit_wait, __atomic_load_n(&p->exited, __ATOMIC_ACQUIRE));
	wait_task_gone(p);
	int code = p->exit_code;

	detach_pid(p);
	free_task(p);
	return code;
}

bool kthread_should_stop(void)
{
	TRACED;
	return READ_ONCE(current->should_stop) != 0;
}

int kthread_stop(struct task *p)
{
	TRACED;
	__atomic_store_n(&p->should_stop, 1, __ATOMIC_SEQ_CST);
	wake_up_process(p);
	return kthread_join(p);
}

u32 nr_threads(void)
{
	TRACED;
	return READ_ONCE(nr_tasks);
}

void for_each_task(void (*fn)(struct task *p, void *arg), void *arg)
{
	TRACED;
	struct list_head *l;

	spin_lock(&tasks_lock);
	list_for_each(l, &all_tasks)
		fn(list_entry(l, struct task, tasks), arg);
	spin_unlock(&tasks_lock);
}
