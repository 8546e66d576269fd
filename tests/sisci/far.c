/*
 * What works between hosts: a segment and interrupts of a peer, whose node is another host's. The
 * peer runs there (remote.h); with CHECK_DAEMONS the daemon of the peer's host is signalled, whose
 * process id is in the file CHECK_DAEMON_FILE there. With an argument: asks for that node, or
 * stores to its segment.
 */
#define _GNU_SOURCE
#include "far.h"
#include "no_threads.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define NUMBER 31
#define DATA_NUMBER 32
#define STORE "store"

static void segments(void)
{
	sci_remote_segment_t remote, other;
	struct peer peer;
	sci_desc_t sd = begin(&peer, &remote);
	unsigned int node = SCIGetRemoteSegmentNodeId(remote);

	REFUSED(SCI_ERR_NO_SUCH_SEGMENT, SCIConnectSegment, sd, &other, node, ID + 1, ADAPTER,
			NO_CALLBACK, NO_ARG, SHORT_MS, NO_FLAGS);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	say(&peer, WAIT_DISCONNECT);
	EXPECT(hear(&peer) == own_node());
	end(&peer);
}

/* A segment of another host is waited for: it comes, or it does not in time. */
static void asynchronous_connects(void)
{
	sci_remote_segment_t remote, awaited, never;
	sci_error_t error, status;
	struct peer peer;
	sci_desc_t sd = begin(&peer, &remote);
	unsigned int node = SCIGetRemoteSegmentNodeId(remote);

	DO(SCIConnectSegment, sd, &awaited, node, ID + 1, ADAPTER, NO_CALLBACK, NO_ARG,
			SCI_INFINITE_TIMEOUT, SCI_FLAG_ASYNCHRONOUS_CONNECT);
	DO(SCIConnectSegment, sd, &never, node, ID + 2, ADAPTER, NO_CALLBACK, NO_ARG, SHORT_MS,
			SCI_FLAG_ASYNCHRONOUS_CONNECT);
	EXPECT(SCIWaitForRemoteSegmentEvent(never, &status, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_CONNECT && status == SCI_ERR_TIMEOUT);
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForRemoteSegmentEvent, awaited, &status, SHORT_MS,
			NO_FLAGS);
	say(&peer, OFFER);
	hear(&peer);
	EXPECT(SCIWaitForRemoteSegmentEvent(awaited, &status, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_CONNECT && status == SCI_ERR_OK);
	EXPECT(SCIGetRemoteSegmentSize(awaited) == PAGE);
	DO(SCIDisconnectSegment, never, NO_FLAGS);
	DO(SCIDisconnectSegment, awaited, NO_FLAGS);
	end(&peer);
}

static void copies(void)
{
	static unsigned char bytes[SIZE], back[SIZE];
	sci_sequence_t sequence;
	sci_remote_segment_t remote;
	sci_error_t error;
	struct peer peer;
	unsigned char *there;
	sci_map_t map;

	begin(&peer, &remote);
	map = map_all(remote, &there);
	DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	EXPECT(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	for (unsigned int i = 0; i < SIZE; i++)
		bytes[i] = pattern(i, 1);
	DO(SCIMemCpy, sequence, bytes, map, 0, SIZE, SCI_FLAG_ERROR_CHECK);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	say(&peer, SUM);
	EXPECT(hear(&peer) == sum(bytes, SIZE));
	/* Odd places, of any size. */
	for (unsigned int round = 0; round < ROUNDS; round++) {
		unsigned int at = round * 977 % (SIZE - PAGE), count = 1 + round * 131 % PAGE;

		memset(bytes + at, (int)round, count);
		if (round % 2)
			DO(SCIMemCpy, NULL, bytes + at, map, at, count, NO_FLAGS);
		else
			DO(SCIMemWrite, bytes + at, there + at, count, NO_FLAGS);
	}
	/* Those as well of which a part at the end is on its way when the call returns. */
	for (unsigned int round = 0; round < 40; round++) {
		unsigned int at = round * 13, count = POSTED - 2 + round % 4 + round / 4 * 1000;

		for (unsigned int i = 0; i < count; i++)
			bytes[at + i] = pattern(i, 5 + round);
		DO(SCIMemCpy, NULL, bytes + at, map, at, count, NO_FLAGS);
	}
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	say(&peer, SUM);
	EXPECT(hear(&peer) == sum(bytes, SIZE));
	say(&peer, FILL);
	hear(&peer);
	DO(SCIMemCpy, sequence, back, map, 0, SIZE, SCI_FLAG_BLOCK_READ | SCI_FLAG_ERROR_CHECK);
	for (unsigned int i = 0; i < SIZE; i++)
		if (back[i] != pattern(i, 3)) {
			EXPECT(back[i] == pattern(i, 3));
			break;
		}
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCIMemCpy, sequence, bytes, map, 1, SIZE, NO_FLAGS);
	/* Memory of our own that is not there: the connection goes on. */
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemCpy, sequence, (void *)(uintptr_t)PAGE, map, 0, 8,
			NO_FLAGS);
	DO(SCIMemCpy, sequence, bytes, map, 0, 8, SCI_FLAG_ERROR_CHECK);
	REFUSED(SCI_ERR_BUSY, SCIDisconnectSegment, remote, NO_FLAGS);
	DO(SCIRemoveSequence, sequence, NO_FLAGS);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	end(&peer);
}

