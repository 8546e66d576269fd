// SPDX-License-Identifier: MIT OR Apache-2.0
//
// threads MODE THREADS ROUNDS: threads of one process exchange messages with those of another, over
// connections between the two, and check every byte of them.
//
//   own     each thread has a queue pair and a completion queue
//   cq      each thread has a queue pair; all complete to one queue
//   qp      all threads share one queue pair and its completion queue
//   split   as own, but one more thread polls for all
//   joined  as own; meanwhile queue pairs are made and destroyed whose completions go to the
//           queues of two threads
//
// A round is a WRITE and a SEND of pseudorandom length to the other side, a READ back, a message
// from there, and a region registered and ended. Work requests carry the number of their thread, so
// whoever polls a completion hands it on.

#define _GNU_SOURCE
#include "common.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	THREADS_MAX = 16,
	AREA = 1 << 16,
	PSN = 5,
	DEPTH = 8,
	JOINS = 40,
};

// A thread's memory. What is received, and what the peer writes, has two areas: the peer may be a
// round ahead.
enum { SENDS, READS, WRITES, RECEIVES = WRITES + 2, AREAS = RECEIVES + 2 };

enum mode { OWN, ONE_CQ, ONE_QP, SPLIT, JOINED, MODES };
static const char *const names[MODES] = { "own", "cq", "qp", "split", "joined" };

static const struct qp_params params = {
	.access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_LOCAL_WRITE,
	.timeout = 14,
	.retry_cnt = 7,
	.rnr_retry = 7,
	.min_rnr_timer = 1,
	.rd_atomic = 4,
};

struct hello {
	struct qp_addr qp;
	uint64_t addr;
	uint32_t rkey;
};

struct thread {
	pthread_t id;
	int number;
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint8_t *memory;
	struct hello peer;
	// Completions of its own that somebody has polled.
	_Atomic uint64_t sent, received;
};

static enum mode mode;
static int threads, rounds, side;
static struct thread all[THREADS_MAX];
static struct device dev;
static struct ibv_pd *pd;
static _Atomic int running;

enum { SENT = 0xff };

static uint8_t *area(const struct thread *t, int which)
{
	return t->memory + which * AREA;
}

static uint32_t length(int number, int round, int what)
{
	struct rng rng = rng_for(number, round, what);

	// Mostly short, as programs' messages are.
	return 1 + rng_below(&rng, rng_one_in(&rng, 4) ? AREA : 256);
}

static uint64_t key(int from, int number, int round, int what)
{
	return (((uint64_t)from * THREADS_MAX + number) * 1000003 + round) * 8 + what;
}

static void post_recv(struct thread *t, int which)
{
	struct ibv_sge sge = { (uintptr_t)area(t, RECEIVES + which), AREA, t->mr->lkey };
	struct ibv_recv_wr *bad, wr = {
		.wr_id = t->number << 8 | which,
		.sg_list = &sge,
		.num_sge = 1,
	};

	need0(ibv_post_recv(t->qp, &wr, &bad));
}

static void check(const uint8_t *at, const char *what, int from, int number, int round, int kind,
		  uint32_t len)
{
	ssize_t wrong = content_check(at, key(from, number, round, kind), 0, len);

	if (wrong >= 0)
		fail("thread %d, round %d: %s of %u bytes: byte %zd", number, round, what, len,
		     wrong);
}

// A message of any thread of the peer's is in a buffer of any of ours.
static void receive(const struct ibv_wc *wc)
{
	struct thread *buffers = &all[wc->wr_id >> 8];
	int which = wc->wr_id & 0xff;
	uint32_t imm = ntohl(wc->imm_data);
	int number = imm >> 24, round = imm & 0xffffff;

	need(wc->wc_flags & IBV_WC_WITH_IMM && number < threads, "immediate data");
	need(wc->byte_len == length(number, round, 1), "length of a message");
	check(area(buffers, RECEIVES + which), "SEND", !side, number, round, 1, wc->byte_len);
	post_recv(buffers, which);
	atomic_fetch_add(&all[number].received, 1);
}

