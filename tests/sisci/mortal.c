/*
 * Owners of a segment and interrupts, and those who connect, for tests that kill or stop them:
 *
 *	mortal owner|connector|steady ID
 *
 * Each goes on until its standard input ends, then takes everything down and says "ended". What
 * must not be is "trouble".
 */
#define _GNU_SOURCE
#include "check.h"

#include <poll.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

/* Three chunks of the copy engine. */
#define SIZE (3u * 512 * 1024)
/* Behind the words that are echoed. */
#define TARGET 4096
/* Longest data of an interrupt. */
#define LONGEST 4088
#define SLOTS 512
/* A wait of the owner's, between looks at its input. */
#define TURN_MS 20
/* From a death to the news of it. */
#define NEWS_MS 2000
/* Let the other fall asleep, so that doorbells are rung. */
#define DROWSE_US 2000

static sci_desc_t sd;
static unsigned int id;

static void tell(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	/* In one piece, whatever other threads say. */
	flockfile(stdout);
	vprintf(format, arguments);
	va_end(arguments);
	putchar('\n');
	fflush(stdout);
	funlockfile(stdout);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

/* Whether the standard input has ended. */
static int is_over(void)
{
	struct pollfd input = {.fd = 0, .events = POLLIN};

	return poll(&input, 1, 0) > 0;
}

static sci_callback_action_t noted(void *arg, sci_local_segment_t segment,
		sci_segment_cb_reason_t reason, unsigned int node, unsigned int adapter,
		sci_error_t error)
{
	(void)arg, (void)segment, (void)node, (void)adapter, (void)error;
	tell("%s", reason == SCI_CB_CONNECT ? "came" : reason == SCI_CB_DISCONNECT ? "left" :
			"trouble: an event");
	return SCI_CALLBACK_CONTINUE;
}

static void own(void)
{
	unsigned int number = id, data_number = id;
	sci_local_segment_t segment;
	sci_local_interrupt_t interrupt;
	sci_local_data_interrupt_t data_interrupt;
	sci_map_t map;
	sci_error_t error;
	volatile unsigned int *words;

	DO(SCICreateSegment, sd, &segment, id, SIZE + TARGET, noted, NO_ARG, SCI_FLAG_USE_CALLBACK);
	DO(SCIPrepareSegment, segment, ADAPTER, NO_FLAGS);
	words = SCIMapLocalSegment(segment, &map, 0, SIZE + TARGET, NULL, NO_FLAGS, &error);
	EXPECT(error == SCI_ERR_OK);
	DO(SCICreateInterrupt, sd, &interrupt, ADAPTER, &number, NO_CALLBACK, NO_ARG,
			SCI_FLAG_FIXED_INTNO);
	DO(SCICreateDataInterrupt, sd, &data_interrupt, ADAPTER, &data_number, NO_CALLBACK, NO_ARG,
			SCI_FLAG_FIXED_INTNO);
	DO(SCISetSegmentAvailable, segment, ADAPTER, NO_FLAGS);
	tell("ready");
	while (!is_over()) {
		unsigned int said[LONGEST / sizeof(int)], length = sizeof(said);

		SCIWaitForInterrupt(interrupt, TURN_MS, NO_FLAGS, &error);
		if (error == SCI_ERR_OK)
			words[0]++;
		else if (error != SCI_ERR_TIMEOUT)
			tell("trouble: a wait ends with %s", SCIGetErrorString(error));
		SCIWaitForDataInterrupt(data_interrupt, said, &length, TURN_MS, NO_FLAGS, &error);
		if (error == SCI_ERR_OK && length == 2 * sizeof(*said) && said[0] < SLOTS)
			words[1 + said[0]] = said[1];
		else if (error != SCI_ERR_TIMEOUT)
			tell("garbage: %s", SCIGetErrorString(error));
	}
	DO(SCISetSegmentUnavailable, segment, ADAPTER, SCI_FLAG_FORCE_DISCONNECT);
	DO(SCIRemoveInterrupt, interrupt, NO_FLAGS);
	DO(SCIRemoveDataInterrupt, data_interrupt, NO_FLAGS);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIRemoveSegment, segment, SCI_FLAG_FORCE_REMOVE);
}

/* What a round has made, and takes down again. */
struct link {
	sci_remote_segment_t segment;
	sci_remote_interrupt_t interrupt;
	sci_remote_data_interrupt_t data_interrupt;
	sci_map_t map;
	sci_sequence_t sequence;
	volatile unsigned int *words;
	int connected, mapped, triggers, data_triggers;
};

/* The link is made, as far as there is somebody at the other end. */
static int connect_link(struct link *link, unsigned int node)
{
	sci_error_t error;

	SCIConnectSegment(sd, &link->segment, node, id, ADAPTER, NO_CALLBACK, NO_ARG,
			SCI_INFINITE_TIMEOUT, NO_FLAGS, &error);
	if (error != SCI_ERR_OK)
		return 0;
	link->connected = 1;
	link->words = SCIMapRemoteSegment(link->segment, &link->map, 0, SIZE + TARGET, NULL,
			NO_FLAGS, &error);
	if (error != SCI_ERR_OK)
		return 0;
	link->mapped = 1;
	DO(SCICreateMapSequence, link->map, &link->sequence, NO_FLAGS);
	SCIConnectInterrupt(sd, &link->interrupt, node, ADAPTER, id, TURN_MS, NO_FLAGS, &error);
	if (error != SCI_ERR_OK)
		return 0;
	link->triggers = 1;
	SCIConnectDataInterrupt(sd, &link->data_interrupt, node, ADAPTER, id, TURN_MS,
			NO_FLAGS, &error);
	link->data_triggers = error == SCI_ERR_OK;
	return link->data_triggers;
}

