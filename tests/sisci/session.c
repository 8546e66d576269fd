/*
 * One side of a session between hosts, step by step, as its standard input says:
 *
 *	session owner [0 SEGMENT]
 *	session client NODE
 *
 * Each step is one word; the answer is a line "step NAME ERROR STATE MS": the error's name, what
 * a function says beside it, and how long it took. A step whose object is missing says "none".
 */
#define _GNU_SOURCE
#include "check.h"

#include <time.h>
#include <unistd.h>

#define BELL 41
#define SIZE (64 * PAGE)
/* Transfers that are started at a time, of so many bytes each. */
#define TRANSFERS 32
/* A wait for an interrupt or an event: longer than it takes to lose a segment in tests. */
#define WAIT_MS 5000
/* What may have happened already. */
#define LOOK_MS 1

static sci_desc_t sd;
static unsigned int node, id = 910;
static unsigned char bytes[SIZE];
static const char *state;

/* The client's objects, in the order in which they are made. */
static sci_remote_segment_t remote;
static sci_map_t map;
static sci_sequence_t sequence;
static sci_remote_interrupt_t bell;
static sci_dma_queue_t queue;
static volatile unsigned char *there;
static int has_remote, has_map, has_bell, has_queue;

/* The owner's. */
static sci_local_segment_t segment;
static sci_map_t own_map;
static sci_local_interrupt_t interrupt;
static volatile unsigned char *memory;
static int has_segment;

static const char *reason_name(sci_segment_cb_reason_t reason)
{
	return reason == SCI_CB_CONNECT ? "CONNECT" :
	       reason == SCI_CB_DISCONNECT ? "DISCONNECT" :
	       reason == SCI_CB_NOT_OPERATIONAL ? "NOT_OPERATIONAL" :
	       reason == SCI_CB_OPERATIONAL ? "OPERATIONAL" :
	       reason == SCI_CB_LOST ? "LOST" : "?";
}

static const char *standing(sci_sequence_status_t status)
{
	return status == SCI_SEQ_OK ? "OK" :
	       status == SCI_SEQ_RETRIABLE ? "RETRIABLE" :
	       status == SCI_SEQ_PENDING ? "PENDING" : "NOT_RETRIABLE";
}

static sci_error_t probe(void)
{
	sci_error_t error;

	SCIProbeNode(sd, ADAPTER, node, NO_FLAGS, &error);
	return error;
}

static sci_error_t connect_segment(void)
{
	sci_error_t error;

	SCIConnectSegment(sd, &remote, node, id, ADAPTER, NO_CALLBACK, NO_ARG, LOOK_MS, NO_FLAGS,
			&error);
	has_remote = error == SCI_ERR_OK;
	if (!has_remote)
		return error;
	SCIConnectInterrupt(sd, &bell, node, ADAPTER, BELL, LOOK_MS, NO_FLAGS, &error);
	has_bell = error == SCI_ERR_OK;
	return error;
}

static sci_error_t map_segment(void)
{
	sci_error_t error;

	there = SCIMapRemoteSegment(remote, &map, 0, SIZE, NULL, NO_FLAGS, &error);
	has_map = error == SCI_ERR_OK;
	if (has_map)
		DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	return error;
}

/* Stores until the sequence says that it has arrived, or that it never will, for WAIT_MS. */
static sci_error_t store(void)
{
	sci_error_t error;
	sci_sequence_status_t status;

	status = SCIStartSequence(sequence, NO_FLAGS, &error);
	if (status == SCI_SEQ_OK) {
		for (unsigned int i = 0; i < PAGE; i += 8)
			there[i]++;
		status = SCICheckSequence(sequence, NO_FLAGS, &error);
	}
	state = standing(status);
	return error;
}

static sci_error_t copy(void)
{
	sci_error_t error;

	SCIMemCpy(sequence, bytes, map, 0, SIZE, SCI_FLAG_ERROR_CHECK, &error);
	return error;
}

static sci_error_t post_dma(void)
{
	sci_error_t error;

	SCICreateDMAQueue(sd, &queue, ADAPTER, TRANSFERS, NO_FLAGS, &error);
	has_queue = error == SCI_ERR_OK;
	for (int i = 0; i < TRANSFERS && error == SCI_ERR_OK; i++)
		SCIStartDmaTransferMem(queue, bytes, remote, SIZE, 0, NO_CALLBACK, NO_ARG, NO_FLAGS,
				&error);
	return error;
}

static sci_error_t wait_dma(void)
{
	sci_error_t error;
	sci_dma_queue_state_t ended = SCIWaitForDMAQueue(queue, LONG_MS, NO_FLAGS, &error);

	state = ended == SCI_DMAQUEUE_DONE ? "DONE" : ended == SCI_DMAQUEUE_ERROR ? "ERROR" : "?";
	has_queue = 0;
	DO(SCIRemoveDMAQueue, queue, NO_FLAGS);
	return error;
}

static sci_error_t trigger(void)
{
	sci_error_t error;

	SCITriggerInterrupt(bell, NO_FLAGS, &error);
	return error;
}

/* The newest event that there is, or is soon. */
static sci_error_t event_within(unsigned int ms)
{
	sci_error_t error, status;
	sci_segment_cb_reason_t reason;

	do {
		reason = SCIWaitForRemoteSegmentEvent(remote, &status, ms, NO_FLAGS, &error);
		if (error == SCI_ERR_OK)
			state = reason_name(reason);
	} while (error == SCI_ERR_OK && reason != SCI_CB_LOST);
	return error;
}

