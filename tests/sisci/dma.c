/* DMA queues: every form of transfer, states, waits, callbacks, aborts, and a killed peer. */
#include "check.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#define ID 300
#define SIZE (8u << 20)
#define QUEUES 4
/* Enough to be caught under way. */
#define HUGE_SIZE (256u << 20)

static sci_desc_t sd;
static sci_local_segment_t local;
static sci_remote_segment_t remote;
static unsigned char *here, *there;

static void fill(unsigned char *memory, size_t size, unsigned int seed)
{
	for (size_t i = 0; i < size; i++)
		memory[i] = (unsigned char)(i * 31 + i / 255 + seed);
}

/* A local segment, and a remote one that is this process's own. */
static void set_up(size_t size)
{
	sci_local_segment_t target;
	sci_map_t map;
	sci_error_t error;

	sd = open_library();
	there = offer(sd, &target, &map, ID, size);
	DO(SCICreateSegment, sd, &local, ID + 1, size, NO_CALLBACK, NO_ARG, NO_FLAGS);
	DO(SCIPrepareSegment, local, ADAPTER, SCI_FLAG_DMA_SOURCE_ONLY);
	here = SCIMapLocalSegment(local, &map, 0, size, NULL, NO_FLAGS, &error);
	connect_to(sd, &remote, own_node(), ID);
}

static sci_dma_queue_t new_queue(unsigned int entries)
{
	sci_dma_queue_t queue;

	DO(SCICreateDMAQueue, sd, &queue, ADAPTER, entries, NO_FLAGS);
	return queue;
}

#define START(queue, from, size, to, flags) \
	queue, local, remote, from, size, to, NO_CALLBACK, NO_ARG, flags

static void transfers(void)
{
	static const size_t sizes[] = {1, 7, 4096, 100000, SIZE};
	sci_dma_queue_t queue;
	sci_error_t error;

	set_up(SIZE);
	queue = new_queue(1);
	EXPECT(SCIDMAQueueState(queue) == SCI_DMAQUEUE_IDLE);
	EXPECT(SCIWaitForDMAQueue(queue, 0, NO_FLAGS, &error) == SCI_DMAQUEUE_IDLE);
	for (size_t i = 0; i < COUNT(sizes); i++) {
		fill(here, SIZE, i);
		memset(there, 0, SIZE);
		DO(SCIStartDmaTransfer, START(queue, SIZE - sizes[i], sizes[i], 0, NO_FLAGS));
		EXPECT(SCIWaitForDMAQueue(queue, LONG_MS, NO_FLAGS, &error) == SCI_DMAQUEUE_DONE);
		EXPECT(error == SCI_ERR_OK && SCIDMAQueueState(queue) == SCI_DMAQUEUE_DONE);
		EXPECT(!memcmp(here + SIZE - sizes[i], there, sizes[i]));
		EXPECT(sizes[i] == SIZE || there[sizes[i]] == 0);
		fill(there, SIZE, i + 100);
		DO(SCIStartDmaTransfer, START(queue, 0, sizes[i], SIZE - sizes[i],
				SCI_FLAG_DMA_READ | SCI_FLAG_DMA_WAIT | SCI_FLAG_DMA_SYSDMA));
		EXPECT(!memcmp(here, there + SIZE - sizes[i], sizes[i]));
	}
	/* Nobody waits: the engine does it all the same. */
	fill(here, SIZE, 77);
	DO(DISStartDmaTransfer, START(queue, 0, SIZE, 0, NO_FLAGS));
	while (SCIDMAQueueState(queue) == SCI_DMAQUEUE_POSTED)
		sched_yield();
	EXPECT(SCIDMAQueueState(queue) == SCI_DMAQUEUE_DONE && !memcmp(here, there, SIZE));
	DO(SCIRemoveDMAQueue, queue, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIRemoveDMAQueue, queue, NO_FLAGS);
}

