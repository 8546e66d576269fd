/* Requests that the responder must refuse, or cannot take. */
#include "err.h"

#include <time.h>
#include <unistd.h>

/* Side a's request fails with `status`, what is queued behind it is flushed, both QPs end in error,
 * and nothing of the responder's memory has changed. */
static void refused(struct env *env, struct pair *p, enum ibv_wr_opcode op, uint32_t len,
		    uint64_t remote, uint32_t rkey, enum ibv_wc_status status)
{
	memset(p->a.buf, 0x11, BUF_BYTES);
	need0(post_recv(&p->a, 1, 64));
	need0(post_recv(&p->b, 2, 64));
	need0(post_send(&p->a, 3, op, len, remote, rkey));
	need0(post_send(&p->a, 4, IBV_WR_SEND, 1, 0, 0));
	expect_wc(p->a.cq, 3, status);
	/* The order of the two queues' flushes is not defined. */
	for (int i = 0, sum = 0; i < 2; i++) {
		struct ibv_wc wc;

		while (ibv_poll_cq(p->a.cq, 1, &wc) == 0)
			;
		check(wc.status == IBV_WC_WR_FLUSH_ERR, "wr_id %lu behind it: %s", wc.wr_id,
		      ibv_wc_status_str(wc.status));
		sum += wc.wr_id;
		check(i == 0 || sum == 5, "flushed the wrong requests");
	}
	expect_state(p->a.qp, IBV_QPS_ERR);
	expect_wc(p->b.cq, 2, IBV_WC_WR_FLUSH_ERR);
	expect_state(p->b.qp, IBV_QPS_ERR);
	check(guard_check(p->b.buf, BUF_BYTES) < 0, "the responder's memory has changed");
	/* Flushes are all: a QP in error accepts requests, and flushes them too. */
	need0(post_send(&p->a, 5, IBV_WR_SEND, 1, 0, 0));
	expect_wc(p->a.cq, 5, IBV_WC_WR_FLUSH_ERR);
	expect_quiet(p->a.cq);
	expect_quiet(p->b.cq);
	bystander_check(env);
}

static void refused_access(struct env *env, struct pair *p, enum ibv_wr_opcode op, uint32_t len,
			   uint64_t remote, uint32_t rkey)
{
	refused(env, p, op, len, remote, rkey, IBV_WC_REM_ACCESS_ERR);
	check(expect_event(env, IBV_EVENT_QP_ACCESS_ERR).qp == p->b.qp, "the event of another QP");
}

static void wrong_rkey(struct env *env)
{
	static const enum ibv_wr_opcode ops[] = {
		IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
	};
	struct pair p;

	for (int i = 0; i < 3; i++) {
		pair_open(env, &p, NULL, true);
		refused_access(env, &p, ops[i], 8, (uintptr_t)p.b.buf, p.b.mr->rkey ^ 0x5500);
	}
	pair_open(env, &p, NULL, true);
	refused_access(env, &p, IBV_WR_RDMA_WRITE, 8, (uintptr_t)p.b.buf, p.b.mr->rkey ^ 1);
	pair_open(env, &p, NULL, true);
	refused_access(env, &p, IBV_WR_RDMA_WRITE, 8, (uintptr_t)p.b.buf, 0);
}

static void out_of_bounds(struct env *env)
{
	static const struct {
		enum ibv_wr_opcode op;
		uint32_t len;
		int64_t at;
	} cases[] = {
		{ IBV_WR_RDMA_WRITE, 8, -1 },
		{ IBV_WR_RDMA_WRITE, 8, BUF_BYTES - 7 },
		{ IBV_WR_RDMA_WRITE, 8, INT64_MAX },
		{ IBV_WR_RDMA_READ, 8, BUF_BYTES - 7 },
		{ IBV_WR_RDMA_READ, BUF_BYTES, -1 },
		{ IBV_WR_ATOMIC_CMP_AND_SWP, 8, BUF_BYTES },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct pair p;

		pair_open(env, &p, NULL, true);
		refused_access(env, &p, cases[i].op, cases[i].len,
			       (uintptr_t)p.b.buf + (uint64_t)cases[i].at, p.b.mr->rkey);
	}
	/* The address space wraps where the range does not end inside. */
	for (int i = 0; i < 2; i++) {
		struct pair p;

		pair_open(env, &p, NULL, true);
		refused_access(env, &p, IBV_WR_RDMA_WRITE, 4096, UINT64_MAX - i * 4094,
			       p.b.mr->rkey);
	}
}

