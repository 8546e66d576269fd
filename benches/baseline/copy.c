// SPDX-License-Identifier: MIT OR Apache-2.0
//
// copy CPU CPU SIZE...: the speed of memcpy(3) for each size, a line "SIZE GB/s" each, between
// buffers that a process on the first processor shares with one on the second. The limit of every
// transfer through memory that is copied once.

#include "common.h"

#include <sys/wait.h>
#include <unistd.h>

enum { BATCHES = 15, PAGE = 4096 };

// Each batch copies about this much, so that the clock's grain does not show.
static const size_t BATCH_BYTES = 64u << 20;

static double speed(char *to, const char *from, size_t size)
{
	double batch[BATCHES];
	size_t turns = BATCH_BYTES / size ? BATCH_BYTES / size : 1;

	for (int i = 0; i < BATCHES; i++) {
		uint64_t start = now_ns();
		for (size_t j = 0; j < turns; j++) {
			memcpy(to, from, size);
			// Each copy must happen: the compiler may not assume it knows the result.
			__asm__ volatile("" : : "r"(to) : "memory");
		}
		batch[i] = (double)(size * turns) / (double)(now_ns() - start);
	}
	return median(batch, BATCHES);
}

// The peer owns the destination: it has touched it, and then lets it be, as a target does.
static double measure(int own_cpu, int peer_cpu, size_t size)
{
	size_t room = (size + PAGE - 1) / PAGE * PAGE;
	char *from = shared(room), *to = shared(room);

	pid_t peer = fork();
	if (peer < 0)
		die("fork");
	if (peer == 0) {
		pin(peer_cpu);
		memset(to, 2, room);
		_exit(0);
	}
	pin(own_cpu);
	memset(from, 1, room);
	waitpid(peer, NULL, 0);
	double result = speed(to, from, size);
	munmap(from, room);
	munmap(to, room);
	return result;
}

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "usage: copy CPU CPU SIZE...\n");
		return 2;
	}
	for (int i = 3; i < argc; i++) {
		size_t size = (size_t)number(argv[i]);

		printf("%zu %.3f\n", size, measure(atoi(argv[1]), atoi(argv[2]), size));
	}
	return 0;
}