static void errors(void)
{
	sci_dma_queue_t queue, other, none = GARBAGE(sci_dma_queue_t);
	sci_remote_segment_t pending;
	sci_local_segment_t raw;
	dis_dma_vec_t vector[DIS_DMA_MAX_VECLEN + 1];
	char *hole = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	set_up(SIZE);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCICreateDMAQueue, sd, &other, ADAPTER, 0, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCICreateDMAQueue, sd, NULL, ADAPTER, 1, NO_FLAGS);
	REFUSED(SCI_ERR_NOSPC, SCICreateDMAQueue, sd, &other, ADAPTER, 1u << 30, NO_FLAGS);
	REFUSED(SCI_ERR_NO_SUCH_ADAPTERNO, SCICreateDMAQueue, sd, &other, 3, 1, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCICreateDMAQueue, sd, &other, ADAPTER, 1, 0x40000000);
	queue = new_queue(2);
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCIStartDmaTransfer, START(queue, 1, SIZE, 0, NO_FLAGS));
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCIStartDmaTransfer, START(queue, 0, SIZE, 1, NO_FLAGS));
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCIStartDmaTransfer, START(queue, 0, 8, SIZE_MAX, NO_FLAGS));
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIStartDmaTransfer, START(queue, 0, 8, 0, 0x40000000));
	REFUSED(SCI_ERR_FLAG_NOT_IMPLEMENTED, SCIStartDmaTransfer,
			START(queue, 0, 8, 0, SCI_FLAG_DMA_PHDMA));
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIStartDmaTransfer,
			START(queue, 0, 8, 0, SCI_FLAG_USE_CALLBACK));
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIStartDmaTransfer, START(none, 0, 8, 0, NO_FLAGS));
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIStartDmaTransfer, queue, NULL, remote, 0, 8, 0,
			NO_CALLBACK, NO_ARG, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIStartDmaTransfer, queue, local, NULL, 0, 8, 0,
			NO_CALLBACK, NO_ARG, NO_FLAGS);
	DO(SCICreateSegment, sd, &raw, ID + 2, PAGE, NO_CALLBACK, NO_ARG, NO_FLAGS);
	REFUSED(SCI_ERR_SEGMENT_NOT_PREPARED, SCIStartDmaTransfer, queue, raw, remote, 0, 8, 0,
			NO_CALLBACK, NO_ARG, NO_FLAGS);
	DO(SCIConnectSegment, sd, &pending, own_node(), ID + 9, ADAPTER, NO_CALLBACK, NO_ARG,
			SCI_INFINITE_TIMEOUT, SCI_FLAG_ASYNCHRONOUS_CONNECT);
	REFUSED(SCI_ERR_SEGMENT_NOT_CONNECTED, SCIStartDmaTransfer, queue, local, pending, 0, 8, 0,
			NO_CALLBACK, NO_ARG, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_ADDRESS, SCIStartDmaTransferMem, queue, NULL, remote, 8, 0,
			NO_CALLBACK, NO_ARG, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_ADDRESS, SCIStartDmaTransferMem, queue, hole, remote, 8, 0,
			NO_CALLBACK, NO_ARG, NO_FLAGS);
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCIStartDmaTransferMem, queue, here, remote, SIZE, 1,
			NO_CALLBACK, NO_ARG, NO_FLAGS);
	memset(vector, 0, sizeof(vector));
	REFUSED(SCI_ERR_MAX_ENTRIES, SCIStartDmaTransferVec, queue, local, remote,
			DIS_DMA_MAX_VECLEN + 1, vector, NO_CALLBACK, NO_ARG, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIStartDmaTransferVec, queue, local, remote, 0, vector,
			NO_CALLBACK, NO_ARG, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIStartDmaTransferVec, queue, local, remote, 1, NULL,
			NO_CALLBACK, NO_ARG, NO_FLAGS);
	vector[1].size = 8;
	vector[1].remote_offset = SIZE - 7;
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCIStartDmaTransferVec, queue, local, remote, 2, vector,
			NO_CALLBACK, NO_ARG, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIWaitForDMAQueue, queue, 0, 1);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIWaitForDMAQueue, none, 0, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIAbortDMAQueue, none, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIAbortDMAQueue, queue, 1);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIRemoveDMAQueue, queue, 1);
	EXPECT(SCIDMAQueueState(queue) == SCI_DMAQUEUE_IDLE);
	EXPECT(SCIDMAQueueState(none) == SCI_DMAQUEUE_ERROR);
	REFUSED(SCI_ERR_BUSY, SCIClose, sd, NO_FLAGS);
}

