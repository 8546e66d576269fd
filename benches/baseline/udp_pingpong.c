// SPDX-License-Identifier: MIT OR Apache-2.0
//
// udp_pingpong poll|sleep ADDRESS PORT SIZE TURNS [PEER]: a ping-pong over UDP whose sides poll or
// sleep until a datagram comes. The client prints the median time one way, in nanoseconds. The
// limit of every small message between hosts.

#include "net.h"

enum { SIZE_MAX_BYTES = 65507 };

static char buffer[SIZE_MAX_BYTES];

static void receive(int fd, int flags, struct sockaddr_in *from)
{
	socklen_t length = sizeof *from;
	uint64_t deadline = silence_begins();

	while (recvfrom(fd, buffer, sizeof buffer, flags, (struct sockaddr *)from, &length) < 0)
		expect_again("recvfrom", deadline);
}

static void transmit(int fd, size_t size, const struct sockaddr_in *to)
{
	if (sendto(fd, buffer, size, 0, (const struct sockaddr *)to, sizeof *to) < 0)
		die("sendto");
}

static void client(int fd, int flags, size_t size, long turns, struct sockaddr_in peer)
{
	struct sockaddr_in from;
	double *times = calloc((size_t)turns, sizeof *times);

	if (!times)
		die("calloc");
	for (long i = 0; i < turns; i++) {
		uint64_t start = now_ns();
		transmit(fd, size, &peer);
		receive(fd, flags, &from);
		times[i] = (double)(now_ns() - start) / 2.0;
	}
	printf("%.1f\n", median(times, (size_t)turns));
	free(times);
}

int main(int argc, char **argv)
{
	if (argc != 6 && argc != 7) {
		fprintf(stderr, "usage: udp_pingpong poll|sleep ADDRESS PORT SIZE TURNS [PEER]\n");
		return 2;
	}
	struct sockaddr_in from;
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
		client(fd, flags, size, turns, address(argv[6], argv[3]));
		return 0;
	}
	ready();
	for (long i = 0; i < turns; i++) {
		receive(fd, flags, &from);
		transmit(fd, size, &from);
	}
	return 0;
}
