/*
 * See served.h.
 */
#include "served.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ADAPTER 0
#define PATIENCE_MS 60000

void demand(int holds, const char *what, sci_error_t error)
{
	if (holds)
		return;
	printf("%s: %#x\n", what, error);
	exit(1);
}

static void serve(sci_desc_t sd)
{
	sci_local_segment_t segment;
	sci_error_t error;

	SCICreateSegment(sd, &segment, segment_id, SIZE, NULL, NULL, NO_FLAGS, &error);
	demand(error == SCI_ERR_OK, "create", error);
	SCIPrepareSegment(segment, ADAPTER, NO_FLAGS, &error);
	demand(error == SCI_ERR_OK, "prepare", error);
	SCISetSegmentAvailable(segment, ADAPTER, NO_FLAGS, &error);
	demand(error == SCI_ERR_OK, "set available", error);
	puts("serving");
	for (;;)
		pause();
}

static void connect_to(sci_desc_t sd, unsigned int node)
{
	sci_remote_segment_t segment;
	sci_sequence_t sequence;
	sci_error_t error;
	sci_map_t map;

	SCIConnectSegment(sd, &segment, node, segment_id, ADAPTER, NULL, NULL, PATIENCE_MS,
			NO_FLAGS, &error);
	demand(error == SCI_ERR_OK, "connect", error);
	SCIMapRemoteSegment(segment, &map, 0, SIZE, NULL, NO_FLAGS, &error);
	demand(error == SCI_ERR_OK, "map", error);
	SCICreateMapSequence(map, &sequence, NO_FLAGS, &error);
	demand(error == SCI_ERR_OK, "sequence", error);
	demand(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK, "start", error);
	use(sequence, map);
}

int main(int argc, char *argv[])
{
	sci_error_t error;
	sci_desc_t sd;

	setvbuf(stdout, NULL, _IOLBF, 0);
	SCIInitialize(NO_FLAGS, &error);
	demand(error == SCI_ERR_OK, "initialize", error);
	SCIOpen(&sd, NO_FLAGS, &error);
	demand(error == SCI_ERR_OK, "open", error);
	if (argc > 1)
		connect_to(sd, (unsigned int)atoi(argv[1]));
	else
		serve(sd);
	return 0;
}
