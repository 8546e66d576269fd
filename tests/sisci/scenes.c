/*
 * Pairs of processes for tests that kill or stop one of them, each pair about one thing:
 *
 *	scenes attach|reflect|async|notify|abort|flood host|guest ID
 *
 * Each goes round after round with whoever is there, until its standard input ends; then it takes
 * everything down and says "ended". What must not be is "trouble".
 */
#include "check.h"

#include <poll.h>
#include <stdarg.h>
#include <unistd.h>

/* Three chunks of the copy engine. */
#define BULK (3u * 512 * 1024)
/* A wait, between looks at the input. */
#define TURN_MS 20
/* Between two attempts. */
#define PAUSE_US 500
/* Data interrupts taken in a round. */
#define HANDFUL 64
#define GROUPS 64

static sci_desc_t sd;
static unsigned int id, rounds;

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

static void done_round(void)
{
	tell("round %u", ++rounds);
}

/* Whether the standard input has ended. */
static int is_over(void)
{
	struct pollfd input = {.fd = 0, .events = POLLIN};

	return poll(&input, 1, 0) > 0;
}

/* Whether a call has worked. If not, it must be for one of two reasons; then it is tried again. */
static int worked(const char *what, sci_error_t error, sci_error_t one, sci_error_t other)
{
	if (error == SCI_ERR_OK)
		return 1;
	if (error != one && error != other)
		tell("trouble: %s: %s", what, SCIGetErrorString(error));
	usleep(PAUSE_US);
	return 0;
}

static volatile unsigned int *map_local(sci_local_segment_t segment, sci_map_t *map, size_t size)
{
	sci_error_t error;
	void *memory = SCIMapLocalSegment(segment, map, 0, size, NULL, NO_FLAGS, &error);

	if (error != SCI_ERR_OK)
		give_up(__FILE__, __LINE__, "SCIMapLocalSegment", error);
	return memory;
}

/* A segment that others can connect to, as soon as its id is free. */
static int offer_when_free(sci_local_segment_t *segment, size_t size, int shared)
{
	sci_error_t error;

	SCICreateSegment(sd, segment, id, size, NO_CALLBACK, NO_ARG, NO_FLAGS, &error);
	if (!worked("create", error, SCI_ERR_SEGMENTID_USED, SCI_ERR_OK))
		return 0;
	DO(SCIPrepareSegment, *segment, ADAPTER, NO_FLAGS);
	if (shared)
		DO(SCIShareSegment, *segment, NO_FLAGS);
	DO(SCISetSegmentAvailable, *segment, ADAPTER, NO_FLAGS);
	return 1;
}

/* Connects, if there is somebody. */
static int reach(sci_remote_segment_t *segment)
{
	sci_error_t error;

	SCIConnectSegment(sd, segment, own_node(), id, ADAPTER, NO_CALLBACK, NO_ARG, TURN_MS,
			NO_FLAGS, &error);
	return worked("connect", error, SCI_ERR_NO_SUCH_SEGMENT, SCI_ERR_CONNECTION_REFUSED);
}

/* The next event of a connection; 0 when it is over. */
static sci_segment_cb_reason_t next_event(sci_remote_segment_t segment, sci_error_t *status)
{
	sci_segment_cb_reason_t reason = 0;
	sci_error_t error = SCI_ERR_TIMEOUT;

	while (error == SCI_ERR_TIMEOUT && !is_over())
		reason = SCIWaitForRemoteSegmentEvent(segment, status, TURN_MS, NO_FLAGS, &error);
	if (error != SCI_ERR_OK && error != SCI_ERR_TIMEOUT)
		tell("trouble: an event: %s", SCIGetErrorString(error));
	return error == SCI_ERR_OK ? reason : 0;
}

/* The next event of a local segment; 0 when it is over. */
static sci_segment_cb_reason_t next_local(sci_local_segment_t segment)
{
	sci_segment_cb_reason_t reason = 0;
	sci_error_t error = SCI_ERR_TIMEOUT;

	while (error == SCI_ERR_TIMEOUT && !is_over())
		reason = SCIWaitForLocalSegmentEvent(segment, NULL, NULL, TURN_MS, NO_FLAGS,
				&error);
	return error == SCI_ERR_OK ? reason : 0;
}

/* --- a segment that others attach to --- */

static void attach_host(void)
{
	sci_local_segment_t segment;
	sci_map_t map;

	/* Who is attached keeps the id taken when its creator is gone. */
	if (!offer_when_free(&segment, PAGE, 1))
		return;
	volatile unsigned int *words = map_local(segment, &map, PAGE);
	unsigned int before = words[0];

	while (words[0] == before && !is_over())
		usleep(PAUSE_US);
	if (words[0] != before)
		done_round();
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIRemoveSegment, segment, SCI_FLAG_FORCE_REMOVE);
}

