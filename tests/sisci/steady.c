/*
 * Traffic that does not end: `steady` owns a segment until it is killed, `steady NODE` connects to
 * the one of that node, stores a number to it and reads it back, again and again. It says every
 * hundredth number, and ends with the first error.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <sisci_api.h>

#define NO_FLAGS 0
#define ADAPTER 0
#define ID 910
#define SIZE 4096
#define PATIENCE_MS 60000
#define SAY_EVERY 100
#define PAUSE_NS 1000000

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

static void load(sci_desc_t sd, unsigned int node)
{
	const struct timespec rest = {.tv_nsec = PAUSE_NS};
	sci_remote_segment_t segment;
	sci_sequence_t sequence;
	sci_error_t error;
	sci_map_t map;

	SCIConnectSegment(sd, &segment, node, ID, ADAPTER, NULL, NULL, PATIENCE_MS, NO_FLAGS,
			&error);
	demand(error == SCI_ERR_OK, "connect", error);
	SCIMapRemoteSegment(segment, &map, 0, SIZE, NULL, NO_FLAGS, &error);
	demand(error == SCI_ERR_OK, "map", error);
	SCICreateMapSequence(map, &sequence, NO_FLAGS, &error);
	demand(error == SCI_ERR_OK, "sequence", error);
	demand(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK, "start", error);
	for (unsigned long n = 1;; n++) {
		unsigned long back = 0;

		SCIMemCpy(sequence, &n, map, 0, sizeof(n), SCI_FLAG_ERROR_CHECK, &error);
		demand(error == SCI_ERR_OK, "write", error);
		SCIMemCpy(sequence, &back, map, 0, sizeof(back),
				SCI_FLAG_BLOCK_READ | SCI_FLAG_ERROR_CHECK, &error);
		demand(error == SCI_ERR_OK, "read", error);
		demand(back == n, "another number came back", error);
		if (n % SAY_EVERY == 0)
			printf("%lu\n", n);
		nanosleep(&rest, NULL);
	}
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
		load(sd, (unsigned int)atoi(argv[1]));
	else
		serve(sd);
	return 0;
}
