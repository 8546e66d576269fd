/* Unreliable services: what datagrams and unreliable connections deliver, and what they drop. */
#include "err.h"

#include <arpa/inet.h>

#define QKEY 0x11111111
#define OWN_QKEY 0x80000000
#define GRH_BYTES 40
#define MTU_BYTES 4096
#define MULTICAST_QPN 0xffffff
#define MESSAGE 100
#define OFTEN 5000

/* A UD queue pair. */
static void ud_open_on(struct env *env, struct side *s, struct ibv_cq *cq, struct ibv_srq *srq,
		       bool extended)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_UD,
		.srq = srq,
		.cap = {
			.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2,
			.max_recv_sge = 2, .max_inline_data = 64,
		},
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = env->pd,
	};
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY,
	};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;

	memset(s, 0, sizeof(*s));
	init.send_cq = init.recv_cq = s->cq = cq;
	if (extended) {
		init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		init.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
	}
	s->qp = ibv_create_qp_ex(env->dev.ctx, &init);
	need(s->qp, "ibv_create_qp_ex");
	s->buf = page_alloc(BUF_BYTES);
	s->mr = ibv_reg_mr(env->pd, s->buf, BUF_BYTES, IBV_ACCESS_LOCAL_WRITE);
	need(s->mr, "ibv_reg_mr");
	need0(ibv_modify_qp(s->qp, &attr, mask));
	attr.qp_state = IBV_QPS_RTR;
	need0(ibv_modify_qp(s->qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	need0(ibv_modify_qp(s->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

/* A UD queue pair with a completion queue of its own. */
static void ud_open(struct env *env, struct side *s, struct ibv_srq *srq, bool extended)
{
	struct ibv_cq *cq = ibv_create_cq(env->dev.ctx, 4 * DEPTH, NULL, NULL, 0);

	need(cq, "ibv_create_cq");
	ud_open_on(env, s, cq, srq, extended);
}

static struct ibv_ah *ah_to(struct env *env, const union ibv_gid *gid)
{
	struct ibv_ah_attr attr = {
		.is_global = 1, .port_num = 1,
		.grh = { .dgid = *gid, .sgid_index = env->dev.gid_index, .hop_limit = 64,
			 .traffic_class = 0x20 },
	};
	struct ibv_ah *ah = ibv_create_ah(env->pd, &attr);

	need(ah, "ibv_create_ah");
	return ah;
}

/* A datagram whose first byte is `tag`. */
static int ud_send(struct side *s, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey, uint8_t tag,
		   uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)s->buf + BUF_BYTES / 2, len, s->mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.wr_id = tag, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
		.imm_data = htonl(tag), .send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { .ah = ah, .remote_qpn = qpn, .remote_qkey = qkey },
	};

	s->buf[BUF_BYTES / 2] = tag;
	return ibv_post_send(s->qp, &wr, &bad);
}

/* The next completion of `s` is a receive of the datagram tagged so, from queue pair `from`. */
static struct ibv_wc expect_datagram(struct side *s, uint64_t wr_id, uint8_t tag, uint32_t len,
				     uint32_t from)
{
	struct ibv_wc wc = expect_wc(s->cq, wr_id, IBV_WC_SUCCESS);

	check(wc.opcode == IBV_WC_RECV, "opcode %d", wc.opcode);
	check(wc.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM), "flags %#x", wc.wc_flags);
	check(wc.byte_len == len + GRH_BYTES, "%u bytes", wc.byte_len);
	check(wc.src_qp == from, "from %#x instead of %#x", wc.src_qp, from);
	check(wc.imm_data == htonl(tag), "immediate data %u, not %u", ntohl(wc.imm_data), tag);
	check(s->buf[GRH_BYTES] == tag, "tag %u instead of %u", s->buf[GRH_BYTES], tag);
	return wc;
}

static void datagrams_and_answers(struct env *env)
{
	struct ibv_ah *ah, *back;
	struct side a, b;
	struct ibv_wc wc;

	ud_open(env, &a, NULL, false);
	ud_open(env, &b, NULL, false);
	ah = ah_to(env, &env->dev.gid);
	need0(post_recv(&b, 1, GRH_BYTES + MESSAGE));
	need0(ud_send(&a, ah, b.qp->qp_num, QKEY, 7, MESSAGE));
	expect_wc(a.cq, 7, IBV_WC_SUCCESS);
	wc = expect_datagram(&b, 1, 7, MESSAGE, a.qp->qp_num);
	back = ibv_create_ah_from_wc(env->pd, &wc, (struct ibv_grh *)b.buf, 1);
	need(back, "ibv_create_ah_from_wc");
	need0(post_recv(&a, 2, GRH_BYTES + MTU_BYTES));
	need0(ud_send(&b, back, wc.src_qp, QKEY, 8, MTU_BYTES));
	expect_wc(b.cq, 8, IBV_WC_SUCCESS);
	expect_datagram(&a, 2, 8, MTU_BYTES, b.qp->qp_num);
	check(ibv_dealloc_pd(env->pd) == EBUSY, "a PD with address handles can be freed");
	need0(ibv_destroy_ah(back));
	need0(ibv_destroy_ah(ah));
}

/* A poll takes all that waits, of whatever kind: there is no event for what it leaves. */
static void datagram_behind_send(struct env *env)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(env->dev.ctx);
	struct ibv_ah *ah = ah_to(env, &env->dev.gid);
	struct ibv_wc wc[2];
	struct ibv_cq *cq;
	struct side a, b;
	void *context;

	need(channel, "ibv_create_comp_channel");
	cq = ibv_create_cq(env->dev.ctx, 4 * DEPTH, NULL, channel, 0);
	need(cq, "ibv_create_cq");
	ud_open_on(env, &a, cq, NULL, false);
	ud_open(env, &b, NULL, false);
	need0(post_recv(&a, 1, GRH_BYTES + MESSAGE));
	/* To a queue pair without receives: they complete, and are dropped. A thread that polls
	 * often enough takes a quick way. */
	for (int i = 0; i < OFTEN; i++) {
		need0(ud_send(&a, ah, b.qp->qp_num, QKEY, 4, MESSAGE));
		expect_wc(cq, 4, IBV_WC_SUCCESS);
	}
	need0(ud_send(&a, ah, b.qp->qp_num, QKEY, 5, MESSAGE));
	need0(ibv_req_notify_cq(cq, 0));
	need0(ud_send(&b, ah, a.qp->qp_num, QKEY, 6, MESSAGE));
	need0(ibv_get_cq_event(channel, &cq, &context));
	ibv_ack_cq_events(cq, 1);
	check(ibv_poll_cq(cq, 2, wc) == 2, "a poll leaves a completion");
	check(wc[0].wr_id == 5 && wc[0].opcode == IBV_WC_SEND, "first %lu", wc[0].wr_id);
	check(wc[1].wr_id == 1 && wc[1].opcode == IBV_WC_RECV, "then %lu", wc[1].wr_id);
	need0(ibv_destroy_ah(ah));
}

