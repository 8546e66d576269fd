/* Ping-pong by polling mapped memory: pingpong client|server ROUNDS */
#include "common.h"

#define SEGMENT_SIZE 8192

static int play(int client, unsigned int rounds, sci_sequence_t sequence,
		volatile unsigned int *mine, volatile unsigned int *theirs)
{
	sci_error_t error;

	for (unsigned int i = 1; i <= rounds; i++) {
		if (client)
			theirs[0] = i;
		while (mine[0] < i)
			;
		if (!client)
			theirs[0] = i;
		if (SCICheckSequence(sequence, SCI_FLAG_NO_FLUSH | SCI_FLAG_NO_STORE_BARRIER,
				&error) != SCI_SEQ_OK)
			return 0;
	}
	return 1;
}

int main(int argc, char *argv[])
{
	int client = argc > 1 && !strcmp(argv[1], "client");
	unsigned int rounds = argc > 2 ? (unsigned int)atoi(argv[2]) : 1000;
	unsigned int adapter = 0, node, own_id, other_id;
	volatile unsigned int *mine, *theirs;
	sci_desc_t sd;
	sci_error_t error;
	sci_local_segment_t local;
	sci_remote_segment_t remote;
	sci_map_t local_map, remote_map;
	sci_sequence_t sequence;

	SCIInitialize(NO_FLAGS, &error);
	CHECK("SCIInitialize", error);
	SCIOpen(&sd, NO_FLAGS, &error);
	CHECK("SCIOpen", error);
	node = local_node_id(adapter);
	own_id = (node << 16) | (client ? 1 : 0);
	other_id = (node << 16) | (client ? 0 : 1);
	SCICreateSegment(sd, &local, own_id, SEGMENT_SIZE, NO_CALLBACK, NO_ARG, NO_FLAGS, &error);
	CHECK("SCICreateSegment", error);
	SCIPrepareSegment(local, adapter, NO_FLAGS, &error);
	CHECK("SCIPrepareSegment", error);
	mine = (volatile unsigned int *)SCIMapLocalSegment(local, &local_map, NO_OFFSET,
			SEGMENT_SIZE, NO_SUGGESTED_ADDRESS, NO_FLAGS, &error);
	CHECK("SCIMapLocalSegment", error);
	SCISetSegmentAvailable(local, adapter, NO_FLAGS, &error);
	CHECK("SCISetSegmentAvailable", error);
	do {
		SCIConnectSegment(sd, &remote, node, other_id, adapter, NO_CALLBACK, NO_ARG,
				SCI_INFINITE_TIMEOUT, NO_FLAGS, &error);
	} while (error != SCI_ERR_OK);
	theirs = (volatile unsigned int *)SCIMapRemoteSegment(remote, &remote_map, NO_OFFSET,
			SCIGetRemoteSegmentSize(remote), NO_SUGGESTED_ADDRESS, NO_FLAGS, &error);
	CHECK("SCIMapRemoteSegment", error);
	SCICreateMapSequence(remote_map, &sequence, NO_FLAGS, &error);
	CHECK("SCICreateMapSequence", error);
	while (SCIStartSequence(sequence, NO_FLAGS, &error) != SCI_SEQ_OK)
		;
	if (!play(client, rounds, sequence, mine, theirs)) {
		fprintf(stderr, "transfer failed\n");
		return EXIT_FAILURE;
	}
	/* Neither takes its memory away before the other is done with it. */
	theirs[1] = 1;
	while (!mine[1])
		;
	SCIRemoveSequence(sequence, NO_FLAGS, &error);
	CHECK("SCIRemoveSequence", error);
	SCIUnmapSegment(remote_map, NO_FLAGS, &error);
	CHECK("SCIUnmapSegment", error);
	SCIDisconnectSegment(remote, NO_FLAGS, &error);
	CHECK("SCIDisconnectSegment", error);
	SCIUnmapSegment(local_map, NO_FLAGS, &error);
	CHECK("SCIUnmapSegment", error);
	do
		SCIRemoveSegment(local, NO_FLAGS, &error);
	while (error == SCI_ERR_BUSY);
	CHECK("SCIRemoveSegment", error);
	SCIClose(sd, NO_FLAGS, &error);
	CHECK("SCIClose", error);
	SCITerminate();
	printf("%u rounds\n", rounds);
	return EXIT_SUCCESS;
}
