/*
 * Writes frames into a shared block, each as soon as the reader has taken the one before: figure 1
 * of "Inter-VM communication library using IVSHMEM" (Fegade, Ray, 2015). Start it and the reader in
 * any order, in two shells:
 *
 *     build/examples/writer & build/examples/reader
 */
#include "common.h"
#include <string.h>

static unsigned char data[sizeof(((struct area *)0)->data)];

int main(void)
{
	cw_lib *lib;
	cw_pool *pool;
	cw_block *block;
	void *address;

	CHECK(cw_open(&lib));
	CHECK(cw_pool_create(lib, POOL, BLOCK_SIZE, 16, CW_POOL_EXISTING, &pool));
	CHECK(cw_block_alloc(pool, 0, 0, &block));
	CHECK(cw_block_map(block, CW_WRITE, &address));
	CHECK(cw_mutex_init(block, LOCK));
	CHECK(cw_cond_init(block, CHANGED));
	/* Now that it is made, the reader may find it. */
	CHECK(cw_block_grant(block, CW_EVERYBODY, 0, CW_WRITE));
	CHECK(cw_block_name(block, "frame", 0));

	struct area *area = (struct area *)((char *)address + AREA);
	for (unsigned frame = 0; frame < FRAMES; ) {
		for (size_t at = 0; at < sizeof(data); at++)
			data[at] = byte_of(frame, at);
		lock(block);
		if (!area->full) {
			/* Nothing there: write. */
			memcpy(area->data, data, sizeof(data));
			area->full = 1;
			frame++;
			/* Notify the reader. */
			CHECK(cw_cond_signal(block, CHANGED));
		} else {
			/* Wait for the reader. */
			await_change(block);
		}
		CHECK(cw_mutex_unlock(block, LOCK));
	}

	/* The last one is still to be taken. */
	lock(block);
	while (area->full)
		await_change(block);
	CHECK(cw_mutex_unlock(block, LOCK));
	printf("wrote %u frames of %zu bytes\n", (unsigned)FRAMES, sizeof(data));

	/* Not cw_block_free(), which would take it from under the reader. */
	CHECK(cw_block_close(block));
	CHECK(cw_pool_close(pool));
	CHECK(cw_close(lib));
	return 0;
}