/* What is dropped leaves no trace; what is sent after it arrives. */
static void datagrams_dropped(struct env *env)
{
	struct ibv_ah *ah = ah_to(env, &env->dev.gid);
	struct side a, b;
	uint32_t to;

	ud_open(env, &a, NULL, false);
	ud_open(env, &b, NULL, false);
	to = b.qp->qp_num;
	need0(ud_send(&a, ah, to, QKEY + 1, 1, MESSAGE));
	need0(ud_send(&a, ah, to ^ 0x800, QKEY, 2, MESSAGE));
	expect_wc(a.cq, 1, IBV_WC_SUCCESS);
	expect_wc(a.cq, 2, IBV_WC_SUCCESS);
	need0(post_recv(&b, 10, GRH_BYTES + MESSAGE));
	need0(ud_send(&a, ah, to, QKEY + 1, 3, MESSAGE));
	/* The sender's own Q_Key, which is the receiver's too. */
	need0(ud_send(&a, ah, to, OWN_QKEY, 4, MESSAGE));
	expect_wc(a.cq, 3, IBV_WC_SUCCESS);
	expect_wc(a.cq, 4, IBV_WC_SUCCESS);
	expect_datagram(&b, 10, 4, MESSAGE, a.qp->qp_num);
	expect_quiet(b.cq);
}

