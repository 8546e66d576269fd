/*
 * DMA queues: what each way to start a transfer refuses, what a callback may do, aborts by another
 * thread, groups of reflective memory, and an owner that is killed while transfers are under way.
 */
#include "check.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#define ID 320
#define GROUP 5
#define SIZE (4u * PAGE)
/* Enough to be caught under way. */
#define HUGE_SIZE (256u << 20)
#define CHAIN 100

static sci_desc_t sd;
static sci_local_segment_t local;
static sci_remote_segment_t remote;
static char *here;

static void owner(struct peer *parent)
{
	sci_desc_t own = open_library();
	sci_local_segment_t segment;
	sci_map_t map;

	offer(own, &segment, &map, ID, hear(parent));
	say(parent, own_node());
	hear(parent);
}

static void reach(struct peer *peer, size_t size)
{
	say(peer, (unsigned int)size);
	connect_to(sd, &remote, hear(peer), ID);
}

static void set_up(struct peer *peer, size_t size)
{
	sci_error_t error;
	sci_map_t map;

	spawn(peer, owner);
	sd = open_library();
	reach(peer, size);
	DO(SCICreateSegment, sd, &local, ID + 1, size, NO_CALLBACK, NO_ARG, NO_FLAGS);
	DO(SCIPrepareSegment, local, ADAPTER, NO_FLAGS);
	here = SCIMapLocalSegment(local, &map, 0, size, NULL, NO_FLAGS, &error);
}

static sci_dma_queue_t new_queue(unsigned int entries)
{
	sci_dma_queue_t queue;

	DO(SCICreateDMAQueue, sd, &queue, ADAPTER, entries, NO_FLAGS);
	return queue;
}

#define NOBODY NO_CALLBACK, NO_ARG
#define START(queue, local, remote, size, flags) queue, local, remote, 0, size, 0, NOBODY, flags
#define MEMORY(queue, memory, remote, size, flags) queue, memory, remote, size, 0, NOBODY, flags
#define VECTOR(queue, local, remote, flags) queue, local, remote, 1, &piece, NOBODY, flags
#define GATHER(queue, local, remote, size, flags) queue, local, remote, 0, 0, size, flags

/* Far more than can be copied before it is aborted: 64 GiB. */
static void start_long(sci_dma_queue_t queue, unsigned int flags, sci_error_t *error)
{
	dis_dma_vec_t pieces[DIS_DMA_MAX_VECLEN];

	memset(pieces, 0, sizeof(pieces));
	for (size_t i = 0; i < COUNT(pieces); i++)
		pieces[i].size = HUGE_SIZE;
	SCIStartDmaTransferVec(queue, local, remote, COUNT(pieces), pieces, NOBODY, flags, error);
}

/* --- errors --- */

