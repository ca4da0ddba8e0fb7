/* Checksums and hashes. */
#include "lib.h"

static u32 crc_table[256];

static u32 crc32_entry(u32 c)
{
	TRACED;
	for (u32 i = 0; i < 8; i++)
		c = c & 1 ? (c >> 1) ^ 0xedb88320U : c >> 1;
	return c;
}

void crc32_init(void)
{
	TRACED;
	for (u32 i = 0; i < 256; i++)
		crc_table[i] = crc32_entry(i);
}

/* Start with 0; feed what came before to go on. */
u32 crc32_le(u32 crc, const void *p, size_t n)
{
	TRACED;
	const u8 *b = p;

	crc = ~crc;
	while (n--)
		crc = crc_table[(crc ^ *b++) & 255] ^ (crc >> 8);
	return ~crc;
}

u64 fnv1a64(const void *p, size_t n)
{
	TRACED;
	const u8 *b = p;
	u64 h = 14695981039346656037UL;

	while (n--)
		h = (h ^ *b++) * 1099511628211UL;
	return h;
}

u32 adler32(u32 a, const void *p, size_t n)
{
	TRACED;
	const u8 *b = p;
	u32 lo = a & 0xffff, hi = a >> 16;

	while (n--) {
		lo = (lo + *b++) % 65521;
		hi = (hi + lo) % 65521;
	}
	return hi << 16 | lo;
}

u64 hash_64(u64 v, u32 bits)
{
	TRACED;
	return v * 0x61c8864680b583ebUL >> (64 - bits);
}

u64 mix64(u64 v)
{
	TRACED;
	v = (v ^ (v >> 30)) * 0xbf58476d1ce4e5b9UL;
	v = (v ^ (v >> 27)) * 0x94d049bb133111ebUL;
	return v ^ (v >> 31);
}