static void attach_guest(void)
{
	sci_local_segment_t segment;
	sci_map_t map;
	sci_error_t error;
	size_t size;

	SCIAttachLocalSegment(sd, &segment, id, &size, NO_CALLBACK, NO_ARG, NO_FLAGS, &error);
	if (!worked("attach", error, SCI_ERR_NO_SUCH_SEGMENT, SCI_ERR_ACCESS))
		return;
	map_local(segment, &map, PAGE)[0]++;
	done_round();
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIRemoveSegment, segment, SCI_FLAG_FORCE_REMOVE);
}

/* --- reflective memory: each stores what the other sees --- */

static void reflect(int self)
{
	sci_local_segment_t segment;
	sci_remote_segment_t group;
	sci_map_t map, reflected;
	sci_error_t error;
	volatile unsigned int *words, *all, before;

	DO(SCICreateSegment, sd, &segment, id % GROUPS, PAGE, NO_CALLBACK, NO_ARG,
			SCI_FLAG_BROADCAST);
	DO(SCIPrepareSegment, segment, ADAPTER, SCI_FLAG_BROADCAST);
	words = map_local(segment, &map, PAGE);
	DO(SCISetSegmentAvailable, segment, ADAPTER, NO_FLAGS);
	DO(SCIConnectSegment, sd, &group, DIS_BROADCAST_NODEID_GROUP_ALL, id % GROUPS, ADAPTER,
			NO_CALLBACK, NO_ARG, SCI_INFINITE_TIMEOUT, SCI_FLAG_BROADCAST);
	all = SCIMapRemoteSegment(group, &reflected, 0, PAGE, NULL, SCI_FLAG_BROADCAST, &error);
	if (error != SCI_ERR_OK)
		give_up(__FILE__, __LINE__, "SCIMapRemoteSegment", error);
	for (before = words[!self]; words[!self] == before && !is_over(); usleep(PAUSE_US))
		all[self]++;
	if (words[!self] != before)
		done_round();
	/* The other may still look for it. */
	all[self]++;
	DO(SCIUnmapSegment, reflected, NO_FLAGS);
	DO(SCIDisconnectSegment, group, NO_FLAGS);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIRemoveSegment, segment, SCI_FLAG_FORCE_REMOVE);
}

static void reflect_host(void)
{
	reflect(0);
}

static void reflect_guest(void)
{
	reflect(1);
}

/* --- a connect that waits --- */

static void async_host(void)
{
	sci_local_segment_t segment;

	if (!offer_when_free(&segment, PAGE, 0))
		return;
	if (next_local(segment) == SCI_CB_CONNECT)
		done_round();
	DO(SCIRemoveSegment, segment, SCI_FLAG_FORCE_REMOVE);
	usleep(PAUSE_US);
}

static void async_guest(void)
{
	sci_remote_segment_t segment;
	sci_segment_cb_reason_t reason;
	sci_error_t error, status = SCI_ERR_OK;
	sci_map_t map;

	DO(SCIConnectSegment, sd, &segment, own_node(), id, ADAPTER, NO_CALLBACK, NO_ARG,
			SCI_INFINITE_TIMEOUT, SCI_FLAG_ASYNCHRONOUS_CONNECT);
	reason = next_event(segment, &status);
	if (reason == SCI_CB_CONNECT && status == SCI_ERR_OK) {
		volatile unsigned int *words = SCIMapRemoteSegment(segment, &map, 0, PAGE, NULL,
				NO_FLAGS, &error);

		if (error != SCI_ERR_OK)
			give_up(__FILE__, __LINE__, "SCIMapRemoteSegment", error);
		words[0]++;
		DO(SCIUnmapSegment, map, NO_FLAGS);
		done_round();
	}
	DO(SCIDisconnectSegment, segment, NO_FLAGS);
}

/* --- an owner who asks to disconnect --- */

static void notify_host(void)
{
	sci_local_segment_t segment;
	sci_segment_cb_reason_t reason;
	int connected = 0;

	if (!offer_when_free(&segment, PAGE, 0))
		return;
	while (!is_over()) {
		if (next_local(segment) == SCI_CB_CONNECT)
			connected++;
		DO(SCISetSegmentUnavailable, segment, ADAPTER, SCI_FLAG_NOTIFY);
		while (connected > 0 && (reason = next_local(segment)) != 0)
			connected += reason == SCI_CB_CONNECT ? 1 : -1;
		if (connected == 0)
			done_round();
		DO(SCISetSegmentAvailable, segment, ADAPTER, NO_FLAGS);
	}
	DO(SCIRemoveSegment, segment, SCI_FLAG_FORCE_REMOVE);
}

static void notify_guest(void)
{
	sci_remote_segment_t segment;
	sci_segment_cb_reason_t reason;
	sci_error_t status;

	if (!reach(&segment))
		return;
	do
		reason = next_event(segment, &status);
	while (reason == SCI_CB_NOT_OPERATIONAL || reason == SCI_CB_OPERATIONAL);
	DO(SCIDisconnectSegment, segment, NO_FLAGS);
	if (reason == SCI_CB_DISCONNECT)
		done_round();
}

