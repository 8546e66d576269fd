// SPDX-License-Identifier: MIT OR Apache-2.0
//
// one_transfer polls|sleeps CPU CPU SIZE...: what it costs to register memory at both ends, for one
// READ or one WRITE, and to deregister it, beside a copy of as much to memory never touched before.
// A line
// "SIZE read least write least copy least" for each size: medians and least values in microseconds,
// of rounds in turn, so that other load meets all three alike. Where data arrives is memory never
// touched before; a registration populates it.

#define _GNU_SOURCE
#include "common.h"
#include "side.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS_MAX = 31, ROUNDS_MIN = 5 };

// Rounds shrink with the size, so that a size takes about as long as another.
static const size_t ROUNDS_BYTES = 128u << 20;

static const int REMOTE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			  IBV_ACCESS_REMOTE_READ;

static bool polls;

enum what { READ, WRITE, COPY, WHATS };

// What the target tells of its memory.
struct target {
	uint64_t addr;
	uint32_t rkey;
	uint32_t pad;
};

static double us_since(uint64_t start)
{
	return (double)(now_ns() - start) / 1e3;
}

static void *memory_new(size_t size, bool filled)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	need(p != MAP_FAILED, "mmap");
	if (filled)
		memset(p, 5, size);
	return p;
}

static void check_arrived(const uint8_t *memory, size_t size)
{
	if (memory[0] != 5 || memory[size - 1] != 5)
		fail("other bytes than were sent");
}

// The target: what registering and deregistering takes.
static void answer(struct side *s, size_t size, enum what what)
{
	uint8_t *memory = memory_new(size, what == READ), go;
	struct ibv_wc wc;
	uint64_t start = now_ns();
	struct ibv_mr *mr = ibv_reg_mr(s->pd, memory, size, REMOTE);
	double us = us_since(start);

	need(mr, "ibv_reg_mr");
	struct target t = { (uintptr_t)memory, mr->rkey, 0 };
	oob_send(s->oob, &t, sizeof t);
	while (polls && recv(s->oob, &go, sizeof go, MSG_PEEK | MSG_DONTWAIT) <= 0)
		need(ibv_poll_cq(s->cq, 1, &wc) == 0, "ibv_poll_cq");
	oob_recv(s->oob, &go, sizeof go);
	start = now_ns();
	need0(ibv_dereg_mr(mr));
	us += us_since(start);
	check_arrived(memory, size);
	munmap(memory, size);
	oob_send(s->oob, &us, sizeof us);
}

static double transfer(struct side *s, size_t size, enum what what)
{
	uint8_t *memory = memory_new(size, what == WRITE), go = 1;
	struct target t;
	struct ibv_wc wc;
	double theirs, ours;
	int n;

	oob_recv(s->oob, &t, sizeof t);
	uint64_t start = now_ns();
	struct ibv_mr *mr = ibv_reg_mr(s->pd, memory, size, REMOTE);
	need(mr, "ibv_reg_mr");
	struct ibv_sge sge = { (uintptr_t)memory, (uint32_t)size, mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = what == READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = t.addr, .rkey = t.rkey },
	}, *bad;

	need0(ibv_post_send(s->qp, &wr, &bad));
	while ((n = ibv_poll_cq(s->cq, 1, &wc)) == 0)
		;
	need(n == 1, "ibv_poll_cq");
	if (wc.status != IBV_WC_SUCCESS)
		fail("%s", ibv_wc_status_str(wc.status));
	need0(ibv_dereg_mr(mr));
	ours = us_since(start);
	oob_send(s->oob, &go, sizeof go);
	oob_recv(s->oob, &theirs, sizeof theirs);
	check_arrived(memory, size);
	munmap(memory, size);
	return ours + theirs;
}

static double copy(size_t size)
{
	uint8_t *from = memory_new(size, true);
	uint64_t start = now_ns();
	uint8_t *to = memory_new(size, false);

	memcpy(to, from, size);
	double us = us_since(start);
	check_arrived(to, size);
	munmap(from, size);
	munmap(to, size);
	return us;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void one_size(struct side *s, size_t size, bool initiates)
{
	size_t rounds = ROUNDS_BYTES / size;
	double us[WHATS][ROUNDS_MAX];

	rounds = rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds < ROUNDS_MIN ? ROUNDS_MIN : rounds;
	for (size_t i = 0; i < rounds; i++)
		for (enum what what = READ; what < WHATS; what++) {
			if (!initiates && what != COPY)
				answer(s, size, what);
			else if (initiates)
				us[what][i] = what == COPY ? copy(size) : transfer(s, size, what);
		}
	if (!initiates)
		return;
	printf("%zu", size);
	for (enum what what = READ; what < WHATS; what++) {
		qsort(us[what], rounds, sizeof **us, by_value);
		printf(" %.1f %.1f", us[what][rounds / 2], us[what][0]);
	}
	putchar('\n');
}

int main(int argc, char **argv)
{
	int fds[2], status;

	if (argc < 5) {
		fputs("usage: one_transfer polls|sleeps CPU CPU SIZE...\n", stderr);
		return 2;
	}
	need(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0, "socketpair");
	pid_t peer = fork();
	need(peer >= 0, "fork");
	bool first = peer != 0;
	struct side s = { .oob = fds[first] };

	polls = !strcmp(argv[1], "polls");
	close(fds[!first]);
	pin(atoi(argv[first ? 2 : 3]));
	connect_side(&s, REMOTE);
	for (int i = 4; i < argc; i++)
		one_size(&s, strtoull(argv[i], NULL, 10), first);
	oob_barrier(s.oob, 2);
	if (!first)
		_exit(0);
	need(waitpid(peer, &status, 0) == peer && status == 0, "the peer");
	return 0;
}
