#include "side.h"

#include <errno.h>
#include <stdlib.h>

static const struct qp_params params = {
	.access = IBV_ACCESS_LOCAL_WRITE,
	.timeout = 14,
	.retry_cnt = 7,
	.rnr_retry = 7,
	.min_rnr_timer = 12,
	.rd_atomic = 1,
};

void post_recv(struct side *s)
{
	struct ibv_sge sge = { (uintptr_t)s->buffer, MESSAGE, s->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	need0(ibv_post_recv(s->qp, &wr, &bad));
}

void post_send(struct side *s)
{
	struct ibv_sge sge = { (uintptr_t)s->buffer + MESSAGE, MESSAGE, s->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;

	need0(ibv_post_send(s->qp, &wr, &bad));
}

void take_completions(struct side *s)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(s->cq, 1, &wc)) == 1) {
		if (wc.status != IBV_WC_SUCCESS)
			fail("%s", ibv_wc_status_str(wc.status));
		if (wc.opcode == IBV_WC_RECV) {
			s->received++;
			post_recv(s);
		} else {
			s->sent++;
		}
	}
	need(n == 0, "ibv_poll_cq");
}

int take_event(struct side *s)
{
	struct ibv_cq *cq;
	void *context;

	if (ibv_get_cq_event(s->channel, &cq, &context))
		return errno;
	s->events++;
	if (s->events > s->armed || cq != s->cq)
		fail("%ld events, asked for %ld", s->events, s->armed);
	ibv_ack_cq_events(cq, 1);
	s->armed++;
	need0(ibv_req_notify_cq(cq, 0));
	return 0;
}

void await(struct side *s, int sends, int receives)
{
	for (;;) {
		take_completions(s);
		if (s->sent >= sends && s->received >= receives)
			break;
		int error = take_event(s);
		// A timer of the program's may tick.
		need(error == 0 || error == EINTR, "ibv_get_cq_event");
	}
	s->sent -= sends;
	s->received -= receives;
}

void open_side(struct side *s, const char *host)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	struct qp_addr own, peer;

	device_open(&s->dev, NULL, 0);
	s->buffer = page_alloc(4096);
	struct ibv_pd *pd = ibv_alloc_pd(s->dev.ctx);
	need(pd, "ibv_alloc_pd");
	s->mr = ibv_reg_mr(pd, s->buffer, 4096, IBV_ACCESS_LOCAL_WRITE);
	s->channel = ibv_create_comp_channel(s->dev.ctx);
	need(s->mr && s->channel, "ibv_reg_mr, ibv_create_comp_channel");
	s->cq = ibv_create_cq(s->dev.ctx, 4 * DEPTH, NULL, s->channel, 0);
	need(s->cq, "ibv_create_cq");
	s->armed++;
	need0(ibv_req_notify_cq(s->cq, 0));
	init.send_cq = init.recv_cq = s->cq;
	init.cap.max_send_wr = init.cap.max_recv_wr = DEPTH;
	init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	s->qp = ibv_create_qp(pd, &init);
	need(s->qp, "ibv_create_qp");
	own = (struct qp_addr){ .qpn = s->qp->qp_num, .psn = 7, .gid = s->dev.gid };
	s->oob = oob_connect(host, getenv("IDLE_PORT") ? getenv("IDLE_PORT") : "18700");
	oob_send(s->oob, &own, sizeof own);
	oob_recv(s->oob, &peer, sizeof peer);
	need0(qp_to_init(s->qp, &params));
	for (int i = 0; i < DEPTH; i++)
		post_recv(s);
	need0(qp_to_rtr(s->qp, &s->dev, &params, &peer));
	need0(qp_to_rts(s->qp, &params, own.psn));
	oob_barrier(s->oob, 1);
}
