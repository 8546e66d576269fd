// SPDX-License-Identifier: MIT OR Apache-2.0
//
// cacheline CPU CPU: the time a cache line takes one way between two processes, in nanoseconds.
// The least that any message through shared memory can cost.

#include "common.h"

#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BATCHES = 101, TURNS = 1000, LINE = 64 };

struct line {
	_Alignas(LINE) _Atomic uint64_t value;
};

// Answers every value on `in` with the same value on `out`, up to `last`.
static void answer(struct line *in, struct line *out, uint64_t last)
{
	for (uint64_t turn = 1; turn <= last; turn++) {
		while (atomic_load_explicit(&in->value, memory_order_acquire) != turn)
			;
		atomic_store_explicit(&out->value, turn, memory_order_release);
	}
}

int main(int argc, char **argv)
{
	double batch[BATCHES];
	uint64_t turn = 0;

	if (argc != 3) {
		fprintf(stderr, "usage: cacheline CPU CPU\n");
		return 2;
	}
	struct line *lines = shared(2 * sizeof *lines);
	pid_t peer = fork();
	if (peer < 0)
		die("fork");
	if (peer == 0) {
		pin(atoi(argv[2]));
		answer(&lines[0], &lines[1], (uint64_t)BATCHES * TURNS);
		_exit(0);
	}
	pin(atoi(argv[1]));
	for (int i = 0; i < BATCHES; i++) {
		uint64_t start = now_ns();
		for (int j = 0; j < TURNS; j++) {
			atomic_store_explicit(&lines[0].value, ++turn, memory_order_release);
			while (atomic_load_explicit(&lines[1].value, memory_order_acquire) != turn)
				;
		}
		batch[i] = (double)(now_ns() - start) / (2.0 * TURNS);
	}
	waitpid(peer, NULL, 0);
	printf("%.1f\n", median(batch, BATCHES));
	return 0;
}