static void datagrams_too_long(struct env *env)
{
	struct ibv_ah *ah = ah_to(env, &env->dev.gid);
	struct side a, b;

	ud_open(env, &a, NULL, false);
	ud_open(env, &b, NULL, false);
	check_errno(ud_send(&a, ah, b.qp->qp_num, QKEY, 1, MTU_BYTES + 1), EINVAL);
	check_errno(ud_send(&a, NULL, b.qp->qp_num, QKEY, 1, MESSAGE), EINVAL);
	check_errno(post_send(&a, 1, IBV_WR_RDMA_WRITE, 8, 0, 0), EINVAL);
	/* What is longer than the receive is dropped, and leaves it to the next. */
	need0(post_recv(&b, 10, GRH_BYTES + MESSAGE - 1));
	need0(ud_send(&a, ah, b.qp->qp_num, QKEY, 2, MESSAGE));
	expect_wc(a.cq, 2, IBV_WC_SUCCESS);
	need0(ud_send(&a, ah, b.qp->qp_num, QKEY, 3, MESSAGE - 1));
	expect_wc(a.cq, 3, IBV_WC_SUCCESS);
	expect_datagram(&b, 10, 3, MESSAGE - 1, a.qp->qp_num);
	expect_quiet(b.cq);
}

static void datagrams_too_long_for_srq(struct env *env)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_ah *ah = ah_to(env, &env->dev.gid);
	struct ibv_srq *srq = ibv_create_srq(env->pd, &init);
	struct ibv_sge sge = { .length = GRH_BYTES + MESSAGE - 1 };
	struct ibv_recv_wr *bad, wr = { .wr_id = 20, .sg_list = &sge, .num_sge = 1 };
	struct side a, b, c;

	need(srq, "ibv_create_srq");
	ud_open(env, &a, NULL, false);
	ud_open(env, &b, srq, false);
	ud_open(env, &c, srq, false);
	sge.addr = (uintptr_t)c.buf;
	sge.lkey = c.mr->lkey;
	need0(ibv_post_srq_recv(srq, &wr, &bad));
	need0(ud_send(&a, ah, b.qp->qp_num, QKEY, 2, MESSAGE));
	expect_wc(a.cq, 2, IBV_WC_SUCCESS);
	need0(ud_send(&a, ah, c.qp->qp_num, QKEY, 3, MESSAGE - 1));
	expect_wc(a.cq, 3, IBV_WC_SUCCESS);
	expect_datagram(&c, 20, 3, MESSAGE - 1, a.qp->qp_num);
	expect_quiet(b.cq);
	expect_state(b.qp, IBV_QPS_RTS);
}

static void datagrams_from_srq(struct env *env)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_ah *ah = ah_to(env, &env->dev.gid);
	struct ibv_srq *srq = ibv_create_srq(env->pd, &init);
	struct ibv_recv_wr *bad, wr = { .wr_id = 20, .num_sge = 1 };
	struct ibv_sge sge = { .length = GRH_BYTES + MESSAGE };
	struct side a, b;
	struct ibv_qp_ex *ex;

	need(srq, "ibv_create_srq");
	ud_open(env, &a, NULL, true);
	ud_open(env, &b, srq, false);
	sge.addr = (uintptr_t)b.buf;
	sge.lkey = b.mr->lkey;
	wr.sg_list = &sge;
	need0(ibv_post_srq_recv(srq, &wr, &bad));
	ex = ibv_qp_to_qp_ex(a.qp);
	need(ex, "ibv_qp_to_qp_ex");
	memset(a.buf, 9, MESSAGE);
	ibv_wr_start(ex);
	ex->wr_id = 21;
	ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
	ibv_wr_send_imm(ex, htonl(9));
	ibv_wr_set_ud_addr(ex, ah, b.qp->qp_num, QKEY);
	ibv_wr_set_inline_data(ex, a.buf, 50);
	need0(ibv_wr_complete(ex));
	expect_wc(a.cq, 21, IBV_WC_SUCCESS);
	expect_datagram(&b, 20, 9, 50, a.qp->qp_num);
}

