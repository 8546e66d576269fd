/* What the examples share. */
#ifndef EXAMPLES_COMMON_H
#define EXAMPLES_COMMON_H

#include <causeway.h>
#include <stdio.h>
#include <stdlib.h>

#define POOL "example"
#define BLOCK_SIZE (64 * 1024)
#define FRAMES 1000

/* The block, as writer and reader see it. The first byte of the paper's shared area is `full`. */
enum {
	LOCK = 0,
	CHANGED = 64,
	AREA = 128
};

struct area {
	unsigned char full;
	unsigned char data[BLOCK_SIZE - AREA - 1];
};

/* Ends the program if a call failed. */
static inline int check(const char *what, int result)
{
	if (result < 0) {
		fprintf(stderr, "%s: %s\n", what, cw_strerror(result));
		exit(1);
	}
	return result;
}

#define CHECK(call) check(#call, (call))

/* Locks. If the other side died with the lock, the area is what it was before: `full` is changed
 * last, so there is nothing to repair. */
static inline void lock(cw_block *block)
{
	if (CHECK(cw_mutex_lock(block, LOCK)) == CW_OWNER_DEAD)
		CHECK(cw_mutex_consistent(block, LOCK));
}

/* Waits for the other side, with the lock. */
static inline void await_change(cw_block *block)
{
	if (CHECK(cw_cond_wait(block, CHANGED, LOCK, -1)) == CW_OWNER_DEAD)
		CHECK(cw_mutex_consistent(block, LOCK));
}

/* What byte `at` of frame `frame` is. */
static inline unsigned char byte_of(unsigned frame, size_t at)
{
	return (unsigned char)(frame * 31 + at * 7 + (at >> 8));
}

#endif
