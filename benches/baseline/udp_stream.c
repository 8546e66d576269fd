// SPDX-License-Identifier: MIT OR Apache-2.0
//
// udp_stream ADDRESS PORT MTU MEGABYTES [PEER]: a stream of datagrams that fill the MTU, each with
// a header, sent with segmentation offload (UDP_SEGMENT) and received with UDP_GRO. The kernel
// takes headers and payload from where they lie, the receiver polls and copies the payload out.
// Nothing is sent again: the client prints GB/s of the payload that arrived, from the first
// datagram to the last. The limit of every transfer between hosts: less than this no protocol over
// UDP can do.

#include "net.h"

#include <netinet/udp.h>
#include <sys/uio.h>

enum {
	IP_UDP_HEADERS = 28,
	// As long as Causeway's for a WRITE (docs/WIRE.md).
	HEADER = 54,
	DATAGRAM_MAX = 65507,
	SEGMENTS_MAX = 64,
	RECEIVE_BUFFER = 8 << 20,
	END_PAUSE_US = 2000,
	END_TRIES = 2000,
	// Where the payload comes from and goes to.
	AREA = 1 << 20,
};

// Shorter than any datagram of the stream: the client asks what has arrived.
static const char END[] = "end";

struct arrived {
	uint64_t bytes;
	uint64_t ns;
};

static char buffer[DATAGRAM_MAX];
static char area[AREA];

// Copies the payload of datagrams that the kernel has joined to the next place. Returns how much.
static uint64_t copy_out(size_t all, size_t segment, size_t *at)
{
	uint64_t bytes = 0;

	for (size_t begin = 0; begin < all; begin += segment) {
		size_t length = all - begin < segment ? all - begin : segment;

		if (length <= HEADER)
			continue;
		length -= HEADER;
		if (*at + length > AREA)
			*at = 0;
		memcpy(area + *at, buffer + begin + HEADER, length);
		*at += length;
		bytes += length;
	}
	return bytes;
}

// Receives until asked for the result.
static void serve(struct sockaddr_in own, size_t segment)
{
	int one = 1, size = RECEIVE_BUFFER, fd = udp_bound(own);
	struct sockaddr_in from;
	uint64_t first = 0, last = 0, bytes = 0, deadline = silence_begins();
	size_t at = 0;

	if (setsockopt(fd, IPPROTO_UDP, UDP_GRO, &one, sizeof one))
		die("UDP_GRO");
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size))
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
	ready();
	for (;;) {
		socklen_t length = sizeof from;
		ssize_t n = recvfrom(fd, buffer, sizeof buffer, MSG_DONTWAIT,
				     (struct sockaddr *)&from, &length);
		if (n < 0) {
			expect_again("recvfrom", deadline);
			continue;
		}
		if (n == sizeof END)
			break;
		if (!first)
			first = now_ns();
		bytes += copy_out((size_t)n, segment, &at);
		last = now_ns();
		deadline = last + (uint64_t)IDLE_SECONDS * 1000000000u;
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

// Sends one batch of payload from `at` on, cut into pieces with a header before each.
static void send_batch(int fd, size_t segments, size_t piece, size_t at)
{
	static char headers[SEGMENTS_MAX][HEADER];
	struct iovec parts[2 * SEGMENTS_MAX];
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 * segments };

	for (size_t i = 0; i < segments; i++) {
		memcpy(headers[i], &at, sizeof at);
		parts[2 * i] = (struct iovec){ headers[i], HEADER };
		parts[2 * i + 1] = (struct iovec){ area + at + i * piece, piece };
	}
	if (sendmsg(fd, &message, 0) < 0)
		die("sendmsg");
}

static void stream(int fd, struct sockaddr_in peer, int segment, long megabytes)
{
	uint64_t total = (uint64_t)megabytes << 20, sent = 0;
	int none = 0;
	size_t piece = (size_t)segment - HEADER, at = 0;
	size_t segments = (size_t)(DATAGRAM_MAX / segment);

	if (segments > SEGMENTS_MAX)
		segments = SEGMENTS_MAX;
	if (connect(fd, (struct sockaddr *)&peer, sizeof peer))
		die("connect");
	if (setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment))
		die("UDP_SEGMENT");
	for (; sent < total; sent += segments * piece) {
		if (at + segments * piece > AREA)
			at = 0;
		send_batch(fd, segments, piece, at);
		at += segments * piece;
	}
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

	if (segment <= HEADER || segment > DATAGRAM_MAX) {
		fprintf(stderr, "an MTU of %s bytes has no room\n", argv[3]);
		return 2;
	}
	if (argc == 6)
		stream(udp_bound(address(argv[1], argv[2])), address(argv[5], argv[2]), segment,
		       number(argv[4]));
	else
		serve(address(argv[1], argv[2]), (size_t)segment);
	return 0;
}
