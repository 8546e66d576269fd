// SPDX-License-Identifier: MIT OR Apache-2.0
//
// wake CPU CPU TURNS: two processes wake each other with eventfds; prints the median time one way,
// in nanoseconds. The limit of every message on one host whose receiver sleeps.

#include "common.h"

#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

static void ring(int fd)
{
	uint64_t one = 1;

	if (write(fd, &one, sizeof one) != sizeof one)
		die("write");
}

static void await(int fd)
{
	uint64_t value;

	if (read(fd, &value, sizeof value) != sizeof value)
		die("read");
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: wake CPU CPU TURNS\n");
		return 2;
	}
	long turns = number(argv[3]);
	double *times = calloc((size_t)turns, sizeof *times);
	int there = eventfd(0, 0), back = eventfd(0, 0);

	if (!times || there < 0 || back < 0)
		die("eventfd");
	pid_t peer = fork();
	if (peer < 0)
		die("fork");
	if (peer == 0) {
		pin(atoi(argv[2]));
		for (long i = 0; i < turns; i++) {
			await(there);
			ring(back);
		}
		_exit(0);
	}
	pin(atoi(argv[1]));
	for (long i = 0; i < turns; i++) {
		uint64_t start = now_ns();
		ring(there);
		await(back);
		times[i] = (double)(now_ns() - start) / 2.0;
	}
	waitpid(peer, NULL, 0);
	printf("%.1f\n", median(times, (size_t)turns));
	free(times);
	return 0;
}