// Takes what has completed, whosever it is.
static void poll(struct ibv_cq *cq)
{
	struct ibv_wc wc[4];
	int n = ibv_poll_cq(cq, 4, wc);

	need(n >= 0, "ibv_poll_cq");
	for (int i = 0; i < n; i++) {
		if (wc[i].status != IBV_WC_SUCCESS)
			fail("thread %d: %s", (int)(wc[i].wr_id >> 8),
			     ibv_wc_status_str(wc[i].status));
		if (wc[i].opcode & IBV_WC_RECV)
			receive(&wc[i]);
		else
			atomic_fetch_add(&all[wc[i].wr_id >> 8].sent, 1);
	}
	if (!n)
		sched_yield();
}

static void await(struct thread *t, _Atomic uint64_t *count, uint64_t until)
{
	while (atomic_load(count) < until)
		if (mode == SPLIT)
			sched_yield();
		else
			poll(t->cq);
}

static void post(struct thread *t, enum ibv_wr_opcode op, int from, uint32_t len, int to,
		 uint32_t imm)
{
	struct ibv_sge sge = { (uintptr_t)area(t, from), len, t->mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.wr_id = t->number << 8 | SENT,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = op,
		.send_flags = IBV_SEND_SIGNALED,
		.imm_data = htonl(imm),
		.wr.rdma = { t->peer.addr + to * AREA, t->peer.rkey },
	};

	need0(ibv_post_send(t->qp, &wr, &bad));
}

// Memory that comes and goes.
static void churn(void)
{
	uint8_t *page = page_alloc(4096);
	struct ibv_mr *mr = ibv_reg_mr(pd, page, 4096, IBV_ACCESS_LOCAL_WRITE);

	need(mr, "ibv_reg_mr");
	need0(ibv_dereg_mr(mr));
	free(page);
}

static void one_round(struct thread *t, int round)
{
	uint32_t first = length(t->number, round, 0), second = length(t->number, round, 1);
	uint64_t sent = 3 * (uint64_t)round;
	int to = WRITES + round % 2;

	content_fill(area(t, SENDS), key(side, t->number, round, 0), 0, first);
	post(t, IBV_WR_RDMA_WRITE, SENDS, first, to, 0);
	await(t, &t->sent, sent + 1);
	post(t, IBV_WR_RDMA_READ, READS, first, to, 0);
	await(t, &t->sent, sent + 2);
	check(area(t, READS), "READ", side, t->number, round, 0, first);
	content_fill(area(t, SENDS), key(side, t->number, round, 1), 0, second);
	post(t, IBV_WR_SEND_WITH_IMM, SENDS, second, 0, (uint32_t)t->number << 24 | round);
	await(t, &t->sent, sent + 3);
	await(t, &t->received, round + 1);
	// What the peer had written came before its message.
	check(area(t, to), "WRITE", !side, t->number, round, 0, first);
	churn();
}

static void *run(void *arg)
{
	struct thread *t = arg;

	for (int round = 0; round < rounds; round++)
		one_round(t, round);
	atomic_fetch_sub(&running, 1);
	// Others may need what this one polls.
	while (atomic_load(&running))
		if (mode == SPLIT)
			sched_yield();
		else
			poll(t->cq);
	return NULL;
}

static void *poll_all(void *arg)
{
	(void)arg;
	while (atomic_load(&running))
		for (int i = 0; i < threads; i++)
			poll(all[i].cq);
	return NULL;
}

