/* The keys that programs choose for memory windows. */
#include "err_window.h"

/* Of a key that the program chooses the low byte counts. Posting tells the window its key, if it
 * succeeds. */
static void chosen_keys(struct env *env)
{
	struct ibv_qp_init_attr_ex init = {
		.cap = { 2, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC, .pd = env->pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV,
	};
	struct ibv_mw_bind_info info;
	struct ibv_qp_ex *ex;
	struct scene s;
	uint32_t index;
	struct side b;

	scene_open(env, &s, OPEN, REMOTE_ACCESS);
	info = info_of(&s.p.b, s.mr, REMOTE_ACCESS);
	index = s.rkey & ~0xffu;
	need0(post_inv(&s.p.b, 1, IBV_WR_LOCAL_INV, s.rkey));
	expect_wc(s.p.b.cq, 1, IBV_WC_SUCCESS);
	need0(post_bind(&s.p.b, 2, s.mw, 0xabcdef42, info));
	check(s.mw->rkey == (index | 0x42), "key %#x, index %#x", s.mw->rkey, index);
	expect_wc(s.p.b.cq, 2, IBV_WC_SUCCESS);
	allowed(&s.p, IBV_WR_RDMA_WRITE, 8, s.at, index | 0x42);
	need0(post_inv(&s.p.b, 3, IBV_WR_LOCAL_INV, index | 0x42));
	expect_wc(s.p.b.cq, 3, IBV_WC_SUCCESS);
	/* The other way of posting, on a QP whose queue holds two. */
	b = s.p.b;
	init.send_cq = init.recv_cq = b.cq;
	b.qp = ibv_create_qp_ex(env->dev.ctx, &init);
	need(b.qp, "ibv_create_qp_ex");
	side_connect(env, &b, &s.p.a);
	ex = ibv_qp_to_qp_ex(b.qp);
	ibv_wr_start(ex);
	ex->wr_id = 4;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_bind_mw(ex, s.mw, 0x43, &info);
	check(s.mw->rkey == (index | 0x42), "key %#x before it is posted", s.mw->rkey);
	need0(ibv_wr_complete(ex));
	check(s.mw->rkey == (index | 0x43), "key %#x, index %#x", s.mw->rkey, index);
	ibv_wr_start(ex);
	ex->wr_id = 5;
	ibv_wr_local_inv(ex, s.mw->rkey);
	need0(ibv_wr_complete(ex));
	check_errno(post_bind(&b, 6, s.mw, 0x44, info), ENOMEM);
	ibv_wr_start(ex);
	ibv_wr_bind_mw(ex, s.mw, 0x44, &info);
	check(ibv_wr_complete(ex) == ENOMEM, "a request too many");
	check(s.mw->rkey == (index | 0x43), "key %#x of what was not posted", s.mw->rkey);
	expect_wc(b.cq, 4, IBV_WC_SUCCESS);
	expect_wc(b.cq, 5, IBV_WC_SUCCESS);
}

const struct error_case key_cases[] = {
	{ "window: keys that the program chooses", chosen_keys },
	{ 0 },
};