static int is_alive(struct link *link)
{
	sci_error_t error;

	return SCICheckSequence(link->sequence, NO_FLAGS, &error) == SCI_SEQ_OK;
}

/* Waits for the owner to store, as long as it lives. */
static int awaits(struct link *link, unsigned int index, unsigned int other_than,
		const unsigned int *wanted)
{
	for (;;) {
		unsigned int word = link->words[index];

		if (wanted ? word == *wanted : word != other_than)
			return 1;
		if (!is_alive(link))
			return 0;
		usleep(100);
	}
}

/* One of everything. Returns whether the other side was there to the end. */
static int use_link(struct link *link, sci_local_segment_t local, unsigned int round)
{
	unsigned int said[2] = {getpid() % SLOTS, round}, before = link->words[0];
	sci_dma_queue_t queue;
	sci_error_t error;
	sci_dma_queue_state_t state;

	DO(SCICreateDMAQueue, sd, &queue, ADAPTER, 1, NO_FLAGS);
	SCIStartDmaTransfer(queue, local, link->segment, 0, SIZE, TARGET, NO_CALLBACK, NO_ARG,
			NO_FLAGS, &error);
	state = error == SCI_ERR_OK ?
			SCIWaitForDMAQueue(queue, LONG_MS, NO_FLAGS, &error) : SCI_DMAQUEUE_ERROR;
	if (state != SCI_DMAQUEUE_DONE && error != SCI_ERR_TRANSFER_FAILED &&
			error != SCI_ERR_SEGMENT_NOT_CONNECTED)
		tell("trouble: a transfer ends with %s", SCIGetErrorString(error));
	if (state == SCI_DMAQUEUE_ERROR)
		tell("transfer failed");
	DO(SCIRemoveDMAQueue, queue, NO_FLAGS);
	usleep(DROWSE_US);
	SCITriggerInterrupt(link->interrupt, NO_FLAGS, &error);
	if (error != SCI_ERR_OK || !awaits(link, 0, before, NULL))
		return 0;
	usleep(DROWSE_US);
	SCITriggerDataInterrupt(link->data_interrupt, said, sizeof(said), NO_FLAGS, &error);
	if (error != SCI_ERR_OK || !awaits(link, 1 + said[0], 0, &round))
		return 0;
	return state == SCI_DMAQUEUE_DONE;
}

static void cut_link(struct link *link, int lost)
{
	sci_error_t error, status;

	if (lost && link->connected) {
		double begin = now();

		if (SCIWaitForRemoteSegmentEvent(link->segment, &status, NEWS_MS, NO_FLAGS,
				&error) != SCI_CB_LOST)
			tell("trouble: no news of a death (%s)", SCIGetErrorString(error));
		else if (link->mapped && is_alive(link))
			tell("trouble: a sequence of the dead");
		tell("lost %.0f", 1000 * (now() - begin));
	}
	if (link->data_triggers)
		DO(SCIDisconnectDataInterrupt, link->data_interrupt, NO_FLAGS);
	if (link->triggers)
		DO(SCIDisconnectInterrupt, link->interrupt, NO_FLAGS);
	if (link->mapped) {
		DO(SCIRemoveSequence, link->sequence, NO_FLAGS);
		DO(SCIUnmapSegment, link->map, NO_FLAGS);
	}
	if (link->connected)
		DO(SCIDisconnectSegment, link->segment, NO_FLAGS);
}

/* Once more and again; `steady` keeps the connection from one round to the next. */
static void use(int steady)
{
	unsigned int node = own_node(), rounds = 0;
	struct link link = {0};
	sci_local_segment_t local;

	DO(SCICreateSegment, sd, &local, id + 1, SIZE, NO_CALLBACK, NO_ARG,
			SCI_FLAG_PRIVATE | SCI_FLAG_AUTO_ID);
	DO(SCIPrepareSegment, local, ADAPTER, SCI_FLAG_DMA_SOURCE_ONLY);
	tell("ready");
	while (!is_over()) {
		int good = link.connected || connect_link(&link, node);

		good = good && use_link(&link, local, rounds + 1);
		if (good)
			tell("round %u", ++rounds);
		if (!good || !steady) {
			/* The interrupts may come before the segment does, and go before it. */
			cut_link(&link, !good);
			memset(&link, 0, sizeof(link));
		}
	}
	cut_link(&link, 0);
	DO(SCIRemoveSegment, local, NO_FLAGS);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	id = (unsigned int)atoi(argv[2]);
	sd = open_library();
	if (!strcmp(argv[1], "owner"))
		own();
	else
		use(!strcmp(argv[1], "steady"));
	DO(SCIClose, sd, NO_FLAGS);
	SCITerminate();
	tell("ended");
	return 0;
}
