/* Two processes: connections, maps of remote memory, events, and what becomes of the survivor. */
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#define ID 200
#define SIZE (4 * PAGE)

/* --- an owner that does as it is told --- */

enum order { END, AVAILABLE, UNAVAILABLE, FORCE, NOTIFY, REMOVE, FORCE_REMOVE, STORE, WAIT_CONNECT,
	WAIT_DISCONNECT };

static void obey(struct peer *parent, sci_local_segment_t segment, sci_map_t map, char *memory)
{
	unsigned int order, node, adapter;
	sci_error_t error;

	while ((order = hear(parent)) != END) {
		sci_error_t outcome = SCI_ERR_OK;

		switch (order) {
		case AVAILABLE:
			SCISetSegmentAvailable(segment, ADAPTER, NO_FLAGS, &outcome);
			break;
		case UNAVAILABLE:
			SCISetSegmentUnavailable(segment, ADAPTER, NO_FLAGS, &outcome);
			break;
		case FORCE:
			SCISetSegmentUnavailable(segment, ADAPTER, SCI_FLAG_FORCE_DISCONNECT,
					&outcome);
			break;
		case NOTIFY:
			SCISetSegmentUnavailable(segment, ADAPTER, SCI_FLAG_NOTIFY, &outcome);
			break;
		case REMOVE:
		case FORCE_REMOVE:
			if (map)
				DO(SCIUnmapSegment, map, NO_FLAGS);
			map = NULL;
			SCIRemoveSegment(segment, order == REMOVE ? NO_FLAGS :
					SCI_FLAG_FORCE_REMOVE, &outcome);
			break;
		case STORE:
			memory[1]++;
			break;
		case WAIT_CONNECT:
		case WAIT_DISCONNECT:
			node = adapter = 77;
			EXPECT(SCIWaitForLocalSegmentEvent(segment, &node, &adapter, LONG_MS,
					NO_FLAGS, &error) == (order == WAIT_CONNECT ?
					SCI_CB_CONNECT : SCI_CB_DISCONNECT));
			EXPECT(error == SCI_ERR_OK && node == node_of(parent) &&
					adapter == 0);
			break;
		default:
			break;
		}
		say(parent, outcome);
	}
}

static void owner(struct peer *parent)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_map_t map;
	char *memory = offer(sd, &segment, &map, ID, SIZE);

	say(parent, own_node());
	obey(parent, segment, map, memory);
}

static unsigned int tell(struct peer *peer, enum order order)
{
	say(peer, order);
	return hear(peer);
}

/* --- connecting and mapping --- */

static void what_cannot_be_connected(void)
{
	struct peer peer;
	sci_desc_t sd;
	sci_remote_segment_t remote;
	unsigned int node;

	spawn(&peer, owner);
	node = hear(&peer);
	sd = open_library();
#define CONNECT(node, id, adapter, flags) \
	sd, &remote, node, id, adapter, NO_CALLBACK, NO_ARG, SHORT_MS, flags
	REFUSED(SCI_ERR_NO_SUCH_SEGMENT, SCIConnectSegment, CONNECT(node, ID + 1, 0, NO_FLAGS));
	REFUSED(SCI_ERR_NO_SUCH_NODEID, SCIConnectSegment, CONNECT(node + 4, ID, 0, NO_FLAGS));
	REFUSED(SCI_ERR_ILLEGAL_NODEID, SCIConnectSegment, CONNECT(1u << 20, ID, 0, NO_FLAGS));
	REFUSED(SCI_ERR_NO_SUCH_ADAPTERNO, SCIConnectSegment, CONNECT(node, ID, 1, NO_FLAGS));
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIConnectSegment, CONNECT(node, ID, 0, 0x4));
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIConnectSegment, sd, NULL, node, ID, 0, NO_CALLBACK,
			NO_ARG, 0, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIConnectSegment, GARBAGE(sci_desc_t), &remote, node,
			ID, 0, NO_CALLBACK, NO_ARG, 0, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIConnectSegment,
			CONNECT(node, ID, 0, SCI_FLAG_USE_CALLBACK));
	EXPECT(tell(&peer, UNAVAILABLE) == SCI_ERR_OK);
	REFUSED(SCI_ERR_CONNECTION_REFUSED, SCIConnectSegment, CONNECT(node, ID, 0, NO_FLAGS));
	EXPECT(tell(&peer, AVAILABLE) == SCI_ERR_OK);
	DO(SCIConnectSegment, CONNECT(node, ID, 0, NO_FLAGS));
	EXPECT(SCIProbeNode(sd, 0, node, NO_FLAGS, NULL) != 0);
	REFUSED(SCI_ERR_NO_SUCH_NODEID, SCIProbeNode, sd, 0, node + 4, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_NODEID, SCIProbeNode, sd, 0, 0, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_NODEID, SCIProbeNode, sd, 0, 1u << 20, NO_FLAGS);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	EXPECT(SCIProbeNode(sd, 0, SCI_LOCAL_HOST, NO_FLAGS, NULL) != 0);
	/* This host, whatever its number. */
	if (node == own_node()) {
		DO(SCIConnectSegment, CONNECT(SCI_LOCAL_HOST, ID, 0, NO_FLAGS));
		EXPECT(SCIGetRemoteSegmentNodeId(remote) == node);
		DO(SCIDisconnectSegment, remote, NO_FLAGS);
	}
	say(&peer, END);
	join(&peer);
}