static void blocks(void)
{
	sci_local_segment_t segment;
	sci_remote_segment_t remote;
	sci_map_t local, map;
	unsigned char *here, *there;
	sci_block_transfer_t block;
	struct peer peer;
	sci_desc_t sd = begin(&peer, &remote);

	here = offer(sd, &segment, &local, ID + 1, SIZE);
	map = map_all(remote, &there);
	for (unsigned int i = 0; i < SIZE; i++)
		here[i] = pattern(i, 5);
	DO(SCITransferBlock, local, 0, map, 0, SIZE, SCI_FLAG_ERROR_CHECK);
	say(&peer, SUM);
	EXPECT(hear(&peer) == sum(here, SIZE));
	say(&peer, FILL);
	hear(&peer);
	DO(SCITransferBlockAsync, map, 0, local, 0, SIZE, &block, NO_CALLBACK, NO_ARG, NO_FLAGS);
	DO(SCIWaitForBlockTransfer, block, LONG_MS, NO_FLAGS);
	EXPECT(here[0] == pattern(0, 3) && here[SIZE - 1] == pattern(SIZE - 1, 3));
	end(&peer);
}

static void transfers(void)
{
	static unsigned char bytes[SIZE];
	sci_local_segment_t segment;
	sci_remote_segment_t remote;
	sci_dma_queue_t queue;
	sci_error_t error;
	struct peer peer;
	sci_map_t local;
	unsigned char *here;
	sci_desc_t sd = begin(&peer, &remote);

	here = offer(sd, &segment, &local, ID + 1, SIZE);
	DO(SCICreateDMAQueue, sd, &queue, ADAPTER, 8, NO_FLAGS);
	for (unsigned int i = 0; i < SIZE; i++)
		here[i] = pattern(i, 9);
	DO(SCIStartDmaTransfer, queue, segment, remote, 0, SIZE, 0, NO_CALLBACK, NO_ARG, NO_FLAGS);
	EXPECT(SCIWaitForDMAQueue(queue, LONG_MS, NO_FLAGS, &error) == SCI_DMAQUEUE_DONE);
	EXPECT(error == SCI_ERR_OK);
	say(&peer, SUM);
	EXPECT(hear(&peer) == sum(here, SIZE));
	memset(bytes, 0x5a, SIZE);
	DO(SCIStartDmaTransferMem, queue, bytes, remote, SIZE, 0, NO_CALLBACK, NO_ARG,
			SCI_FLAG_DMA_WAIT);
	say(&peer, SUM);
	EXPECT(hear(&peer) == sum(bytes, SIZE));
	say(&peer, FILL);
	hear(&peer);
	DO(SCIStartDmaTransfer, queue, segment, remote, PAGE, SIZE - PAGE, 0, NO_CALLBACK, NO_ARG,
			SCI_FLAG_DMA_READ | SCI_FLAG_DMA_WAIT);
	EXPECT(here[PAGE] == pattern(0, 3) && here[SIZE - 1] == pattern(SIZE - PAGE - 1, 3));
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCIStartDmaTransfer, queue, segment, remote, 0, SIZE, 1,
			NO_CALLBACK, NO_ARG, NO_FLAGS);
	end(&peer);
}

