/* Errors of the local side: its own keys and memory, full queues, flushing, overrun. */
#include "err.h"

#include <fcntl.h>
#include <unistd.h>

/* A request whose local end is no good completes so, and the peer notices nothing. */
static void local_fault(struct env *env, enum ibv_wr_opcode op, struct ibv_sge sge,
			enum ibv_wc_status status)
{
	struct pair p;

	pair_open(env, &p, NULL, true);
	if (!sge.addr)
		sge.addr = (uintptr_t)p.a.buf;
	struct ibv_send_wr *bad, wr = {
		.wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = op,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)p.b.buf, p.b.mr->rkey },
	};

	need0(post_recv(&p.b, 6, 4096));
	need0(ibv_post_send(p.a.qp, &wr, &bad));
	expect_wc(p.a.cq, 5, status);
	expect_state(p.a.qp, IBV_QPS_ERR);
	expect_quiet(p.b.cq);
	expect_state(p.b.qp, IBV_QPS_RTS);
	check(guard_check(p.b.buf, BUF_BYTES) < 0, "the peer's memory has changed");
}

static void bad_lkey(struct env *env)
{
	local_fault(env, IBV_WR_SEND, (struct ibv_sge){ 0, 64, 0x1badbad }, IBV_WC_LOC_PROT_ERR);
	local_fault(env, IBV_WR_RDMA_WRITE, (struct ibv_sge){ 0, 64, 0x1badbad },
		    IBV_WC_LOC_PROT_ERR);
}

static void local_out_of_bounds(struct env *env)
{
	unsigned char *buf = page_alloc(4096);
	struct ibv_mr *mr = ibv_reg_mr(env->pd, buf, 4096, IBV_ACCESS_LOCAL_WRITE);

	need(mr, "ibv_reg_mr");
	local_fault(env, IBV_WR_SEND, (struct ibv_sge){ (uintptr_t)buf + 1, 4096, mr->lkey },
		    IBV_WC_LOC_PROT_ERR);
	local_fault(env, IBV_WR_RDMA_WRITE, (struct ibv_sge){ (uintptr_t)buf - 1, 2, mr->lkey },
		    IBV_WC_LOC_PROT_ERR);
}

static void local_wrong_pd(struct env *env)
{
	struct ibv_pd *other = ibv_alloc_pd(env->dev.ctx);
	unsigned char *buf = page_alloc(4096);
	struct ibv_mr *mr;

	need(other, "ibv_alloc_pd");
	mr = ibv_reg_mr(other, buf, 4096, IBV_ACCESS_LOCAL_WRITE);
	need(mr, "ibv_reg_mr");
	local_fault(env, IBV_WR_SEND, (struct ibv_sge){ (uintptr_t)buf, 64, mr->lkey },
		    IBV_WC_LOC_PROT_ERR);
}

static void read_into_read_only(struct env *env)
{
	unsigned char *buf = page_alloc(4096);
	struct ibv_mr *mr = ibv_reg_mr(env->pd, buf, 4096, 0);

	need(mr, "ibv_reg_mr");
	local_fault(env, IBV_WR_RDMA_READ, (struct ibv_sge){ (uintptr_t)buf, 64, mr->lkey },
		    IBV_WC_LOC_PROT_ERR);
	check(guard_check(buf, 4096) < 0, "memory without local write has changed");
}

/* A receive whose memory is no good fails, and its sender with it. */
static void receive_fault(struct env *env, struct ibv_sge sge)
{
	struct ibv_recv_wr *bad, wr = { .wr_id = 6, .sg_list = &sge, .num_sge = 1 };
	struct pair p;

	pair_open(env, &p, NULL, true);
	if (!sge.addr)
		sge.addr = (uintptr_t)p.b.buf;
	need0(ibv_post_recv(p.b.qp, &wr, &bad));
	need0(post_send(&p.a, 5, IBV_WR_SEND, 64, 0, 0));
	expect_wc(p.b.cq, 6, IBV_WC_LOC_PROT_ERR);
	expect_wc(p.a.cq, 5, IBV_WC_REM_OP_ERR);
	expect_state(p.a.qp, IBV_QPS_ERR);
	expect_state(p.b.qp, IBV_QPS_ERR);
}

static void receive_bad_lkey(struct env *env)
{
	receive_fault(env, (struct ibv_sge){ 0, 64, 0x1badbad });
}

static void receive_into_read_only(struct env *env)
{
	unsigned char *buf = page_alloc(4096);
	struct ibv_mr *mr = ibv_reg_mr(env->pd, buf, 4096, IBV_ACCESS_REMOTE_READ);

	need(mr, "ibv_reg_mr");
	receive_fault(env, (struct ibv_sge){ (uintptr_t)buf, 64, mr->lkey });
	check(guard_check(buf, 4096) < 0, "memory without local write has changed");
}

