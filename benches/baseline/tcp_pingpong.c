// SPDX-License-Identifier: MIT OR Apache-2.0
//
// tcp_pingpong ADDRESS PORT SIZE TURNS [PEER]: a busy-polled ping-pong over TCP. The client prints
// the median time one way, in nanoseconds.

#include "net.h"

enum { SIZE_MAX_BYTES = 1 << 20 };

static char buffer[SIZE_MAX_BYTES];

// Receives `size` bytes without sleeping.
static void receive(int fd, size_t size)
{
	uint64_t deadline = silence_begins();

	for (size_t done = 0; done < size;) {
		ssize_t n = recv(fd, buffer + done, size - done, MSG_DONTWAIT);
		if (n > 0)
			done += (size_t)n;
		else if (n == 0)
			exit(1);
		else
			expect_again("recv", deadline);
	}
}

// Sends `size` bytes without sleeping.
static void transmit(int fd, size_t size)
{
	uint64_t deadline = silence_begins();

	for (size_t done = 0; done < size;) {
		ssize_t n = send(fd, buffer + done, size - done, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n >= 0)
			done += (size_t)n;
		else
			expect_again("send", deadline);
	}
}

static void client(int fd, size_t size, long turns)
{
	double *times = calloc((size_t)turns, sizeof *times);

	if (!times)
		die("calloc");
	for (long i = 0; i < turns; i++) {
		uint64_t start = now_ns();
		transmit(fd, size);
		receive(fd, size);
		times[i] = (double)(now_ns() - start) / 2.0;
	}
	printf("%.1f\n", median(times, (size_t)turns));
	free(times);
}

int main(int argc, char **argv)
{
	if (argc != 5 && argc != 6) {
		fprintf(stderr, "usage: tcp_pingpong ADDRESS PORT SIZE TURNS [PEER]\n");
		return 2;
	}
	size_t size = (size_t)number(argv[3]);
	long turns = number(argv[4]);

	if (size > sizeof buffer) {
		fprintf(stderr, "at most %zu bytes\n", sizeof buffer);
		return 2;
	}
	if (argc == 6) {
		client(tcp_call(address(argv[5], argv[2])), size, turns);
		return 0;
	}
	int fd = tcp_accept(address(argv[1], argv[2]));
	for (long i = 0; i < turns; i++) {
		receive(fd, size);
		transmit(fd, size);
	}
	return 0;
}