/* Entries that are posted together stay gathered while there can be no thread that carries them
 * out. */
static void gathered(void)
{
	sci_local_segment_t segment;
	sci_remote_segment_t remote;
	sci_dma_queue_t queue;
	sci_error_t error;
	struct peer peer;
	sci_map_t local;
	unsigned char *here;
	sci_desc_t sd = begin(&peer, &remote);

	here = offer(sd, &segment, &local, ID + 1, SIZE);
	for (unsigned int i = 0; i < SIZE; i++)
		here[i] = pattern(i, 11);
	DO(SCICreateDMAQueue, sd, &queue, ADAPTER, 2, NO_FLAGS);
	for (unsigned int at = 0; at < SIZE; at += SIZE / 2)
		EXPECT(SCIEnqueueDMATransfer(queue, segment, remote, at, at, SIZE / 2, NO_FLAGS,
				&error) == SCI_DMAQUEUE_GATHER && error == SCI_ERR_OK);
#define POST queue, NO_CALLBACK, NO_ARG, NO_FLAGS
	no_threads = 1;
	REFUSED(SCI_ERR_SYSTEM, SCIPostDMAQueue, POST);
	no_threads = 0;
	EXPECT(SCIDMAQueueState(queue) == SCI_DMAQUEUE_GATHER);
	DO(SCIPostDMAQueue, POST);
	EXPECT(SCIWaitForDMAQueue(queue, LONG_MS, NO_FLAGS, &error) == SCI_DMAQUEUE_DONE);
	EXPECT(error == SCI_ERR_OK);
	say(&peer, SUM);
	EXPECT(hear(&peer) == sum(here, SIZE));
	end(&peer);
}

static void removal(void)
{
	static unsigned char bytes[PAGE];
	sci_sequence_t sequence;
	sci_remote_segment_t remote;
	sci_error_t error, status;
	struct peer peer;
	unsigned char *there;
	sci_map_t map;

	begin(&peer, &remote);
	map = map_all(remote, &there);
	DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	say(&peer, REMOVE);
	EXPECT(hear(&peer) == SCI_ERR_OK);
	EXPECT(SCIWaitForRemoteSegmentEvent(remote, &status, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_LOST);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_NOT_RETRIABLE);
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemCpy, sequence, bytes, map, 0, PAGE, NO_FLAGS);
	end(&peer);
}