static void refusals(void)
{
	struct peer peer;
	sci_dma_queue_t queue, full, other;
	sci_dma_channel_t channel;
	sci_local_segment_t raw;
	sci_remote_segment_t pending;
	dis_dma_vec_t piece = {8, 0, 0, 0}, far = {8, 0, SIZE, 0};
	const unsigned int physical = SCI_FLAG_DMA_PHDMA;
	char *constant = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	set_up(&peer, SIZE);
	queue = new_queue(1);
	DO(SCICreateSegment, sd, &raw, ID + 2, PAGE, NOBODY, NO_FLAGS);
	DO(SCIConnectSegment, sd, &pending, SCI_LOCAL_HOST, ID + 9, ADAPTER, NOBODY,
			SCI_INFINITE_TIMEOUT, SCI_FLAG_ASYNCHRONOUS_CONNECT);
	REFUSED(SCI_ERR_FLAG_NOT_IMPLEMENTED, SCICreateDMAQueue, sd, &other, ADAPTER, 1, physical);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCICreateDMAQueue, sd, &other, ADAPTER, 1,
			physical | 0x40000000);
	REFUSED(SCI_ERR_FLAG_NOT_IMPLEMENTED, SCIStartDmaTransferMem,
			MEMORY(queue, here, remote, 8, physical));
	REFUSED(SCI_ERR_FLAG_NOT_IMPLEMENTED, SCIStartDmaTransferVec,
			VECTOR(queue, local, remote, physical));
	REFUSED(SCI_ERR_SEGMENT_NOT_PREPARED, SCIStartDmaTransferVec,
			VECTOR(queue, raw, remote, NO_FLAGS));
	REFUSED(SCI_ERR_SEGMENT_NOT_PREPARED, SCIEnqueueDMATransfer,
			GATHER(queue, raw, remote, 8, NO_FLAGS));
	REFUSED(SCI_ERR_SEGMENT_NOT_CONNECTED, SCIStartDmaTransferMem,
			MEMORY(queue, here, pending, 8, NO_FLAGS));
	REFUSED(SCI_ERR_SEGMENT_NOT_CONNECTED, SCIStartDmaTransferVec,
			VECTOR(queue, local, pending, NO_FLAGS));
	REFUSED(SCI_ERR_SEGMENT_NOT_CONNECTED, SCIEnqueueDMATransfer,
			GATHER(queue, local, pending, 8, NO_FLAGS));
	DO(SCIRequestDMAChannel, sd, &channel, ADAPTER, SCI_DMA_TYPE_DONTCARE, 0, NO_FLAGS);
	REFUSED(SCI_ERR_SEGMENT_NOT_CONNECTED, SCIPrepareRemoteSegmentForDMA, channel, pending,
			NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIRequestDMAChannel, sd, &channel, ADAPTER,
			(sci_dma_type_t)0, 0, NO_FLAGS);
	DO(SCIAssignDMAChannel, channel, queue, NO_FLAGS);
	REFUSED(SCI_ERR_BUSY, SCIReturnDMAChannel, channel);
	REFUSED(SCI_ERR_OUT_OF_RANGE, DISStartDmaTransfer,
			START(queue, local, remote, SIZE + 1, NO_FLAGS));
	REFUSED(SCI_ERR_OUT_OF_RANGE, DISStartDmaTransferVec, queue, local, remote, 1, &far,
			NOBODY, NO_FLAGS);
	/* What is only to be read can be sent, but nothing can be fetched to it. */
	REFUSED(SCI_ERR_ILLEGAL_ADDRESS, SCIStartDmaTransferMem,
			MEMORY(queue, constant, remote, PAGE, SCI_FLAG_DMA_READ));
	DO(SCIStartDmaTransferMem, MEMORY(queue, constant, remote, PAGE, SCI_FLAG_DMA_WAIT));
	/* Nothing is a transfer too. */
	DO(SCIStartDmaTransfer, START(queue, local, remote, 0, SCI_FLAG_DMA_WAIT));
	EXPECT(SCIDMAQueueState(queue) == SCI_DMAQUEUE_DONE);
	DO(SCIRemoveDMAQueue, queue, NO_FLAGS);
	DO(SCIReturnDMAChannel, channel);
	full = new_queue(1);
	EXPECT(SCIEnqueueDMATransfer(GATHER(full, local, remote, 8, NO_FLAGS), NULL) ==
			SCI_DMAQUEUE_GATHER);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIPostDMAQueue, full, NOBODY, SCI_FLAG_USE_CALLBACK);
	/* It is still there to be posted, and to be dropped. */
	EXPECT(SCIDMAQueueState(full) == SCI_DMAQUEUE_GATHER);
	DO(SCIResetDMAQueue, full, NO_FLAGS);
	EXPECT(SCIDMAQueueState(full) == SCI_DMAQUEUE_IDLE);
	DO(SCIRemoveDMAQueue, full, NO_FLAGS);
	DO(SCIDisconnectSegment, pending, NO_FLAGS);
	say(&peer, 0);
	join(&peer);
}

static void full_and_under_way(void)
{
	struct peer peer;
	sci_dma_queue_t queue;
	dis_dma_vec_t piece = {8, 0, 0, 0};
	sci_error_t error;

	set_up(&peer, HUGE_SIZE);
	queue = new_queue(1);
	DO(SCIEnqueueDMATransfer, GATHER(queue, local, remote, 8, NO_FLAGS));
	DO(start_long, queue, NO_FLAGS);
	/* What was gathered before stays so. */
	for (int i = 0; i < 2; i++)
		REFUSED(SCI_ERR_MAX_ENTRIES, SCIPostDMAQueue, queue, NOBODY, NO_FLAGS);
	REFUSED(SCI_ERR_MAX_ENTRIES, SCIStartDmaTransfer, START(queue, local, remote, 8, 0));
	REFUSED(SCI_ERR_MAX_ENTRIES, SCIStartDmaTransferMem, MEMORY(queue, here, remote, 8, 0));
	REFUSED(SCI_ERR_MAX_ENTRIES, SCIStartDmaTransferVec, VECTOR(queue, local, remote, 0));
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCIResetDMAQueue, queue, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCIEnqueueDMATransfer,
			GATHER(queue, local, remote, 8, NO_FLAGS));
	REFUSED(SCI_ERR_BUSY, SCIRemoveDMAQueue, queue, NO_FLAGS);
	EXPECT(SCIWaitForDMAQueue(queue, 0, NO_FLAGS, &error) == SCI_DMAQUEUE_POSTED);
	EXPECT(error == SCI_ERR_TIMEOUT);
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForDMAQueue, queue, SHORT_MS, NO_FLAGS);
	DO(SCIAbortDMAQueue, queue, NO_FLAGS);
	DO(SCIStartDmaTransfer, START(queue, local, remote, HUGE_SIZE, NO_FLAGS));
	EXPECT(SCIWaitForDMAQueue(queue, SCI_INFINITE_TIMEOUT, NO_FLAGS, &error) ==
			SCI_DMAQUEUE_DONE && error == SCI_ERR_OK);
	DO(SCIResetDMAQueue, queue, NO_FLAGS);
	EXPECT(SCIWaitForDMAQueue(queue, 0, NO_FLAGS, &error) == SCI_DMAQUEUE_IDLE);
	DO(SCIRemoveDMAQueue, queue, NO_FLAGS);
	say(&peer, 0);
	join(&peer);
}

