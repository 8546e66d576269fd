// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The round trip of a SEND that is answered by one: alone, or as many programs do for each message,
// after a WRITE whose completion they wait for.
//
//   write_send send|write TURNS PORT [SERVER]
//
// The client, which is given the server's address, prints the median round trip in nanoseconds.

#define _GNU_SOURCE
#include "../../tests/verify/common.h"

#include "common.h"

#include <string.h>
#include <unistd.h>

enum { DEPTH = 16, SIZE = 8, PAGE = 4096, PSN = 7, WARM_UP = 200 };

static const struct qp_params params = {
	.access = IBV_ACCESS_REMOTE_WRITE,
	.timeout = 14,
	.retry_cnt = 7,
	.rnr_retry = 7,
	.min_rnr_timer = 12,
	.rd_atomic = 1,
};

struct place {
	struct qp_addr addr;
	uint64_t buffer;
	uint32_t rkey;
};

struct side {
	struct device dev;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *buffer;
	struct place peer;
	/* Completions taken that nobody has waited for yet. */
	int sent, received;
};

static void post_receive(struct side *s)
{
	struct ibv_sge sge = { (uintptr_t)s->buffer + SIZE, SIZE, s->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	need0(ibv_post_recv(s->qp, &wr, &bad));
}

static void post(struct side *s, enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = { (uintptr_t)s->buffer, SIZE, s->mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { s->peer.buffer + 2 * SIZE, s->peer.rkey },
	}, *bad;

	need0(ibv_post_send(s->qp, &wr, &bad));
}

static void poll_for(struct side *s, int *count)
{
	struct ibv_wc wc;

	while (*count == 0) {
		int n = ibv_poll_cq(s->cq, 1, &wc);

		need(n >= 0, "ibv_poll_cq");
		if (n && wc.status != IBV_WC_SUCCESS)
			fail("completion: %s", ibv_wc_status_str(wc.status));
		if (n)
			*(wc.opcode & IBV_WC_RECV ? &s->received : &s->sent) += 1;
	}
	--*count;
}

static void say(struct side *s, bool write)
{
	if (write) {
		post(s, IBV_WR_RDMA_WRITE);
		poll_for(s, &s->sent);
	}
	post(s, IBV_WR_SEND);
}

static void hear(struct side *s)
{
	poll_for(s, &s->received);
	post_receive(s);
	/* The SEND before it is acknowledged by now, or soon. */
	poll_for(s, &s->sent);
}

static void side_open(struct side *s, int oob)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { DEPTH, DEPTH, 1, 1, 0 } };

	device_open(&s->dev, NULL, 0);
	struct ibv_pd *pd = ibv_alloc_pd(s->dev.ctx);
	s->cq = ibv_create_cq(s->dev.ctx, 2 * DEPTH, NULL, NULL, 0);
	need(pd && s->cq, "ibv_alloc_pd, ibv_create_cq");
	s->buffer = page_alloc(PAGE);
	s->mr = ibv_reg_mr(pd, s->buffer, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	need(s->mr, "ibv_reg_mr");
	init.send_cq = init.recv_cq = s->cq;
	s->qp = ibv_create_qp(pd, &init);
	need(s->qp, "ibv_create_qp");
	need0(qp_to_init(s->qp, &params));
	for (int i = 0; i < DEPTH / 2; i++)
		post_receive(s);
	struct place own = {
		{ s->qp->qp_num, PSN, s->dev.gid },
		(uintptr_t)s->buffer,
		s->mr->rkey,
	};
	oob_send(oob, &own, sizeof own);
	oob_recv(oob, &s->peer, sizeof s->peer);
	need0(qp_to_rtr(s->qp, &s->dev, &params, &s->peer.addr));
	need0(qp_to_rts(s->qp, &params, PSN));
	oob_barrier(oob, 1);
}

int main(int argc, char **argv)
{
	static struct side s;
	bool write = argc > 1 && !strcmp(argv[1], "write");

	if (argc < 4 || argc > 5 || (!write && strcmp(argv[1], "send"))) {
		fprintf(stderr, "usage: write_send send|write TURNS PORT [SERVER]\n");
		return 2;
	}
	size_t turns = (size_t)number(argv[2]);
	bool client = argc == 5;
	double *took = calloc(turns, sizeof *took);
	int oob = oob_connect(client ? argv[4] : NULL, argv[3]);

	need(took, "calloc");
	side_open(&s, oob);
	for (size_t i = 0; i < WARM_UP + turns; i++) {
		uint64_t begun = now_ns();

		if (client) {
			say(&s, write);
			hear(&s);
		} else {
			poll_for(&s, &s.received);
			post_receive(&s);
			say(&s, false);
			poll_for(&s, &s.sent);
		}
		if (i >= WARM_UP)
			took[i - WARM_UP] = (double)(now_ns() - begun);
	}
	oob_barrier(oob, 2);
	if (client)
		printf("%.0f\n", median(took, turns));
	return 0;
}
