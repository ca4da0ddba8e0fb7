/* Integer types and the attributes every file needs. */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
typedef int s32;
typedef long s64;
typedef unsigned long size_t;
typedef long ssize_t;
typedef _Bool bool;

#define true 1
#define false 0
#define NULL ((void *)0)

/* Not traced: no site and no TRACED. */
#define notrace __attribute__((no_instrument_function))
#define __always_inline inline __attribute__((always_inline))
#define __noreturn __attribute__((noreturn))
#define __unused __attribute__((unused))
#define __printf(f, a) __attribute__((format(printf, f, a)))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define barrier() asm volatile("" ::: "memory")
#define READ_ONCE(x) (*(const volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile __typeof__(x) *)&(x) = (v))
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define BIT(n) (1UL << (n))
#define offsetof(t, m) __builtin_offsetof(t, m)
#define container_of(p, t, m) ((t *)((char *)(p) - offsetof(t, m)))
#define min(a, b) ({ __typeof__(a) _a = (a); __typeof__(b) _b = (b); _a < _b ? _a : _b; })
#define max(a, b) ({ __typeof__(a) _a = (a); __typeof__(b) _b = (b); _a > _b ? _a : _b; })

/*
 * The function's own call counter: one instruction at the start of each traced function, next to but independent of
 * the tracer's site. The counter is per CPU; .gt_table lists {address of the instruction, per-CPU offset}.
 */
#define TRACED                                                                                     \
	asm volatile(".pushsection .data..percpu..gt,\"aw\",@progbits\n\t"                         \
		     ".balign 8\n"                                                                 \
		     "778:\t.quad 0\n\t"                                                           \
		     ".popsection\n"                                                               \
		     "777:\tincq %%gs:778b\n\t"                                                    \
		     ".pushsection .gt_table,\"a\",@progbits\n\t"                                  \
		     ".quad 777b, 778b\n\t"                                                        \
		     ".popsection" ::                                                              \
			     : "memory", "cc")
