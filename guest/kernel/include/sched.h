/* Threads, the scheduler, and everything that makes a thread wait. */
#pragma once
#include "kernel.h"

#define THREAD_SIZE 16384UL
#define STACK_MAGIC 0x57ac6e9d57ac6e9dUL

enum { TASK_RUNNING = 0, TASK_SLEEPING = 1, TASK_DEAD = 2 };

struct wait_queue_head {
	spinlock_t lock;
	struct list_head head;
};

struct files_struct;

struct task {
	u64 rsp; /* first: switch.S */
	u64 stack;
	u32 pid;
	u32 state;
	u32 on_rq, on_cpu; /* under sched_lock */
	u32 cpu;
	s32 affinity; /* -1: any CPU */
	u64 vruntime, exec_start, sum_exec, nr_switches, nr_migrations;
	struct rb_node run_node;
	struct list_head tasks;
	char comm[16];
	int (*fn)(void *arg);
	void *arg;
	int exit_code;
	u32 exited;
	u32 should_stop;
	struct wait_queue_head exit_wait;
	struct files_struct *files;
	u64 nr_syscalls;
};

struct rq {
	struct rb_root tree;
	u32 nr_running; /* in the tree; the running one is not */
	u32 cpu;
	u64 min_vruntime;
	struct task *curr, *idle;
	u64 nr_switches, nr_balance;
};

extern spinlock_t sched_lock;
extern struct rq runqueues[EXO_MAX_CPUS];

/* sched/core.c */
void sched_init(void);
void schedule(void);
void schedule_idle(void);
void preempt_schedule_irq(void);
void finish_task_switch(void);
int wake_up_process(struct task *p);
void wake_up_new_task(struct task *p);
void sched_yield(void);
void cond_resched(void);
void scheduler_tick(void);
void set_current_state(u32 state);
void resched_curr(struct rq *rq);
bool task_is_gone(struct task *p);
struct task *context_switch(struct task *prev, struct task *next);

/* sched/fair.c (all under sched_lock) */
void update_curr(struct rq *rq);
void enqueue_task(struct rq *rq, struct task *p);
void dequeue_task(struct rq *rq, struct task *p);
struct task *pick_next_task(struct rq *rq);
bool check_preempt_tick(struct rq *rq);
void place_entity(struct rq *rq, struct task *p);

/* sched/balance.c */
u32 select_task_rq(struct task *p);
bool idle_balance(struct rq *rq);
void trigger_load_balance(void);
void run_rebalance_domains(void);
void sched_check(void);

/* sched/fork.c */
void fork_init(void);
struct task *kthread_create(int (*fn)(void *arg), void *arg, s32 affinity, const char *fmt, ...) __printf(4, 5);
struct task *kthread_run(int (*fn)(void *arg), void *arg, const char *fmt, ...) __printf(3, 4);
struct task *idle_task_init(u32 cpu, u64 stack);
int kthread_join(struct task *p);
int kthread_stop(struct task *p);
bool kthread_should_stop(void);
void do_exit(int code) __noreturn;
u32 nr_threads(void);
void for_each_task(void (*fn)(struct task *p, void *arg), void *arg);
void cpu_idle_loop(void) __noreturn;

/* sched/wait.c */
struct wait_queue_entry {
	struct task *task;
	struct list_head entry;
};
#define WAIT_QUEUE_INIT(n) { SPINLOCK_INIT, LIST_HEAD_INIT((n).head) }
void init_waitqueue_head(struct wait_queue_head *q);
void prepare_to_wait(struct wait_queue_head *q, struct wait_queue_entry *w);
void finish_wait(struct wait_queue_head *q, struct wait_queue_entry *w);
void wake_up(struct wait_queue_head *q);
void wake_up_all(struct wait_queue_head *q);
#define wait_event(q, cond)                                                                        \
	do {                                                                                       \
		struct wait_queue_entry _w = { .task = NULL };                                     \
		for (;;) {                                                                         \
			prepare_to_wait(&(q), &_w);                                                \
			if (cond)                                                                  \
				break;                                                             \
			schedule();                                                                \
		}                                                                                  \
		finish_wait(&(q), &_w);                                                            \
	} while (0)

struct completion {
	u32 done;
	struct wait_queue_head wait;
};
void init_completion(struct completion *c);
void complete(struct completion *c);
void wait_for_completion(struct completion *c);

/* sched/mutex.c */
struct mutex {
	struct task *owner;
	struct wait_queue_head wait;
};
#define MUTEX_INIT(n) { NULL, WAIT_QUEUE_INIT((n).wait) }
void mutex_init(struct mutex *m);
void mutex_lock(struct mutex *m);
bool mutex_trylock(struct mutex *m);
void mutex_unlock(struct mutex *m);
struct semaphore {
	s32 count;
	struct wait_queue_head wait;
};
void sema_init(struct semaphore *s, s32 n);
void down(struct semaphore *s);
void up(struct semaphore *s);
struct rw_semaphore {
	s32 count; /* readers, or -1 */
	struct wait_queue_head wait;
};
void init_rwsem(struct rw_semaphore *s);
void down_read(struct rw_semaphore *s);
void up_read(struct rw_semaphore *s);
void down_write(struct rw_semaphore *s);
void up_write(struct rw_semaphore *s);