static void vectors_and_plain_memory(void)
{
	dis_dma_vec_t vector[DIS_DMA_MAX_VECLEN];
	const unsigned int piece = 1000;
	sci_dma_queue_t queue;
	unsigned char *memory = malloc(SIZE);
	sci_error_t error;

	set_up(SIZE);
	queue = new_queue(4);
	fill(here, SIZE, 5);
	for (unsigned int i = 0; i < COUNT(vector); i++) {
		vector[i].size = piece;
		vector[i].local_offset = i * piece;
		vector[i].remote_offset = (COUNT(vector) - 1 - i) * piece;
		vector[i].flags = ~0u; /* as memory is that nobody has set */
	}
	DO(SCIStartDmaTransferVec, queue, local, remote, COUNT(vector), vector, NO_CALLBACK, NO_ARG,
			SCI_FLAG_DMA_WAIT);
	for (unsigned int i = 0; i < COUNT(vector); i++)
		EXPECT(!memcmp(there + vector[i].remote_offset, here + i * piece, piece));
	memset(here, 0, SIZE);
	DO(DISStartDmaTransferVec, queue, local, remote, COUNT(vector), vector, NO_CALLBACK, NO_ARG,
			SCI_FLAG_DMA_READ | SCI_FLAG_DMA_GLOBAL);
	EXPECT(SCIWaitForDMAQueue(queue, LONG_MS, NO_FLAGS, &error) == SCI_DMAQUEUE_DONE);
	for (unsigned int i = 0; i < COUNT(vector); i++)
		EXPECT(!memcmp(there + vector[i].remote_offset, here + i * piece, piece));
	fill(memory, SIZE, 9);
	DO(SCIStartDmaTransferMem, queue, memory, remote, SIZE, 0, NO_CALLBACK, NO_ARG, NO_FLAGS);
	EXPECT(SCIWaitForDMAQueue(queue, LONG_MS, NO_FLAGS, &error) == SCI_DMAQUEUE_DONE);
	EXPECT(!memcmp(there, memory, SIZE));
	memset(memory, 0, SIZE);
	DO(SCIStartDmaTransferMem, queue, memory, remote, SIZE - 1, 1, NO_CALLBACK, NO_ARG,
			SCI_FLAG_DMA_READ | SCI_FLAG_DMA_WAIT);
	EXPECT(!memcmp(there + 1, memory, SIZE - 1));
	free(memory);
}

/* --- callbacks, several queues --- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static int ended, good;

static sci_callback_action_t on_end(void *arg, sci_dma_queue_t queue, sci_error_t status)
{
	sci_error_t error;

	EXPECT(SCIDMAQueueState(queue) != SCI_DMAQUEUE_IDLE);
	/* May call the library. */
	SCIStoreBarrier(NULL, NO_FLAGS);
	SCIQuery(SCI_Q_API, NULL, NO_FLAGS, &error);
	pthread_mutex_lock(&mutex);
	ended++;
	good += status == *(sci_error_t *)arg;
	pthread_cond_broadcast(&more);
	pthread_mutex_unlock(&mutex);
	return SCI_CALLBACK_CONTINUE;
}

static void await_ends(int count)
{
	pthread_mutex_lock(&mutex);
	while (ended < count)
		pthread_cond_wait(&more, &mutex);
	pthread_mutex_unlock(&mutex);
}

static void queues_in_flight(void)
{
	sci_dma_queue_t queues[QUEUES];
	sci_error_t error, want = SCI_ERR_OK;
	const size_t part = SIZE / QUEUES / 4;

	set_up(SIZE);
	fill(here, SIZE, 3);
	for (unsigned int i = 0; i < QUEUES; i++)
		queues[i] = new_queue(4);
	for (unsigned int i = 0; i < QUEUES * 4; i++)
		DO(SCIStartDmaTransfer, queues[i % QUEUES], local, remote, i * part, part, i * part,
				on_end, &want, SCI_FLAG_USE_CALLBACK);
	await_ends(QUEUES * 4);
	EXPECT(good == QUEUES * 4 && !memcmp(here, there, SIZE));
	for (unsigned int i = 0; i < QUEUES; i++) {
		EXPECT(SCIWaitForDMAQueue(queues[i], LONG_MS, NO_FLAGS, &error) ==
				SCI_DMAQUEUE_DONE);
		DO(SCIRemoveDMAQueue, queues[i], NO_FLAGS);
	}
}

