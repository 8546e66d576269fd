/* The end of a run: what was earned before a queue pair is destroyed is polled after it. */
#include "verify.h"

#include <stdlib.h>

/* In the wr_id: a greeting, and its answer. */
#define GREETING 1u
#define ANSWER 2u

/* How far a connection is. */
struct farewell {
	bool greeted, answered;		/* by the peer */
	bool greeting_done, answer_done;
};

static void say(struct conn *c, uint32_t what)
{
	struct ibv_send_wr *bad, wr = {
		.wr_id = (uint64_t)c->index << 32 | what,
		.opcode = IBV_WR_SEND_WITH_IMM,
		.send_flags = IBV_SEND_SIGNALED,
		.imm_data = what,
	};

	need0(ibv_post_send(c->qp, &wr, &bad));
}

static struct conn *conn_of(struct worker *w, uint32_t qpn)
{
	for (unsigned int i = 0; i < w->count; i++)
		if (w->conns[i]->mine.addr.qpn == qpn)
			return w->conns[i];
	fail("a completion of QP %#x, which this thread did not have", qpn);
}

/* Takes one completion; false if there is none. */
static bool take(struct worker *w, struct ibv_cq *cq, struct farewell *all)
{
	struct farewell *f;
	struct conn *c;
	struct ibv_wc wc;
	int n = ibv_poll_cq(cq, 1, &wc);

	need(n >= 0, "ibv_poll_cq");
	if (n == 0)
		return false;
	c = conn_of(w, wc.qp_num);
	f = &all[c->index];
	if (wc.status != IBV_WC_SUCCESS)
		conn_fail(c, "at the end wr_id %#lx completes with: %s", wc.wr_id,
			  ibv_wc_status_str(wc.status));
	if (wc.wr_id & RECV_FLAG)
		respond_post(c->pool, c->qp, wc.wr_id & ~RECV_FLAG);
	if (!(wc.wr_id & RECV_FLAG)) {
		*((uint32_t)wc.wr_id == GREETING ? &f->greeting_done : &f->answer_done) = true;
	} else if (wc.imm_data == GREETING) {
		f->greeted = true;
		say(c, ANSWER);
	} else {
		f->answered = true;
		/* In one CQ its request comes first. */
		if (w->recv_cq == w->send_cq && !f->greeting_done)
			conn_fail(c, "the last answer comes before its request completes");
	}
	return true;
}

static bool heard(const struct worker *w, const struct farewell *all)
{
	for (unsigned int i = 0; i < w->count; i++) {
		const struct farewell *f = &all[w->conns[i]->index];

		if (!f->greeted || !f->answered)
			return false;
	}
	return true;
}

void farewell(struct run *run)
{
	struct farewell *all = calloc(run->params.qps, sizeof(*all));

	need(all, "memory");
	for (uint32_t i = 0; i < run->params.qps; i++)
		say(&run->conns[i], GREETING);
	for (unsigned int i = 0; i < run->opt.threads; i++)
		while (!heard(&run->workers[i], all))
			take(&run->workers[i], run->workers[i].recv_cq, all);
	oob_barrier(run->oob, 4);
	for (uint32_t i = 0; i < run->params.qps; i++)
		need0(ibv_destroy_qp(run->conns[i].qp));
	for (unsigned int i = 0; i < run->opt.threads; i++) {
		struct worker *w = &run->workers[i];

		while (take(w, w->send_cq, all))
			;
		if (ibv_poll_cq(w->recv_cq, 1, &(struct ibv_wc){ 0 }))
			fail("a receive of a destroyed QP was flushed");
	}
	/* The answers' own may have been under way. */
	for (uint32_t i = 0; i < run->params.qps; i++)
		if (!all[i].greeting_done)
			conn_fail(&run->conns[i], "a completion that was earned is lost");
	free(all);
}
