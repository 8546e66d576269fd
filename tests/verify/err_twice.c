/* Objects that are destroyed twice, never were, or still have others that use them. */
#include "err.h"

/* Bytes that are no object, and no pointers either. */
#define GARBAGE 4096

static void destroyed_twice(struct env *env)
{
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_td_init_attr td_init = { 0 };
	struct ibv_context *ctx = ibv_open_device(env->dev.ctx->device);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, channel, 0);
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 },
	};
	struct ibv_ah_attr ah_attr = {
		.is_global = 1, .port_num = 1,
		.grh = { .dgid = env->dev.gid, .sgid_index = env->dev.gid_index, .hop_limit = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_mr *mr = ibv_reg_mr(pd, page_alloc(4096), 4096, 0);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_td *td = ibv_alloc_td(ctx, &td_init);
	struct ibv_ah *ah = ibv_create_ah(pd, &ah_attr);

	need(qp && mr && mw && td && ah, "objects");
#define twice(call) do { \
		need0(call); \
		check_errno(call, EINVAL); \
	} while (0)
	twice(ibv_destroy_qp(qp));
	twice(ibv_destroy_srq(srq));
	twice(ibv_destroy_cq(cq));
	twice(ibv_destroy_comp_channel(channel));
	twice(ibv_dereg_mr(mr));
	twice(ibv_dealloc_mw(mw));
	twice(ibv_dealloc_td(td));
	twice(ibv_destroy_ah(ah));
	twice(ibv_dealloc_pd(pd));
#undef twice
	need0(ibv_close_device(ctx));
	check(ibv_close_device(ctx) == -1 && errno == EINVAL, "a device is closed twice");
}

static void never_made(struct env *env)
{
	void *garbage = page_alloc(GARBAGE), *none[] = { garbage, NULL, env->dev.ctx };

	memset(garbage, 0x5a, GARBAGE);
	for (int i = 0; i < 3; i++) {
		check_errno(ibv_destroy_qp(none[i]), EINVAL);
		check_errno(ibv_destroy_srq(none[i]), EINVAL);
		check_errno(ibv_destroy_cq(none[i]), EINVAL);
		check_errno(ibv_destroy_comp_channel(none[i]), EINVAL);
		check_errno(ibv_dereg_mr(none[i]), EINVAL);
		check_errno(ibv_destroy_ah(none[i]), EINVAL);
		check_errno(ibv_dealloc_pd(none[i]), EINVAL);
	}
	check_errno(ibv_destroy_cq((struct ibv_cq *)env->bystander.a.qp), EINVAL);
	check_errno(ibv_dealloc_pd((struct ibv_pd *)env->bystander.a.mr), EINVAL);
}

/* What belongs to a device that is closed can still be destroyed. */
static void after_close(struct env *env)
{
	struct ibv_context *ctx = ibv_open_device(env->dev.ctx->device);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mr *mr = ibv_reg_mr(pd, page_alloc(4096), 4096, 0);

	need(mw && mr, "objects");
	check_errno(ibv_dealloc_pd(pd), EBUSY);
	need0(ibv_close_device(ctx));
	need0(ibv_dealloc_mw(mw));
	need0(ibv_dereg_mr(mr));
	need0(ibv_dealloc_pd(pd));
}

const struct error_case twice_cases[] = {
	{ "twice: every object", destroyed_twice },
	{ "twice: what never was an object", never_made },
	{ "twice: after the device was closed", after_close },
	{ 0 },
};
