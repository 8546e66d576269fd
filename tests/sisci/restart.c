/* The broker is killed: what is connected goes on, and the next broker knows all of it. */
#define _GNU_SOURCE
#include "check.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define ID 600
#define NUMBER 21
#define SIZE (2 * PAGE)

/* Kills the broker of the runtime directory, and waits until it is gone. */
static void kill_broker(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct ucred peer;
	socklen_t length = sizeof(peer);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/broker.sock",
			getenv("CAUSEWAY_RUNTIME_DIR"));
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) ||
			getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length)) {
		perror(address.sun_path);
		_exit(1);
	}
	kill(peer.pid, SIGKILL);
	/* It closes the connection when it ends. */
	while (recv(fd, &address, sizeof(address), 0) > 0)
		;
	close(fd);
}

static void server(struct peer *parent)
{
	unsigned int number = NUMBER, order;
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_local_interrupt_t interrupt;
	sci_error_t error;
	sci_map_t map;
	volatile char *memory = offer(sd, &segment, &map, ID, SIZE);

	DO(SCICreateInterrupt, sd, &interrupt, ADAPTER, &number, NO_CALLBACK, NO_ARG,
			SCI_FLAG_FIXED_INTNO);
	say(parent, own_node());
	EXPECT(SCIWaitForLocalSegmentEvent(segment, NULL, NULL, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_CONNECT);
	while ((order = hear(parent))) {
		memory[0] = (char)order;
		DO(SCIWaitForInterrupt, interrupt, LONG_MS, NO_FLAGS);
		say(parent, 0);
	}
	/* Of the one from before, and of the one from after the restart. */
	for (int connected = 0, left = 0; left < 2; ) {
		switch (SCIWaitForLocalSegmentEvent(segment, NULL, NULL, LONG_MS, NO_FLAGS,
				&error)) {
		case SCI_CB_CONNECT:
			connected++;
			break;
		case SCI_CB_DISCONNECT:
			left++;
			break;
		default:
			EXPECT(error == SCI_ERR_OK);
			return;
		}
		EXPECT(connected <= 1);
	}
	say(parent, 0);
	hear(parent);
}

static void everything_goes_on(void)
{
	struct peer peer;
	sci_desc_t sd;
	sci_remote_segment_t remote, later;
	sci_remote_interrupt_t interrupt;
	sci_sequence_t sequence;
	sci_error_t error;
	sci_map_t map;
	volatile char *there;
	unsigned int node;

	spawn(&peer, server);
	node = hear(&peer);
	sd = open_library();
	connect_to(sd, &remote, node, ID);
	there = SCIMapRemoteSegment(remote, &map, 0, SIZE, NULL, NO_FLAGS, &error);
	DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	DO(SCIConnectInterrupt, sd, &interrupt, node, ADAPTER, NUMBER, LONG_MS, NO_FLAGS);
	for (unsigned int round = 1; round <= 3; round++) {
		say(&peer, round);
		/* In the second round there is no broker, in the third there is another. */
		DO(SCITriggerInterrupt, interrupt, NO_FLAGS);
		hear(&peer);
		EXPECT(there[0] == (char)round);
		EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
		if (round == 1)
			kill_broker();
		if (round == 2)
			connect_to(sd, &later, node, ID);
	}
	REFUSED(SCI_ERR_BUSY, SCIDisconnectSegment, remote, NO_FLAGS);
	DO(SCIRemoveSequence, sequence, NO_FLAGS);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	say(&peer, 0);
	DO(SCIDisconnectSegment, later, NO_FLAGS);
	hear(&peer);
	connect_to(sd, &later, node, ID);
	SCIMapRemoteSegment(later, &map, 0, SIZE, NULL, NO_FLAGS, &error);
	DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	kill_peer(&peer);
	EXPECT(SCIWaitForRemoteSegmentEvent(later, &error, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_LOST);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_NOT_RETRIABLE);
}

/* --- an owner that is stopped while the broker is killed --- */

/* Says what has become of what it has, whenever it is asked. */
static void sleeper(struct peer *parent)
{
	unsigned int number = NUMBER;
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_local_interrupt_t interrupt;
	sci_local_data_interrupt_t data;
	sci_error_t error;
	sci_map_t map;
	volatile char *memory = offer(sd, &segment, &map, ID, SIZE);
	unsigned int length = 0;

	DO(SCICreateInterrupt, sd, &interrupt, ADAPTER, &number, NO_CALLBACK, NO_ARG,
			SCI_FLAG_FIXED_INTNO);
	DO(SCICreateDataInterrupt, sd, &data, ADAPTER, &number, NO_CALLBACK, NO_ARG,
			SCI_FLAG_FIXED_INTNO);
	say(parent, own_node());
	/* It is back in time: somebody connects. */
	EXPECT(SCIWaitForLocalSegmentEvent(segment, NULL, NULL, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_CONNECT);
	EXPECT(SCIWaitForLocalSegmentEvent(segment, NULL, NULL, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_DISCONNECT);
	say(parent, 0);
	/* It is not: all that it has is memory. */
	EXPECT(SCIWaitForLocalSegmentEvent(segment, NULL, NULL, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_LOST);
	EXPECT(error == SCI_ERR_OK);
	REFUSED(SCI_ERR_NOT_AVAILABLE, SCIWaitForInterrupt, interrupt, LONG_MS, NO_FLAGS);
	REFUSED(SCI_ERR_NOT_AVAILABLE, SCIWaitForDataInterrupt, data, NULL, &length, LONG_MS,
			NO_FLAGS);
	REFUSED(SCI_ERR_NOT_AVAILABLE, SCIPrepareSegment, segment, ADAPTER, NO_FLAGS);
	REFUSED(SCI_ERR_NOT_AVAILABLE, SCISetSegmentAvailable, segment, ADAPTER, NO_FLAGS);
	REFUSED(SCI_ERR_NOT_AVAILABLE, SCISetSegmentUnavailable, segment, ADAPTER, NO_FLAGS);
	REFUSED(SCI_ERR_NOT_AVAILABLE, SCIShareSegment, segment, NO_FLAGS);
	memory[0] = 1;
	EXPECT(memory[0] == 1);
	DO(SCIRemoveInterrupt, interrupt, NO_FLAGS);
	DO(SCIRemoveDataInterrupt, data, NO_FLAGS);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
	say(parent, 0);
	hear(parent);
}

static void stop(struct peer *peer)
{
	int status;

	kill(peer->pid, SIGSTOP);
	EXPECT(waitpid(peer->pid, &status, WUNTRACED) == peer->pid && WIFSTOPPED(status));
}

static void what_is_taken_stays_taken(void)
{
	char claims[256];
	struct peer peer;
	sci_desc_t sd;
	sci_local_segment_t segment;
	sci_local_interrupt_t interrupt;
	sci_local_data_interrupt_t data;
	sci_remote_segment_t remote;
	sci_map_t map;
	unsigned int number = NUMBER, node;

	spawn(&peer, sleeper);
	node = hear(&peer);
	stop(&peer);
	kill_broker();
	sd = open_library();
	/* A newcomer gets neither id nor number, and nobody is deceived. */
	REFUSED(SCI_ERR_SEGMENTID_USED, SCICreateSegment, sd, &segment, ID, SIZE, NO_CALLBACK,
			NO_ARG, NO_FLAGS);
	REFUSED(SCI_ERR_INTNO_USED, SCICreateInterrupt, sd, &interrupt, ADAPTER, &number,
			NO_CALLBACK, NO_ARG, SCI_FLAG_FIXED_INTNO);
	kill(peer.pid, SIGCONT);
	connect_to(sd, &remote, node, ID);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	hear(&peer);
	/* Once nothing is known of what it had, as after ten seconds, they are to be had. */
	stop(&peer);
	kill_broker();
	snprintf(claims, sizeof(claims), "%s/sisci.claims", getenv("CAUSEWAY_RUNTIME_DIR"));
	EXPECT(unlink(claims) == 0);
	SCITerminate();
	sd = open_library();
	offer(sd, &segment, &map, ID, SIZE);
	DO(SCICreateInterrupt, sd, &interrupt, ADAPTER, &number, NO_CALLBACK, NO_ARG,
			SCI_FLAG_FIXED_INTNO);
	DO(SCICreateDataInterrupt, sd, &data, ADAPTER, &number, NO_CALLBACK, NO_ARG,
			SCI_FLAG_FIXED_INTNO);
	kill(peer.pid, SIGCONT);
	hear(&peer);
	say(&peer, 0);
	join(&peer);
}

int main(void)
{
	static const struct test tests[] = {
		{"the broker is killed: all goes on", everything_goes_on},
		{"what an absent owner has stays taken", what_is_taken_stays_taken},
	};

	return run_tests(tests, COUNT(tests));
}