/* --- aborted by another thread --- */

static void *wait_in_start(void *queue)
{
	sci_error_t error = (sci_error_t)77;

	start_long(queue, SCI_FLAG_DMA_WAIT, &error);
	return (void *)(uintptr_t)error;
}

static void *wait_for_queue(void *queue)
{
	sci_error_t error = (sci_error_t)77;

	EXPECT(SCIWaitForDMAQueue(queue, SCI_INFINITE_TIMEOUT, NO_FLAGS, &error) ==
			SCI_DMAQUEUE_ABORTED);
	return (void *)(uintptr_t)error;
}

static void aborted_while_waited_for(void)
{
	struct peer peer;
	sci_dma_queue_t queue;
	pthread_t thread;
	void *error;

	set_up(&peer, HUGE_SIZE);
	queue = new_queue(64);
	pthread_create(&thread, NULL, wait_in_start, queue);
	while (SCIDMAQueueState(queue) != SCI_DMAQUEUE_POSTED)
		sched_yield();
	DO(SCIAbortDMAQueue, queue, NO_FLAGS);
	pthread_join(thread, &error);
	EXPECT((uintptr_t)error == SCI_ERR_CANCELLED);
	for (int i = 0; i < 64; i++)
		DO(SCIStartDmaTransfer, START(queue, local, remote, HUGE_SIZE, NO_FLAGS));
	pthread_create(&thread, NULL, wait_for_queue, queue);
	DO(SCIAbortDMAQueue, queue, NO_FLAGS);
	pthread_join(thread, &error);
	/* The state says it, whether the wait had begun or not: that is no failure of the wait. */
	EXPECT((uintptr_t)error == SCI_ERR_OK);
	DO(SCIAbortDMAQueue, queue, NO_FLAGS);
	EXPECT(SCIDMAQueueState(queue) == SCI_DMAQUEUE_ABORTED);
	/* It can be used on. */
	DO(SCIStartDmaTransfer, START(queue, local, remote, 8, SCI_FLAG_DMA_WAIT));
	EXPECT(SCIDMAQueueState(queue) == SCI_DMAQUEUE_DONE);
	DO(SCIRemoveDMAQueue, queue, NO_FLAGS);
	say(&peer, 0);
	join(&peer);
}

/* Short pieces are not aborted in the middle, but no further one is begun. */
static void aborted_between_short_pieces(void)
{
	enum { PIECES = 16384, PIECE = 256 * 1024 };
	struct peer peer;
	sci_dma_queue_t queue;

	set_up(&peer, PIECE);
	queue = new_queue(PIECES);
	for (int i = 0; i < PIECES; i++)
		EXPECT(SCIEnqueueDMATransfer(GATHER(queue, local, remote, PIECE, NO_FLAGS),
					     NULL) != SCI_DMAQUEUE_ERROR);
	DO(SCIPostDMAQueue, queue, NOBODY, NO_FLAGS);
	DO(SCIAbortDMAQueue, queue, NO_FLAGS);
	EXPECT(SCIDMAQueueState(queue) == SCI_DMAQUEUE_ABORTED);
	DO(SCIRemoveDMAQueue, queue, NO_FLAGS);
	say(&peer, 0);
	join(&peer);
}