/* --- transfers that are aborted --- */

static void abort_host(void)
{
	sci_local_segment_t segment;
	sci_map_t map;
	volatile unsigned int *words;
	unsigned int seen;

	if (!offer_when_free(&segment, PAGE + BULK, 0))
		return;
	words = map_local(segment, &map, PAGE + BULK);
	for (seen = words[0]; !is_over(); usleep(PAUSE_US)) {
		if (words[0] != seen)
			done_round();
		seen = words[0];
	}
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIRemoveSegment, segment, SCI_FLAG_FORCE_REMOVE);
}

static void abort_guest(void)
{
	sci_local_segment_t local;
	sci_remote_segment_t segment;
	sci_dma_queue_t queue;
	sci_dma_queue_state_t state;
	sci_map_t map;
	sci_error_t error;

	if (!reach(&segment))
		return;
	DO(SCICreateSegment, sd, &local, 0, BULK, NO_CALLBACK, NO_ARG,
			SCI_FLAG_PRIVATE | SCI_FLAG_AUTO_ID);
	DO(SCIPrepareSegment, local, ADAPTER, NO_FLAGS);
	DO(SCICreateDMAQueue, sd, &queue, ADAPTER, 2, NO_FLAGS);
	for (int i = 0; i < 2; i++)
		DO(SCIStartDmaTransfer, queue, local, segment, 0, BULK, PAGE, NO_CALLBACK, NO_ARG,
				NO_FLAGS);
	DO(SCIAbortDMAQueue, queue, NO_FLAGS);
	state = SCIDMAQueueState(queue);
	if (state != SCI_DMAQUEUE_ABORTED && state != SCI_DMAQUEUE_DONE &&
			state != SCI_DMAQUEUE_ERROR)
		tell("trouble: an aborted queue is in state %d", state);
	DO(SCIRemoveDMAQueue, queue, NO_FLAGS);
	((volatile unsigned int *)SCIMapRemoteSegment(segment, &map, 0, PAGE, NULL, NO_FLAGS,
			&error))[0]++;
	done_round();
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIDisconnectSegment, segment, NO_FLAGS);
	DO(SCIRemoveSegment, local, NO_FLAGS);
}

/* --- data interrupts faster than they are taken --- */

static void flood_host(void)
{
	sci_local_data_interrupt_t interrupt;
	unsigned int number = id, taken = 0;
	sci_error_t error;

	SCICreateDataInterrupt(sd, &interrupt, ADAPTER, &number, NO_CALLBACK, NO_ARG,
			SCI_FLAG_FIXED_INTNO, &error);
	if (!worked("create", error, SCI_ERR_INTNO_USED, SCI_ERR_OK))
		return;
	while (!is_over()) {
		unsigned int word, length = sizeof(word);

		SCIWaitForDataInterrupt(interrupt, &word, &length, TURN_MS, NO_FLAGS, &error);
		if (error == SCI_ERR_OK && ++taken % HANDFUL == 0)
			done_round();
		else if (error != SCI_ERR_OK && error != SCI_ERR_TIMEOUT)
			tell("trouble: data: %s", SCIGetErrorString(error));
	}
	DO(SCIRemoveDataInterrupt, interrupt, NO_FLAGS);
}

static void flood_guest(void)
{
	sci_remote_data_interrupt_t interrupt;
	unsigned int sent = 0;
	sci_error_t error;

	SCIConnectDataInterrupt(sd, &interrupt, own_node(), ADAPTER, id, TURN_MS, NO_FLAGS, &error);
	if (!worked("connect", error, SCI_ERR_NO_SUCH_INTNO, SCI_ERR_CONNECTION_REFUSED))
		return;
	do {
		SCITriggerDataInterrupt(interrupt, &sent, sizeof(sent), NO_FLAGS, &error);
		if (error == SCI_ERR_OK) {
			sent++;
		} else if (error == SCI_ERR_NOSPC) {
			done_round();
			usleep(PAUSE_US);
		}
	} while (error != SCI_ERR_NOT_CONNECTED && !is_over());
	DO(SCIDisconnectDataInterrupt, interrupt, NO_FLAGS);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*host)(void), (*guest)(void);
	} scenes[] = {
		{"attach", attach_host, attach_guest},
		{"reflect", reflect_host, reflect_guest},
		{"async", async_host, async_guest},
		{"notify", notify_host, notify_guest},
		{"abort", abort_host, abort_guest},
		{"flood", flood_host, flood_guest},
	};

	if (argc != 4)
		return 2;
	id = (unsigned int)atoi(argv[3]);
	sd = open_library();
	tell("ready");
	for (size_t i = 0; i < COUNT(scenes); i++)
		while (!strcmp(argv[1], scenes[i].name) && !is_over())
			(strcmp(argv[2], "host") ? scenes[i].guest : scenes[i].host)();
	DO(SCIClose, sd, NO_FLAGS);
	SCITerminate();
	tell("ended");
	return 0;
}
