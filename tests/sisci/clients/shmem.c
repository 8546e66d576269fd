/*
 * A segment that one fills with transfers which are checked and tried again, and the other reads:
 * shmem client|server. Events come by callbacks.
 */
#include "common.h"

#define SEGMENT_ID 0x7ace
#define SEGMENT_SIZE 65536
#define BLOCK 4096
/* Behind the blocks: which of them have come. */
#define DONE_OFFSET (SEGMENT_SIZE - 8)
#define TRANSFERS 300

static volatile int connected, disconnected;

static sci_callback_action_t on_local(void *arg, sci_local_segment_t segment,
		sci_segment_cb_reason_t reason, unsigned int node, unsigned int adapter,
		sci_error_t error)
{
	(void)arg, (void)node, (void)adapter, (void)error;
	switch (reason) {
	case SCI_CB_CONNECT:
		printf("connected to segment 0x%x\n", SCIGetLocalSegmentId(segment));
		connected = 1;
		break;
	case SCI_CB_DISCONNECT:
		disconnected = 1;
		break;
	case SCI_CB_NOT_OPERATIONAL:
	case SCI_CB_OPERATIONAL:
	case SCI_CB_LOST:
	default:
		break;
	}
	return SCI_CALLBACK_CONTINUE;
}

/* The sequence is started again until nothing stands in its way. */
static void start_sequence(sci_sequence_t sequence)
{
	sci_sequence_status_t status;
	sci_error_t error;

	do {
		status = SCIStartSequence(sequence, NO_FLAGS, &error);
		CHECK("SCIStartSequence", error);
	} while (status == SCI_SEQ_PENDING);
	if (status != SCI_SEQ_OK)
		exit(EXIT_FAILURE);
}

static void transfer(sci_sequence_t sequence, sci_map_t map, volatile unsigned int *target,
		unsigned int *block, unsigned int number)
{
	size_t offset = (number % (SEGMENT_SIZE / BLOCK - 1)) * BLOCK;
	sci_sequence_status_t status = SCI_SEQ_RETRIABLE;
	sci_error_t error;

	for (unsigned int i = 0; i < BLOCK / sizeof(*block); i++)
		block[i] = number + i;
	do {
		start_sequence(sequence);
		SCIMemCpy(sequence, block, map, offset, BLOCK, SCI_FLAG_ERROR_CHECK, &error);
		if (error == SCI_ERR_TRANSFER_FAILED)
			continue;
		CHECK("SCIMemCpy", error);
		SCIStoreBarrier(sequence, NO_FLAGS);
		target[DONE_OFFSET / 4] = number;
		status = SCICheckSequence(sequence, NO_FLAGS, &error);
		CHECK("SCICheckSequence", error);
		if (status == SCI_SEQ_NOT_RETRIABLE)
			exit(EXIT_FAILURE);
	} while (status != SCI_SEQ_OK);
}

static void client(sci_desc_t sd)
{
	unsigned int *block = malloc(BLOCK);
	volatile unsigned int *target;
	sci_remote_segment_t segment;
	sci_sequence_t sequence;
	sci_error_t error;
	sci_map_t map;

	do {
		SCIConnectSegment(sd, &segment, local_node_id(0), SEGMENT_ID, 0, NO_CALLBACK,
				NO_ARG, SCI_INFINITE_TIMEOUT, NO_FLAGS, &error);
	} while (error != SCI_ERR_OK);
	if (SCIGetRemoteSegmentSize(segment) != SEGMENT_SIZE)
		exit(EXIT_FAILURE);
	target = (volatile unsigned int *)SCIMapRemoteSegment(segment, &map, NO_OFFSET,
			SEGMENT_SIZE, NO_SUGGESTED_ADDRESS, NO_FLAGS, &error);
	CHECK("SCIMapRemoteSegment", error);
	SCICreateMapSequence(map, &sequence, NO_FLAGS, &error);
	CHECK("SCICreateMapSequence", error);
	for (unsigned int i = 1; i <= TRANSFERS; i++)
		transfer(sequence, map, target, block, i);
	SCIRemoveSequence(sequence, NO_FLAGS, &error);
	CHECK("SCIRemoveSequence", error);
	SCIUnmapSegment(map, NO_FLAGS, &error);
	CHECK("SCIUnmapSegment", error);
	SCIDisconnectSegment(segment, NO_FLAGS, &error);
	CHECK("SCIDisconnectSegment", error);
	free(block);
}

static void server(sci_desc_t sd)
{
	volatile unsigned int *memory;
	sci_local_segment_t segment;
	sci_error_t error;
	sci_map_t map;

	SCICreateSegment(sd, &segment, SEGMENT_ID, SEGMENT_SIZE, on_local, NO_ARG,
			SCI_FLAG_USE_CALLBACK, &error);
	CHECK("SCICreateSegment", error);
	SCIPrepareSegment(segment, 0, NO_FLAGS, &error);
	CHECK("SCIPrepareSegment", error);
	memory = (volatile unsigned int *)SCIMapLocalSegment(segment, &map, NO_OFFSET,
			SEGMENT_SIZE, NO_SUGGESTED_ADDRESS, NO_FLAGS, &error);
	CHECK("SCIMapLocalSegment", error);
	SCISetSegmentAvailable(segment, 0, NO_FLAGS, &error);
	CHECK("SCISetSegmentAvailable", error);
	while (memory[DONE_OFFSET / 4] < TRANSFERS)
		;
	for (unsigned int i = 0; i < BLOCK / 4; i++)
		if (memory[TRANSFERS % (SEGMENT_SIZE / BLOCK - 1) * (BLOCK / 4) + i] !=
				TRANSFERS + i)
			exit(EXIT_FAILURE);
	while (!connected || !disconnected)
		usleep(100);
	SCISetSegmentUnavailable(segment, 0, NO_FLAGS, &error);
	CHECK("SCISetSegmentUnavailable", error);
	SCIUnmapSegment(map, NO_FLAGS, &error);
	CHECK("SCIUnmapSegment", error);
	SCIRemoveSegment(segment, NO_FLAGS, &error);
	CHECK("SCIRemoveSegment", error);
}

int main(int argc, char *argv[])
{
	sci_desc_t sd;
	sci_error_t error;

	SCIInitialize(NO_FLAGS, &error);
	CHECK("SCIInitialize", error);
	SCIOpen(&sd, NO_FLAGS, &error);
	CHECK("SCIOpen", error);
	if (argc > 1 && !strcmp(argv[1], "client"))
		client(sd);
	else
		server(sd);
	SCIClose(sd, NO_FLAGS, &error);
	CHECK("SCIClose", error);
	SCITerminate();
	return EXIT_SUCCESS;
}