/* While a process of another host has mapped it, the owner removes a segment by force alone. */
static void mapped_elsewhere(void)
{
	static unsigned char bytes[SIZE];
	sci_remote_segment_t remote;
	sci_error_t error, status;
	sci_map_t map, part;
	unsigned char *there;
	struct peer peer;

	begin(&peer, &remote);
	map = map_all(remote, &there);
	SCIMapRemoteSegment(remote, &part, PAGE, PAGE, NULL, NO_FLAGS, &error);
	EXPECT(error == SCI_ERR_OK);
	say(&peer, TRY_REMOVE);
	EXPECT(hear(&peer) == SCI_ERR_BUSY);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	say(&peer, TRY_REMOVE);
	EXPECT(hear(&peer) == SCI_ERR_BUSY);
	DO(SCIMemCpy, NULL, bytes, part, 0, PAGE, NO_FLAGS);
	DO(SCIUnmapSegment, part, NO_FLAGS);
	say(&peer, TRY_REMOVE);
	EXPECT(hear(&peer) == SCI_ERR_OK);
	EXPECT(SCIWaitForRemoteSegmentEvent(remote, &status, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_LOST);
	end(&peer);
}

static void ask_silent(void *argument, sci_error_t *error)
{
	sci_desc_t sd = argument;

	SCIProbeNode(sd, ADAPTER, (unsigned int)atoi(getenv("CHECK_SILENT")), NO_FLAGS, error);
}

/* A node that answers nothing holds up who asks for it, and nobody else. CHECK_SILENT names it; it
 * has so many addresses that the other node is reached long before the last was tried. */
static void beside_a_silent_node(void)
{
	struct sleeper sleeper;
	sci_remote_segment_t remote;
	struct peer peer;
	unsigned int node;
	sci_desc_t sd;

	spawn(&peer, peer_owner);
	node = hear(&peer);
	sd = open_library();
	start_sleeper(&sleeper, ask_silent, sd);
	connect_to(sd, &remote, node, ID);
	EXPECT(pthread_tryjoin_np(sleeper.thread, NULL) == EBUSY);
	EXPECT(hear(&peer) == own_node());
	EXPECT(end_of(&sleeper) == SCI_ERR_NO_REMOTE_LINK_ACCESS);
	end(&peer);
}

/* What is stored to a segment that is known to be lost goes nowhere, and takes nothing along. */
static void lost_beside_another(void)
{
	sci_remote_segment_t remote, other;
	sci_error_t error, status;
	sci_sequence_t sequence;
	struct peer peer;
	unsigned char *gone, *there;
	sci_desc_t sd = begin(&peer, &remote);
	unsigned char back = 0;
	sci_map_t map, other_map;

	map = map_all(remote, &gone);
	say(&peer, OFFER);
	hear(&peer);
	DO(SCIConnectSegment, sd, &other, SCIGetRemoteSegmentNodeId(remote), ID + 1, ADAPTER,
			NO_CALLBACK, NO_ARG, LONG_MS, NO_FLAGS);
	there = (unsigned char *)SCIMapRemoteSegment(other, &other_map, 0, PAGE, NULL, NO_FLAGS,
			&error);
	EXPECT(error == SCI_ERR_OK);
	DO(SCICreateMapSequence, other_map, &sequence, NO_FLAGS);
	EXPECT(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	say(&peer, REMOVE);
	EXPECT(hear(&peer) == SCI_ERR_OK);
	EXPECT(SCIWaitForRemoteSegmentEvent(remote, &status, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_LOST);
	for (unsigned int i = 1; i <= 100; i++) {
		((volatile unsigned char *)gone)[i] = (unsigned char)i;
		memset(gone + PAGE, (int)i, PAGE);
		EXPECT(((volatile unsigned char *)gone)[i] == UCHAR_MAX);
		((volatile unsigned char *)there)[i] = (unsigned char)i;
		SCIFlush(NULL, NO_FLAGS);
		DO(SCIMemCpy, sequence, &back, other_map, i, 1,
				SCI_FLAG_BLOCK_READ | SCI_FLAG_ERROR_CHECK);
		EXPECT(back == i);
	}
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	end(&peer);
}

static void death(void)
{
	sci_sequence_t sequence;
	sci_remote_segment_t remote;
	sci_error_t error, status;
	struct peer peer;
	unsigned char *there;
	sci_map_t map;

	begin(&peer, &remote);
	map = map_all(remote, &there);
	DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	kill_peer(&peer);
	EXPECT(SCIWaitForRemoteSegmentEvent(remote, &status, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_LOST);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_NOT_RETRIABLE);
}

static void triggered(struct peer *parent)
{
	sci_desc_t sd = open_library();
	sci_local_interrupt_t interrupt;
	sci_local_data_interrupt_t data;
	unsigned int number = NUMBER, data_number = DATA_NUMBER, length;
	char text[64];

	DO(SCICreateInterrupt, sd, &interrupt, ADAPTER, &number, NO_CALLBACK, NO_ARG,
			SCI_FLAG_FIXED_INTNO | SCI_FLAG_COUNTING_INT);
	DO(SCICreateDataInterrupt, sd, &data, ADAPTER, &data_number, NO_CALLBACK, NO_ARG,
			SCI_FLAG_FIXED_INTNO);
	say(parent, own_node());
	for (unsigned int i = 0; i < ROUNDS; i++)
		DO(SCIWaitForInterrupt, interrupt, LONG_MS, NO_FLAGS);
	say(parent, ROUNDS);
	length = sizeof(text);
	DO(SCIWaitForDataInterrupt, data, text, &length, LONG_MS, NO_FLAGS);
	EXPECT(length == 6 && memcmp(text, "hello", 6) == 0);
	say(parent, length);
	hear(parent);
	DO(SCIRemoveInterrupt, interrupt, NO_FLAGS);
	say(parent, 0);
	hear(parent);
}

static void interrupts(void)
{
	sci_remote_interrupt_t interrupt, none;
	sci_remote_data_interrupt_t data;
	sci_error_t error = SCI_ERR_OK;
	struct peer peer;
	unsigned int node;
	sci_desc_t sd;

	spawn(&peer, triggered);
	node = hear(&peer);
	sd = open_library();
	REFUSED(SCI_ERR_NO_SUCH_INTNO, SCIConnectInterrupt, sd, &none, node, ADAPTER, NUMBER + 9,
			SHORT_MS, NO_FLAGS);
	DO(SCIConnectInterrupt, sd, &interrupt, node, ADAPTER, NUMBER, LONG_MS, NO_FLAGS);
	for (unsigned int i = 0; i < ROUNDS; i++)
		DO(SCITriggerInterrupt, interrupt, NO_FLAGS);
	EXPECT(hear(&peer) == ROUNDS);
	DO(SCIConnectDataInterrupt, sd, &data, node, ADAPTER, DATA_NUMBER, LONG_MS, NO_FLAGS);
	DO(SCITriggerDataInterrupt, data, "hello", 6, NO_FLAGS);
	EXPECT(hear(&peer) == 6);
	/* Once it is gone that is known, soon. */
	say(&peer, 0);
	hear(&peer);
	for (int i = 0; i < LONG_MS && error == SCI_ERR_OK; i++) {
		SCITriggerInterrupt(interrupt, NO_FLAGS, &error);
		usleep(1000);
	}
	EXPECT(error == SCI_ERR_NOT_CONNECTED);
	DO(SCIDisconnectInterrupt, interrupt, NO_FLAGS);
	DO(SCIDisconnectDataInterrupt, data, NO_FLAGS);
	say(&peer, 0);
	join(&peer);
}

/* Its queue pair fails a transfer, and another takes its place when it goes on. */
static void stopped_daemon(void)
{
	static unsigned char bytes[SIZE];
	sci_sequence_t sequence;
	sci_remote_segment_t remote;
	sci_error_t error;
	struct peer peer;
	unsigned char *there;
	sci_map_t map;

	begin(&peer, &remote);
	map = map_all(remote, &there);
	DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	DO(SCIMemCpy, sequence, bytes, map, 0, SIZE, SCI_FLAG_ERROR_CHECK);
	say(&peer, STOP_DAEMON);
	hear(&peer);
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemCpy, sequence, bytes, map, 0, SIZE,
			SCI_FLAG_ERROR_CHECK);
	say(&peer, WAKE_DAEMON);
	hear(&peer);
	memset(bytes, 0x77, SIZE);
	for (error = SCI_ERR_TRANSFER_FAILED; error == SCI_ERR_TRANSFER_FAILED; )
		SCIMemCpy(sequence, bytes, map, 0, SIZE, SCI_FLAG_ERROR_CHECK, &error);
	EXPECT(error == SCI_ERR_OK);
	/* What was stored before is missing, perhaps; from here on it is not. */
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_RETRIABLE);
	EXPECT(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	DO(SCIMemCpy, sequence, bytes, map, 0, PAGE, NO_FLAGS);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	say(&peer, SUM);
	EXPECT(hear(&peer) == sum(bytes, SIZE));
	end(&peer);
}

static void killed_daemon(void)
{
	static unsigned char bytes[PAGE];
	sci_sequence_t sequence;
	sci_remote_segment_t remote, again;
	sci_error_t error, status;
	struct peer peer;
	unsigned char *there;
	sci_map_t map;
	sci_desc_t sd = begin(&peer, &remote);
	unsigned int node = SCIGetRemoteSegmentNodeId(remote);

	map = map_all(remote, &there);
	DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	say(&peer, KILL_DAEMON);
	hear(&peer);
	EXPECT(SCIWaitForRemoteSegmentEvent(remote, &status, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_NOT_OPERATIONAL);
	EXPECT(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_PENDING);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_RETRIABLE);
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemCpy, sequence, bytes, map, 0, PAGE, NO_FLAGS);
	EXPECT(SCIWaitForRemoteSegmentEvent(remote, &status, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_LOST);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_NOT_RETRIABLE);
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemCpy, sequence, bytes, map, 0, PAGE, NO_FLAGS);
	REFUSED(SCI_ERR_NO_REMOTE_LINK_ACCESS, SCIConnectSegment, sd, &again, node, ID, ADAPTER,
			NO_CALLBACK, NO_ARG, SHORT_MS, NO_FLAGS);
	/* The owner hears that its peer has left. */
	say(&peer, WAIT_DISCONNECT);
	EXPECT(hear(&peer) == own_node());
	end(&peer);
}

