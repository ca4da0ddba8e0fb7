/* Pseudo-random numbers (xoroshiro128+), each user with a state of its own: what one gets never depends on another. */
#include "lib.h"

static __always_inline u64 rol64(u64 v, u32 n)
{
	return v << n | v >> (64 - n);
}

void prandom_seed_state(struct rnd_state *r, u64 seed)
{
	TRACED;
	r->s[0] = mix64(seed + 0x9e3779b97f4a7c15UL);
	r->s[1] = mix64(seed + 0x3c6ef372fe94f82aUL) | 1;
}

u64 prandom_u64_state(struct rnd_state *r)
{
	TRACED;
	u64 a = r->s[0], b = r->s[1], v = a + b;

	b ^= a;
	r->s[0] = rol64(a, 24) ^ b ^ (b << 16);
	r->s[1] = rol64(b, 37);
	return v;
}

u32 prandom_u32_below(struct rnd_state *r, u32 limit)
{
	TRACED;
	return (u32)((prandom_u64_state(r) >> 32) * limit >> 32);
}

void prandom_bytes_state(struct rnd_state *r, void *p, size_t n)
{
	TRACED;
	u8 *b = p;

	while (n) {
		u64 v = prandom_u64_state(r);
		size_t k = min(n, sizeof(v));

		memcpy(b, &v, k);
		b += k;
		n -= k;
	}
}
