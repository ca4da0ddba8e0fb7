/* Bitmaps of 64-bit words. */
#include "lib.h"

void bitmap_set(u64 *map, u32 start, u32 n)
{
	TRACED;
	for (; n; n--, start++)
		map[start / 64] |= BIT(start % 64);
}

void bitmap_clear(u64 *map, u32 start, u32 n)
{
	TRACED;
	for (; n; n--, start++)
		map[start / 64] &= ~BIT(start % 64);
}

static u32 hweight64(u64 v)
{
	TRACED;
	u32 n = 0;

	for (; v; v &= v - 1)
		n++;
	return n;
}

u32 bitmap_weight(const u64 *map, u32 bits)
{
	TRACED;
	u32 n = 0;

	for (; bits >= 64; bits -= 64)
		n += hweight64(*map++);
	return bits ? n + hweight64(*map & (BIT(bits) - 1)) : n;
}

/* `bits` if there is none. */
u32 find_next_bit(const u64 *map, u32 bits, u32 start)
{
	TRACED;
	while (start < bits) {
		u64 w = map[start / 64] >> start % 64;

		if (w)
			return min(start + (u32)__builtin_ctzl(w), bits);
		start = (start / 64 + 1) * 64;
	}
	return bits;
}

u32 find_next_zero_bit(const u64 *map, u32 bits, u32 start)
{
	TRACED;
	while (start < bits) {
		u64 w = ~map[start / 64] >> start % 64;

		if (w)
			return min(start + (u32)__builtin_ctzl(w), bits);
		start = (start / 64 + 1) * 64;
	}
	return bits;
}

bool test_and_set_bit(u32 n, u64 *map)
{
	TRACED;
	return __atomic_fetch_or(&map[n / 64], BIT(n % 64), __ATOMIC_SEQ_CST) & BIT(n % 64);
}

void clear_bit(u32 n, u64 *map)
{
	TRACED;
	__atomic_fetch_and(&map[n / 64], ~BIT(n % 64), __ATOMIC_SEQ_CST);
}