/* Another program stores to all of the segment and returns from main, and does nothing else. */
static void stores_before_the_end(void)
{
	static unsigned char bytes[SIZE];
	sci_remote_segment_t remote;
	struct peer peer;
	char node[16];
	int status;
	pid_t child;

	begin(&peer, &remote);
	snprintf(node, sizeof node, "%u", SCIGetRemoteSegmentNodeId(remote));
	for (unsigned int i = 0; i < SIZE; i++)
		bytes[i] = pattern(i, 9);
	child = fork();
	if (child == 0) {
		execl("/proc/self/exe", "far", node, STORE, NULL);
		_exit(EXIT_FAILURE);
	}
	EXPECT(waitpid(child, &status, 0) == child && status == 0);
	say(&peer, SUM);
	EXPECT(hear(&peer) == sum(bytes, SIZE));
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	end(&peer);
}

static int store_and_return(unsigned int node)
{
	sci_desc_t sd = open_library();
	sci_remote_segment_t remote;
	unsigned char *there;

	DO(SCIConnectSegment, sd, &remote, node, ID, ADAPTER, NO_CALLBACK, NO_ARG, LONG_MS,
			NO_FLAGS);
	map_all(remote, &there);
	for (unsigned int i = 0; i < SIZE; i++)
		((volatile unsigned char *)there)[i] = pattern(i, 9);
	return EXIT_SUCCESS;
}

