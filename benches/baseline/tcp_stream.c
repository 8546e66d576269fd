// SPDX-License-Identifier: MIT OR Apache-2.0
//
// tcp_stream ADDRESS PORT MEGABYTES [PEER]: a stream over TCP in writes of 128 KiB. Without PEER
// the server: prints "ready" once it listens, receives, and answers with one byte at the end. With
// PEER the client: prints GB/s from its first byte to that answer.

#include "common.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CHUNK = 128 << 10 };

static char buffer[CHUNK];

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

static void serve(struct sockaddr_in own)
{
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
	ssize_t n;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (fd < 0 || bind(fd, (struct sockaddr *)&own, sizeof own) || listen(fd, 1))
		die("listen");
	printf("ready\n");
	fflush(stdout);
	int peer = accept(fd, NULL, NULL);
	if (peer < 0)
		die("accept");
	while ((n = read(peer, buffer, sizeof buffer)) > 0)
		;
	if (n < 0 || write(peer, "", 1) != 1)
		die("stream");
	close(peer);
	close(fd);
}

static void stream(struct sockaddr_in peer, long megabytes)
{
	uint64_t total = (uint64_t)megabytes << 20, sent = 0;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 || connect(fd, (struct sockaddr *)&peer, sizeof peer))
		die("connect");
	uint64_t start = now_ns();
	while (sent < total) {
		ssize_t n = write(fd, buffer, sizeof buffer);
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
	if (argc != 4 && argc != 5) {
		fprintf(stderr, "usage: tcp_stream ADDRESS PORT MEGABYTES [PEER]\n");
		return 2;
	}
	if (argc == 5)
		stream(address(argv[4], argv[2]), number(argv[3]));
	else
		serve(address(argv[1], argv[2]));
	return 0;
}