static struct ibv_qp *qp_new(struct ibv_cq *send, struct ibv_cq *recv)
{
	struct ibv_qp_init_attr init = {
		.send_cq = send,
		.recv_cq = recv,
		.qp_type = IBV_QPT_RC,
		.cap = { THREADS_MAX * 2, THREADS_MAX * 2, 1, 1, 0 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	need(qp, "ibv_create_qp");
	return qp;
}

static void open_all(int oob)
{
	struct hello own[THREADS_MAX], theirs[THREADS_MAX];

	device_open(&dev, NULL, 0);
	pd = ibv_alloc_pd(dev.ctx);
	need(pd, "ibv_alloc_pd");
	for (int i = 0; i < threads; i++) {
		struct thread *t = &all[i];
		bool own_qp = !i || mode != ONE_QP, own_cq = !i || mode == OWN || mode == JOINED ||
							     mode == SPLIT;

		t->number = i;
		t->memory = page_alloc((size_t)AREAS * AREA);
		t->mr = ibv_reg_mr(pd, t->memory, (size_t)AREAS * AREA, params.access);
		t->cq = own_cq ? ibv_create_cq(dev.ctx, 16 * THREADS_MAX, NULL, NULL, 0) :
				 all[0].cq;
		need(t->mr && t->cq, "ibv_reg_mr, ibv_create_cq");
		t->qp = own_qp ? qp_new(t->cq, t->cq) : all[0].qp;
		if (own_qp)
			need0(qp_to_init(t->qp, &params));
		own[i] = (struct hello){
			{ t->qp->qp_num, PSN, dev.gid },
			(uintptr_t)t->memory,
			t->mr->rkey,
		};
	}
	oob_send(oob, own, threads * sizeof(*own));
	oob_recv(oob, theirs, threads * sizeof(*theirs));
	for (int i = 0; i < threads; i++) {
		all[i].peer = theirs[i];
		if (!i || mode != ONE_QP) {
			need0(qp_to_rtr(all[i].qp, &dev, &params, &theirs[i].qp));
			need0(qp_to_rts(all[i].qp, &params, PSN));
		}
		for (int which = 0; which < 2; which++)
			post_recv(&all[i], which);
	}
	oob_barrier(oob, 1);
}

// Queue pairs that have to do with the queues of two threads each.
static void join_queues(void)
{
	for (int i = 0; i < JOINS && atomic_load(&running); i++) {
		struct ibv_qp *qp = qp_new(all[i % threads].cq, all[(i + 1) % threads].cq);

		need0(qp_to_init(qp, &params));
		usleep(200);
		need0(ibv_destroy_qp(qp));
	}
}

int main(int argc, char **argv)
{
	pthread_t poller;
	int ends[2];

	mode = MODES;
	for (int i = 0; argc == 4 && i < MODES; i++)
		if (!strcmp(argv[1], names[i]))
			mode = i;
	threads = argc == 4 ? atoi(argv[2]) : 0;
	rounds = argc == 4 ? atoi(argv[3]) : 0;
	if (mode == MODES || threads < 1 || threads > THREADS_MAX || rounds < 1) {
		fprintf(stderr, "usage: threads own|cq|qp|split|joined THREADS ROUNDS\n");
		return 2;
	}
	need(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
	pid_t child = fork();

	need(child >= 0, "fork");
	side = !child;
	close(ends[!side]);
	open_all(ends[side]);
	atomic_store(&running, threads);
	for (int i = 0; i < threads; i++)
		need0(pthread_create(&all[i].id, NULL, run, &all[i]));
	if (mode == SPLIT)
		need0(pthread_create(&poller, NULL, poll_all, NULL));
	if (mode == JOINED)
		join_queues();
	for (int i = 0; i < threads; i++)
		need0(pthread_join(all[i].id, NULL));
	if (mode == SPLIT)
		need0(pthread_join(poller, NULL));
	oob_barrier(ends[side], 2);
	if (side)
		return 0;
	int status;

	need(waitpid(child, &status, 0) == child, "waitpid");
	need(WIFEXITED(status) && !WEXITSTATUS(status), "the other side");
	printf("verify: %d threads, %d rounds, %s\n", threads, rounds, names[mode]);
	return 0;
}
