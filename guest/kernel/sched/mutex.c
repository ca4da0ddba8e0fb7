/* Sleeping locks. */
#include "sched.h"

void mutex_init(struct mutex *m)
{
	TRACED;
	m->owner = NULL;
	init_waitqueue_head(&m->wait);
}

bool mutex_trylock(struct mutex *m)
{
	TRACED;
	struct task *none = NULL;

	return __atomic_compare_exchange_n(&m->owner, &none, current, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static void __mutex_lock_slowpath(struct mutex *m)
{
	TRACED;
	BUG_ON(READ_ONCE(m->owner) == current);
	wait_event(m->wait, mutex_trylock(m));
}

void mutex_lock(struct mutex *m)
{
	TRACED;
	if (!mutex_trylock(m))
		__mutex_lock_slowpath(m);
}

void mutex_unlock(struct mutex *m)
{
	TRACED;
	BUG_ON(READ_ONCE(m->owner) != current);
	__atomic_store_n(&m->owner, NULL, __ATOMIC_SEQ_CST);
	if (!list_empty(&m->wait.head))
		wake_up(&m->wait);
}

void sema_init(struct semaphore *s, s32 n)
{
	TRACED;
	s->count = n;
	init_waitqueue_head(&s->wait);
}

static bool down_trylock(struct semaphore *s)
{
	TRACED;
	s32 n = READ_ONCE(s->count);

	while (n > 0)
		if (__atomic_compare_exchange_n(&s->count, &n, n - 1, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
			return true;
	return false;
}

void down(struct semaphore *s)
{
	TRACED;
	if (!down_trylock(s))
		wait_event(s->wait, down_trylock(s));
}

void up(struct semaphore *s)
{
	TRACED;
	__atomic_fetch_add(&s->count, 1, __ATOMIC_SEQ_CST);
	wake_up(&s->wait);
}

void init_rwsem(struct rw_semaphore *s)
{
	TRACED;
	s->count = 0;
	init_waitqueue_head(&s->wait);
}

static bool rwsem_try_read(struct rw_semaphore *s)
{
	TRACED;
	s32 n = READ_ONCE(s->count);

	while (n >= 0)
		if (__atomic_compare_exchange_n(&s->count, &n, n + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
			return true;
	return false;
}

static bool rwsem_try_write(struct rw_semaphore *s)
{
	TRACED;
	s32 none = 0;

	return __atomic_compare_exchange_n(&s->count, &none, -1, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

void down_read(struct rw_semaphore *s)
{
	TRACED;
	if (!rwsem_try_read(s))
		wait_event(s->wait, rwsem_try_read(s));
}

void up_read(struct rw_semaphore *s)
{
	TRACED;
	if (__atomic_sub_fetch(&s->count, 1, __ATOMIC_SEQ_CST) == 0)
		wake_up_all(&s->wait);
}

void down_write(struct rw_semaphore *s)
{
	TRACED;
	if (!rwsem_try_write(s))
		wait_event(s->wait, rwsem_try_write(s));
}

void up_write(struct rw_semaphore *s)
{
	TRACED;
	__atomic_store_n(&s->count, 0, __ATOMIC_SEQ_CST);
	wake_up_all(&s->wait);
}
