// SPDX-License-Identifier: MIT OR Apache-2.0
//
// udp_pingpong poll|sleep ADDRESS PORT SIZE TURNS [PEER]: a ping-pong over UDP whose sides poll or
// sleep until a datagram comes. The client prints the median time one way, in nanoseconds. The
// limit of every small message between hosts: the sockets are of one family and connected, which
// saves the kernel a look at the route for each datagram, and are used by the shortest calls.

#include "net.h"

enum { SIZE_MAX_BYTES = 65507, LOOKS = 1024 };

static char buffer[SIZE_MAX_BYTES];

static void receive(int fd, int flags)
{
	uint64_t deadline = 0;

	for (long looks = 1; recv(fd, buffer, sizeof buffer, flags) < 0; looks++) {
		// To ask for the time takes a part of a look.
		if (errno == EAGAIN && flags && looks % LOOKS)
			continue;
		if (!deadline)
			deadline = silence_begins();
		expect_again("recv", deadline);
	}
}

static void transmit(int fd, size_t size)
{
	if (send(fd, buffer, size, 0) < 0)
		die("send");
}

static void client(int fd, int flags, size_t size, long turns)
{
	double *times = calloc((size_t)turns, sizeof *times);

	if (!times)
		die("calloc");
	for (long i = 0; i < turns; i++) {
		uint64_t start = now_ns();
		transmit(fd, size);
		receive(fd, flags);
		times[i] = (double)(now_ns() - start) / 2.0;
	}
	printf("%.1f\n", median(times, (size_t)turns));
	free(times);
}

static void connect_to(int fd, struct sockaddr_in peer)
{
	if (connect(fd, (struct sockaddr *)&peer, sizeof peer))
		die("connect");
}

// Who sends the first datagram is the peer.
static void await_peer(int fd)
{
	struct sockaddr_in from;
	socklen_t length = sizeof from;

	if (recvfrom(fd, buffer, sizeof buffer, MSG_PEEK, (struct sockaddr *)&from, &length) < 0)
		die("recvfrom");
	connect_to(fd, from);
}

int main(int argc, char **argv)
{
	if (argc != 6 && argc != 7) {
		fprintf(stderr, "usage: udp_pingpong poll|sleep ADDRESS PORT SIZE TURNS [PEER]\n");
		return 2;
	}
	struct timeval limit = { .tv_sec = IDLE_SECONDS };
	int flags = strcmp(argv[1], "sleep") ? MSG_DONTWAIT : 0;
	size_t size = (size_t)number(argv[4]);
	long turns = number(argv[5]);
	int fd = udp_bound(address(argv[2], argv[3]));

	if (size > sizeof buffer) {
		fprintf(stderr, "at most %zu bytes\n", sizeof buffer);
		return 2;
	}
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	if (argc == 7) {
		connect_to(fd, address(argv[6], argv[3]));
		client(fd, flags, size, turns);
		return 0;
	}
	ready();
	await_peer(fd);
	for (long i = 0; i < turns; i++) {
		receive(fd, flags);
		transmit(fd, size);
	}
	return 0;
}
