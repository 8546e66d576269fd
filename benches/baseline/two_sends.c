// SPDX-License-Identifier: MIT OR Apache-2.0
//
// two_sends tcp|rsocket ADDRESS PORT TURNS [PEER]: the round trip of a request in two sends, a head
// and a body, that is answered alike, as many protocols do, by sides that sleep in poll(2) for each
// part. The client prints its median, in nanoseconds.

#include "net.h"

#include <poll.h>
#include <rdma/rsocket.h>
#include <stdbool.h>

enum { HEAD = 16, BODY = 48, WARM_UP = 100 };

static struct calls {
	int (*socket)(int domain, int type, int protocol);
	int (*bind)(int fd, const struct sockaddr *own, socklen_t len);
	int (*listen)(int fd, int backlog);
	int (*accept)(int fd, struct sockaddr *peer, socklen_t *len);
	int (*connect)(int fd, const struct sockaddr *peer, socklen_t len);
	int (*setsockopt)(int fd, int level, int name, const void *value, socklen_t len);
	int (*poll)(struct pollfd *fds, nfds_t count, int timeout);
	ssize_t (*send)(int fd, const void *data, size_t len, int flags);
	ssize_t (*recv)(int fd, void *data, size_t len, int flags);
} calls;

static const struct calls tcp = { socket,     bind, listen, accept, connect,
				  setsockopt, poll, send,   recv };
static const struct calls rsockets = { rsocket,	    rbind, rlisten, raccept, rconnect,
				       rsetsockopt, rpoll, rsend,   rrecv };

static int stream(void)
{
	int fd = calls.socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0)
		die("socket");
	return fd;
}

static int await_caller(struct sockaddr_in own)
{
	int one = 1, peer, fd = stream();

	calls.setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (calls.bind(fd, (struct sockaddr *)&own, sizeof own) || calls.listen(fd, 1))
		die("listen");
	ready();
	peer = calls.accept(fd, NULL, NULL);
	if (peer < 0)
		die("accept");
	return peer;
}

static int call(struct sockaddr_in peer)
{
	int fd = stream();

	if (calls.connect(fd, (struct sockaddr *)&peer, sizeof peer))
		die("connect");
	return fd;
}

static void say(int fd)
{
	static const char message[HEAD + BODY];

	if (calls.send(fd, message, HEAD, 0) != HEAD ||
	    calls.send(fd, message + HEAD, BODY, 0) != BODY)
		die("send");
}

static void hear_part(int fd, size_t len)
{
	char part[HEAD + BODY];

	while (len > 0) {
		struct pollfd one = { .fd = fd, .events = POLLIN };
		ssize_t n;

		if (calls.poll(&one, 1, IDLE_SECONDS * 1000) != 1)
			die("poll");
		n = calls.recv(fd, part, len, 0);
		if (n <= 0)
			die("recv");
		len -= (size_t)n;
	}
}

static void hear(int fd)
{
	hear_part(fd, HEAD);
	hear_part(fd, BODY);
}

int main(int argc, char **argv)
{
	bool client = argc == 6;
	int fd, one = 1;

	if (argc < 5 || argc > 6 || (strcmp(argv[1], "tcp") && strcmp(argv[1], "rsocket"))) {
		fprintf(stderr, "usage: two_sends tcp|rsocket ADDRESS PORT TURNS [PEER]\n");
		return 2;
	}
	calls = strcmp(argv[1], "tcp") ? rsockets : tcp;
	size_t turns = (size_t)number(argv[4]);
	double *took = calloc(turns, sizeof *took);

	if (!took)
		die("calloc");
	fd = client ? call(address(argv[5], argv[3])) : await_caller(address(argv[2], argv[3]));
	calls.setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	for (size_t i = 0; i < WARM_UP + turns; i++) {
		uint64_t begun = now_ns();

		if (client)
			say(fd);
		hear(fd);
		if (!client)
			say(fd);
		if (i >= WARM_UP)
			took[i - WARM_UP] = (double)(now_ns() - begun);
	}
	if (client)
		printf("%.0f\n", median(took, turns));
	return 0;
}
