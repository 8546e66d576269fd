// SPDX-License-Identifier: MIT OR Apache-2.0
//
// udp_stream ADDRESS PORT MTU MEGABYTES [PEER]: a stream of datagrams that fill the MTU, sent with
// segmentation offload (UDP_SEGMENT) and received with UDP_GRO. Nothing is sent again: the client
// prints GB/s of what arrived, from the first datagram to the last. The limit of every transfer
// between hosts.

#include "net.h"

#include <netinet/udp.h>

enum {
	IP_UDP_HEADERS = 28,
	DATAGRAM_MAX = 65507,
	SEGMENTS_MAX = 64,
	RECEIVE_BUFFER = 8 << 20,
	END_PAUSE_US = 2000,
	END_TRIES = 2000,
};

// Shorter than any datagram of the stream: the client asks what has arrived.
static const char END[] = "end";

struct arrived {
	uint64_t bytes;
	uint64_t ns;
};

static char buffer[DATAGRAM_MAX];

// Receives until asked for the result.
static void serve(struct sockaddr_in own)
{
	int one = 1, size = RECEIVE_BUFFER, fd = udp_bound(own);
	struct timeval limit = { .tv_sec = IDLE_SECONDS };
	struct sockaddr_in from;
	uint64_t first = 0, last = 0, bytes = 0;

	if (setsockopt(fd, IPPROTO_UDP, UDP_GRO, &one, sizeof one))
		die("UDP_GRO");
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size))
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	ready();
	for (;;) {
		socklen_t length = sizeof from;
		ssize_t n = recvfrom(fd, buffer, sizeof buffer, 0, (struct sockaddr *)&from,
				     &length);
		if (n < 0)
			die("recvfrom");
		if (n == sizeof END)
			break;
		last = now_ns();
		if (!first)
			first = last;
		bytes += (uint64_t)n;
	}
	struct arrived result = { bytes, last - first };
	if (sendto(fd, &result, sizeof result, 0, (struct sockaddr *)&from, sizeof from) < 0)
		die("sendto");
	close(fd);
}

// The full socket buffer of the server drops even the question: it is asked until it answers.
static struct arrived ask(int fd)
{
	struct timeval pause = { .tv_usec = END_PAUSE_US };
	struct arrived result;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &pause, sizeof pause);
	for (int i = 0; i < END_TRIES; i++) {
		if (send(fd, END, sizeof END, 0) < 0)
			die("send");
		if (recv(fd, &result, sizeof result, 0) == sizeof result)
			return result;
	}
	fprintf(stderr, "the server does not say what has arrived\n");
	exit(1);
}

static void stream(int fd, struct sockaddr_in peer, int segment, long megabytes)
{
	uint64_t total = (uint64_t)megabytes << 20, sent = 0;
	int none = 0, segments = DATAGRAM_MAX / segment;
	size_t batch = (size_t)(segments < SEGMENTS_MAX ? segments : SEGMENTS_MAX) * segment;

	if (connect(fd, (struct sockaddr *)&peer, sizeof peer))
		die("connect");
	if (setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment))
		die("UDP_SEGMENT");
	for (; sent < total; sent += batch)
		if (send(fd, buffer, batch, 0) < 0)
			die("send");
	setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &none, sizeof none);
	struct arrived result = ask(fd);
	if (!result.ns) {
		fprintf(stderr, "nothing arrived\n");
		exit(1);
	}
	printf("%.3f\n", (double)result.bytes / (double)result.ns);
	fprintf(stderr, "%.1f %% arrived\n", 100.0 * (double)result.bytes / (double)sent);
}

int main(int argc, char **argv)
{
	if (argc != 5 && argc != 6) {
		fprintf(stderr, "usage: udp_stream ADDRESS PORT MTU MEGABYTES [PEER]\n");
		return 2;
	}
	int segment = (int)number(argv[3]) - IP_UDP_HEADERS;

	if (argc == 6)
		stream(udp_bound(address(argv[1], argv[2])), address(argv[5], argv[2]), segment,
		       number(argv[4]));
	else
		serve(address(argv[1], argv[2]));
	return 0;
}