static void memory_is_shared(void)
{
	struct peer peer;
	sci_desc_t sd;
	sci_remote_segment_t remote, none = GARBAGE(sci_remote_segment_t);
	sci_map_t map, part;
	sci_sequence_t sequence;
	sci_error_t error;
	unsigned int node;
	volatile char *there, *some;
	char buffer[PAGE];

	spawn(&peer, owner);
	node = hear(&peer);
	sd = open_library();
	connect_to(sd, &remote, node, ID);
	EXPECT(SCIGetRemoteSegmentSize(remote) == SIZE && SCIGetRemoteSegmentId(remote) == ID);
	EXPECT(SCIGetRemoteSegmentNodeId(remote) == node);
	EXPECT(SCIGetRemoteSegmentSize(none) == 0 && SCIGetRemoteSegmentId(none) == 0);
	there = SCIMapRemoteSegment(remote, &map, 0, SIZE, NULL, NO_FLAGS, &error);
	EXPECT(error == SCI_ERR_OK && there[1] == 0);
	some = SCIMapRemoteSegment(remote, &part, PAGE + 1, 10, NULL, SCI_FLAG_IO_MAP_IOSPACE |
			SCI_FLAG_READONLY_MAP, &error);
	EXPECT(error == SCI_ERR_OK);
	tell(&peer, STORE);
	EXPECT(there[1] == 1);
	there[PAGE + 1] = 'z';
	EXPECT(some[0] == 'z');
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCIMapRemoteSegment, remote, &part, 1, SIZE, NULL, NO_FLAGS);
	REFUSED(SCI_ERR_SIZE_ALIGNMENT, SCIMapRemoteSegment, remote, &part, 1, 0, NULL, NO_FLAGS);
	REFUSED(SCI_ERR_FLAG_NOT_IMPLEMENTED, SCIMapRemoteSegment, remote, &part, 0, PAGE, NULL,
			SCI_FLAG_LOCK_OPERATION);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIMapRemoteSegment, remote, &part, 0, PAGE, NULL, 0x100);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIMapRemoteSegment, none, &part, 0, 1, NULL, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIMapRemoteSegment, remote, NULL, 0, 1, NULL, NO_FLAGS);
	DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	EXPECT(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	DO(SCIMemCpy, sequence, memset(buffer, 'q', PAGE), map, PAGE, PAGE, SCI_FLAG_ERROR_CHECK);
	EXPECT(there[2 * PAGE - 1] == 'q');
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	REFUSED(SCI_ERR_BUSY, SCIDisconnectSegment, remote, NO_FLAGS);
	EXPECT(tell(&peer, REMOVE) == SCI_ERR_BUSY);
	DO(SCIRemoveSequence, sequence, NO_FLAGS);
	DO(SCIUnmapSegment, part, NO_FLAGS);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIDisconnectSegment, remote, 1);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	EXPECT(SCIGetRemoteSegmentId(remote) == ID && SCIGetRemoteSegmentNodeId(remote) == node);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIDisconnectSegment, remote, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIDisconnectSegment, none, NO_FLAGS);
	DO(SCIClose, sd, NO_FLAGS);
	EXPECT(tell(&peer, REMOVE) == SCI_ERR_OK);
	say(&peer, END);
	join(&peer);
}

