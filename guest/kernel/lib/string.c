/* Strings. */
#include "kernel.h"

size_t strlen(const char *s)
{
	TRACED;
	size_t n = 0;

	while (s[n])
		n++;
	return n;
}

size_t strnlen(const char *s, size_t max)
{
	TRACED;
	size_t n = 0;

	while (n < max && s[n])
		n++;
	return n;
}

int strcmp(const char *a, const char *b)
{
	TRACED;
	while (*a && *a == *b) {
		a++;
		b++;
	}
	return (u8)*a - (u8)*b;
}

int strncmp(const char *a, const char *b, size_t n)
{
	TRACED;
	for (; n; n--, a++, b++) {
		if (*a != *b)
			return (u8)*a - (u8)*b;
		if (!*a)
			break;
	}
	return 0;
}

char *strchr(const char *s, int c)
{
	TRACED;
	for (; *s != (char)c; s++)
		if (!*s)
			return NULL;
	return (char *)s;
}

/* Always terminates; returns the length of `from`. */
size_t strlcpy(char *to, const char *from, size_t size)
{
	TRACED;
	size_t n = strlen(from);

	if (size) {
		size_t len = min(n, size - 1);

		memcpy(to, from, len);
		to[len] = 0;
	}
	return n;
}

static int digit_value(char c)
{
	TRACED;
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return 99;
}

/* Decimal or 0x-hexadecimal; -EINVAL for anything else and for what doesn't fit. */
int kstrtoull(const char *s, u64 *out)
{
	TRACED;
	u64 base = 10, v = 0;

	if (s[0] == '0' && (s[1] == 'x' || s[1] == 'X')) {
		base = 16;
		s += 2;
	}
	if (!*s)
		return -EINVAL;
	for (; *s; s++) {
		u64 d = (u64)digit_value(*s);

		if (d >= base || __builtin_mul_overflow(v, base, &v) || __builtin_add_overflow(v, d, &v))
			return -EINVAL;
	}
	*out = v;
	return 0;
}

char *skip_spaces(char *s)
{
	TRACED;
	while (*s == ' ' || *s == '\t')
		s++;
	return s;
}

/* Cuts the next piece off; NULL at the end. */
char *strsep(char **s, char sep)
{
	TRACED;
	char *start = *s;

	if (!start)
		return NULL;
	char *end = strchr(start, sep);

	if (end)
		*end++ = 0;
	*s = end;
	return start;
}

u32 full_name_hash(const char *s, size_t n)
{
	TRACED;
	u32 h = 2166136261U;

	while (n--)
		h = (h ^ (u8)*s++) * 16777619U;
	return h;
}
