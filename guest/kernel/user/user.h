/* What "user" programs see of the kernel: system calls and nothing else. This folder is compiled without sites. */
#pragma once
#include "work.h"

#define sys(nr, a, b, c, d) do_syscall(SYS_##nr, (u64)(a), (u64)(b), (u64)(c), (u64)(d))

static __always_inline u64 u_hash(u64 v)
{
	v = (v ^ (v >> 31)) * 0x7fb5d329728ea185UL;
	v = (v ^ (v >> 27)) * 0x81dadef4bc2dd44dUL;
	return v ^ (v >> 33);
}

/* A program's own random numbers, from the worker's seed. */
static __always_inline u32 u_rand(struct worker *w, u32 limit)
{
	w->rnd.s[0] += 0x9e3779b97f4a7c15UL;
	return (u32)((u_hash(w->rnd.s[0] ^ w->rnd.s[1]) >> 32) * limit >> 32);
}

/* Appends text; returns the new end. */
static __always_inline char *u_puts(char *to, const char *s)
{
	while (*s)
		*to++ = *s++;
	*to = 0;
	return to;
}

static __always_inline char *u_putn(char *to, u32 n)
{
	char digits[12];
	u32 k = 0;

	do {
		digits[k++] = (char)('0' + n % 10);
		n /= 10;
	} while (n);
	while (k)
		*to++ = digits[--k];
	*to = 0;
	return to;
}

#define u_check(w, cond)                                                                           \
	do {                                                                                       \
		if (!(cond))                                                                       \
			selfcheck_fail("worker %u, iteration %lu: %s", (w)->id, (w)->iters, #cond); \
	} while (0)
