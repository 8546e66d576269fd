// SPDX-License-Identifier: MIT OR Apache-2.0
//
// reconnect ROUNDS: two processes connect queue pairs, exchange messages and end them, again and
// again, in changing order: what a later connection receives is what was sent on it, and nothing
// of an earlier one, though they may use the same memory.

#define _GNU_SOURCE
#include "common.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { QPS = 8, DEPTH = 8, SLOT = 4096, SECONDS_MAX = 120 };

// Lengths of the messages of a queue pair: where one connection had a header, another has a body.
static const uint32_t lengths[][3] = { { 8, 100, 3000 }, { 3000, 40, 1 }, { 0, 64, 2000 } };
enum { MESSAGES = 3 };

static const struct qp_params params = {
	.timeout = 14,
	.retry_cnt = 7,
	.rnr_retry = 7,
	.min_rnr_timer = 12,
	.rd_atomic = 1,
};

struct side {
	struct device dev;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint8_t *memory;
	int oob;
	bool first;
};

static uint8_t byte_of(uint32_t round, int qp, int message, uint32_t at)
{
	return (uint8_t)(round * 31 + (uint32_t)qp * 7 + (uint32_t)message * 3 + at);
}

static uint8_t *slot(const struct side *s, int qp, int message, bool sends)
{
	return s->memory + ((qp * MESSAGES + message) * 2 + sends) * SLOT;
}

static void post(const struct side *s, struct ibv_qp *qp, uint32_t round, int q, bool sends)
{
	const uint32_t *length = lengths[(round + (uint32_t)q) % 3];

	for (int m = 0; m < MESSAGES; m++) {
		uint8_t *at = slot(s, q, m, sends);
		struct ibv_sge sge = { (uintptr_t)at, sends ? length[m] : SLOT, s->mr->lkey };

		if (sends) {
			struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1,
						  .opcode = IBV_WR_SEND,
						  .send_flags = IBV_SEND_SIGNALED }, *bad;

			for (uint32_t i = 0; i < length[m]; i++)
				at[i] = byte_of(round, q, m, i);
			need0(ibv_post_send(qp, &wr, &bad));
		} else {
			struct ibv_recv_wr wr = { .wr_id = (uint64_t)(q * MESSAGES + m),
						  .sg_list = &sge, .num_sge = 1 }, *bad;

			need0(ibv_post_recv(qp, &wr, &bad));
		}
	}
}

static void check(const struct side *s, uint32_t round, const struct ibv_wc *wc)
{
	int q = (int)wc->wr_id / MESSAGES, m = (int)wc->wr_id % MESSAGES;
	const uint8_t *at = slot(s, q, m, false);

	if (wc->byte_len != lengths[(round + (uint32_t)q) % 3][m])
		fail("round %u: message %d of %d has %u bytes", round, m, q, wc->byte_len);
	for (uint32_t i = 0; i < wc->byte_len; i++)
		if (at[i] != byte_of(round, q, m, i))
			fail("round %u: byte %u of message %d of %d is wrong", round, i, m, q);
}

// Takes completions until so many of either kind have come.
static void take(const struct side *s, uint32_t round, int sends, int receives)
{
	while (sends > 0 || receives > 0) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(s->cq, 1, &wc);

		need(n >= 0, "ibv_poll_cq");
		if (n == 0) {
			sched_yield();
			continue;
		}
		if (wc.status != IBV_WC_SUCCESS)
			fail("round %u: %s", round, ibv_wc_status_str(wc.status));
		if (wc.opcode == IBV_WC_RECV) {
			check(s, round, &wc);
			receives--;
		} else {
			sends--;
		}
	}
}

static void one_round(struct side *s, uint32_t round)
{
	struct ibv_qp_init_attr init = {
		.send_cq = s->cq,
		.recv_cq = s->cq,
		.qp_type = IBV_QPT_RC,
		.cap = { DEPTH, DEPTH, 1, 1, 0 },
	};
	struct qp_addr own[QPS], peer[QPS];
	struct ibv_qp *qps[QPS];
	// In some rounds one side only sends, and has ended when the other takes what it sent; in
	// some a few queue pairs are never used.
	bool sends = round % 3 != 1 || s->first, receives = round % 3 != 1 || !s->first;
	int used = round % 5 == 4 ? QPS / 2 : QPS;

	for (int q = 0; q < QPS; q++) {
		qps[q] = ibv_create_qp(s->pd, &init);
		need(qps[q], "ibv_create_qp");
		need0(qp_to_init(qps[q], &params));
		own[q] = (struct qp_addr){ qps[q]->qp_num, round, s->dev.gid };
		if (receives)
			post(s, qps[q], round, q, false);
	}
	oob_send(s->oob, own, sizeof own);
	oob_recv(s->oob, peer, sizeof peer);
	for (int q = 0; q < QPS; q++) {
		need0(qp_to_rtr(qps[q], &s->dev, &params, &peer[q]));
		need0(qp_to_rts(qps[q], &params, round));
	}
	for (int q = 0; q < used && sends; q++)
		post(s, qps[q], round, q, true);
	take(s, round, sends ? used * MESSAGES : 0, receives ? used * MESSAGES : 0);
	for (int q = 0; q < QPS; q++)
		need0(ibv_destroy_qp(qps[round % 2 ? q : QPS - 1 - q]));
}

static void run(int oob, bool first, uint32_t rounds)
{
	struct side s = { .oob = oob, .first = first };
	size_t bytes = (size_t)QPS * MESSAGES * 2 * SLOT;

	alarm(SECONDS_MAX);
	device_open(&s.dev, NULL, 0);
	s.pd = ibv_alloc_pd(s.dev.ctx);
	s.cq = ibv_create_cq(s.dev.ctx, 4 * QPS * DEPTH, NULL, NULL, 0);
	s.memory = page_alloc(bytes);
	need(s.pd && s.cq, "ibv_alloc_pd, ibv_create_cq");
	s.mr = ibv_reg_mr(s.pd, s.memory, bytes, IBV_ACCESS_LOCAL_WRITE);
	need(s.mr, "ibv_reg_mr");
	for (uint32_t round = 0; round < rounds; round++)
		one_round(&s, round);
	oob_barrier(oob, rounds);
}

int main(int argc, char **argv)
{
	int fds[2], status;

	if (argc != 2) {
		fprintf(stderr, "usage: reconnect ROUNDS\n");
		return 2;
	}
	uint32_t rounds = (uint32_t)strtoul(argv[1], NULL, 10);
	need(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0, "socketpair");
	pid_t peer = fork();
	need(peer >= 0, "fork");
	close(fds[peer == 0]);
	run(fds[peer != 0], peer != 0, rounds);
	if (peer == 0)
		_exit(0);
	need(waitpid(peer, &status, 0) == peer && status == 0, "the peer");
	printf("reconnect: %u rounds, 0 errors\n", rounds);
	return 0;
}
