// SPDX-License-Identifier: MIT OR Apache-2.0
//
// udp_pingpong [-w] ADDRESS PORT SIZE TURNS [PEER]: a ping-pong over UDP, busy-polled, or, with -w,
// asleep while it waits. Without PEER the server: prints "ready" once it is bound. With PEER the
// client: prints the median time one way, in nanoseconds. The limit of every small message between
// hosts, and of every event.

#include "common.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SIZE_MAX_BYTES = 65507, IDLE_SECONDS = 30 };

static char buffer[SIZE_MAX_BYTES];
static int asleep;

static struct sockaddr_in address(const char *host, const char *port)
{
	struct sockaddr_in a = { .sin_family = AF_INET };

	a.sin_port = htons((uint16_t)number(port));
	if (inet_pton(AF_INET, host, &a.sin_addr) != 1) {
		fprintf(stderr, "%s is not an IPv4 address\n", host);
		exit(2);
	}
	return a;
}

// Receives one datagram.
static void receive(int fd, struct sockaddr_in *from)
{
	socklen_t length = sizeof *from;
	uint64_t start = now_ns();

	for (;;) {
		if (recvfrom(fd, buffer, sizeof buffer, asleep ? 0 : MSG_DONTWAIT,
			     (struct sockaddr *)from, &length) >= 0)
			return;
		if (errno != EAGAIN)
			die("recvfrom");
		if (now_ns() - start > (uint64_t)IDLE_SECONDS * 1000000000u) {
			fprintf(stderr, "the peer is silent\n");
			exit(1);
		}
	}
}

static void transmit(int fd, size_t size, const struct sockaddr_in *to)
{
	if (sendto(fd, buffer, size, 0, (const struct sockaddr *)to, sizeof *to) < 0)
		die("sendto");
}

static void client(int fd, size_t size, long turns, struct sockaddr_in peer)
{
	struct sockaddr_in from;
	double *times = calloc((size_t)turns, sizeof *times);

	if (!times)
		die("calloc");
	for (long i = 0; i < turns; i++) {
		uint64_t start = now_ns();
		transmit(fd, size, &peer);
		receive(fd, &from);
		times[i] = (double)(now_ns() - start) / 2.0;
	}
	printf("%.1f\n", median(times, (size_t)turns));
	free(times);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "-w")) {
		asleep = 1;
		argv++;
		argc--;
	}
	if (argc != 5 && argc != 6) {
		fprintf(stderr, "usage: udp_pingpong [-w] ADDRESS PORT SIZE TURNS [PEER]\n");
		return 2;
	}
	struct sockaddr_in own = address(argv[1], argv[2]), from;
	size_t size = (size_t)number(argv[3]);
	long turns = number(argv[4]);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	if (size > sizeof buffer) {
		fprintf(stderr, "at most %zu bytes\n", sizeof buffer);
		return 2;
	}
	if (fd < 0 || bind(fd, (struct sockaddr *)&own, sizeof own))
		die("bind");
	if (argc == 6) {
		client(fd, size, turns, address(argv[5], argv[2]));
	} else {
		printf("ready\n");
		fflush(stdout);
		for (long i = 0; i < turns; i++) {
			receive(fd, &from);
			transmit(fd, size, &from);
		}
	}
	close(fd);
	return 0;
}