static void aborted_and_full(void)
{
	sci_dma_queue_t queue;
	sci_error_t error, want = SCI_ERR_CANCELLED;

	set_up(HUGE_SIZE);
	queue = new_queue(2);
	DO(SCIStartDmaTransfer, queue, local, remote, 0, HUGE_SIZE, 0, on_end, &want,
			SCI_FLAG_USE_CALLBACK);
	DO(SCIStartDmaTransfer, queue, local, remote, 0, HUGE_SIZE, 0, on_end, &want,
			SCI_FLAG_USE_CALLBACK);
	REFUSED(SCI_ERR_MAX_ENTRIES, SCIStartDmaTransfer, START(queue, 0, 8, 0, NO_FLAGS));
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCIWaitForDMAQueue, queue, 0, NO_FLAGS);
	EXPECT(SCIDMAQueueState(queue) == SCI_DMAQUEUE_POSTED);
	REFUSED(SCI_ERR_BUSY, SCIRemoveDMAQueue, queue, NO_FLAGS);
	DO(SCIAbortDMAQueue, queue, NO_FLAGS);
	EXPECT(SCIDMAQueueState(queue) == SCI_DMAQUEUE_ABORTED);
	await_ends(2);
	EXPECT(good == 2);
	/* The last page was not reached: nothing was stored there, nor is it now. */
	EXPECT(there[HUGE_SIZE - 1] == 0);
	DO(SCIStartDmaTransfer, START(queue, 0, HUGE_SIZE, 0, NO_FLAGS));
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForDMAQueue, queue, 0, NO_FLAGS);
	EXPECT(SCIWaitForDMAQueue(queue, LONG_MS, NO_FLAGS, &error) == SCI_DMAQUEUE_DONE);
	DO(SCIRemoveDMAQueue, queue, NO_FLAGS);
}

/* --- a peer that is killed --- */

/* Source and destination are of one segment, by handles whose addresses say nothing of that. */
static void one_segment_by_two_handles(void)
{
	static const size_t shifts[] = {1, 100, 4096, 100001, SIZE / 2};
	static unsigned char expected[SIZE];
	sci_desc_t own = open_library();
	sci_local_segment_t local;
	sci_remote_segment_t remote;
	sci_map_t whole, again, low, high;
	sci_dma_queue_t queue;
	sci_block_transfer_t block;
	unsigned char *memory = offer(own, &local, &whole, ID + 2, SIZE);

	connect_to(own, &remote, own_node(), ID + 2);
	DO(SCICreateDMAQueue, own, &queue, ADAPTER, 1, NO_FLAGS);
	DO(SCIMapRemoteSegment, remote, &again, 0, SIZE, NULL, NO_FLAGS);
	for (size_t i = 0; i < COUNT(shifts); i++) {
		size_t shift = shifts[i], size = SIZE - shift;

		DO(SCIMapRemoteSegment, remote, &low, 0, size, NULL, NO_FLAGS);
		DO(SCIMapRemoteSegment, remote, &high, shift, size, NULL, NO_FLAGS);
		for (int way = 0; way < 8; way++) {
			int up = way % 2;
			size_t from = up ? 0 : shift, to = up ? shift : 0;

			fill(memory, SIZE, way);
			memcpy(expected, memory, SIZE);
			memmove(expected + to, expected + from, size);
			switch (way / 2) {
			case 0:
				DO(SCIStartDmaTransfer, START(queue, from, size, to,
						SCI_FLAG_DMA_WAIT));
				break;
			case 1:
				DO(SCIStartDmaTransfer, START(queue, to, size, from,
						SCI_FLAG_DMA_WAIT | SCI_FLAG_DMA_READ));
				break;
			case 2:
				DO(SCITransferBlock, whole, from, again, to, size, NO_FLAGS);
				break;
			default:
				DO(SCITransferBlockAsync, up ? low : high, 0, up ? high : low, 0,
						size, &block, NO_CALLBACK, NO_ARG, NO_FLAGS);
				DO(SCIWaitForBlockTransfer, block, LONG_MS, NO_FLAGS);
			}
			EXPECT(!memcmp(memory, expected, SIZE));
		}
		DO(SCIUnmapSegment, low, NO_FLAGS);
		DO(SCIUnmapSegment, high, NO_FLAGS);
	}
	DO(SCIUnmapSegment, again, NO_FLAGS);
	DO(SCIRemoveDMAQueue, queue, NO_FLAGS);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	DO(SCIUnmapSegment, whole, NO_FLAGS);
	DO(SCIRemoveSegment, local, NO_FLAGS);
	DO(SCIClose, own, NO_FLAGS);
}