/* Asks for a node: how it ended. */
static int probe(unsigned int node)
{
	sci_desc_t sd = open_library();
	sci_error_t error;
	int there = SCIProbeNode(sd, ADAPTER, node, NO_FLAGS, &error);

	printf("%d %#x %s\n", there, (unsigned int)error, SCIGetErrorString(error));
	return there ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char *argv[])
{
	static const struct test plain[] = {
		{"segments of another host", segments},
		{"asynchronous connects to another host", asynchronous_connects},
		{"copies between hosts", copies},
		{"block transfers between hosts", blocks},
		{"DMA between hosts", transfers},
		{"gathered DMA between hosts", gathered},
		{"interrupts of another host", interrupts},
		{"a segment that its owner removes", removal},
		{"a segment that another host has mapped is not removed", mapped_elsewhere},
		{"an owner that is killed", death},
		{"stores to a segment that is lost, beside another", lost_beside_another},
		{"stores of a program that ends", stores_before_the_end},
	};
	static const struct test silent[] = {
		{"a node that is silent, beside one that is not", beside_a_silent_node},
	};
	static const struct test daemon[] = {
		{"a daemon that is stopped, and goes on", stopped_daemon},
		{"a daemon that is killed", killed_daemon},
	};

	if (getenv("CHECK_DAEMONS"))
		return run_tests(daemon, COUNT(daemon));
	if (getenv("CHECK_SILENT"))
		return run_tests(silent, COUNT(silent));
	if (argc > 2 && strcmp(argv[2], STORE) == 0)
		return store_and_return((unsigned int)atoi(argv[1]));
	if (argc > 1)
		return probe((unsigned int)atoi(argv[1]));
	return run_tests(plain, COUNT(plain));
}