/* --- callbacks --- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static int ended;
static sci_error_t last;

static void note(sci_error_t status)
{
	pthread_mutex_lock(&mutex);
	ended++;
	last = status;
	pthread_cond_broadcast(&more);
	pthread_mutex_unlock(&mutex);
}

static void await_ends(int count)
{
	pthread_mutex_lock(&mutex);
	while (ended < count)
		pthread_cond_wait(&more, &mutex);
	pthread_mutex_unlock(&mutex);
}

/* Starts the next, as a program does that keeps its engine busy. */
static sci_callback_action_t go_on(void *arg, sci_dma_queue_t queue, sci_error_t status)
{
	int *left = arg;

	EXPECT(status == SCI_ERR_OK);
	if (--*left > 0)
		DO(SCIStartDmaTransfer, queue, local, remote, 0, SIZE, 0, go_on, arg,
				SCI_FLAG_USE_CALLBACK);
	note(status);
	/* Each transfer has a callback of its own: there is nothing to cancel. */
	return SCI_CALLBACK_CANCEL;
}

static sci_callback_action_t remove_queue(void *arg, sci_dma_queue_t queue, sci_error_t status)
{
	(void)arg;
	DO(SCIRemoveDMAQueue, queue, NO_FLAGS);
	note(status);
	return SCI_CALLBACK_CONTINUE;
}

static sci_callback_action_t tell(void *arg, sci_dma_queue_t queue, sci_error_t status)
{
	EXPECT(queue == *(sci_dma_queue_t *)arg);
	note(status);
	return SCI_CALLBACK_CONTINUE;
}

static void callbacks(void)
{
	struct peer peer;
	sci_dma_queue_t queue;
	dis_dma_vec_t piece = {8, 0, 0, 0};
	int left = CHAIN, before;

	set_up(&peer, SIZE);
	queue = new_queue(2);
	DO(SCIStartDmaTransfer, queue, local, remote, 0, SIZE, 0, go_on, &left,
			SCI_FLAG_USE_CALLBACK);
	await_ends(before = CHAIN);
	DO(SCIStartDmaTransferMem, queue, here, remote, SIZE, 0, tell, &queue,
			SCI_FLAG_USE_CALLBACK);
	await_ends(++before);
	DO(SCIStartDmaTransferVec, queue, local, remote, 1, &piece, tell, &queue,
			SCI_FLAG_USE_CALLBACK);
	await_ends(++before);
	/* A callback that nobody asked for is none. */
	DO(SCIStartDmaTransfer, queue, local, remote, 0, 8, 0, tell, &queue, SCI_FLAG_DMA_WAIT);
	DO(SCIResetDMAQueue, queue, NO_FLAGS);
	EXPECT(SCIEnqueueDMATransfer(GATHER(queue, local, remote, 8, NO_FLAGS), NULL) ==
			SCI_DMAQUEUE_GATHER);
	DO(SCIPostDMAQueue, queue, tell, &queue, SCI_FLAG_USE_CALLBACK);
	await_ends(++before);
	/* Both: who waits waits, and the callback comes as well. */
	DO(SCIStartDmaTransfer, queue, local, remote, 0, 8, 0, tell, &queue,
			SCI_FLAG_USE_CALLBACK | SCI_FLAG_DMA_WAIT);
	await_ends(++before);
	EXPECT(ended == before && last == SCI_ERR_OK);
	DO(SCIStartDmaTransfer, queue, local, remote, 0, 8, 0, remove_queue, NULL,
			SCI_FLAG_USE_CALLBACK);
	await_ends(++before);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIRemoveDMAQueue, queue, NO_FLAGS);
	say(&peer, 0);
	join(&peer);
}

/* --- the owner is killed --- */