static void long_write_out_of_bounds(struct env *env)
{
	struct pair p;
	struct ibv_mr *half;

	/* The first segments fit, the last do not: the whole must be refused, though hardware
	 * may have placed what fits. */
	pair_open(env, &p, NULL, true);
	half = ibv_reg_mr(env->pd, p.b.buf, BUF_BYTES / 2, ANY_ACCESS);
	need(half, "ibv_reg_mr");
	need0(post_send(&p.a, 3, IBV_WR_RDMA_WRITE, BUF_BYTES / 2 + 1, (uintptr_t)p.b.buf,
			half->rkey));
	expect_wc(p.a.cq, 3, IBV_WC_REM_ACCESS_ERR);
	check(guard_check(p.b.buf + BUF_BYTES / 2, BUF_BYTES / 2) < 0,
	      "bytes outside of the MR have changed");
}

static void wrong_pd(struct env *env)
{
	struct ibv_pd *other = ibv_alloc_pd(env->dev.ctx);
	struct pair p;
	struct ibv_mr *mr;

	need(other, "ibv_alloc_pd");
	pair_open(env, &p, NULL, true);
	mr = ibv_reg_mr(other, p.b.buf, BUF_BYTES, ANY_ACCESS);
	need(mr, "ibv_reg_mr");
	refused_access(env, &p, IBV_WR_RDMA_WRITE, 8, (uintptr_t)p.b.buf, mr->rkey);
}

static void missing_access(struct env *env)
{
	static const struct {
		enum ibv_wr_opcode op;
		int has;
	} cases[] = {
		{ IBV_WR_RDMA_WRITE, ANY_ACCESS & ~IBV_ACCESS_REMOTE_WRITE },
		{ IBV_WR_RDMA_READ, ANY_ACCESS & ~IBV_ACCESS_REMOTE_READ },
		{ IBV_WR_ATOMIC_FETCH_AND_ADD, ANY_ACCESS & ~IBV_ACCESS_REMOTE_ATOMIC },
		{ IBV_WR_ATOMIC_CMP_AND_SWP, ANY_ACCESS & ~IBV_ACCESS_REMOTE_ATOMIC },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct ibv_mr *mr;
		struct pair p;

		pair_open(env, &p, NULL, true);
		mr = ibv_reg_mr(env->pd, p.b.buf, BUF_BYTES, cases[i].has);
		need(mr, "ibv_reg_mr");
		refused_access(env, &p, cases[i].op, 8, (uintptr_t)p.b.buf, mr->rkey);
	}
}

/* The QP's own access flags are checked before the key: an invalid request. */
static void missing_qp_access(struct env *env)
{
	static const enum ibv_wr_opcode ops[] = {
		IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
	};
	struct env weak = *env;
	struct pair p;

	weak.params.access = IBV_ACCESS_LOCAL_WRITE;
	for (int i = 0; i < 3; i++) {
		pair_open(&weak, &p, NULL, true);
		refused(env, &p, ops[i], 8, (uintptr_t)p.b.buf, p.b.mr->rkey,
			IBV_WC_REM_INV_REQ_ERR);
		check(expect_event(env, IBV_EVENT_QP_REQ_ERR).qp == p.b.qp,
		      "the event of another QP");
	}
}

static void stale_rkey(struct env *env)
{
	struct pair p;
	uint32_t stale;

	pair_open(env, &p, NULL, true);
	stale = p.b.mr->rkey;
	need0(ibv_dereg_mr(p.b.mr));
	p.b.mr = ibv_reg_mr(env->pd, p.b.buf, BUF_BYTES, ANY_ACCESS);
	need(p.b.mr, "ibv_reg_mr");
	check(p.b.mr->rkey != stale, "a key was used again at once");
	refused_access(env, &p, IBV_WR_RDMA_WRITE, 8, (uintptr_t)p.b.buf, stale);
}