static void flush(struct env *env)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct pair p;

	pair_open(env, &p, NULL, true);
	for (int i = 0; i < DEPTH; i++)
		need0(post_recv(&p.a, 20 + i, 64));
	need0(ibv_modify_qp(p.a.qp, &attr, IBV_QP_STATE));
	for (int i = 0; i < DEPTH; i++)
		expect_wc(p.a.cq, 20 + i, IBV_WC_WR_FLUSH_ERR);
	need0(post_recv(&p.a, 40, 64));
	expect_wc(p.a.cq, 40, IBV_WC_WR_FLUSH_ERR);
	need0(post_send(&p.a, 41, IBV_WR_SEND, 1, 0, 0));
	expect_wc(p.a.cq, 41, IBV_WC_WR_FLUSH_ERR);
	expect_quiet(p.a.cq);
}

static void reuse_after_reset(struct env *env)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	struct pair p;

	pair_open(env, &p, NULL, true);
	need0(post_send(&p.a, 5, IBV_WR_RDMA_WRITE, 8, (uintptr_t)p.b.buf, 0));
	expect_wc(p.a.cq, 5, IBV_WC_REM_ACCESS_ERR);
	need0(ibv_modify_qp(p.a.qp, &attr, IBV_QP_STATE));
	need0(ibv_modify_qp(p.b.qp, &attr, IBV_QP_STATE));
	expect_state(p.a.qp, IBV_QPS_RESET);
	p.a.psn += 77;
	p.b.psn += 99;
	side_connect(env, &p.a, &p.b);
	side_connect(env, &p.b, &p.a);
	need0(post_recv(&p.b, 6, 64));
	need0(post_send(&p.a, 7, IBV_WR_SEND, 64, 0, 0));
	expect_wc(p.b.cq, 6, IBV_WC_SUCCESS);
	expect_wc(p.a.cq, 7, IBV_WC_SUCCESS);
	expect_quiet(p.a.cq);
	expect_quiet(p.b.cq);
}

static void send_queue_full(struct env *env)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_send_wr *bad, wr[2] = { 0 };
	unsigned int depth, posted = 0;
	struct pair p;
	int rc;

	/* The peer has no receive, so nothing completes. */
	pair_open(env, &p, NULL, true);
	need0(ibv_query_qp(p.a.qp, &attr, IBV_QP_CAP, &init));
	depth = init.cap.max_send_wr;
	check(depth >= DEPTH, "%u send requests asked for, %u granted", DEPTH, depth);
	while ((rc = post_send(&p.a, 100 + posted, IBV_WR_SEND, 1, 0, 0)) == 0 && posted <= depth)
		posted++;
	check(rc == ENOMEM, "request %u of a queue of %u: %s", posted + 1, depth, strerror(rc));
	check(posted >= depth, "only %u requests fit a queue of %u", posted, depth);
	/* Of a list, the first that does not fit is named. */
	wr[0] = (struct ibv_send_wr){ .opcode = IBV_WR_SEND, .next = &wr[1] };
	wr[1].opcode = IBV_WR_SEND;
	check(ibv_post_send(p.a.qp, wr, &bad) == ENOMEM && bad == wr, "the wrong bad_wr");
	need0(post_recv(&p.b, 1, 64));
	expect_wc(p.a.cq, 100, IBV_WC_SUCCESS);
	check(ibv_post_send(p.a.qp, wr, &bad) == ENOMEM && bad == &wr[1], "the wrong bad_wr");
}

static void receive_queue_full(struct env *env)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	unsigned int posted = 0;
	struct pair p;
	int rc;

	pair_open(env, &p, NULL, true);
	need0(ibv_query_qp(p.a.qp, &attr, IBV_QP_CAP, &init));
	while ((rc = post_recv(&p.a, posted, 64)) == 0 && posted <= init.cap.max_recv_wr)
		posted++;
	check(rc == ENOMEM, "receive %u: %s", posted + 1, strerror(rc));
	check(posted == init.cap.max_recv_wr, "%u receives fit a queue of %u", posted,
	      init.cap.max_recv_wr);
}

static void cq_overrun(struct env *env)
{
	struct pair p;
	struct ibv_cq *small = ibv_create_cq(env->dev.ctx, 1, NULL, NULL, 0);
	unsigned int size;

	need(small, "ibv_create_cq");
	size = small->cqe;
	memset(&p, 0, sizeof(p));
	p.b.cq = small;
	side_open(env, &p.a, NULL);
	side_open(env, &p.b, NULL);
	side_connect(env, &p.a, &p.b);
	side_connect(env, &p.b, &p.a);
	check(size >= 1, "a CQ of %u", size);
	for (unsigned int i = 0; i <= size; i++) {
		check(size < 1u << 16, "a CQ of 1 was granted %u entries", size);
		need0(post_recv(&p.b, i, 64));
		need0(post_send(&p.a, i, IBV_WR_SEND, 1, 0, 0));
		/* The overrun may fail the sender too. */
		if (i < size)
			expect_wc(p.a.cq, i, IBV_WC_SUCCESS);
	}
	check(expect_event(env, IBV_EVENT_CQ_ERR).cq == small, "the event of another CQ");
}

