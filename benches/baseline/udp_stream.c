// SPDX-License-Identifier: MIT OR Apache-2.0
//
// udp_stream ADDRESS PORT MEGABYTES SEGMENT [PEER]: a stream over UDP in datagrams of SEGMENT
// bytes, cut up and coalesced by the kernel (UDP_SEGMENT, UDP_GRO), for a link without loss.
// Without PEER the server: prints "ready" once it is bound, receives, and reports its progress.
// With PEER the client: keeps at most a window ahead of those reports, and prints GB/s of payload.
// The limit of every bandwidth between hosts.

#include "common.h"

#include <arpa/inet.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	// A batch must stay below 64 KiB with its headers, and have at most 64 segments.
	BATCH_BYTES = 65000,
	BATCH_SEGMENTS = 64,
	WINDOW = 4 << 20,
	REPORT_EVERY = 512 << 10,
	BUFFER = 16 << 20,
	IDLE_SECONDS = 5,
};

static char buffer[1 << 16];

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

static uint64_t reported(int fd, int flags)
{
	uint64_t total = 0;

	recv(fd, &total, sizeof total, flags);
	return total;
}

static void serve(int fd, uint64_t total)
{
	struct sockaddr_in from;
	uint64_t received = 0, said = 0;
	int one = 1;

	if (setsockopt(fd, IPPROTO_UDP, UDP_GRO, &one, sizeof one))
		die("UDP_GRO");
	printf("ready\n");
	fflush(stdout);
	while (received < total) {
		socklen_t length = sizeof from;
		ssize_t n = recvfrom(fd, buffer, sizeof buffer, MSG_TRUNC,
				     (struct sockaddr *)&from, &length);
		if (n < 0)
			die("recvfrom");
		received += (uint64_t)n;
		if (received - said < REPORT_EVERY && received < total)
			continue;
		said = received;
		if (sendto(fd, &said, sizeof said, 0, (struct sockaddr *)&from, length) < 0)
			die("sendto");
	}
}

static void stream(int fd, uint64_t total, int segment, struct sockaddr_in peer)
{
	int fit = BATCH_BYTES / segment, most = fit < BATCH_SEGMENTS ? fit : BATCH_SEGMENTS;
	size_t batch = (size_t)segment * (size_t)(most > 0 ? most : 1);
	uint64_t sent = 0, arrived = 0;

	if (connect(fd, (struct sockaddr *)&peer, sizeof peer) ||
	    (most > 1 && setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment)))
		die("UDP_SEGMENT");
	uint64_t start = now_ns();
	while (arrived < total) {
		int full = sent >= total || sent - arrived > WINDOW;
		uint64_t news = reported(fd, full ? 0 : MSG_DONTWAIT);
		if (full && !news) {
			fprintf(stderr, "the peer is silent: datagrams were lost\n");
			exit(1);
		}
		arrived = news > arrived ? news : arrived;
		if (sent - arrived > WINDOW || sent >= total)
			continue;
		if (send(fd, buffer, batch, 0) < 0)
			die("send");
		sent += batch;
	}
	printf("%.3f\n", (double)arrived / (double)(now_ns() - start));
}

int main(int argc, char **argv)
{
	if (argc != 5 && argc != 6) {
		fprintf(stderr, "usage: udp_stream ADDRESS PORT MEGABYTES SEGMENT [PEER]\n");
		return 2;
	}
	struct sockaddr_in own = address(argv[1], argv[2]);
	struct timeval idle = { .tv_sec = IDLE_SECONDS };
	uint64_t total = (uint64_t)number(argv[3]) << 20;
	long segment = number(argv[4]);
	int fd = socket(AF_INET, SOCK_DGRAM, 0), size = BUFFER;

	if (segment > BATCH_BYTES) {
		fprintf(stderr, "at most %d bytes\n", BATCH_BYTES);
		return 2;
	}
	if (fd < 0 || bind(fd, (struct sockaddr *)&own, sizeof own) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &idle, sizeof idle) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size) ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size))
		die("socket");
	if (argc == 6)
		stream(fd, total, (int)segment, address(argv[5], argv[2]));
	else
		serve(fd, total);
	close(fd);
	return 0;
}