/* Whoever is connected, and has mapped nothing, does not keep the owner from removing it. */
static void connected_is_not_in_use(void)
{
	struct peer peer;
	sci_desc_t sd;
	sci_remote_segment_t remote;
	sci_map_t map;
	sci_error_t error;
	unsigned int node;

	spawn(&peer, owner);
	node = hear(&peer);
	sd = open_library();
	connect_to(sd, &remote, node, ID);
	SCIMapRemoteSegment(remote, &map, 0, SIZE, NULL, NO_FLAGS, &error);
	EXPECT(error == SCI_ERR_OK && tell(&peer, REMOVE) == SCI_ERR_BUSY);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	EXPECT(tell(&peer, REMOVE) == SCI_ERR_OK);
	EXPECT(SCIWaitForRemoteSegmentEvent(remote, NULL, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_LOST && error == SCI_ERR_OK);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	DO(SCIClose, sd, NO_FLAGS);
	say(&peer, END);
	join(&peer);
}

static void loopback(void)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_remote_segment_t remote;
	sci_map_t map, there;
	sci_error_t error;
	char *memory = offer(sd, &segment, &map, ID, SIZE);
	volatile char *same;

	connect_to(sd, &remote, own_node(), ID);
	same = SCIMapRemoteSegment(remote, &there, 0, SIZE, NULL, NO_FLAGS, &error);
	same[5] = 5;
	EXPECT(memory[5] == 5);
	EXPECT(SCIWaitForLocalSegmentEvent(segment, NULL, NULL, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_CONNECT);
	REFUSED(SCI_ERR_BUSY, SCIRemoveSegment, segment, NO_FLAGS);
	DO(SCIUnmapSegment, there, NO_FLAGS);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
	EXPECT(SCIGetLocalSegmentId(segment) == ID && SCIGetRemoteSegmentId(remote) == ID);
}

/* --- events --- */

static void local_events(void)
{
	struct peer peer;
	sci_desc_t sd;
	sci_remote_segment_t remote;
	unsigned int node;

	spawn(&peer, owner);
	node = hear(&peer);
	sd = open_library();
	for (int i = 0; i < 3; i++) {
		connect_to(sd, &remote, node, ID);
		tell(&peer, WAIT_CONNECT);
		DO(SCIDisconnectSegment, remote, NO_FLAGS);
		tell(&peer, WAIT_DISCONNECT);
	}
	connect_to(sd, &remote, node, ID);
	tell(&peer, WAIT_CONNECT);
	/* The process's last descriptor: it is as if it had ended. */
	SCITerminate();
	tell(&peer, WAIT_DISCONNECT);
	say(&peer, END);
	join(&peer);
}

static sci_segment_cb_reason_t next_event(sci_remote_segment_t remote, sci_error_t *status)
{
	sci_error_t error;
	sci_segment_cb_reason_t reason;

	reason = SCIWaitForRemoteSegmentEvent(remote, status, LONG_MS, NO_FLAGS, &error);
	EXPECT(error == SCI_ERR_OK);
	return reason;
}

static void losing(enum order order, sci_segment_cb_reason_t want, sci_sequence_status_t after)
{
	struct peer peer;
	sci_desc_t sd;
	sci_remote_segment_t remote;
	sci_sequence_t sequence;
	sci_map_t map;
	sci_error_t error, status;
	volatile char *there;
	unsigned int node;
	char byte = 1;

	spawn(&peer, owner);
	node = hear(&peer);
	sd = open_library();
	connect_to(sd, &remote, node, ID);
	there = SCIMapRemoteSegment(remote, &map, 0, SIZE, NULL, NO_FLAGS, &error);
	DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	EXPECT(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForRemoteSegmentEvent, remote, &status, SHORT_MS, NO_FLAGS);
	if (order == END)
		kill_peer(&peer);
	else
		EXPECT(tell(&peer, order) == SCI_ERR_OK);
	EXPECT(next_event(remote, &status) == want);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == after && error == SCI_ERR_OK);
	EXPECT(SCIStartSequence(sequence, NO_FLAGS, &error) == after);
	/* It stays memory, where it was memory and no window. */
	there[0] = 1;
	if (node == own_node() || after == SCI_SEQ_OK) {
		EXPECT(there[0] == 1);
		DO(SCIMemCpy, NULL, &byte, map, 0, 1, NO_FLAGS);
	} else {
		EXPECT((unsigned char)there[0] == 0xff);
		REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemCpy, NULL, &byte, map, 0, 1, NO_FLAGS);
	}
	if (after == SCI_SEQ_OK)
		DO(SCIMemCpy, sequence, &byte, map, 0, 1, SCI_FLAG_ERROR_CHECK);
	else
		REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemCpy, sequence, &byte, map, 0, 1,
				SCI_FLAG_ERROR_CHECK);
	DO(SCIRemoveSequence, sequence, NO_FLAGS);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	if (order != END) {
		say(&peer, END);
		join(&peer);
	}
}

