// SPDX-License-Identifier: MIT OR Apache-2.0
//
// copy CPU SIZE...: the speed of memcpy(3) for each size, a line "SIZE GB/s" each. The limit of
// every transfer through memory that is copied once.

#include "common.h"

enum { BATCHES = 21 };

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

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: copy CPU SIZE...\n");
		return 2;
	}
	pin(atoi(argv[1]));
	for (int i = 2; i < argc; i++) {
		size_t size = (size_t)number(argv[i]);
		char *from = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
		char *to = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
		if (!from || !to)
			die("aligned_alloc");
		memset(from, 1, size);
		memset(to, 2, size);
		printf("%zu %.3f\n", size, speed(to, from, size));
		free(from);
		free(to);
	}
	return 0;
}