static void victim(struct peer *parent)
{
	sci_desc_t own = open_library();
	sci_local_segment_t segment;
	sci_map_t map;

	offer(own, &segment, &map, ID, HUGE_SIZE);
	say(parent, own_node());
	hear(parent);
}

static void the_peer_is_killed(void)
{
	struct peer peer;
	sci_dma_queue_t queue;
	sci_map_t map;
	sci_error_t error, status, want = SCI_ERR_TRANSFER_FAILED;
	unsigned int node;

	spawn(&peer, victim);
	node = hear(&peer);
	sd = open_library();
	DO(SCICreateSegment, sd, &local, ID + 1, HUGE_SIZE, NO_CALLBACK, NO_ARG, NO_FLAGS);
	DO(SCIPrepareSegment, local, ADAPTER, NO_FLAGS);
	here = SCIMapLocalSegment(local, &map, 0, HUGE_SIZE, NULL, NO_FLAGS, &error);
	connect_to(sd, &remote, node, ID);
	queue = new_queue(64);
	DO(SCIStartDmaTransfer, START(queue, 0, PAGE, 0, SCI_FLAG_DMA_WAIT));
	kill_peer(&peer);
	/* Started before its death is known, or after: none ends as if it had arrived there. */
	EXPECT(SCIWaitForRemoteSegmentEvent(remote, &status, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_LOST);
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIStartDmaTransfer,
			START(queue, 0, PAGE, 0, SCI_FLAG_DMA_WAIT));
	EXPECT(SCIDMAQueueState(queue) == SCI_DMAQUEUE_ERROR);
	DO(SCIStartDmaTransfer, START(queue, 0, PAGE, 0, NO_FLAGS));
	EXPECT(SCIWaitForDMAQueue(queue, LONG_MS, NO_FLAGS, &error) == SCI_DMAQUEUE_ERROR);
	EXPECT(error == SCI_ERR_TRANSFER_FAILED);
	DO(SCIStartDmaTransfer, queue, local, remote, 0, PAGE, 0, on_end, &want,
			SCI_FLAG_USE_CALLBACK);
	await_ends(1);
	EXPECT(good == 1);
	DO(SCIRemoveDMAQueue, queue, NO_FLAGS);
}

/* --- the interface's first version; channels --- */

