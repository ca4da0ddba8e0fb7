/* The serial port's receive side: an interrupt says that there is input. */
#include "time.h"

#define UART_IER (EXO_PORT_SERIAL + 1)
#define UART_LSR (EXO_PORT_SERIAL + 5)
#define LSR_DATA_READY 1
/* More in one interrupt would mean that nothing is there and all bits read as one. */
#define MAX_BURST 64

static struct tasklet rx_tasklet;
static struct kfifo rx_fifo;
static u8 rx_buf[256];

bool serial_getc(char *c)
{
	TRACED;
	if (!(inb(UART_LSR) & LSR_DATA_READY))
		return false;
	*c = (char)inb(EXO_PORT_SERIAL);
	return true;
}

static void serial_rx_tasklet(void *arg __unused)
{
	TRACED;
	char c;

	while (kfifo_out(&rx_fifo, &c, 1))
		tty_receive(c);
}

/* Input that finds the buffer full is lost, as on any serial port. */
void serial_interrupt(void)
{
	TRACED;
	char c;

	for (u32 i = 0; i < MAX_BURST && serial_getc(&c); i++)
		kfifo_in(&rx_fifo, &c, 1);
	tasklet_schedule(&rx_tasklet);
}

void serial_init(void)
{
	TRACED;
	kfifo_init(&rx_fifo, rx_buf, sizeof(rx_buf));
	tasklet_init(&rx_tasklet, serial_rx_tasklet, NULL);
	outb(UART_IER, 1);
}