static void srq_limit(struct env *env)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_srq_attr attr = { .srq_limit = 2 };
	struct ibv_srq *srq = ibv_create_srq(env->pd, &init);
	struct ibv_recv_wr *bad, wr = { 0 };
	struct pair p;
	unsigned int posted = 0;
	int rc;

	need(srq, "ibv_create_srq");
	while ((rc = ibv_post_srq_recv(srq, &wr, &bad)) == 0 && posted <= init.attr.max_wr)
		posted++;
	check(rc == ENOMEM && bad == &wr, "receive %u of an SRQ: %s", posted + 1, strerror(rc));
	need0(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	pair_open(env, &p, srq, true);
	for (unsigned int i = 0; i + 1 < posted; i++) {
		need0(post_send(&p.a, i, IBV_WR_SEND, 0, 0, 0));
		expect_wc(p.b.cq, 0, IBV_WC_SUCCESS);
		expect_wc(p.a.cq, i, IBV_WC_SUCCESS);
	}
	check(expect_event(env, IBV_EVENT_SRQ_LIMIT_REACHED).srq == srq, "event of another SRQ");
	/* Armed once, raised once. */
	need0(ibv_query_srq(srq, &attr));
	check(attr.srq_limit == 0, "the limit is still %u", attr.srq_limit);
}

static void last_wqe_reached(struct env *env)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(env->pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct pair p;

	need(srq, "ibv_create_srq");
	pair_open(env, &p, srq, true);
	need0(ibv_modify_qp(p.b.qp, &attr, IBV_QP_STATE));
	check(expect_event(env, IBV_EVENT_QP_LAST_WQE_REACHED).qp == p.b.qp, "of another QP");
}

static void no_event_would_block(struct env *env)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(env->dev.ctx);
	struct ibv_cq *cq;
	void *context;

	need(channel, "ibv_create_comp_channel");
	need(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0, "fcntl");
	check_errno(ibv_get_cq_event(channel, &cq, &context), EAGAIN);
}

static int post_srq(struct ibv_srq *srq, uint64_t wr_id, const void *at, uint32_t len, uint32_t key)
{
	struct ibv_sge sge = { (uintptr_t)at, len, key };
	struct ibv_recv_wr *bad, wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 };

	return ibv_post_srq_recv(srq, &wr, &bad);
}

/* Receives of an SRQ are checked against its protection domain, not the QP's. */
static void srq_of_another_domain(struct env *env)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_pd *pd = ibv_alloc_pd(env->dev.ctx);
	struct ibv_srq *srq = pd ? ibv_create_srq(pd, &init) : NULL;
	unsigned char *buf = page_alloc(BUF_BYTES);
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, BUF_BYTES, IBV_ACCESS_LOCAL_WRITE);
	struct pair p;

	need(srq && mr, "an SRQ with memory");
	pair_open(env, &p, srq, true);
	content_fill(p.a.buf, 5, 0, BUF_BYTES);
	/* One segment, and several. */
	for (uint32_t len = 64; len <= BUF_BYTES; len *= 1024) {
		need0(post_srq(srq, 1, buf, len, mr->lkey));
		need0(post_send(&p.a, 2, IBV_WR_SEND, len, 0, 0));
		expect_wc(p.b.cq, 1, IBV_WC_SUCCESS);
		expect_wc(p.a.cq, 2, IBV_WC_SUCCESS);
		check(content_check(buf, 5, 0, len) < 0, "wrong bytes received");
	}
	need0(post_srq(srq, 3, p.b.buf, 64, p.b.mr->lkey));
	need0(post_send(&p.a, 4, IBV_WR_SEND, 64, 0, 0));
	expect_wc(p.b.cq, 3, IBV_WC_LOC_PROT_ERR);
	expect_wc(p.a.cq, 4, IBV_WC_REM_OP_ERR);
}

const struct error_case local_cases[] = {
	{ "local: bad lkey", bad_lkey },
	{ "local: out of bounds", local_out_of_bounds },
	{ "local: MR of another PD", local_wrong_pd },
	{ "local: READ into memory without local write", read_into_read_only },
	{ "local: receive with a bad lkey", receive_bad_lkey },
	{ "local: receive into memory without local write", receive_into_read_only },
	{ "local: error state flushes in order", flush },
	{ "local: reset and used again", reuse_after_reset },
	{ "local: send queue full", send_queue_full },
	{ "local: receive queue full", receive_queue_full },
	{ "local: CQ overrun", cq_overrun },
	{ "local: SRQ full, SRQ limit", srq_limit },
	{ "local: last receive of an SRQ's QP", last_wqe_reached },
	{ "local: no completion event would block", no_event_would_block },
	{ "local: an SRQ of another protection domain", srq_of_another_domain },
	{ 0 },
};
