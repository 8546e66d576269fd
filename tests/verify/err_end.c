/* What completes in which order, and what of it outlives a queue pair. */
#include "err.h"

#include <unistd.h>

/* Queue pairs of a process, and more. */
#define NUMBERS 4200

static int to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

/* Has `to` receive `count` messages, numbered from `first`, that nobody polls yet. */
static void deliver(struct side *from, struct side *to, uint64_t first, int count)
{
	for (int i = 0; i < count; i++) {
		need0(post_recv(to, first + i, 64));
		need0(post_send(from, 900 + i, IBV_WR_SEND, 64, 0, 0));
		/* Acknowledged: the other side's device has it. */
		expect_wc(from->cq, 900 + i, IBV_WC_SUCCESS);
	}
}

static void request_before_answer(struct env *env)
{
	struct pair p;

	pair_open(env, &p, NULL, true);
	for (uint64_t id = 10; id < 60; id += 10) {
		need0(post_recv(&p.a, id, 64));
		need0(post_recv(&p.b, id + 1, 64));
		need0(post_send(&p.a, id + 2, IBV_WR_SEND, id % 20 ? 64 : 20, 0, 0));
		expect_wc(p.b.cq, id + 1, IBV_WC_SUCCESS);
		need0(post_send(&p.b, id + 3, IBV_WR_SEND, id % 20 ? 64 : 20, 0, 0));
		expect_wc(p.a.cq, id + 2, IBV_WC_SUCCESS);
		expect_wc(p.a.cq, id, IBV_WC_SUCCESS);
		expect_wc(p.b.cq, id + 3, IBV_WC_SUCCESS);
	}
}

/* The answer is seen in memory: the request is complete. */
static void request_before_write(struct env *env)
{
	volatile unsigned char *seen;
	struct pair p;

	pair_open(env, &p, NULL, true);
	seen = p.a.buf + 8192;
	memset(p.b.buf, 0x77, 8);
	need0(post_recv(&p.b, 1, 64));
	p.b.buf[7] = 0x78;
	need0(post_send(&p.a, 2, IBV_WR_SEND, 0, 0, 0));
	expect_wc(p.b.cq, 1, IBV_WC_SUCCESS);
	need0(post_send(&p.b, 3, IBV_WR_RDMA_WRITE, 8, (uintptr_t)seen, p.a.mr->rkey));
	while (seen[7] != 0x78)
		usleep(100);
	need0(ibv_destroy_qp(p.a.qp));
	expect_wc(p.a.cq, 2, IBV_WC_SUCCESS);
	expect_quiet(p.a.cq);
}

static void earned_outlives_destruction(struct env *env)
{
	uint32_t number;
	struct pair p;

	pair_open(env, &p, NULL, true);
	deliver(&p.b, &p.a, 1, 2);
	number = p.a.qp->qp_num;
	need0(ibv_destroy_qp(p.a.qp));
	check(expect_wc(p.a.cq, 1, IBV_WC_SUCCESS).qp_num == number, "another QP's number");
	check(expect_wc(p.a.cq, 2, IBV_WC_SUCCESS).byte_len == 64, "another length");
	expect_quiet(p.a.cq);
	need0(ibv_destroy_cq(p.a.cq));
}

static void flushed_does_not(struct env *env)
{
	struct pair p;

	pair_open(env, &p, NULL, true);
	deliver(&p.b, &p.a, 1, 1);
	need0(post_recv(&p.a, 2, 64));
	need0(to_state(p.a.qp, IBV_QPS_ERR));
	need0(post_send(&p.a, 3, IBV_WR_SEND, 64, 0, 0));
	need0(ibv_destroy_qp(p.a.qp));
	expect_wc(p.a.cq, 1, IBV_WC_SUCCESS);
	expect_quiet(p.a.cq);
}

/* Completions of before a reset stay, and give no places back of what is posted after it. */
static void earned_outlives_reset(struct env *env)
{
	struct pair p;

	pair_open(env, &p, NULL, true);
	deliver(&p.b, &p.a, 1, 2);
	need0(to_state(p.a.qp, IBV_QPS_RESET));
	need0(qp_to_init(p.a.qp, &env->params));
	for (int i = 0; i < DEPTH; i++)
		need0(post_recv(&p.a, 10 + i, 64));
	expect_wc(p.a.cq, 1, IBV_WC_SUCCESS);
	expect_wc(p.a.cq, 2, IBV_WC_SUCCESS);
	check_errno(post_recv(&p.a, 30, 64), ENOMEM);
	expect_quiet(p.a.cq);
}

/* Makes queue pairs until the numbers come round; true if `number` was among theirs. */
static bool is_issued(struct env *env, struct ibv_cq *cq, uint32_t number)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC,
	};
	bool found = false;

	for (int i = 0; i < NUMBERS && !found; i++) {
		struct ibv_qp *qp = ibv_create_qp(env->pd, &init);

		need(qp, "ibv_create_qp");
		found = qp->qp_num == number;
		need0(ibv_destroy_qp(qp));
	}
	return found;
}

static void numbers_of_the_gone(struct env *env)
{
	uint32_t number;
	struct pair p;

	pair_open(env, &p, NULL, true);
	number = p.a.qp->qp_num;
	deliver(&p.b, &p.a, 1, 1);
	need0(ibv_destroy_qp(p.a.qp));
	check(!is_issued(env, p.a.cq, number), "%#x is issued while a CQ holds it", number);
	expect_wc(p.a.cq, 1, IBV_WC_SUCCESS);
	check(is_issued(env, p.a.cq, number), "%#x is never issued again", number);
}