/* Two members hear what a third one sends, which does not hear itself; who has left does not. */
static void multicast(struct env *env)
{
	static const uint8_t mapped[16] = {
		0xff, 0x0e, [10] = 0xff, 0xff, 239, 83, 251, 7,
	};
	union ibv_gid group;
	struct side s[3];
	struct ibv_ah *ah;

	memcpy(group.raw, mapped, sizeof(mapped));
	ah = ah_to(env, &group);
	for (int i = 0; i < 3; i++) {
		ud_open(env, &s[i], NULL, false);
		need0(post_recv(&s[i], 30 + i, GRH_BYTES + MESSAGE));
		need0(post_recv(&s[i], 40 + i, GRH_BYTES + MESSAGE));
		need0(ibv_attach_mcast(s[i].qp, &group, 0));
	}
	need0(ibv_attach_mcast(s[2].qp, &group, 0));
	check_errno(ibv_attach_mcast(s[2].qp, &env->dev.gid, 0), EINVAL);
	check_errno(ibv_attach_mcast(env->bystander.a.qp, &group, 0), EINVAL);
	check_errno(ibv_destroy_qp(s[2].qp), EBUSY);
	need0(ud_send(&s[0], ah, MULTICAST_QPN, QKEY, 5, MESSAGE));
	expect_wc(s[0].cq, 5, IBV_WC_SUCCESS);
	expect_datagram(&s[1], 31, 5, MESSAGE, s[0].qp->qp_num);
	expect_datagram(&s[2], 32, 5, MESSAGE, s[0].qp->qp_num);
	expect_quiet(s[0].cq);
	need0(ibv_detach_mcast(s[2].qp, &group, 0));
	check_errno(ibv_detach_mcast(s[2].qp, &group, 0), EINVAL);
	need0(ud_send(&s[0], ah, MULTICAST_QPN, QKEY, 6, MESSAGE));
	expect_wc(s[0].cq, 6, IBV_WC_SUCCESS);
	expect_datagram(&s[1], 41, 6, MESSAGE, s[0].qp->qp_num);
	expect_quiet(s[2].cq);
	expect_quiet(s[0].cq);
	need0(ibv_destroy_qp(s[2].qp));
}

