/*
 * Spinlocks. Plain ones are for data that only threads touch; whatever an interrupt or softirq also takes needs the
 * _irqsave kind. Not queued: with more vCPUs than host CPUs a queue makes every waiter wait for a sleeping one.
 */
#pragma once
#include "asm.h"
#include "irqflags.h"

typedef struct {
	u32 locked;
} spinlock_t;

#define SPINLOCK_INIT { 0 }

void spin_lock_slowpath(spinlock_t *l);

/* For the scheduler and the console, which manage masking themselves. */
static __always_inline void arch_spin_lock(spinlock_t *l)
{
	if (unlikely(__atomic_exchange_n(&l->locked, 1, __ATOMIC_ACQUIRE)))
		spin_lock_slowpath(l);
}

static __always_inline void arch_spin_unlock(spinlock_t *l)
{
	__atomic_store_n(&l->locked, 0, __ATOMIC_RELEASE);
}

void spin_lock(spinlock_t *l);
bool spin_trylock(spinlock_t *l);
void spin_unlock(spinlock_t *l);
void spin_lock_irqsave(spinlock_t *l);
void spin_unlock_irqrestore(spinlock_t *l);

/* Reference counts. */
typedef struct {
	s32 n;
} refcount_t;

static __always_inline void refcount_set(refcount_t *r, s32 n)
{
	__atomic_store_n(&r->n, n, __ATOMIC_RELAXED);
}

static __always_inline s32 refcount_read(refcount_t *r)
{
	return __atomic_load_n(&r->n, __ATOMIC_ACQUIRE);
}

void refcount_inc(refcount_t *r);
bool refcount_dec_and_test(refcount_t *r);
