/* What the core offers to all: log, panic, boot parameters, shutdown, ports. */
#pragma once
#include "exo_abi.h"
#include "irqflags.h"
#include "lib.h"
#include "spinlock.h"

struct boot_info {
	u32 magic, nr_cpus, cpl, reserved;
	u64 ram_bytes, tsc_hz;
	char cmdline[EXO_CMDLINE_BYTES];
};

struct pt_regs {
	u64 r15, r14, r13, r12, r11, r10, r9, r8, rdi, rsi, rbp, rbx, rdx, rcx, rax;
	u64 vector, error, rip, cs, rflags, rsp, ss;
};

struct params {
	char workload[16];
	u64 seed, iters, threads, hz, nmi_hz, load, rounds;
	bool quiet, iters_set;
};

extern struct boot_info *boot_info;
extern struct params params;
extern u64 boot_cpl;
extern u32 nr_cpus;

#define MAX_ERRNO 4095
#define IS_ERR(p) unlikely((u64)(p) >= (u64)-MAX_ERRNO)
#define PTR_ERR(p) ((s64)(p))
#define ERR_PTR(e) ((void *)(s64)(e))
enum {
	EPERM = 1, ENOENT = 2, ESRCH = 3, EINTR = 4, EIO = 5, EBADF = 9, ECHILD = 10, EAGAIN = 11, ENOMEM = 12,
	EFAULT = 14, EBUSY = 16, EEXIST = 17, ENOTDIR = 20, EISDIR = 21, EINVAL = 22, ENFILE = 23, EMFILE = 24,
	EFBIG = 27, ESPIPE = 29, EPIPE = 32, ENAMETOOLONG = 36, ENOSYS = 38, ENOTEMPTY = 39,
};

/* core/printk.c */
void printk(const char *fmt, ...) __printf(1, 2);
void pr_emerg(const char *fmt, ...) __printf(1, 2);
void console_write(const char *s, size_t n);
void console_force_unlock(void);

/* core/panic.c */
void panic(const char *fmt, ...) __printf(1, 2) __noreturn;
u32 stack_walk(u64 rbp, u64 lo, u64 hi, u64 *out, u32 max);
extern u64 panicking;
#define BUG_ON(c)                                                                                  \
	do {                                                                                       \
		if (unlikely(c))                                                                   \
			panic("BUG: %s, in %s", #c, __func__);                                     \
	} while (0)

/* core/params.c */
void parse_cmdline(const char *s);

/* core/shutdown.c */
void machine_halt(u32 code) __noreturn;
void stop_this_cpu(void) __noreturn;
void stop_other_cpus(void);
extern u64 system_stopping;

/* arch */
void idt_init(void);
void cpl0_hang(void) __noreturn;
void cpl0_triple_fault(void) __noreturn;
void idle_wait(void);
void smp_init(void);
u32 num_online_cpus(void);
void smp_send_ipi(u32 cpu);
void handle_ipi(void);
void on_each_cpu(void (*fn)(void *arg), void *arg);
void do_irq(u64 vector);
void do_nmi(struct pt_regs *regs);
u64 nmi_total(void);
void start_kernel(void) __noreturn;
void rest_init(void *arg);

/* drivers */
void serial_init(void);
void serial_interrupt(void);
bool serial_getc(char *c);
void tty_init(void);
void tty_receive(char c);
ssize_t tty_read(char *buf, size_t n);
void shell_start(void);
void shell_stop(void);
