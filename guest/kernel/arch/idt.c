/* The interrupt descriptor table, faults, and the calls down to CPL 0. */
#include "kernel.h"

struct idt_gate {
	u16 lo, sel;
	u8 ist, type;
	u16 mid;
	u32 hi, zero;
};

extern const u64 fault_stubs[32];
void irq_timer(void);
void irq_ipi(void);
void irq_serial(void);
void nmi_stub(void);
void cpl0_call(u32 what) __noreturn;
void do_fault(struct pt_regs *regs);

static void set_gate(u32 vector, u64 handler)
{
	TRACED;
	struct idt_gate *g = (struct idt_gate *)(EXO_IDT_GPA + EXO_VIRT_OFFSET) + vector;

	g->lo = (u16)handler;
	g->sel = EXO_SEL_CODE0;
	g->ist = 0;
	g->type = 0x8e;
	g->mid = (u16)(handler >> 16);
	g->hi = (u32)(handler >> 32);
	g->zero = 0;
}

void idt_init(void)
{
	TRACED;
	for (u32 i = 0; i < 32; i++)
		set_gate(i, fault_stubs[i]);
	set_gate(2, (u64)nmi_stub);
	set_gate(EXO_VEC_TIMER, (u64)irq_timer);
	set_gate(EXO_VEC_IPI, (u64)irq_ipi);
	set_gate(EXO_VEC_SERIAL, (u64)irq_serial);
}

static const char *fault_name(u64 vector)
{
	TRACED;
	static const char *const names[] = {
		"divide error", "debug", "NMI", "breakpoint", "overflow", "bound range", "invalid opcode",
		"device not available", "double fault", "coprocessor overrun", "invalid TSS", "segment not present",
		"stack fault", "general protection fault", "page fault",
	};

	return vector < ARRAY_SIZE(names) ? names[vector] : "exception";
}

/* No fault is expected, so all of them end the run. */
notrace void do_fault(struct pt_regs *regs)
{
	local_irq_disable();
	panic("%s (vector %lu, error %lx) at %lx, cr2 %lx, rsp %lx, cs %lx, CPU %u", fault_name(regs->vector),
	      regs->vector, regs->error, regs->rip, this_cpu_read(fault_cr2), regs->rsp, regs->cs, smp_processor_id());
}

/* A real `cli; hlt`: nothing but an NMI wakes this CPU again. */
notrace void cpl0_hang(void)
{
	cpl0_call(1);
}

notrace void cpl0_triple_fault(void)
{
	cpl0_call(2);
}
