// SPDX-License-Identifier: MIT OR Apache-2.0
//
// One of two processes, with a queue pair that is connected to the other's.

#ifndef CAUSEWAY_BASELINE_SIDE_H
#define CAUSEWAY_BASELINE_SIDE_H

#include "../../tests/verify/common.h"

struct side {
	struct device dev;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	// To the other process.
	int oob;
};

// Makes all of it but `oob`, and connects with the other side, which does the same. `access` is
// what the other may do.
static inline void connect_side(struct side *s, int access)
{
	enum { DEPTH = 4, PSN = 7 };
	const struct qp_params params = {
		.access = access,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.min_rnr_timer = 12,
		.rd_atomic = 1,
	};
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { DEPTH, DEPTH, 1, 1, 0 },
	};
	struct qp_addr own, peer;

	device_open(&s->dev, NULL, 0);
	s->pd = ibv_alloc_pd(s->dev.ctx);
	s->cq = ibv_create_cq(s->dev.ctx, 2 * DEPTH, NULL, NULL, 0);
	need(s->pd && s->cq, "ibv_alloc_pd, ibv_create_cq");
	init.send_cq = init.recv_cq = s->cq;
	s->qp = ibv_create_qp(s->pd, &init);
	need(s->qp, "ibv_create_qp");
	need0(qp_to_init(s->qp, &params));
	own = (struct qp_addr){ s->qp->qp_num, PSN, s->dev.gid };
	oob_send(s->oob, &own, sizeof own);
	oob_recv(s->oob, &peer, sizeof peer);
	need0(qp_to_rtr(s->qp, &s->dev, &params, &peer));
	need0(qp_to_rts(s->qp, &params, PSN));
	oob_barrier(s->oob, 1);
}

#endif