static void owner_is_killed(void)
{
	losing(END, SCI_CB_LOST, SCI_SEQ_NOT_RETRIABLE);
}

static void owner_cuts_off(void)
{
	losing(FORCE, SCI_CB_LOST, SCI_SEQ_NOT_RETRIABLE);
}

static void owner_removes_by_force(void)
{
	losing(FORCE_REMOVE, SCI_CB_LOST, SCI_SEQ_NOT_RETRIABLE);
}

static void owner_asks_to_disconnect(void)
{
	losing(NOTIFY, SCI_CB_DISCONNECT, SCI_SEQ_OK);
}

/* --- callbacks --- */

struct heard {
	pthread_mutex_t mutex;
	pthread_cond_t more;
	unsigned int reasons[16], nodes[16];
	sci_error_t status;
	int count;
	sci_callback_action_t action;
};

#define HEARD {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, {0}, {0}, SCI_ERR_OK, 0, \
	SCI_CALLBACK_CONTINUE}

static sci_callback_action_t note(struct heard *heard, unsigned int reason, unsigned int node)
{
	sci_callback_action_t action;

	pthread_mutex_lock(&heard->mutex);
	heard->reasons[heard->count % 16] = reason;
	heard->nodes[heard->count++ % 16] = node;
	action = heard->action;
	pthread_cond_broadcast(&heard->more);
	pthread_mutex_unlock(&heard->mutex);
	return action;
}

static void await(struct heard *heard, int count)
{
	pthread_mutex_lock(&heard->mutex);
	while (heard->count < count)
		pthread_cond_wait(&heard->more, &heard->mutex);
	pthread_mutex_unlock(&heard->mutex);
}

static sci_callback_action_t on_local(void *arg, sci_local_segment_t segment,
		sci_segment_cb_reason_t reason, unsigned int node, unsigned int adapter,
		sci_error_t error)
{
	EXPECT(SCIGetLocalSegmentId(segment) == ID && adapter == 0 && error == SCI_ERR_OK);
	return note(arg, reason, node);
}

static sci_callback_action_t on_remote(void *arg, sci_remote_segment_t segment,
		sci_segment_cb_reason_t reason, sci_error_t status)
{
	struct heard *heard = arg;

	heard->status = status;
	return note(heard, reason, SCIGetRemoteSegmentNodeId(segment));
}

static void connector(struct peer *parent)
{
	unsigned int node = hear(parent);
	sci_desc_t sd = open_library();
	sci_remote_segment_t remote;

	while (hear(parent)) {
		connect_to(sd, &remote, node, ID);
		say(parent, 0);
		hear(parent);
		DO(SCIDisconnectSegment, remote, NO_FLAGS);
		say(parent, 0);
	}
}

