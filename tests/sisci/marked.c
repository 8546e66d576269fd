/*
 * A transfer that shows if it passes in the clear: `marked` owns a segment until it is killed,
 * `marked NODE` connects to the one of that node, writes a text to it again and again, reads it
 * back, and ends.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sisci_api.h>

#define NO_FLAGS 0
#define ADAPTER 0
#define ID 0x5ec2e7ed
#define SIZE 4096
#define TIMES 64
#define PATIENCE_MS 60000
#define MARK "what nobody else may read "

static void demand(int holds, const char *what, sci_error_t error)
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

	SCICreateSegment(sd, &segment, ID, SIZE, NULL, NULL, NO_FLAGS, &error);
	demand(error == SCI_ERR_OK, "create", error);
	SCIPrepareSegment(segment, ADAPTER, NO_FLAGS, &error);
	demand(error == SCI_ERR_OK, "prepare", error);
	SCISetSegmentAvailable(segment, ADAPTER, NO_FLAGS, &error);
	demand(error == SCI_ERR_OK, "set available", error);
	puts("serving");
	for (;;)
		pause();
}

static void write_and_read(sci_desc_t sd, unsigned int node)
{
	static char bytes[SIZE], back[SIZE];
	sci_remote_segment_t segment;
	sci_sequence_t sequence;
	sci_error_t error;
	sci_map_t map;

	for (size_t at = 0; at + sizeof(MARK) <= SIZE; at += sizeof(MARK) - 1)
		memcpy(bytes + at, MARK, sizeof(MARK));
	SCIConnectSegment(sd, &segment, node, ID, ADAPTER, NULL, NULL, PATIENCE_MS, NO_FLAGS,
			&error);
	demand(error == SCI_ERR_OK, "connect", error);
	SCIMapRemoteSegment(segment, &map, 0, SIZE, NULL, NO_FLAGS, &error);
	demand(error == SCI_ERR_OK, "map", error);
	SCICreateMapSequence(map, &sequence, NO_FLAGS, &error);
	demand(error == SCI_ERR_OK, "sequence", error);
	demand(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK, "start", error);
	for (int n = 0; n < TIMES; n++) {
		SCIMemCpy(sequence, bytes, map, 0, SIZE, SCI_FLAG_ERROR_CHECK, &error);
		demand(error == SCI_ERR_OK, "write", error);
		SCIMemCpy(sequence, back, map, 0, SIZE,
				SCI_FLAG_BLOCK_READ | SCI_FLAG_ERROR_CHECK, &error);
		demand(error == SCI_ERR_OK, "read", error);
		demand(!memcmp(bytes, back, SIZE), "other bytes came back", error);
		memset(back, 0, SIZE);
	}
	puts("done");
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
		write_and_read(sd, (unsigned int)atoi(argv[1]));
	else
		serve(sd);
	return 0;
}
