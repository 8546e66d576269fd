/*
 * Moves data between the buffers of two nodes while it does something else: the second process of
 * the cluster that is started has buffers filled by the first.
 *
 *     build/examples/dma 0 & build/examples/dma 1
 */
#include "common.h"
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define CLUSTER "example-dma"
#define SIZE (4u << 20)
#define TRANSFERS 16
#define PART (SIZE / TRANSFERS)
#define TRIES 10000

static atomic_int ended;

static void on_end(uint64_t transfer, enum cw_transfer_state state, void *argument)
{
	(void)transfer;
	(void)argument;
	if (state == CW_DONE)
		atomic_fetch_add(&ended, 1);
}

/* A millisecond. */
static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

/* The buffer of another node, once there is one. */
static cw_buffer *find_remote(cw_dma *dma)
{
	struct cw_block_info buffers[16];
	for (int try = 0; try < TRIES; try++) {
		int count = CHECK(cw_dma_buffers(dma, buffers, 16));
		for (int i = 0; i < count && i < 16; i++) {
			cw_buffer *found;
			if (buffers[i].owner == cw_dma_node(dma) || !buffers[i].handle)
				continue;
			if (cw_dma_find(dma, buffers[i].handle, &found) == 0)
				return found;
		}
		nap();
	}
	fprintf(stderr, "nobody else is there\n");
	exit(1);
}

static void send_all(cw_dma *dma, cw_buffer *own)
{
	unsigned char *from = cw_buffer_address(own);
	for (size_t at = 0; at < SIZE; at++)
		from[at] = byte_of(1, at);
	cw_buffer *remote = find_remote(dma);
	uint64_t id[TRANSFERS];
	for (unsigned i = 0; i < TRANSFERS; i++)
		CHECK(cw_dma_transfer(dma, remote, i * PART, own, i * PART, PART,
				      i % 2 ? on_end : NULL, NULL, &id[i]));
	int polled = 0;
	for (unsigned i = 0; i < TRANSFERS; i += 2) {
		int state;
		while ((state = CHECK(cw_dma_poll(dma, id[i]))) == CW_POSTED)
			;
		polled += state == CW_DONE;
	}
	for (int try = 0; try < TRIES && atomic_load(&ended) < TRANSFERS / 2; try++)
		nap();
	printf("%d transfers polled, %d told\n", polled, atomic_load(&ended));
	/* The last byte of all says that the rest is there. */
	volatile unsigned char *flag = (unsigned char *)cw_buffer_address(remote) + SIZE;
	*flag = 1;
	while (*flag == 1)
		nap();
	CHECK(cw_buffer_close(remote));
}

static void receive_all(cw_buffer *own)
{
	unsigned char *data = cw_buffer_address(own);
	volatile unsigned char *flag = data + SIZE;
	for (int try = 0; try < TRIES && *flag != 1; try++)
		nap();
	for (size_t at = 0; at < SIZE; at++) {
		if (data[at] != byte_of(1, at)) {
			fprintf(stderr, "byte %zu is wrong\n", at);
			exit(1);
		}
	}
	*flag = 2;
	printf("received %u bytes\n", SIZE);
}

int main(int argc, char **argv)
{
	cw_lib *lib;
	cw_dma *dma;
	cw_buffer *own;

	CHECK(cw_open(&lib));
	CHECK(cw_dma_open(lib, CLUSTER, CW_POOL_PRIVATE, &dma));
	CHECK(cw_dma_alloc(dma, SIZE + 1, &own));
	static const char *const pages[] = { "ordinary", "huge", "advised" };
	printf("node %016llx, %s pages\n", (unsigned long long)cw_dma_node(dma),
	       pages[CHECK(cw_buffer_pages(own))]);
	if (argc > 1 && strcmp(argv[1], "1") == 0)
		send_all(dma, own);
	else
		receive_all(own);
	/* Not cw_dma_free(), which would take it from under the other node. */
	CHECK(cw_buffer_close(own));
	CHECK(cw_dma_close(dma));
	CHECK(cw_close(lib));
	return 0;
}
