// SPDX-License-Identifier: MIT OR Apache-2.0
//
// reg_cost CPU CPU SIZE...: what registering memory with remote access costs, beside populating as
// many shared pages and copying into them. A line "SIZE register first covered again deregister
// bare after" for each size, medians in microseconds: `first` is an 8-byte READ from the fresh MR
// by a peer process on the second processor, which pays for whatever registration put off;
// `covered` is a registration while another one covers the memory, the first one after this process
// has slept, and `again` are those that follow it at once; `after` is one when nothing covers it
// any more.
//
// The peer is connected before the first registration: an implementation that moves memory for its
// peers has no reason to before there is one.

#define _GNU_SOURCE
#include "common.h"
#include "side.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REPEATS_MAX = 31, REPEATS_MIN = 1, AGAIN = 8, PAGE = 4096 };

// Repeats shrink with the size, so that a size takes about as long as another.
static const size_t REPEATS_BYTES = 256u << 20;

static const int REMOTE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

// What the owner of an MR tells its peer, and what the peer answers. Without `more`, the end.
struct question {
	uint64_t addr;
	uint32_t rkey;
	uint32_t more;
};

struct answer {
	uint64_t word;
	uint64_t ns;
};

// The peer: reads a word wherever it is told to, and says how long that took.
static void read_words(struct side *s)
{
	uint64_t *word = page_alloc(PAGE);
	struct ibv_mr *mr = ibv_reg_mr(s->pd, word, PAGE, IBV_ACCESS_LOCAL_WRITE);
	struct question q;

	need(mr, "ibv_reg_mr");
	for (oob_recv(s->oob, &q, sizeof q); q.more; oob_recv(s->oob, &q, sizeof q)) {
		struct ibv_sge sge = { (uintptr_t)word, sizeof *word, mr->lkey };
		struct ibv_send_wr wr = {
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_READ,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = q.addr, .rkey = q.rkey },
		}, *bad;
		struct ibv_wc wc;
		uint64_t start = now_ns();
		int n;

		need0(ibv_post_send(s->qp, &wr, &bad));
		while ((n = ibv_poll_cq(s->cq, 1, &wc)) == 0)
			;
		need(n == 1, "ibv_poll_cq");
		if (wc.status != IBV_WC_SUCCESS)
			fail("READ: %s", ibv_wc_status_str(wc.status));
		struct answer a = { *word, now_ns() - start };
		oob_send(s->oob, &a, sizeof a);
	}
}

// Has the peer read the first word of an MR; microseconds.
static double peer_reads(const struct side *s, const struct ibv_mr *mr)
{
	struct question q = { (uintptr_t)mr->addr, mr->rkey, 1 };
	struct answer a;

	oob_send(s->oob, &q, sizeof q);
	oob_recv(s->oob, &a, sizeof a);
	if (a.word != *(uint64_t *)mr->addr)
		fail("READ brought other bytes than the memory holds");
	return (double)a.ns / 1e3;
}

static double us_since(uint64_t start)
{
	return (double)(now_ns() - start) / 1e3;
}

struct cost {
	double reg[REPEATS_MAX];
	double first[REPEATS_MAX];
	double covered[REPEATS_MAX];
	double again[REPEATS_MAX * AGAIN];
	double dereg[REPEATS_MAX];
	double bare[REPEATS_MAX];
	double after[REPEATS_MAX];
};

static void *private_memory(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	need(p != MAP_FAILED, "mmap");
	memset(p, 5, size);
	return p;
}

static double register_again(struct side *s, void *memory, size_t size)
{
	uint64_t start = now_ns();
	struct ibv_mr *mr = ibv_reg_mr(s->pd, memory, size, REMOTE);
	double us = us_since(start);

	need(mr, "ibv_reg_mr");
	need0(ibv_dereg_mr(mr));
	return us;
}

// Memory never registered before: a second registration of the same might find work done.
static void one_registration(struct side *s, size_t size, struct cost *c, int i)
{
	void *memory = private_memory(size);

	uint64_t start = now_ns();
	struct ibv_mr *mr = ibv_reg_mr(s->pd, memory, size, REMOTE);
	c->reg[i] = us_since(start);
	need(mr, "ibv_reg_mr");
	c->first[i] = peer_reads(s, mr);
	c->covered[i] = register_again(s, memory, size);
	for (int n = 0; n < AGAIN; n++)
		c->again[i * AGAIN + n] = register_again(s, memory, size);
	start = now_ns();
	need0(ibv_dereg_mr(mr));
	c->dereg[i] = us_since(start);
	c->after[i] = register_again(s, memory, size);
	munmap(memory, size);
}

static void one_copy(size_t size, struct cost *c, int i)
{
	void *memory = private_memory(size);
	int fd = memfd_create("bare", MFD_CLOEXEC);

	need(fd >= 0 && !ftruncate(fd, (off_t)size), "memfd");
	uint64_t start = now_ns();
	void *copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	need(copy != MAP_FAILED, "mmap");
	memcpy(copy, memory, size);
	c->bare[i] = us_since(start);
	munmap(copy, size);
	munmap(memory, size);
	close(fd);
}

// The processes part before either opens the device.
static void fork_peer(struct side *s, int own_cpu, int peer_cpu)
{
	int fds[2];

	need(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0, "socketpair");
	pid_t peer = fork();
	need(peer >= 0, "fork");
	s->oob = fds[peer != 0];
	close(fds[peer == 0]);
	pin(peer ? own_cpu : peer_cpu);
	connect_side(s, REMOTE);
	if (peer == 0) {
		read_words(s);
		_exit(0);
	}
}

int main(int argc, char **argv)
{
	static struct cost c;
	struct side s = { 0 };
	struct question end = { 0 };

	if (argc < 4) {
		fprintf(stderr, "usage: reg_cost CPU CPU SIZE...\n");
		return 2;
	}
	fork_peer(&s, atoi(argv[1]), atoi(argv[2]));
	for (int a = 3; a < argc; a++) {
		size_t size = (size_t)number(argv[a]), repeats = REPEATS_BYTES / size;

		repeats = repeats < REPEATS_MIN ? REPEATS_MIN :
			  repeats > REPEATS_MAX ? REPEATS_MAX : repeats;
		for (int i = 0; i < (int)repeats; i++) {
			one_copy(size, &c, i);
			one_registration(&s, size, &c, i);
		}
		printf("%zu %.2f %.2f %.2f %.2f %.2f %.2f %.2f\n", size, median(c.reg, repeats),
		       median(c.first, repeats), median(c.covered, repeats),
		       median(c.again, repeats * AGAIN), median(c.dereg, repeats),
		       median(c.bare, repeats), median(c.after, repeats));
		fflush(stdout);
	}
	oob_send(s.oob, &end, sizeof end);
	wait(NULL);
	return 0;
}