void uc_open(struct env *env, struct pair *p)
{
	struct side *sides[2] = { &p->a, &p->b };

	memset(p, 0, sizeof(*p));
	for (int i = 0; i < 2; i++) {
		struct side *s = sides[i];
		struct ibv_qp_init_attr init = {
			.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1,
				 .max_recv_sge = 1 },
			.qp_type = IBV_QPT_UC,
		};

		s->cq = ibv_create_cq(env->dev.ctx, 4 * DEPTH, NULL, NULL, 0);
		need(s->cq, "ibv_create_cq");
		init.send_cq = init.recv_cq = s->cq;
		s->qp = ibv_create_qp(env->pd, &init);
		need(s->qp, "ibv_create_qp");
		s->buf = page_alloc(BUF_BYTES);
		s->mr = ibv_reg_mr(env->pd, s->buf, BUF_BYTES,
				   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		need(s->mr, "ibv_reg_mr");
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr attr = {
			.qp_state = IBV_QPS_INIT, .port_num = 1,
			.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
			.path_mtu = IBV_MTU_1024, .rq_psn = 5, .sq_psn = 5,
			.dest_qp_num = sides[!i]->qp->qp_num,
			.ah_attr = {
				.is_global = 1, .port_num = 1,
				.grh = { .dgid = env->dev.gid, .hop_limit = 1,
					 .sgid_index = env->dev.gid_index },
			},
		};

		need0(ibv_modify_qp(sides[i]->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX |
				    IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
		attr.qp_state = IBV_QPS_RTR;
		need0(ibv_modify_qp(sides[i]->qp, &attr, IBV_QP_STATE | IBV_QP_AV |
				    IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN));
		attr.qp_state = IBV_QPS_RTS;
		need0(ibv_modify_qp(sides[i]->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	}
}

/* No receive, too long, no such key: the requester hears nothing of it, and what follows comes. */
static void uc_drops(struct env *env)
{
	struct ibv_wc wc;
	struct pair p;

	uc_open(env, &p);
	need0(post_send(&p.a, 1, IBV_WR_SEND, MESSAGE, 0, 0));
	expect_wc(p.a.cq, 1, IBV_WC_SUCCESS);
	need0(post_send(&p.a, 2, IBV_WR_RDMA_WRITE, MESSAGE, (uintptr_t)p.b.buf,
			p.b.mr->rkey ^ 0x40));
	expect_wc(p.a.cq, 2, IBV_WC_SUCCESS);
	check_errno(post_send(&p.a, 3, IBV_WR_RDMA_READ, 8, (uintptr_t)p.b.buf, p.b.mr->rkey),
		    EINVAL);
	/* It is at the other end, and gone, when this WRITE behind it is. */
	p.a.buf[0] = 0x5a;
	need0(post_send(&p.a, 4, IBV_WR_RDMA_WRITE, 1, (uintptr_t)p.b.buf + 8192, p.b.mr->rkey));
	expect_wc(p.a.cq, 4, IBV_WC_SUCCESS);
	while (*(volatile unsigned char *)(p.b.buf + 8192) != 0x5a)
		expect_quiet(p.b.cq);
	need0(post_recv(&p.b, 10, MESSAGE));
	need0(post_send(&p.a, 5, IBV_WR_SEND, MESSAGE + 1, 0, 0));
	expect_wc(p.a.cq, 5, IBV_WC_SUCCESS);
	need0(post_send(&p.a, 6, IBV_WR_SEND, MESSAGE - 1, 0, 0));
	expect_wc(p.a.cq, 6, IBV_WC_SUCCESS);
	wc = expect_wc(p.b.cq, 10, IBV_WC_SUCCESS);
	check(wc.byte_len == MESSAGE - 1, "%u bytes", wc.byte_len);
	expect_state(p.a.qp, IBV_QPS_RTS);
	expect_state(p.b.qp, IBV_QPS_RTS);
}

/* Sends to a queue pair that is gone complete, and the queue pair lives on. */
static void uc_peer_gone(struct env *env)
{
	struct pair p;

	uc_open(env, &p);
	need0(ibv_destroy_qp(p.b.qp));
	for (int i = 0; i < DEPTH; i++) {
		need0(post_send(&p.a, i, IBV_WR_SEND, MESSAGE, 0, 0));
		expect_wc(p.a.cq, i, IBV_WC_SUCCESS);
	}
	expect_state(p.a.qp, IBV_QPS_RTS);
}

/* A connected queue pair and one for datagrams take receives from one SRQ, complete on one CQ. */
static void services_together(struct env *env)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(env->pd, &init);
	struct ibv_recv_wr *bad, wr = { .num_sge = 1 };
	struct ibv_ah *ah = ah_to(env, &env->dev.gid);
	struct ibv_sge sge;
	struct side from, to;
	struct ibv_wc wc;
	struct pair rc;

	need(srq, "ibv_create_srq");
	pair_open(env, &rc, srq, true);
	ud_open(env, &from, NULL, false);
	ud_open_on(env, &to, rc.b.cq, srq, false);
	sge = (struct ibv_sge){ (uintptr_t)to.buf, GRH_BYTES + MESSAGE, to.mr->lkey };
	wr.sg_list = &sge;
	for (unsigned int i = 0; i < 4; i++) {
		wr.wr_id = 10 + i;
		need0(ibv_post_srq_recv(srq, &wr, &bad));
	}
	for (unsigned int i = 0; i < 4; i += 2) {
		need0(ud_send(&from, ah, to.qp->qp_num, QKEY, 7, MESSAGE));
		expect_wc(from.cq, 7, IBV_WC_SUCCESS);
		wc = expect_wc(rc.b.cq, 10 + i, IBV_WC_SUCCESS);
		check(wc.qp_num == to.qp->qp_num && wc.byte_len == GRH_BYTES + MESSAGE,
		      "%u bytes for %#x", wc.byte_len, wc.qp_num);
		need0(post_send(&rc.a, 1, IBV_WR_SEND, MESSAGE, 0, 0));
		wc = expect_wc(rc.b.cq, 11 + i, IBV_WC_SUCCESS);
		check(wc.qp_num == rc.b.qp->qp_num && wc.byte_len == MESSAGE,
		      "%u bytes for %#x", wc.byte_len, wc.qp_num);
		expect_wc(rc.a.cq, 1, IBV_WC_SUCCESS);
	}
	check_errno(ibv_destroy_cq(rc.b.cq), EBUSY);
	check_errno(ibv_destroy_srq(srq), EBUSY);
	need0(ibv_destroy_ah(ah));
}

/* What comes is found also by a program whose completion queue is never empty, since each of its
 * own datagrams completes as soon as it is posted. */
static void datagrams_beside_completions(struct env *env)
{
	enum { ROUNDS = 100, AHEAD = DEPTH / 2, TURNS = 300, RECEIVE = 200, NOISE = 1, TAG = 2 };
	struct ibv_cq *cq = ibv_create_cq(env->dev.ctx, 4 * DEPTH, NULL, NULL, 0);
	struct ibv_ah *ah = ah_to(env, &env->dev.gid);
	struct side a, b, noise;

	need(cq, "ibv_create_cq");
	ud_open_on(env, &a, cq, NULL, false);
	ud_open_on(env, &b, cq, NULL, false);
	ud_open_on(env, &noise, cq, NULL, false);
	for (int round = 0; round < ROUNDS; round++) {
		struct ibv_wc wc = { .wr_id = NOISE };
		int turn = 0;

		for (int i = 0; i < AHEAD; i++)
			need0(ud_send(&noise, ah, a.qp->qp_num, QKEY, NOISE, 1));
		need0(post_recv(&b, RECEIVE, GRH_BYTES + MESSAGE));
		need0(ud_send(&a, ah, b.qp->qp_num, QKEY, TAG, MESSAGE));
		for (; wc.wr_id != RECEIVE && turn < TURNS; turn++) {
			need0(ud_send(&noise, ah, a.qp->qp_num, QKEY, NOISE, 1));
			check(ibv_poll_cq(cq, 1, &wc) == 1, "the queue is empty");
			check(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
		}
		check(turn < TURNS, "round %d: not received in %d polls", round, TURNS);
		/* What was sent to nobody goes, too: a look may find a single datagram. */
		for (int empty = 0; empty < TURNS;)
			empty += ibv_poll_cq(cq, 1, &wc) == 0;
	}
}

/* As above, by a program that waits for an event before each poll: there always is one. */
static void datagrams_beside_events(struct env *env)
{
	enum { ROUNDS = 20, TURNS = 20 * DEPTH, RECEIVE = 200, NOISE = 1, TAG = 2 };
	struct ibv_comp_channel *channel = ibv_create_comp_channel(env->dev.ctx);
	struct ibv_ah *ah = ah_to(env, &env->dev.gid);
	struct side a, b, noise;
	struct ibv_cq *cq;
	void *context;

	need(channel, "ibv_create_comp_channel");
	cq = ibv_create_cq(env->dev.ctx, 4 * DEPTH, NULL, channel, 0);
	need(cq, "ibv_create_cq");
	ud_open(env, &a, NULL, false);
	ud_open_on(env, &b, cq, NULL, false);
	ud_open_on(env, &noise, cq, NULL, false);
	need0(ibv_req_notify_cq(cq, 0));
	for (int round = 0; round < ROUNDS; round++) {
		struct ibv_wc wc = { .wr_id = NOISE };
		int turn = 0;

		need0(post_recv(&b, RECEIVE, GRH_BYTES + MESSAGE));
		need0(ud_send(&a, ah, b.qp->qp_num, QKEY, TAG, MESSAGE));
		expect_wc(a.cq, TAG, IBV_WC_SUCCESS);
		for (; wc.wr_id != RECEIVE && turn < TURNS; turn++) {
			need0(ud_send(&noise, ah, a.qp->qp_num, QKEY, NOISE, 1));
			need0(ibv_get_cq_event(channel, &cq, &context));
			ibv_ack_cq_events(cq, 1);
			need0(ibv_req_notify_cq(cq, 0));
			check(ibv_poll_cq(cq, 1, &wc) == 1, "an event for no completion");
			check(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
		}
		check(turn < TURNS, "round %d: not received in %d polls", round, TURNS);
		while (ibv_poll_cq(cq, 1, &wc) > 0)
			;
	}
}

const struct error_case datagram_cases[] = {
	{ "datagrams, and answers to them", datagrams_and_answers },
	{ "a datagram behind a send, both for one poll", datagram_behind_send },
	{ "datagrams: wrong Q_Key, no receive, no such queue pair", datagrams_dropped },
	{ "datagrams that are too long", datagrams_too_long },
	{ "datagrams too long for a receive of an SRQ", datagrams_too_long_for_srq },
	{ "datagrams: shared receive queue, extended posting", datagrams_from_srq },
	{ "connections and datagrams share an SRQ and a CQ", services_together },
	{ "datagrams, and completions that never run out", datagrams_beside_completions },
	{ "datagrams, and events that never run out", datagrams_beside_events },
	{ "multicast groups", multicast },
	{ "unreliable connection drops in silence", uc_drops },
	{ "unreliable connection, peer gone", uc_peer_gone },
	{ 0 },
};
