/* DMA to a server's segment, which checks it: dmabench client|server */
#include "common.h"

#include <time.h>

#define SEGMENT_ID 77
#define SEGMENT_SIZE (4u << 20)
#define LOOPS 50
#define DONE_INTERRUPT 55

static unsigned char pattern(unsigned int i)
{
	return (unsigned char)(i * 7 + i / 4096);
}

static int serve(sci_desc_t sd)
{
	unsigned int number = DONE_INTERRUPT;
	sci_local_segment_t segment;
	sci_local_interrupt_t done;
	sci_segment_cb_reason_t reason;
	sci_map_t map;
	sci_error_t error;
	unsigned int node, adapter;
	unsigned char *memory;

	SCICreateInterrupt(sd, &done, 0, &number, NO_CALLBACK, NO_ARG, SCI_FLAG_FIXED_INTNO,
			&error);
	CHECK("SCICreateInterrupt", error);
	SCICreateSegment(sd, &segment, SEGMENT_ID, SEGMENT_SIZE, NO_CALLBACK, NO_ARG, NO_FLAGS,
			&error);
	CHECK("SCICreateSegment", error);
	memory = (unsigned char *)SCIMapLocalSegment(segment, &map, 0, SEGMENT_SIZE, NULL, NO_FLAGS,
			&error);
	CHECK("SCIMapLocalSegment", error);
	SCIPrepareSegment(segment, 0, NO_FLAGS, &error);
	CHECK("SCIPrepareSegment", error);
	SCISetSegmentAvailable(segment, 0, NO_FLAGS, &error);
	CHECK("SCISetSegmentAvailable", error);
	reason = SCIWaitForLocalSegmentEvent(segment, &node, &adapter, SCI_INFINITE_TIMEOUT,
			NO_FLAGS, &error);
	CHECK("SCIWaitForLocalSegmentEvent", error);
	if (reason != SCI_CB_CONNECT)
		return EXIT_FAILURE;
	SCIWaitForInterrupt(done, SCI_INFINITE_TIMEOUT, NO_FLAGS, &error);
	CHECK("SCIWaitForInterrupt", error);
	for (unsigned int i = 0; i < SEGMENT_SIZE; i++) {
		if (memory[i] != pattern(i)) {
			fprintf(stderr, "byte %u is wrong\n", i);
			return EXIT_FAILURE;
		}
	}
	SCIUnmapSegment(map, NO_FLAGS, &error);
	CHECK("SCIUnmapSegment", error);
	SCISetSegmentUnavailable(segment, 0, SCI_FLAG_FORCE_DISCONNECT, &error);
	CHECK("SCISetSegmentUnavailable", error);
	SCIRemoveSegment(segment, NO_FLAGS, &error);
	CHECK("SCIRemoveSegment", error);
	SCIRemoveInterrupt(done, NO_FLAGS, &error);
	CHECK("SCIRemoveInterrupt", error);
	return EXIT_SUCCESS;
}

static int transfer(sci_desc_t sd)
{
	unsigned int node = local_node_id(0);
	sci_local_segment_t local;
	sci_remote_segment_t remote;
	sci_remote_interrupt_t done;
	sci_dma_queue_t queue;
	sci_dma_queue_state_t state;
	sci_map_t map;
	sci_error_t error;
	unsigned char *memory;
	struct timespec begin, end;

	SCICreateSegment(sd, &local, 0, SEGMENT_SIZE, NO_CALLBACK, NO_ARG, SCI_FLAG_AUTO_ID,
			&error);
	CHECK("SCICreateSegment", error);
	SCIPrepareSegment(local, 0, SCI_FLAG_DMA_SOURCE_ONLY, &error);
	CHECK("SCIPrepareSegment", error);
	memory = (unsigned char *)SCIMapLocalSegment(local, &map, 0, SEGMENT_SIZE, NULL, NO_FLAGS,
			&error);
	CHECK("SCIMapLocalSegment", error);
	for (unsigned int i = 0; i < SEGMENT_SIZE; i++)
		memory[i] = pattern(i);
	do {
		SCIConnectSegment(sd, &remote, node, SEGMENT_ID, 0, NO_CALLBACK, NO_ARG,
				SCI_INFINITE_TIMEOUT, NO_FLAGS, &error);
	} while (error != SCI_ERR_OK);
	do {
		SCIConnectInterrupt(sd, &done, node, 0, DONE_INTERRUPT, SCI_INFINITE_TIMEOUT,
				NO_FLAGS, &error);
	} while (error != SCI_ERR_OK);
	SCICreateDMAQueue(sd, &queue, 0, 1, NO_FLAGS, &error);
	CHECK("SCICreateDMAQueue", error);
	for (unsigned int size = 1024; size <= SEGMENT_SIZE; size *= 4) {
		clock_gettime(CLOCK_MONOTONIC, &begin);
		for (int i = 0; i < LOOPS; i++) {
			SCIStartDmaTransfer(queue, local, remote, 0, size, 0, NO_CALLBACK, NO_ARG,
					NO_FLAGS, &error);
			CHECK("SCIStartDmaTransfer", error);
			state = SCIWaitForDMAQueue(queue, SCI_INFINITE_TIMEOUT, NO_FLAGS, &error);
			CHECK("SCIWaitForDMAQueue", error);
			if (state != SCI_DMAQUEUE_DONE)
				return EXIT_FAILURE;
		}
		clock_gettime(CLOCK_MONOTONIC, &end);
		printf("%u bytes: %.2f us\n", size, ((double)(end.tv_sec - begin.tv_sec) * 1e6 +
				(double)(end.tv_nsec - begin.tv_nsec) / 1e3) / LOOPS);
	}
	SCIRemoveDMAQueue(queue, NO_FLAGS, &error);
	CHECK("SCIRemoveDMAQueue", error);
	SCITriggerInterrupt(done, NO_FLAGS, &error);
	CHECK("SCITriggerInterrupt", error);
	/* Until the server takes it away. */
	if (SCIWaitForRemoteSegmentEvent(remote, &error, SCI_INFINITE_TIMEOUT, NO_FLAGS, &error) !=
			SCI_CB_LOST)
		return EXIT_FAILURE;
	return EXIT_SUCCESS;
}

int main(int argc, char *argv[])
{
	sci_desc_t sd;
	sci_error_t error;
	int status;

	SCIInitialize(NO_FLAGS, &error);
	CHECK("SCIInitialize", error);
	SCIOpen(&sd, NO_FLAGS, &error);
	CHECK("SCIOpen", error);
	status = argc > 1 && !strcmp(argv[1], "client") ? transfer(sd) : serve(sd);
	SCITerminate();
	return status;
}