static void failures(void)
{
	struct peer peer;
	sci_dma_queue_t queue, gathered;
	dis_dma_vec_t piece = {8, 0, 0, 0};
	sci_error_t error;

	set_up(&peer, HUGE_SIZE);
	queue = new_queue(64);
	gathered = new_queue(4);
	EXPECT(SCIEnqueueDMATransfer(GATHER(gathered, local, remote, 8, NO_FLAGS), &error) ==
			SCI_DMAQUEUE_GATHER && error == SCI_ERR_OK);
	for (int i = 0; i < 32; i++)
		DO(SCIStartDmaTransfer, START(queue, local, remote, HUGE_SIZE, NO_FLAGS));
	kill_peer(&peer);
	/* Under way, and more than can have ended by then. */
	EXPECT(SCIWaitForDMAQueue(queue, LONG_MS, NO_FLAGS, &error) == SCI_DMAQUEUE_ERROR);
	EXPECT(error == SCI_ERR_TRANSFER_FAILED);
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIStartDmaTransfer,
			START(queue, local, remote, 8, SCI_FLAG_DMA_WAIT));
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIStartDmaTransferMem,
			MEMORY(queue, here, remote, 8, SCI_FLAG_DMA_WAIT | SCI_FLAG_DMA_READ));
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIStartDmaTransferVec,
			VECTOR(queue, local, remote, SCI_FLAG_DMA_WAIT));
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIPostDMAQueue, gathered, NOBODY, SCI_FLAG_DMA_WAIT);
	EXPECT(SCIDMAQueueState(gathered) == SCI_DMAQUEUE_ERROR);
	DO(SCIResetDMAQueue, gathered, NO_FLAGS);
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIEnqueueDMATransfer,
			GATHER(gathered, local, remote, 8, SCI_FLAG_DMA_POST | SCI_FLAG_DMA_WAIT));
	/* With another owner the queue is as good as before. */
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	spawn(&peer, owner);
	reach(&peer, SIZE);
	DO(SCIStartDmaTransfer, START(queue, local, remote, SIZE, SCI_FLAG_DMA_WAIT));
	EXPECT(SCIDMAQueueState(queue) == SCI_DMAQUEUE_DONE);
	DO(SCIRemoveDMAQueue, queue, NO_FLAGS);
	DO(SCIRemoveDMAQueue, gathered, NO_FLAGS);
	say(&peer, 0);
	join(&peer);
}

/* --- to a group --- */

static void member(struct peer *parent)
{
	sci_desc_t own = open_library();
	sci_local_segment_t segment;
	sci_map_t map;
	sci_error_t error;
	volatile char *memory;

	DO(SCICreateSegment, own, &segment, GROUP, SIZE, NOBODY, SCI_FLAG_BROADCAST);
	DO(SCIPrepareSegment, segment, ADAPTER, SCI_FLAG_BROADCAST);
	DO(SCISetSegmentAvailable, segment, ADAPTER, NO_FLAGS);
	memory = SCIMapLocalSegment(segment, &map, 0, SIZE, NULL, NO_FLAGS, &error);
	say(parent, 0);
	hear(parent);
	EXPECT(memory[0] == 'g' && memory[SIZE - 1] == 'g');
	say(parent, 0);
	hear(parent);
}

static void to_a_group(void)
{
	struct peer peers[2];
	sci_dma_queue_t queue;
	sci_remote_segment_t group;

	for (int i = 0; i < 2; i++) {
		spawn(&peers[i], member);
		hear(&peers[i]);
	}
	sd = open_library();
	DO(SCIConnectSegment, sd, &group, DIS_BROADCAST_NODEID_GROUP_ALL, GROUP, ADAPTER, NOBODY,
			LONG_MS, SCI_FLAG_BROADCAST);
	here = memset(malloc(SIZE), 'g', SIZE);
	queue = new_queue(1);
	DO(SCIStartDmaTransferMem, MEMORY(queue, here, group, SIZE,
			SCI_FLAG_BROADCAST | SCI_FLAG_DMA_WAIT | SCI_FLAG_DMA_USER_MEM));
	for (int i = 0; i < 2; i++) {
		say(&peers[i], 0);
		hear(&peers[i]);
	}
	/* One member's end is no matter; that of the last is. */
	kill_peer(&peers[0]);
	DO(SCIStartDmaTransferMem, MEMORY(queue, here, group, SIZE, SCI_FLAG_DMA_WAIT));
	kill_peer(&peers[1]);
	EXPECT(SCIWaitForRemoteSegmentEvent(group, NULL, LONG_MS, NO_FLAGS, NULL) == SCI_CB_LOST);
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIStartDmaTransferMem,
			MEMORY(queue, here, group, SIZE, SCI_FLAG_DMA_WAIT));
	DO(SCIRemoveDMAQueue, queue, NO_FLAGS);
	DO(SCIDisconnectSegment, group, NO_FLAGS);
	DO(SCIClose, sd, NO_FLAGS);
}

int main(void)
{
	static const struct test tests[] = {
		{"queues: refusals", refusals},
		{"queues: full, and under way", full_and_under_way},
		{"queues: aborted while waited for", aborted_while_waited_for},
		{"queues: aborted between short pieces", aborted_between_short_pieces},
		{"queues: callbacks", callbacks},
		{"queues: the owner is killed", failures},
		{"queues: to a group", to_a_group},
	};

	return run_tests(tests, COUNT(tests));
}
