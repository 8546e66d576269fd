/* The broker is killed: what is connected goes on, and the next broker knows all of it. */
#define _GNU_SOURCE
#include "check.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
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

int main(void)
{
	static const struct test tests[] = {
		{"the broker is killed: all goes on", everything_goes_on},
	};

	return run_tests(tests, COUNT(tests));
}
