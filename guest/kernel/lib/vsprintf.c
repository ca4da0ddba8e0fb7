/* Formatted output into a buffer of bounded size. */
#include "lib.h"

struct out {
	char *buf;
	size_t size, len;
};

struct spec {
	u32 width, base;
	bool zero, left, sign, wide;
};

static void put_char(struct out *o, char c)
{
	TRACED;
	if (o->len + 1 < o->size)
		o->buf[o->len] = c;
	o->len++;
}

static void pad(struct out *o, u32 n, char c)
{
	TRACED;
	while (n--)
		put_char(o, c);
}

static void put_string(struct out *o, const char *s, const struct spec *sp)
{
	TRACED;
	u32 n = s ? (u32)strnlen(s, 512) : 0;
	u32 fill = sp->width > n ? sp->width - n : 0;

	if (!sp->left)
		pad(o, fill, ' ');
	for (u32 i = 0; i < n; i++)
		put_char(o, s[i]);
	if (sp->left)
		pad(o, fill, ' ');
}

static void put_number(struct out *o, u64 v, const struct spec *sp)
{
	TRACED;
	char digits[24];
	u32 n = 0;
	bool neg = sp->sign && (s64)v < 0;

	if (neg)
		v = -v;
	do {
		digits[n++] = "0123456789abcdef"[v % sp->base];
		v /= sp->base;
	} while (v);
	u32 total = n + neg, fill = sp->width > total ? sp->width - total : 0;

	if (!sp->left && !sp->zero)
		pad(o, fill, ' ');
	if (neg)
		put_char(o, '-');
	if (!sp->left && sp->zero)
		pad(o, fill, '0');
	while (n)
		put_char(o, digits[--n]);
	if (sp->left)
		pad(o, fill, ' ');
}

static const char *parse_spec(const char *f, struct spec *sp)
{
	TRACED;
	for (;; f++) {
		if (*f == '-')
			sp->left = true;
		else if (*f == '0')
			sp->zero = true;
		else
			break;
	}
	for (; *f >= '0' && *f <= '9'; f++)
		sp->width = min(sp->width * 10 + (u32)(*f - '0'), 256U);
	for (; *f == 'l' || *f == 'z'; f++)
		sp->wide = true;
	return f;
}

int vsnprintf(char *buf, size_t size, const char *fmt, __builtin_va_list ap)
{
	TRACED;
	struct out o = { buf, size, 0 };

	for (; *fmt; fmt++) {
		struct spec sp = { .base = 10 };

		if (*fmt != '%') {
			put_char(&o, *fmt);
			continue;
		}
		fmt = parse_spec(fmt + 1, &sp);
		switch (*fmt) {
		case 's':
			put_string(&o, __builtin_va_arg(ap, const char *), &sp);
			break;
		case 'c':
			put_char(&o, (char)__builtin_va_arg(ap, int));
			break;
		case 'd':
			sp.sign = true;
			put_number(&o, sp.wide ? __builtin_va_arg(ap, u64) : (u64)__builtin_va_arg(ap, int), &sp);
			break;
		case 'x':
			sp.base = 16;
			__attribute__((fallthrough));
		case 'u':
			put_number(&o, sp.wide ? __builtin_va_arg(ap, u64) : __builtin_va_arg(ap, u32), &sp);
			break;
		case 'p':
			sp.base = 16;
			put_number(&o, __builtin_va_arg(ap, u64), &sp);
			break;
		case 0:
			fmt--;
			break;
		default:
			put_char(&o, *fmt);
		}
	}
	if (size)
		buf[min(o.len, size - 1)] = 0;
	return (int)o.len;
}

int snprintf(char *buf, size_t size, const char *fmt, ...)
{
	TRACED;
	__builtin_va_list ap;

	__builtin_va_start(ap, fmt);
	int n = vsnprintf(buf, size, fmt, ap);

	__builtin_va_end(ap);
	return n;
}