static void local_callbacks(void)
{
	struct heard heard = HEARD;
	struct peer peer;
	sci_local_segment_t segment;
	sci_desc_t sd;

	spawn(&peer, connector);
	sd = open_library();
	DO(SCICreateSegment, sd, &segment, ID, SIZE, on_local, &heard, SCI_FLAG_USE_CALLBACK);
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCIWaitForLocalSegmentEvent, segment, NULL, NULL, 0,
			NO_FLAGS);
	DO(SCIPrepareSegment, segment, ADAPTER, NO_FLAGS);
	DO(SCISetSegmentAvailable, segment, ADAPTER, NO_FLAGS);
	say(&peer, own_node());
	for (int i = 0; i < 3; i++) {
		say(&peer, 1);
		hear(&peer);
		await(&heard, 2 * i + 1);
		EXPECT(heard.reasons[2 * i] == SCI_CB_CONNECT);
		EXPECT(heard.nodes[2 * i] == node_of(&peer));
		if (i == 2)
			heard.action = SCI_CALLBACK_CANCEL;
		say(&peer, 1);
		hear(&peer);
		await(&heard, 2 * i + 2);
		EXPECT(heard.reasons[2 * i + 1] == SCI_CB_DISCONNECT);
	}
	/* Cancelled: no more. Removing the segment waits for a callback under way. */
	say(&peer, 1);
	hear(&peer);
	say(&peer, 1);
	hear(&peer);
	say(&peer, 0);
	join(&peer);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
	EXPECT(heard.count == 6);
}

static void remote_callbacks(void)
{
	struct heard heard = HEARD, other = HEARD;
	struct peer peer;
	sci_remote_segment_t remote, second;
	sci_desc_t sd;
	unsigned int node;

	spawn(&peer, owner);
	node = hear(&peer);
	sd = open_library();
	DO(SCIConnectSegment, sd, &remote, node, ID, ADAPTER, on_remote, &heard, LONG_MS,
			SCI_FLAG_USE_CALLBACK);
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCIWaitForRemoteSegmentEvent, remote, NULL, 0, NO_FLAGS);
	tell(&peer, NOTIFY);
	await(&heard, 1);
	EXPECT(heard.reasons[0] == SCI_CB_DISCONNECT);
	/* One that has had enough hears of nothing more; another does. */
	heard.action = SCI_CALLBACK_CANCEL;
	tell(&peer, AVAILABLE);
	DO(SCIConnectSegment, sd, &second, node, ID, ADAPTER, on_remote, &other, LONG_MS,
			SCI_FLAG_USE_CALLBACK);
	tell(&peer, NOTIFY);
	await(&heard, 2);
	await(&other, 1);
	kill_peer(&peer);
	await(&other, 2);
	EXPECT(other.reasons[1] == SCI_CB_LOST);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	DO(SCIDisconnectSegment, second, NO_FLAGS);
	EXPECT(heard.count == 2 && other.count == 2);
}

/* --- an owner that stands still --- */

static void owner_is_stopped(void)
{
	struct heard heard = HEARD;
	struct peer peer;
	sci_desc_t sd;
	sci_remote_segment_t waited, called;
	sci_sequence_t sequence;
	sci_map_t map;
	sci_error_t error, status;
	volatile char *there;
	unsigned int node;

	spawn(&peer, owner);
	node = hear(&peer);
	sd = open_library();
	connect_to(sd, &waited, node, ID);
	DO(SCIConnectSegment, sd, &called, node, ID, ADAPTER, on_remote, &heard, LONG_MS,
			SCI_FLAG_USE_CALLBACK);
	there = SCIMapRemoteSegment(waited, &map, 0, SIZE, NULL, NO_FLAGS, &error);
	DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	for (int round = 0; round < 2; round++) {
		kill(peer.pid, SIGSTOP);
		EXPECT(next_event(waited, &status) == SCI_CB_NOT_OPERATIONAL &&
				status == SCI_ERR_NODE_NOT_RESPONDING);
		await(&heard, 2 * round + 1);
		EXPECT(heard.reasons[2 * round] == SCI_CB_NOT_OPERATIONAL);
		/* What is stored arrives all the same: the memory does not stand still. */
		there[1] = 5;
		EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
		EXPECT(SCIProbeNode(sd, ADAPTER, node, NO_FLAGS, &error) && error == SCI_ERR_OK);
		if (round == 1)
			break;
		kill(peer.pid, SIGCONT);
		EXPECT(next_event(waited, &status) == SCI_CB_OPERATIONAL && status == SCI_ERR_OK);
		await(&heard, 2);
		EXPECT(heard.reasons[1] == SCI_CB_OPERATIONAL);
		EXPECT(tell(&peer, STORE) == SCI_ERR_OK && there[1] == 6);
	}
	kill_peer(&peer);
	EXPECT(next_event(waited, &status) == SCI_CB_LOST);
	await(&heard, 4);
	EXPECT(heard.reasons[3] == SCI_CB_LOST);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_NOT_RETRIABLE);
}

