/* Spinlocks and reference counts, out of line: a tracer of a real kernel sees them as well. */
#include "kernel.h"

/* About a minute. A vCPU that holds the lock may be descheduled by its host, but not for so long. */
#define LOCKUP_SPINS (1UL << 31)

notrace void spin_lock_slowpath(spinlock_t *l)
{
	u64 spins = 0;

	do {
		while (READ_ONCE(l->locked)) {
			cpu_relax();
			if (++spins == LOCKUP_SPINS)
				panic("spinlock %p: lockup on CPU %u", (void *)l, smp_processor_id());
		}
	} while (__atomic_exchange_n(&l->locked, 1, __ATOMIC_ACQUIRE));
}

void spin_lock(spinlock_t *l)
{
	TRACED;
	preempt_disable();
	arch_spin_lock(l);
}

bool spin_trylock(spinlock_t *l)
{
	TRACED;
	preempt_disable();
	if (!__atomic_exchange_n(&l->locked, 1, __ATOMIC_ACQUIRE))
		return true;
	preempt_enable();
	return false;
}

void spin_unlock(spinlock_t *l)
{
	TRACED;
	BUG_ON(!READ_ONCE(l->locked));
	arch_spin_unlock(l);
	preempt_enable();
}

void spin_lock_irqsave(spinlock_t *l)
{
	TRACED;
	local_irq_disable();
	preempt_disable();
	arch_spin_lock(l);
}

void spin_unlock_irqrestore(spinlock_t *l)
{
	TRACED;
	BUG_ON(!READ_ONCE(l->locked));
	arch_spin_unlock(l);
	local_irq_enable();
	preempt_enable();
}

void refcount_inc(refcount_t *r)
{
	TRACED;
	s32 old = __atomic_fetch_add(&r->n, 1, __ATOMIC_RELAXED);

	BUG_ON(old <= 0);
}

bool refcount_dec_and_test(refcount_t *r)
{
	TRACED;
	s32 old = __atomic_fetch_sub(&r->n, 1, __ATOMIC_ACQ_REL);

	BUG_ON(old <= 0);
	return old == 1;
}