/* A queue is sized for the queue pairs that there are: those gone take no place from them. */
static void room_for_the_living(struct env *env)
{
	struct pair p, q;

	memset(&q, 0, sizeof(q));
	pair_open(env, &p, NULL, true);
	need0(ibv_resize_cq(p.a.cq, 2));
	deliver(&p.b, &p.a, 1, 2);
	need0(ibv_destroy_qp(p.a.qp));
	q.a.cq = p.a.cq;
	side_open(env, &q.a, NULL);
	side_open(env, &q.b, NULL);
	side_connect(env, &q.a, &q.b);
	side_connect(env, &q.b, &q.a);
	deliver(&q.b, &q.a, 11, 1);
	expect_wc(p.a.cq, 2, IBV_WC_SUCCESS);
	expect_wc(p.a.cq, 11, IBV_WC_SUCCESS);
	expect_quiet(p.a.cq);
	expect_state(q.a.qp, IBV_QPS_RTS);
}

/* A side that only receives never goes to RTS; it makes the other side wait. */
static void receiver_in_rtr(struct env *env)
{
	struct qp_addr addr;
	struct pair p;

	pair_open(env, &p, NULL, false);
	addr = (struct qp_addr){ p.a.qp->qp_num, p.a.psn, env->dev.gid };
	side_connect(env, &p.a, &p.b);
	need0(qp_to_init(p.b.qp, &env->params));
	need0(qp_to_rtr(p.b.qp, &env->dev, &env->params, &addr));
	for (int i = 0; i < 4; i++) {
		need0(post_send(&p.a, 2 * i, IBV_WR_SEND, 64, 0, 0));
		/* Refused, and held. */
		usleep(2000);
		need0(post_recv(&p.b, 2 * i + 1, 64));
		expect_wc(p.b.cq, 2 * i + 1, IBV_WC_SUCCESS);
		expect_wc(p.a.cq, 2 * i, IBV_WC_SUCCESS);
	}
}

/* Wall-clock times of completions do not go back, and do not change from look to look. */
static void wall_clock(struct env *env)
{
	struct ibv_cq_init_attr_ex init = {
		.cqe = 4 * DEPTH,
		.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
	};
	uint64_t before = 0, device_before = 0;
	struct ibv_cq_ex *cq = ibv_create_cq_ex(env->dev.ctx, &init);
	struct pair p = { 0 };

	need(cq, "ibv_create_cq_ex");
	p.a.cq = ibv_cq_ex_to_cq(cq);
	side_open(env, &p.a, NULL);
	side_open(env, &p.b, NULL);
	side_connect(env, &p.a, &p.b);
	side_connect(env, &p.b, &p.a);
	for (int i = 0; i < 2000; i++) {
		struct ibv_poll_cq_attr attr = { 0 };
		uint64_t wall, device;

		need0(post_send(&p.a, i, IBV_WR_RDMA_WRITE, 8, (uintptr_t)p.b.buf, p.b.mr->rkey));
		while (ibv_start_poll(cq, &attr) != 0)
			;
		wall = ibv_wc_read_completion_wallclock_ns(cq);
		device = ibv_wc_read_completion_ts(cq);
		check(wall == ibv_wc_read_completion_wallclock_ns(cq), "it changes");
		ibv_end_poll(cq);
		check(wall - before == device - device_before || i == 0,
		      "%lu ns after the one before, %lu by the device's clock", wall - before,
		      device - device_before);
		before = wall;
		device_before = device;
	}
}

/* What failed before a reset is not found after it. */
static void failed_does_not(struct env *env)
{
	struct ibv_qp_attr attr = { 0 };
	struct ibv_qp_init_attr init;
	struct pair p;

	pair_open(env, &p, NULL, true);
	deliver(&p.b, &p.a, 1, 1);
	need0(post_send(&p.a, 2, IBV_WR_RDMA_READ, 8, (uintptr_t)p.b.buf, p.b.mr->rkey ^ 1));
	while (attr.qp_state != IBV_QPS_ERR) {
		usleep(1000);
		need0(ibv_query_qp(p.a.qp, &attr, IBV_QP_STATE, &init));
	}
	need0(to_state(p.a.qp, IBV_QPS_RESET));
	expect_wc(p.a.cq, 1, IBV_WC_SUCCESS);
	expect_quiet(p.a.cq);
}

const struct error_case end_cases[] = {
	{ "end: a request completes before its answer", request_before_answer },
	{ "end: a request completes before an answer in memory", request_before_write },
	{ "end: what was earned outlives destruction", earned_outlives_destruction },
	{ "end: what was flushed does not", flushed_does_not },
	{ "end: what failed does not outlive a reset", failed_does_not },
	{ "end: what was earned outlives a reset", earned_outlives_reset },
	{ "end: numbers of queue pairs that completions name", numbers_of_the_gone },
	{ "end: completions of the gone make room", room_for_the_living },
	{ "end: a receiver in RTR refuses for a while", receiver_in_rtr },
	{ "end: wall-clock times of completions", wall_clock },
	{ 0 },
};
