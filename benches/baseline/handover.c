// SPDX-License-Identifier: MIT OR Apache-2.0
//
// handover CPU CPU SIZE...: the time in which a process copies SIZE bytes into memory it shares
// with another and the other sees the last eight of them, one way; a line "SIZE nanoseconds" each.
// The limit of an RDMA WRITE of that size on one host.

#include "common.h"

#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BATCHES = 21, BATCH_BYTES = 16 << 20, TURNS_MIN = 8, TURNS_MAX = 2000, PAGE = 4096 };

// What two processes share: each copies into the other's buffer, from one of its own.
struct sides {
	char *own;
	char *peer;
	char *source;
	size_t size;
};

static _Atomic uint64_t *last_word(char *buffer, size_t size)
{
	return (_Atomic uint64_t *)(buffer + size - sizeof(uint64_t));
}

static void put(const struct sides *s, uint64_t turn)
{
	memcpy(s->peer, s->source, s->size - sizeof turn);
	atomic_store_explicit(last_word(s->peer, s->size), turn, memory_order_release);
}

static void await(const struct sides *s, uint64_t turn)
{
	while (atomic_load_explicit(last_word(s->own, s->size), memory_order_acquire) != turn)
		;
}

static double measure(int own_cpu, int peer_cpu, size_t size)
{
	double batch[BATCHES];
	size_t room = (size + PAGE - 1) / PAGE * PAGE, turns = BATCH_BYTES / size;
	char *a = shared(room), *b = shared(room), *a_source = shared(room);
	char *b_source = shared(room);
	uint64_t turn = 0;

	turns = turns < TURNS_MIN ? TURNS_MIN : turns > TURNS_MAX ? TURNS_MAX : turns;
	pid_t peer = fork();
	if (peer < 0)
		die("fork");
	if (peer == 0) {
		const struct sides s = { b, a, b_source, size };

		pin(peer_cpu);
		for (turn = 1; turn <= turns * BATCHES; turn++) {
			await(&s, turn);
			put(&s, turn);
		}
		_exit(0);
	}
	const struct sides s = { a, b, a_source, size };
	pin(own_cpu);
	for (int i = 0; i < BATCHES; i++) {
		uint64_t start = now_ns();
		for (size_t j = 0; j < turns; j++) {
			put(&s, ++turn);
			await(&s, turn);
		}
		batch[i] = (double)(now_ns() - start) / (2.0 * (double)turns);
	}
	waitpid(peer, NULL, 0);
	munmap(a, room);
	munmap(b, room);
	munmap(a_source, room);
	munmap(b_source, room);
	return median(batch, BATCHES);
}

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "usage: handover CPU CPU SIZE...\n");
		return 2;
	}
	for (int i = 3; i < argc; i++) {
		size_t size = (size_t)number(argv[i]);

		if (size % sizeof(uint64_t)) {
			fprintf(stderr, "%zu is not a multiple of 8\n", size);
			return 2;
		}
		printf("%zu %.1f\n", size, measure(atoi(argv[1]), atoi(argv[2]), size));
	}
	return 0;
}
