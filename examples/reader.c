/*
 * Reads the frames that the writer puts into a shared block, and looks at every byte: figure 2 of
 * "Inter-VM communication library using IVSHMEM" (Fegade, Ray, 2015).
 */
#include "common.h"
#include <string.h>

#define WAIT_NS 10000000000ll

static unsigned char data[sizeof(((struct area *)0)->data)];

int main(void)
{
	cw_lib *lib;
	cw_pool *pool;
	cw_block *block;
	void *address;

	CHECK(cw_open(&lib));
	CHECK(cw_pool_create(lib, POOL, BLOCK_SIZE, 16, CW_POOL_EXISTING, &pool));
	CHECK(cw_block_find(pool, "frame", CW_WRITE, WAIT_NS, &block));
	CHECK(cw_block_map(block, CW_WRITE, &address));

	struct area *area = (struct area *)((char *)address + AREA);
	for (unsigned frame = 0; frame < FRAMES; ) {
		int taken = 0;
		lock(block);
		if (area->full) {
			/* Something there: read. */
			memcpy(data, area->data, sizeof(data));
			area->full = 0;
			taken = 1;
			/* Notify the writer. */
			CHECK(cw_cond_signal(block, CHANGED));
		} else {
			/* Wait for the writer. */
			await_change(block);
		}
		CHECK(cw_mutex_unlock(block, LOCK));
		if (!taken)
			continue;
		for (size_t at = 0; at < sizeof(data); at++) {
			if (data[at] != byte_of(frame, at)) {
				fprintf(stderr, "frame %u: byte %zu is wrong\n", frame, at);
				return 1;
			}
		}
		frame++;
	}
	printf("read %u frames of %zu bytes\n", (unsigned)FRAMES, sizeof(data));

	CHECK(cw_block_close(block));
	CHECK(cw_pool_close(pool));
	CHECK(cw_close(lib));
	return 0;
}
