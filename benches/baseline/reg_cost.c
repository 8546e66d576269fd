// SPDX-License-Identifier: MIT OR Apache-2.0
//
// reg_cost CPU SIZE...: what registering memory with remote access costs, beside populating as many
// shared pages and copying into them. A line "SIZE register first covered deregister bare" for
// each size, medians in microseconds: `first` is an 8-byte READ from the fresh MR, which pays for
// whatever registration put off; `covered` a registration while another one covers the memory.
//
// The protection domain has a connected pair of queue pairs before the first registration: an
// implementation that moves memory for its peers has no reason to before there is one.

#define _GNU_SOURCE
#include "../../tests/verify/common.h"

#include "common.h"

#include <sys/mman.h>
#include <unistd.h>

enum { REPEATS_MAX = 31, REPEATS_MIN = 1, DEPTH = 4, PAGE = 4096, PSN = 7 };

// Repeats shrink with the size, so that a size takes about as long as another.
static const size_t REPEATS_BYTES = 256u << 20;

static const int REMOTE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

static const struct qp_params params = {
	.access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	.timeout = 14,
	.retry_cnt = 7,
	.rnr_retry = 7,
	.min_rnr_timer = 12,
	.rd_atomic = 1,
};

struct pair {
	struct device dev;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
	struct ibv_mr *word_mr;
	uint64_t *word;
};

static void connect_pair(struct pair *p)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { DEPTH, DEPTH, 1, 1, 0 },
	};

	device_open(&p->dev, NULL, 0);
	p->pd = ibv_alloc_pd(p->dev.ctx);
	p->cq = ibv_create_cq(p->dev.ctx, 4 * DEPTH, NULL, NULL, 0);
	need(p->pd && p->cq, "ibv_alloc_pd, ibv_create_cq");
	init.send_cq = init.recv_cq = p->cq;
	for (int i = 0; i < 2; i++) {
		p->qp[i] = ibv_create_qp(p->pd, &init);
		need(p->qp[i], "ibv_create_qp");
		need0(qp_to_init(p->qp[i], &params));
	}
	for (int i = 0; i < 2; i++) {
		struct qp_addr peer = { p->qp[!i]->qp_num, PSN, p->dev.gid };

		need0(qp_to_rtr(p->qp[i], &p->dev, &params, &peer));
	}
	for (int i = 0; i < 2; i++)
		need0(qp_to_rts(p->qp[i], &params, PSN));
	p->word = page_alloc(PAGE);
	p->word_mr = ibv_reg_mr(p->pd, p->word, PAGE, IBV_ACCESS_LOCAL_WRITE);
	need(p->word_mr, "ibv_reg_mr");
}

// Reads the first word of an MR through the pair.
static void read_word(struct pair *p, const struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)p->word, sizeof *p->word, p->word_mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_READ,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)mr->addr, .rkey = mr->rkey },
	}, *bad;
	struct ibv_wc wc;
	int n;

	need0(ibv_post_send(p->qp[0], &wr, &bad));
	while ((n = ibv_poll_cq(p->cq, 1, &wc)) == 0)
		;
	need(n == 1, "ibv_poll_cq");
	if (wc.status != IBV_WC_SUCCESS)
		fail("READ: %s", ibv_wc_status_str(wc.status));
	if (*p->word != *(uint64_t *)mr->addr)
		fail("READ brought other bytes than the memory holds");
}

static double us_since(uint64_t start)
{
	return (double)(now_ns() - start) / 1e3;
}

struct cost {
	double reg[REPEATS_MAX];
	double first[REPEATS_MAX];
	double covered[REPEATS_MAX];
	double dereg[REPEATS_MAX];
	double bare[REPEATS_MAX];
};

static void *private_memory(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	need(p != MAP_FAILED, "mmap");
	memset(p, 5, size);
	return p;
}

// Memory never registered before: a second registration of the same might find work done.
static void one_registration(struct pair *p, size_t size, struct cost *c, int i)
{
	void *memory = private_memory(size);

	uint64_t start = now_ns();
	struct ibv_mr *mr = ibv_reg_mr(p->pd, memory, size, REMOTE);
	c->reg[i] = us_since(start);
	need(mr, "ibv_reg_mr");
	start = now_ns();
	read_word(p, mr);
	c->first[i] = us_since(start);
	start = now_ns();
	struct ibv_mr *again = ibv_reg_mr(p->pd, memory, size, REMOTE);
	c->covered[i] = us_since(start);
	need(again, "ibv_reg_mr");
	need0(ibv_dereg_mr(again));
	start = now_ns();
	need0(ibv_dereg_mr(mr));
	c->dereg[i] = us_since(start);
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

int main(int argc, char **argv)
{
	static struct cost c;
	struct pair p = { 0 };

	if (argc < 3) {
		fprintf(stderr, "usage: reg_cost CPU SIZE...\n");
		return 2;
	}
	pin(atoi(argv[1]));
	connect_pair(&p);
	for (int a = 2; a < argc; a++) {
		size_t size = (size_t)number(argv[a]), repeats = REPEATS_BYTES / size;

		repeats = repeats < REPEATS_MIN ? REPEATS_MIN :
			  repeats > REPEATS_MAX ? REPEATS_MAX : repeats;
		for (int i = 0; i < (int)repeats; i++) {
			one_copy(size, &c, i);
			one_registration(&p, size, &c, i);
		}
		printf("%zu %.2f %.2f %.2f %.2f %.2f\n", size, median(c.reg, repeats),
		       median(c.first, repeats), median(c.covered, repeats),
		       median(c.dereg, repeats), median(c.bare, repeats));
		fflush(stdout);
	}
	return 0;
}
