// SPDX-License-Identifier: MIT OR Apache-2.0
//
// What the baselines over sockets share. Each is a server, which prints "ready" once it can be
// reached, and a client, which is given the server's address as its last argument.

#ifndef CAUSEWAY_BASELINE_NET_H
#define CAUSEWAY_BASELINE_NET_H

#include "common.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

enum { IDLE_SECONDS = 30 };

static inline struct sockaddr_in address(const char *host, const char *port)
{
	struct sockaddr_in a = { .sin_family = AF_INET };

	a.sin_port = htons((uint16_t)number(port));
	if (inet_pton(AF_INET, host, &a.sin_addr) != 1) {
		fprintf(stderr, "%s is not an IPv4 address\n", host);
		exit(2);
	}
	return a;
}

static inline void ready(void)
{
	printf("ready\n");
	fflush(stdout);
}

// A UDP socket that is bound to `own`.
static inline int udp_bound(struct sockaddr_in own)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&own, sizeof own))
		die("bind");
	return fd;
}

// Listens on `own`, says so, and takes one caller.
static inline int tcp_accept(struct sockaddr_in own)
{
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0)
		die("socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(fd, (struct sockaddr *)&own, sizeof own) || listen(fd, 1))
		die("listen");
	ready();
	int peer = accept(fd, NULL, NULL);
	if (peer < 0)
		die("accept");
	close(fd);
	setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return peer;
}

static inline int tcp_call(struct sockaddr_in peer)
{
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 || connect(fd, (struct sockaddr *)&peer, sizeof peer))
		die("connect");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return fd;
}

// The moment after which a peer counts as silent.
static inline uint64_t silence_begins(void)
{
	return now_ns() + (uint64_t)IDLE_SECONDS * 1000000000u;
}

// After a call that would have blocked: goes on until the peer is silent for too long.
static inline void expect_again(const char *what, uint64_t deadline)
{
	if (errno != EAGAIN)
		die(what);
	if (now_ns() > deadline) {
		fprintf(stderr, "the peer is silent\n");
		exit(1);
	}
}

#endif
