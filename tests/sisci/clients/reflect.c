/* Reflective memory: each of two writes what the other sees: reflect client|server */
#include "common.h"

#define GROUP_ID 2
#define SEGMENT_SIZE 4096

int main(int argc, char *argv[])
{
	int self = argc > 1 && !strcmp(argv[1], "client");
	volatile unsigned int *seen, *written;
	sci_desc_t sd;
	sci_error_t error;
	sci_local_segment_t local;
	sci_remote_segment_t group;
	sci_map_t local_map, group_map;

	SCIInitialize(NO_FLAGS, &error);
	CHECK("SCIInitialize", error);
	SCIOpen(&sd, NO_FLAGS, &error);
	CHECK("SCIOpen", error);
	SCICreateSegment(sd, &local, GROUP_ID, SEGMENT_SIZE, NO_CALLBACK, NO_ARG,
			SCI_FLAG_BROADCAST, &error);
	CHECK("SCICreateSegment", error);
	SCIPrepareSegment(local, 0, SCI_FLAG_BROADCAST, &error);
	CHECK("SCIPrepareSegment", error);
	seen = (volatile unsigned int *)SCIMapLocalSegment(local, &local_map, 0, SEGMENT_SIZE, NULL,
			NO_FLAGS, &error);
	CHECK("SCIMapLocalSegment", error);
	SCISetSegmentAvailable(local, 0, NO_FLAGS, &error);
	CHECK("SCISetSegmentAvailable", error);
	do {
		SCIConnectSegment(sd, &group, DIS_BROADCAST_NODEID_GROUP_ALL, GROUP_ID, 0,
				NO_CALLBACK, NO_ARG, SCI_INFINITE_TIMEOUT, SCI_FLAG_BROADCAST,
				&error);
	} while (error != SCI_ERR_OK);
	written = (volatile unsigned int *)SCIMapRemoteSegment(group, &group_map, 0, SEGMENT_SIZE,
			NULL, SCI_FLAG_BROADCAST, &error);
	CHECK("SCIMapRemoteSegment", error);
	for (unsigned int i = 1; i <= 1000; i++) {
		written[self] = i;
		SCIFlush(NULL, NO_FLAGS);
		while (seen[!self] < i)
			;
	}
	/* What is local first, though the group is still mapped. */
	SCIUnmapSegment(local_map, NO_FLAGS, &error);
	CHECK("SCIUnmapSegment", error);
	SCIRemoveSegment(local, NO_FLAGS, &error);
	CHECK("SCIRemoveSegment", error);
	SCIUnmapSegment(group_map, NO_FLAGS, &error);
	CHECK("SCIUnmapSegment", error);
	SCIDisconnectSegment(group, NO_FLAGS, &error);
	CHECK("SCIDisconnectSegment", error);
	SCIClose(sd, NO_FLAGS, &error);
	CHECK("SCIClose", error);
	printf("1000 rounds\n");
	SCITerminate();
	return EXIT_SUCCESS;
}
