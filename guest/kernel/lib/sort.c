/* Heap sort of an array, and binary search in it. */
#include "lib.h"

static void swap_bytes(u8 *a, u8 *b, size_t n)
{
	TRACED;
	while (n--) {
		u8 t = *a;

		*a++ = *b;
		*b++ = t;
	}
}

static void sift_down(u8 *base, size_t i, size_t n, size_t size, int (*cmp)(const void *a, const void *b))
{
	TRACED;
	for (size_t c; (c = 2 * i + 1) < n; i = c) {
		if (c + 1 < n && cmp(base + c * size, base + (c + 1) * size) < 0)
			c++;
		if (cmp(base + i * size, base + c * size) >= 0)
			return;
		swap_bytes(base + i * size, base + c * size, size);
	}
}

void sort(void *base, size_t n, size_t size, int (*cmp)(const void *a, const void *b))
{
	TRACED;
	u8 *b = base;

	for (size_t i = n / 2; i-- > 0;)
		sift_down(b, i, n, size, cmp);
	for (size_t end = n; end > 1; end--) {
		swap_bytes(b, b + (end - 1) * size, size);
		sift_down(b, 0, end - 1, size, cmp);
	}
}

void *bsearch(const void *key, const void *base, size_t n, size_t size, int (*cmp)(const void *a, const void *b))
{
	TRACED;
	const u8 *b = base;

	while (n) {
		const u8 *mid = b + n / 2 * size;
		int c = cmp(key, mid);

		if (!c)
			return (void *)mid;
		if (c > 0) {
			b = mid + size;
			n--;
		}
		n /= 2;
	}
	return NULL;
}