static void invalidate_unknown_rkey(struct env *env)
{
	struct ibv_wc wc;
	struct pair p;

	pair_open(env, &p, NULL, true);
	need0(post_recv(&p.b, 7, 64));
	need0(post_send(&p.a, 8, IBV_WR_SEND_WITH_INV, 0, 0, p.b.mr->rkey ^ 0x7700));
	while (ibv_poll_cq(p.a.cq, 1, &wc) == 0)
		;
	check(wc.status == IBV_WC_REM_ACCESS_ERR || wc.status == IBV_WC_REM_INV_REQ_ERR ||
	      wc.status == IBV_WC_REM_OP_ERR, "%s", ibv_wc_status_str(wc.status));
	expect_state(p.b.qp, IBV_QPS_ERR);
}

static void misaligned_atomic(struct env *env)
{
	struct pair p;

	for (int i = 1; i < 8; i += 3) {
		pair_open(env, &p, NULL, true);
		refused(env, &p, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, (uintptr_t)p.b.buf + i,
			p.b.mr->rkey, IBV_WC_REM_INV_REQ_ERR);
	}
}

static void send_too_long(struct env *env)
{
	static const uint32_t lengths[] = { 65, 4096, BUF_BYTES };
	struct pair p;

	for (int i = 0; i < 3; i++) {
		pair_open(env, &p, NULL, true);
		need0(post_recv(&p.b, 7, 64));
		need0(post_send(&p.a, 8, IBV_WR_SEND, lengths[i], 0, 0));
		expect_wc(p.a.cq, 8, IBV_WC_REM_INV_REQ_ERR);
		expect_wc(p.b.cq, 7, IBV_WC_LOC_LEN_ERR);
		expect_state(p.b.qp, IBV_QPS_ERR);
		check(guard_check(p.b.buf + 64, BUF_BYTES - 64) < 0,
		      "bytes behind the receive have changed");
	}
}

static void receiver_not_ready(struct env *env)
{
	struct env strict = *env;
	struct pair p;

	strict.params.rnr_retry = 2;
	pair_open(&strict, &p, NULL, true);
	need0(post_send(&p.a, 8, IBV_WR_SEND, 64, 0, 0));
	expect_wc(p.a.cq, 8, IBV_WC_RNR_RETRY_EXC_ERR);
	expect_state(p.a.qp, IBV_QPS_ERR);
	expect_state(p.b.qp, IBV_QPS_RTS);
	expect_quiet(p.b.cq);
}

static void receiver_ready_late(struct env *env)
{
	struct pair p;

	/* rnr_retry 7 is for ever. */
	pair_open(env, &p, NULL, true);
	need0(post_send(&p.a, 8, IBV_WR_SEND, 64, 0, 0));
	for (int i = 0; i < 100; i++) {
		expect_quiet(p.a.cq);
		expect_quiet(p.b.cq);
		usleep(1000);
	}
	need0(post_recv(&p.b, 7, 64));
	expect_wc(p.b.cq, 7, IBV_WC_SUCCESS);
	expect_wc(p.a.cq, 8, IBV_WC_SUCCESS);
}

static uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

/* How late the end may be on a machine that has other work. */
#define RNR_LATE_US 500000
/* Longer than any budget of retries here, which is 4 s. */
#define BUDGET_US 5000000

/* Codes of `min_rnr_timer` and the microseconds that they stand for, by Table 45 of the InfiniBand
 * specification. */
static const struct { uint8_t code; unsigned int us; } rnr_times[] = {
	{ 14, 640 }, { 20, 10240 }, { 24, 40960 },
};

/* Each refusal is followed by the pause that the receiver has asked for, and as many are borne as
 * the sender said: the error comes neither before that nor long after. */
static void receiver_never_ready(struct env *env)
{
	for (unsigned int i = 0; i < 3; i++) {
		const unsigned int retries = i == 2 ? 6 : 3;
		const uint64_t least = retries * rnr_times[i].us;
		struct env strict = *env;
		uint64_t begun, took;
		struct pair p;

		strict.params.rnr_retry = retries;
		strict.params.min_rnr_timer = rnr_times[i].code;
		pair_open(&strict, &p, NULL, true);
		begun = now_us();
		need0(post_send(&p.a, 8, IBV_WR_SEND, 64, 0, 0));
		expect_wc(p.a.cq, 8, IBV_WC_RNR_RETRY_EXC_ERR);
		took = now_us() - begun;
		check(took >= least && took < 2 * least + RNR_LATE_US,
		      "%u retries of %u us took %lu us", retries, rnr_times[i].us, took);
		expect_state(p.b.qp, IBV_QPS_RTS);
	}
}

