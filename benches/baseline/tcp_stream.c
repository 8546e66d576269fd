// SPDX-License-Identifier: MIT OR Apache-2.0
//
// tcp_stream ADDRESS PORT SIZE MEGABYTES [PEER]: a stream over TCP in writes of SIZE bytes. The
// server receives, and answers with one byte at the end. The client prints GB/s from its first
// byte to that answer.

#include "net.h"

enum { CHUNK_MAX = 1 << 20 };

static char buffer[CHUNK_MAX];

static void serve(struct sockaddr_in own)
{
	int peer = tcp_accept(own);
	ssize_t n;

	while ((n = read(peer, buffer, sizeof buffer)) > 0)
		;
	if (n < 0 || write(peer, "", 1) != 1)
		die("stream");
	close(peer);
}

static void stream(struct sockaddr_in peer, size_t size, long megabytes)
{
	uint64_t total = (uint64_t)megabytes << 20, sent = 0;
	int fd = tcp_call(peer);

	uint64_t start = now_ns();
	while (sent < total) {
		ssize_t n = write(fd, buffer, size);
		if (n < 0)
			die("write");
		sent += (uint64_t)n;
	}
	shutdown(fd, SHUT_WR);
	if (read(fd, buffer, 1) != 1)
		die("read");
	printf("%.5f\n", (double)sent / (double)(now_ns() - start));
	close(fd);
}

int main(int argc, char **argv)
{
	if (argc != 5 && argc != 6) {
		fprintf(stderr, "usage: tcp_stream ADDRESS PORT SIZE MEGABYTES [PEER]\n");
		return 2;
	}
	size_t size = (size_t)number(argv[3]);

	if (size > sizeof buffer) {
		fprintf(stderr, "at most %zu bytes\n", sizeof buffer);
		return 2;
	}
	if (argc == 6)
		stream(address(argv[5], argv[2]), size, number(argv[4]));
	else
		serve(address(argv[1], argv[2]));
	return 0;
}
