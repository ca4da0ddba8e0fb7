/* Library routines: strings, formatting, checksums, random numbers, trees, bitmaps. */
#pragma once
#include "asm.h"
#include "list.h"

/* lib/string.c */
size_t strlen(const char *s);
size_t strnlen(const char *s, size_t max);
int strcmp(const char *a, const char *b);
int strncmp(const char *a, const char *b, size_t n);
char *strchr(const char *s, int c);
size_t strlcpy(char *to, const char *from, size_t size);
int kstrtoull(const char *s, u64 *out);
char *skip_spaces(char *s);
char *strsep(char **s, char sep);
u32 full_name_hash(const char *s, size_t n);

/* lib/vsprintf.c: %s %c %d %u %x %lu %ld %lx %p %%, width, zero padding and '-'. */
int vsnprintf(char *buf, size_t size, const char *fmt, __builtin_va_list ap);
int snprintf(char *buf, size_t size, const char *fmt, ...) __printf(3, 4);

/* lib/checksum.c */
void crc32_init(void);
u32 crc32_le(u32 crc, const void *p, size_t n);
u64 fnv1a64(const void *p, size_t n);
u32 adler32(u32 a, const void *p, size_t n);
u64 hash_64(u64 v, u32 bits);
u64 mix64(u64 v);

/* lib/random.c */
struct rnd_state {
	u64 s[2];
};
void prandom_seed_state(struct rnd_state *r, u64 seed);
u64 prandom_u64_state(struct rnd_state *r);
u32 prandom_u32_below(struct rnd_state *r, u32 limit);
void prandom_bytes_state(struct rnd_state *r, void *p, size_t n);

/* lib/rbtree.c */
struct rb_node {
	struct rb_node *parent, *left, *right;
	u64 red;
};
struct rb_root {
	struct rb_node *node;
};
void rb_link_node(struct rb_node *n, struct rb_node *parent, struct rb_node **link);
void rb_insert_color(struct rb_node *n, struct rb_root *root);
void rb_erase(struct rb_node *n, struct rb_root *root);
struct rb_node *rb_first(const struct rb_root *root);
struct rb_node *rb_last(const struct rb_root *root);
struct rb_node *rb_next(const struct rb_node *n);
struct rb_node *rb_prev(const struct rb_node *n);
int rb_check(const struct rb_root *root);

/* lib/radix.c: 64-way tree of pointers. The caller locks. */
struct radix_node;
struct radix_root {
	struct radix_node *node;
	u32 height;
};
void *radix_tree_lookup(struct radix_root *r, u64 index);
int radix_tree_insert(struct radix_root *r, u64 index, void *item);
void *radix_tree_delete(struct radix_root *r, u64 index);
u32 radix_tree_gang_lookup(struct radix_root *r, void **items, u64 *indices, u64 first, u32 max);
void radix_tree_init(void);

/* lib/bitmap.c */
void bitmap_set(u64 *map, u32 start, u32 n);
void bitmap_clear(u64 *map, u32 start, u32 n);
u32 bitmap_weight(const u64 *map, u32 bits);
u32 find_next_bit(const u64 *map, u32 bits, u32 start);
u32 find_next_zero_bit(const u64 *map, u32 bits, u32 start);
bool test_and_set_bit(u32 n, u64 *map);
void clear_bit(u32 n, u64 *map);

/* lib/sort.c */
void sort(void *base, size_t n, size_t size, int (*cmp)(const void *a, const void *b));
void *bsearch(const void *key, const void *base, size_t n, size_t size, int (*cmp)(const void *a, const void *b));

/* lib/kfifo.c: bytes, one producer and one consumer at a time. */
struct kfifo {
	u8 *buf;
	u32 size, in, out;
};
void kfifo_init(struct kfifo *f, void *buf, u32 size);
u32 kfifo_len(struct kfifo *f);
u32 kfifo_avail(struct kfifo *f);
u32 kfifo_in(struct kfifo *f, const void *p, u32 n);
u32 kfifo_out(struct kfifo *f, void *p, u32 n);