/* A receiver that says that it is not ready answers: no retry budget is used up, however long. */
static void receiver_ready_very_late(struct env *env)
{
	struct env slow = *env;
	struct pair p;

	slow.params.min_rnr_timer = 24;
	pair_open(&slow, &p, NULL, true);
	need0(post_send(&p.a, 8, IBV_WR_SEND, 64, 0, 0));
	for (uint64_t end = now_us() + BUDGET_US; now_us() < end; usleep(1000))
		expect_quiet(p.a.cq);
	need0(post_recv(&p.b, 7, 64));
	expect_wc(p.b.cq, 7, IBV_WC_SUCCESS);
	expect_wc(p.a.cq, 8, IBV_WC_SUCCESS);
}

static void nobody_there(struct env *env)
{
	struct pair p;

	pair_open(env, &p, NULL, false);
	side_connect(env, &p.a, &p.b);
	need0(post_send(&p.a, 8, IBV_WR_SEND, 64, 0, 0));
	expect_wc(p.a.cq, 8, IBV_WC_RETRY_EXC_ERR);
	expect_state(p.a.qp, IBV_QPS_ERR);
	expect_state(p.b.qp, IBV_QPS_RESET);
}

/* A number that no queue pair of ours ever has is like one that none has now. */
static void no_such_number(struct env *env)
{
	struct pair p;

	pair_open(env, &p, NULL, false);
	need0(qp_to_init(p.a.qp, &env->params));
	need0(qp_to_rtr(p.a.qp, &env->dev, &env->params,
			&(struct qp_addr){ .qpn = 1, .gid = env->dev.gid }));
	need0(qp_to_rts(p.a.qp, &env->params, 0));
	need0(post_send(&p.a, 8, IBV_WR_SEND, 64, 0, 0));
	expect_wc(p.a.cq, 8, IBV_WC_RETRY_EXC_ERR);
	expect_state(p.a.qp, IBV_QPS_ERR);
}

static void peer_destroyed(struct env *env)
{
	struct pair p;

	pair_open(env, &p, NULL, true);
	need0(post_recv(&p.b, 7, 64));
	need0(post_send(&p.a, 8, IBV_WR_SEND, 64, 0, 0));
	expect_wc(p.b.cq, 7, IBV_WC_SUCCESS);
	expect_wc(p.a.cq, 8, IBV_WC_SUCCESS);
	need0(ibv_destroy_qp(p.b.qp));
	need0(post_send(&p.a, 9, IBV_WR_SEND, 64, 0, 0));
	expect_wc(p.a.cq, 9, IBV_WC_RETRY_EXC_ERR);
}

static void zero_length_needs_no_key(struct env *env)
{
	struct pair p;

	pair_open(env, &p, NULL, true);
	need0(post_send(&p.a, 8, IBV_WR_RDMA_WRITE, 0, 0, 0xbad0bad));
	expect_wc(p.a.cq, 8, IBV_WC_SUCCESS);
	need0(post_send(&p.a, 9, IBV_WR_RDMA_READ, 0, 0, 0xbad0bad));
	expect_wc(p.a.cq, 9, IBV_WC_SUCCESS);
}

const struct error_case remote_cases[] = {
	{ "remote: wrong rkey", wrong_rkey },
	{ "remote: out of bounds", out_of_bounds },
	{ "remote: long WRITE ends out of bounds", long_write_out_of_bounds },
	{ "remote: MR of another PD", wrong_pd },
	{ "remote: MR lacks the access", missing_access },
	{ "remote: QP lacks the access", missing_qp_access },
	{ "remote: key of a deregistered MR", stale_rkey },
	{ "remote: SEND_WITH_INV of an unknown key", invalidate_unknown_rkey },
	{ "remote: misaligned atomic", misaligned_atomic },
	{ "remote: SEND longer than the receive", send_too_long },
	{ "remote: no receive posted, retries exceeded", receiver_not_ready },
	{ "remote: no receive posted, the pauses asked for", receiver_never_ready },
	{ "remote: no receive posted, then one", receiver_ready_late },
	{ "remote: no receive posted, one after long", receiver_ready_very_late },
	{ "remote: peer QP never connected", nobody_there },
	{ "remote: no QP has the number", no_such_number },
	{ "remote: peer QP destroyed", peer_destroyed },
	{ "remote: no bytes need no key", zero_length_needs_no_key },
	{ 0 },
};
