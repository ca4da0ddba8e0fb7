/* Single instructions. */
#pragma once
#include "types.h"

static __always_inline void outl(u16 port, u32 v)
{
	asm volatile("outl %0, %1" ::"a"(v), "Nd"(port) : "memory");
}

static __always_inline void outb(u16 port, u8 v)
{
	asm volatile("outb %0, %1" ::"a"(v), "Nd"(port) : "memory");
}

static __always_inline u8 inb(u16 port)
{
	u8 v;
	asm volatile("inb %1, %0" : "=a"(v) : "Nd"(port) : "memory");
	return v;
}

static __always_inline void cpu_relax(void)
{
	asm volatile("pause" ::: "memory");
}

static __always_inline u64 rdtsc(void)
{
	u32 lo, hi;
	asm volatile("rdtsc" : "=a"(lo), "=d"(hi));
	return ((u64)hi << 32) | lo;
}

static __always_inline void smp_mb(void)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* memcpy and friends are assembly without a site: the compiler may call them from anywhere. */
void *memcpy(void *to, const void *from, size_t n);
void *memset(void *p, int c, size_t n);
void *memmove(void *to, const void *from, size_t n);
int memcmp(const void *a, const void *b, size_t n);