static sci_error_t look_for_event(void)
{
	return event_within(LOOK_MS);
}

static sci_error_t unmap(void)
{
	sci_error_t error;

	DO(SCIRemoveSequence, sequence, NO_FLAGS);
	SCIUnmapSegment(map, NO_FLAGS, &error);
	has_map = error != SCI_ERR_OK;
	return error;
}

static sci_error_t disconnect(void)
{
	sci_error_t error = SCI_ERR_OK;

	if (has_bell)
		SCIDisconnectInterrupt(bell, NO_FLAGS, &error);
	has_bell = 0;
	if (error == SCI_ERR_OK)
		SCIDisconnectSegment(remote, NO_FLAGS, &error);
	has_remote = error != SCI_ERR_OK;
	return error;
}

static sci_error_t create(void)
{
	unsigned int number = BELL;
	sci_error_t error;

	SCICreateSegment(sd, &segment, id, SIZE, NO_CALLBACK, NO_ARG, NO_FLAGS, &error);
	if (error != SCI_ERR_OK)
		return error;
	DO(SCIPrepareSegment, segment, ADAPTER, NO_FLAGS);
	memory = SCIMapLocalSegment(segment, &own_map, 0, SIZE, NULL, NO_FLAGS, &error);
	EXPECT(memory);
	SCICreateInterrupt(sd, &interrupt, ADAPTER, &number, NO_CALLBACK, NO_ARG,
			SCI_FLAG_FIXED_INTNO | SCI_FLAG_COUNTING_INT, &error);
	if (error == SCI_ERR_OK)
		SCISetSegmentAvailable(segment, ADAPTER, NO_FLAGS, &error);
	has_segment = error == SCI_ERR_OK;
	return error;
}

static sci_error_t await_trigger(void)
{
	sci_error_t error;

	SCIWaitForInterrupt(interrupt, WAIT_MS, NO_FLAGS, &error);
	return error;
}

/* Takes what has come of triggers; says how many. */
static sci_error_t count_triggers(void)
{
	static char count[16];
	sci_error_t error;
	int taken = -1;

	do {
		SCIWaitForInterrupt(interrupt, LOOK_MS, NO_FLAGS, &error);
		taken++;
	} while (error == SCI_ERR_OK);
	snprintf(count, sizeof(count), "%d", taken);
	state = count;
	return error == SCI_ERR_TIMEOUT ? SCI_ERR_OK : error;
}

static sci_error_t await_local_event(void)
{
	unsigned int who, adapter;
	sci_error_t error;
	sci_segment_cb_reason_t reason = SCIWaitForLocalSegmentEvent(segment, &who, &adapter,
			WAIT_MS, NO_FLAGS, &error);

	if (error == SCI_ERR_OK)
		state = reason_name(reason);
	return error;
}

/* Bytes that have come: the last one that copy() leaves. */
static sci_error_t look(void)
{
	static char value[16];

	snprintf(value, sizeof(value), "%u", memory[SIZE - 1]);
	state = value;
	return SCI_ERR_OK;
}

static sci_error_t take_away(void)
{
	sci_error_t error;

	DO(SCIRemoveInterrupt, interrupt, NO_FLAGS);
	DO(SCIUnmapSegment, own_map, NO_FLAGS);
	SCIRemoveSegment(segment, SCI_FLAG_FORCE_REMOVE, &error);
	has_segment = error != SCI_ERR_OK;
	return error;
}

static const struct step {
	const char *name;
	sci_error_t (*take)(void);
	const int *needs;
} steps[] = {
	{"probe", probe, NULL},
	{"connect", connect_segment, NULL},
	{"map", map_segment, &has_remote},
	{"store", store, &has_map},
	{"copy", copy, &has_map},
	{"post", post_dma, &has_remote},
	{"dma", wait_dma, &has_queue},
	{"trigger", trigger, &has_bell},
	{"event", look_for_event, &has_remote},
	{"unmap", unmap, &has_map},
	{"disconnect", disconnect, &has_remote},
	{"create", create, NULL},
	{"wait", await_trigger, &has_segment},
	{"count", count_triggers, &has_segment},
	{"heard", await_local_event, &has_segment},
	{"look", look, &has_segment},
	{"remove", take_away, &has_segment},
};

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void take(const char *name)
{
	for (size_t i = 0; i < COUNT(steps); i++) {
		const struct step *step = &steps[i];
		double begun = now();
		const char *error = "none";

		if (strcmp(step->name, name))
			continue;
		state = "-";
		if (!step->needs || *step->needs)
			error = SCIGetErrorString(step->take());
		/* The name, without what it means. */
		printf("step %s %.*s %s %.0f\n", name, (int)strcspn(error, ":"), error, state,
				1000 * (now() - begun));
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	char word[32];

	if (argc > 2)
		node = (unsigned int)atoi(argv[2]);
	if (argc > 3)
		id = (unsigned int)atoi(argv[3]);
	sd = open_library();
	memset(bytes, 0x5a, sizeof(bytes));
	printf("ready %u\n", own_node());
	fflush(stdout);
	while (scanf("%31s", word) == 1)
		take(word);
	return failures_so_far() != 0;
}