/* --- asynchronous connects --- */

static void asynchronous_connect(void)
{
	struct heard heard = HEARD;
	sci_desc_t sd = open_library();
	sci_remote_segment_t waited, called;
	sci_local_segment_t segment;
	sci_error_t error, status = SCI_ERR_BUSY;
	sci_map_t map;
	unsigned int node = own_node();

	DO(SCIConnectSegment, sd, &waited, node, ID, ADAPTER, NO_CALLBACK, NO_ARG,
			SCI_INFINITE_TIMEOUT, SCI_FLAG_ASYNCHRONOUS_CONNECT);
	DO(SCIConnectSegment, sd, &called, node, ID, ADAPTER, on_remote, &heard, LONG_MS,
			SCI_FLAG_ASYNCHRONOUS_CONNECT | SCI_FLAG_USE_CALLBACK);
	REFUSED(SCI_ERR_SEGMENT_NOT_CONNECTED, SCIMapRemoteSegment, waited, &map, 0, PAGE, NULL,
			NO_FLAGS);
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForRemoteSegmentEvent, waited, &status, SHORT_MS, NO_FLAGS);
	offer(sd, &segment, &map, ID, SIZE);
	EXPECT(next_event(waited, &status) == SCI_CB_CONNECT && status == SCI_ERR_OK);
	await(&heard, 1);
	EXPECT(heard.reasons[0] == SCI_CB_CONNECT && heard.status == SCI_ERR_OK);
	SCIMapRemoteSegment(waited, &map, 0, PAGE, NULL, NO_FLAGS, &error);
	EXPECT(error == SCI_ERR_OK);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIDisconnectSegment, waited, NO_FLAGS);
	DO(SCIDisconnectSegment, called, NO_FLAGS);
	/* One that is there already. */
	DO(SCIConnectSegment, sd, &waited, node, ID, ADAPTER, NO_CALLBACK, NO_ARG, LONG_MS,
			SCI_FLAG_ASYNCHRONOUS_CONNECT);
	EXPECT(next_event(waited, &status) == SCI_CB_CONNECT && status == SCI_ERR_OK);
	/* One that never comes. */
	DO(SCIConnectSegment, sd, &called, node, ID + 1, ADAPTER, NO_CALLBACK, NO_ARG, SHORT_MS,
			SCI_FLAG_ASYNCHRONOUS_CONNECT);
	EXPECT(next_event(called, &status) == SCI_CB_CONNECT && status == SCI_ERR_TIMEOUT);
	DO(SCIDisconnectSegment, called, NO_FLAGS);
}

int main(void)
{
	static const struct test tests[] = {
		{"what cannot be connected", what_cannot_be_connected},
		{"memory is shared", memory_is_shared},
		{"a connection without maps is not in the way", connected_is_not_in_use},
		{"a process connects to itself", loopback},
		{"local events are waited for", local_events},
		{"the owner is killed", owner_is_killed},
		{"the owner cuts off", owner_cuts_off},
		{"the owner removes by force", owner_removes_by_force},
		{"the owner asks to disconnect", owner_asks_to_disconnect},
		{"local callbacks", local_callbacks},
		{"remote callbacks", remote_callbacks},
		{"the owner is stopped, goes on, and is killed", owner_is_stopped},
		{"asynchronous connects", asynchronous_connect},
	};

	return run_tests(tests, COUNT(tests));
}