static void gathered(void)
{
	sci_dma_queue_t queue;
	sci_error_t error;
#define ENQUEUE(from, to, size, flags) queue, local, remote, from, to, size, flags

	set_up(SIZE);
	fill(here, SIZE, 1);
	queue = new_queue(3);
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCIPostDMAQueue, queue, NO_CALLBACK, NO_ARG, NO_FLAGS);
	for (unsigned int i = 0; i < 3; i++)
		EXPECT(SCIEnqueueDMATransfer(ENQUEUE(i * PAGE, (2 - i) * PAGE, PAGE, NO_FLAGS),
				&error) == SCI_DMAQUEUE_GATHER && error == SCI_ERR_OK);
	REFUSED(SCI_ERR_MAX_ENTRIES, SCIEnqueueDMATransfer, ENQUEUE(0, 0, 8, NO_FLAGS));
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCIEnqueueDMATransfer, ENQUEUE(SIZE, 0, 8, NO_FLAGS));
	EXPECT(SCIDMAQueueState(queue) == SCI_DMAQUEUE_GATHER && there[0] == 0);
	DO(SCIPostDMAQueue, queue, NO_CALLBACK, NO_ARG, NO_FLAGS);
	EXPECT(SCIWaitForDMAQueue(queue, LONG_MS, NO_FLAGS, &error) == SCI_DMAQUEUE_DONE);
	for (unsigned int i = 0; i < 3; i++)
		EXPECT(!memcmp(there + (2 - i) * PAGE, here + i * PAGE, PAGE));
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCIEnqueueDMATransfer, ENQUEUE(0, 0, 8, NO_FLAGS));
	DO(SCIResetDMAQueue, queue, NO_FLAGS);
	EXPECT(SCIDMAQueueState(queue) == SCI_DMAQUEUE_IDLE);
	EXPECT(SCIEnqueueDMATransfer(ENQUEUE(SIZE / 2, 0, PAGE, SCI_FLAG_DMA_POST |
			SCI_FLAG_DMA_WAIT | SCI_FLAG_DMA_RESET), &error) == SCI_DMAQUEUE_IDLE);
	EXPECT(error == SCI_ERR_OK && !memcmp(there, here + SIZE / 2, PAGE));
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIResetDMAQueue, queue, 1);
	DO(SCIRemoveDMAQueue, queue, NO_FLAGS);
}

static void channels(void)
{
	sci_dma_queue_t queue;
	sci_dma_channel_t channel, none = GARBAGE(sci_dma_channel_t);
	sci_local_segment_t raw;
	sci_error_t error;

	set_up(SIZE);
	queue = new_queue(1);
	DO(SCIRequestDMAChannel, sd, &channel, ADAPTER, SCI_DMA_TYPE_SYSTEM,
			SCI_DMA_CHANNEL_ID_DONTCARE, NO_FLAGS);
	DO(SCIAssignDMAChannel, channel, queue, NO_FLAGS);
	DO(SCICreateSegment, sd, &raw, ID + 2, PAGE, NO_CALLBACK, NO_ARG, NO_FLAGS);
	DO(SCIPrepareLocalSegmentForDMA, channel, raw, NO_FLAGS);
	DO(SCIPrepareRemoteSegmentForDMA, channel, remote, NO_FLAGS);
	DO(SCIStartDmaTransfer, queue, raw, remote, 0, PAGE, 0, NO_CALLBACK, NO_ARG,
			SCI_FLAG_DMA_WAIT);
	DO(SCIUnprepareRemoteSegmentForDMA, channel, remote, NO_FLAGS);
	DO(SCIUnprepareLocalSegmentForDMA, channel, raw, NO_FLAGS);
	REFUSED(SCI_ERR_SEGMENT_NOT_PREPARED, SCIStartDmaTransfer, queue, raw, remote, 0, PAGE, 0,
			NO_CALLBACK, NO_ARG, NO_FLAGS);
	SCIReturnDMAChannel(channel, &error);
	EXPECT(error == SCI_ERR_BUSY);
	DO(SCIRemoveDMAQueue, queue, NO_FLAGS);
	SCIReturnDMAChannel(channel, &error);
	EXPECT(error == SCI_ERR_OK);
	SCIReturnDMAChannel(channel, &error);
	EXPECT(error == SCI_ERR_ILLEGAL_PARAMETER);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIAssignDMAChannel, none, queue, NO_FLAGS);
	REFUSED(SCI_ERR_NO_SUCH_ADAPTERNO, SCIRequestDMAChannel, sd, &channel, 1,
			SCI_DMA_TYPE_ADAPTER, 0, NO_FLAGS);
}

int main(void)
{
	static const struct test tests[] = {
		{"transfers of every size, both ways", transfers},
		{"errors", errors},
		{"vectors and plain memory", vectors_and_plain_memory},
		{"several queues in flight, with callbacks", queues_in_flight},
		{"aborted, full", aborted_and_full},
		{"the peer is killed", the_peer_is_killed},
		{"entries are gathered", gathered},
		{"channels", channels},
		{"one segment by two handles", one_segment_by_two_handles},
	};

	/* In a virtual machine nothing tells that two handles are of one memory. */
	if (access("/dev/causeway", F_OK) == 0)
		return run_tests(tests, COUNT(tests) - 1);
	return run_tests(tests, COUNT(tests));
}
