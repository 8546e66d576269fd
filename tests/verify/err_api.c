/* Calls that must be refused, with the errno value that their manual pages or the kernel give. */
#include "err.h"

#include <sys/mman.h>

/* Attributes that are right for every transition to RTS, to be spoiled one by one. */
static struct ibv_qp_attr good_attr(struct env *env, enum ibv_qp_state state)
{
	return (struct ibv_qp_attr){
		.qp_state = state,
		.port_num = 1,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = env->bystander.a.qp->qp_num,
		.max_dest_rd_atomic = 1,
		.max_rd_atomic = 1,
		.min_rnr_timer = 1,
		.timeout = 10,
		.retry_cnt = 1,
		.rnr_retry = 1,
		.ah_attr = {
			.is_global = 1, .port_num = 1,
			.grh = { .dgid = env->dev.gid, .sgid_index = env->dev.gid_index,
				 .hop_limit = 1 },
		},
	};
}

#define INIT_MASK (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define RTR_MASK (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | \
		  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
#define RTS_MASK (IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | \
		  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)

static int mask_of(enum ibv_qp_state state)
{
	return state == IBV_QPS_INIT ? INIT_MASK : state == IBV_QPS_RTR ? RTR_MASK :
	       state == IBV_QPS_RTS ? RTS_MASK : IBV_QP_STATE;
}

/* Brings a QP that is in RESET to a state. */
static void bring_to(struct env *env, struct ibv_qp *qp, enum ibv_qp_state state)
{
	static const enum ibv_qp_state way[] = { IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS };

	for (int i = 0; i < 3 && way[i] <= state && state != IBV_QPS_ERR; i++) {
		struct ibv_qp_attr attr = good_attr(env, way[i]);

		need0(ibv_modify_qp(qp, &attr, mask_of(way[i])));
	}
	if (state > IBV_QPS_RTS) {
		struct ibv_qp_attr attr = { .qp_state = state };

		need0(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	}
}

/* Every transition that the InfiniBand specification does not have, with all attributes given
 * that the target state could want. */
static void illegal_transitions(struct env *env)
{
	static const bool legal[IBV_QPS_ERR + 1][IBV_QPS_ERR + 1] = {
		[IBV_QPS_RESET] = { [IBV_QPS_RESET] = 1, [IBV_QPS_INIT] = 1, [IBV_QPS_ERR] = 1 },
		[IBV_QPS_INIT] = { [IBV_QPS_RESET] = 1, [IBV_QPS_INIT] = 1, [IBV_QPS_RTR] = 1,
				   [IBV_QPS_ERR] = 1 },
		[IBV_QPS_RTR] = { [IBV_QPS_RESET] = 1, [IBV_QPS_RTS] = 1, [IBV_QPS_ERR] = 1 },
		[IBV_QPS_RTS] = { [IBV_QPS_RESET] = 1, [IBV_QPS_RTS] = 1, [IBV_QPS_SQD] = 1,
				  [IBV_QPS_ERR] = 1 },
		[IBV_QPS_SQD] = { [IBV_QPS_RESET] = 1, [IBV_QPS_RTS] = 1, [IBV_QPS_SQD] = 1,
				  [IBV_QPS_ERR] = 1 },
		[IBV_QPS_ERR] = { [IBV_QPS_RESET] = 1, [IBV_QPS_ERR] = 1 },
	};
	struct pair p;

	for (enum ibv_qp_state from = 0; from <= IBV_QPS_ERR; from++) {
		if (from == IBV_QPS_SQE)
			continue;
		for (enum ibv_qp_state to = 0; to <= IBV_QPS_ERR; to++) {
			struct ibv_qp_attr attr = good_attr(env, to), reset = { 0 };
			int mask = mask_of(to), rc;

			pair_open(env, &p, NULL, false);
			bring_to(env, p.a.qp, from);
			if (legal[from][to]) {
				if (to == from || from == IBV_QPS_SQD)
					mask = IBV_QP_STATE;
				rc = ibv_modify_qp(p.a.qp, &attr, mask);
				check(rc == 0, "from state %d to %d: %s", from, to, strerror(rc));
			} else {
				rc = ibv_modify_qp(p.a.qp, &attr, mask);
				check(rc == EINVAL, "from state %d to %d: %s", from, to,
				      strerror(rc));
				expect_state(p.a.qp, from);
			}
			need0(ibv_modify_qp(p.a.qp, &reset, IBV_QP_STATE));
			need0(ibv_destroy_qp(p.a.qp));
			need0(ibv_destroy_qp(p.b.qp));
		}
	}
}

static void missing_and_alien_attributes(struct env *env)
{
	static const enum ibv_qp_state states[] = { IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS };
	struct pair p;

	pair_open(env, &p, NULL, false);
	for (int i = 0; i < 3; i++) {
		struct ibv_qp_attr attr = good_attr(env, states[i]);
		int mask = mask_of(states[i]);

		for (int bit = 2; bit <= IBV_QP_DEST_QPN; bit <<= 1) {
			if (mask & bit)
				check(ibv_modify_qp(p.a.qp, &attr, mask & ~bit) == EINVAL,
				      "to state %d without attribute %#x", states[i], bit);
		}
		check(ibv_modify_qp(p.a.qp, &attr, mask | IBV_QP_QKEY) == EINVAL,
		      "to state %d with a Q_Key", states[i]);
		attr.cur_qp_state = IBV_QPS_SQD;
		check(ibv_modify_qp(p.a.qp, &attr, mask | IBV_QP_CUR_STATE) == EINVAL,
		      "to state %d from another than it is in", states[i]);
		need0(ibv_modify_qp(p.a.qp, &attr, mask));
	}
}

static void bad_attribute_values(struct env *env)
{
	struct ibv_qp_attr attr;
	struct pair p;

#define refuse(state, ...) do { \
		attr = good_attr(env, state); \
		__VA_ARGS__; \
		check_errno(ibv_modify_qp(p.a.qp, &attr, mask_of(state)), EINVAL); \
	} while (0)
	pair_open(env, &p, NULL, false);
	refuse(IBV_QPS_INIT, attr.port_num = 0);
	refuse(IBV_QPS_INIT, attr.port_num = 2);
	refuse(IBV_QPS_INIT, attr.pkey_index = 999);
	refuse(IBV_QPS_INIT, attr.qp_state = 77);
	bring_to(env, p.a.qp, IBV_QPS_INIT);
	refuse(IBV_QPS_RTR, attr.path_mtu = 0);
	refuse(IBV_QPS_RTR, attr.path_mtu = 6);
	refuse(IBV_QPS_RTR, attr.ah_attr.port_num = 2);
	refuse(IBV_QPS_RTR, attr.ah_attr.grh.sgid_index = 250);
	refuse(IBV_QPS_RTR, attr.max_dest_rd_atomic = env->dev.attr.max_qp_rd_atom + 1);
	refuse(IBV_QPS_RTR, attr.min_rnr_timer = 32);
	attr = good_attr(env, IBV_QPS_RTR);
	need0(ibv_modify_qp(p.a.qp, &attr, RTR_MASK));
	refuse(IBV_QPS_RTS, attr.max_rd_atomic = env->dev.attr.max_qp_init_rd_atom + 1);
	refuse(IBV_QPS_RTS, attr.timeout = 32);
	refuse(IBV_QPS_RTS, attr.retry_cnt = 8);
	refuse(IBV_QPS_RTS, attr.rnr_retry = 8);
#undef refuse
}

static void posting_in_the_wrong_state(struct env *env)
{
	struct pair p;

	pair_open(env, &p, NULL, false);
	check_errno(post_send(&p.a, 1, IBV_WR_SEND, 1, 0, 0), EINVAL);
	check_errno(post_recv(&p.a, 1, 1), EINVAL);
	bring_to(env, p.a.qp, IBV_QPS_INIT);
	check_errno(post_send(&p.a, 1, IBV_WR_SEND, 1, 0, 0), EINVAL);
	need0(post_recv(&p.a, 1, 1));
	bring_to(env, p.b.qp, IBV_QPS_RTR);
	check_errno(post_send(&p.b, 1, IBV_WR_SEND, 1, 0, 0), EINVAL);
	need0(post_recv(&p.b, 1, 1));
	expect_quiet(p.a.cq);
	expect_quiet(p.b.cq);
}

static void bad_work_requests(struct env *env)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_SEND };
	struct ibv_recv_wr *bad_recv, recv = { 0 };
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(env->pd, &srq_init);
	struct ibv_sge *sge;
	struct pair p;
	int rc;

	need(srq, "ibv_create_srq");
	pair_open(env, &p, srq, true);
	need0(ibv_query_qp(p.a.qp, &attr, IBV_QP_CAP, &init));
	sge = calloc(env->dev.attr.max_sge + 2, sizeof(*sge));
	need(sge, "memory");
	wr.sg_list = sge;
	recv.sg_list = sge;
	wr.num_sge = init.cap.max_send_sge + 1;
	rc = ibv_post_send(p.a.qp, &wr, &bad);
	check((rc == EINVAL || rc == ENOMEM) && bad == &wr, "too many entries: %s", strerror(rc));
	recv.num_sge = init.cap.max_recv_sge + 1;
	rc = ibv_post_recv(p.a.qp, &recv, &bad_recv);
	check((rc == EINVAL || rc == ENOMEM) && bad_recv == &recv, "too many entries of a "
	      "receive: %s", strerror(rc));
	wr.num_sge = 1;
	sge[0] = (struct ibv_sge){ (uintptr_t)p.a.buf, init.cap.max_inline_data + 1, 0 };
	wr.send_flags = IBV_SEND_INLINE;
	rc = ibv_post_send(p.a.qp, &wr, &bad);
	check(rc == EINVAL || rc == ENOMEM, "inline data too long: %s", strerror(rc));
	wr.send_flags = 0;
	wr.opcode = 77;
	check_errno(ibv_post_send(p.a.qp, &wr, &bad), EINVAL);
	/* A QP with an SRQ has no receive queue of its own. */
	recv.num_sge = 0;
	rc = ibv_post_recv(p.b.qp, &recv, &bad_recv);
	check(rc == EINVAL || rc == ENOMEM, "a receive beside an SRQ: %s", strerror(rc));
	expect_quiet(p.a.cq);
	expect_state(p.a.qp, IBV_QPS_RTS);
}

static void busy_objects(struct env *env)
{
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_pd *pd = ibv_alloc_pd(env->dev.ctx);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(env->dev.ctx);
	struct ibv_cq *cq = ibv_create_cq(env->dev.ctx, 4, NULL, channel, 0);
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	unsigned char *buf = page_alloc(4096);
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, 4096, 0);

	need(pd && channel && cq && srq && qp && mr, "objects");
	check_errno(ibv_destroy_comp_channel(channel), EBUSY);
	check_errno(ibv_destroy_cq(cq), EBUSY);
	check_errno(ibv_destroy_srq(srq), EBUSY);
	check_errno(ibv_dealloc_pd(pd), EBUSY);
	need0(ibv_destroy_qp(qp));
	check_errno(ibv_dealloc_pd(pd), EBUSY);
	need0(ibv_destroy_srq(srq));
	check_errno(ibv_dealloc_pd(pd), EBUSY);
	need0(ibv_dereg_mr(mr));
	check_errno(ibv_destroy_comp_channel(channel), EBUSY);
	need0(ibv_destroy_cq(cq));
	need0(ibv_destroy_comp_channel(channel));
	need0(ibv_dealloc_pd(pd));
}

/* A CQ keeps its parent domain. */
static void domain_of_a_cq(struct env *env)
{
	struct ibv_parent_domain_init_attr of_parent = { .pd = env->pd };
	struct ibv_pd *parent = ibv_alloc_parent_domain(env->dev.ctx, &of_parent);
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = parent,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(env->dev.ctx, &attr);

	need(parent && cq, "a CQ with a parent domain");
	check_errno(ibv_dealloc_pd(parent), EBUSY);
	need0(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	need0(ibv_dealloc_pd(parent));
	attr.parent_domain = env->pd;
	check_null(ibv_create_cq_ex(env->dev.ctx, &attr), EINVAL);
	attr.parent_domain = NULL;
	check_null(ibv_create_cq_ex(env->dev.ctx, &attr), EINVAL);
}

/* An SRQ is not made smaller than what it holds, or than its limit. */
static void smaller_srq(struct env *env)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(env->pd, &init);
	struct ibv_srq_attr attr = { .max_wr = 4, .srq_limit = 5 };
	struct ibv_recv_wr wr = { 0 }, *bad;

	need(srq, "ibv_create_srq");
	need0(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	check_errno(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), EINVAL);
	check_errno(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT), EINVAL);
	attr.srq_limit = 4;
	need0(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT));
	need0(ibv_post_srq_recv(srq, &wr, &bad));
	need0(ibv_post_srq_recv(srq, &wr, &bad));
	attr = (struct ibv_srq_attr){ .max_wr = 1 };
	check_errno(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT), EINVAL);
	need0(ibv_query_srq(srq, &attr));
	check(attr.max_wr == 4 && attr.srq_limit == 4, "size %u, limit %u", attr.max_wr,
	      attr.srq_limit);
	need0(ibv_destroy_srq(srq));
}

static void bad_registrations(struct env *env)
{
	unsigned char *hole = mmap(NULL, 8192, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *buf = page_alloc(4096);

	need(hole != MAP_FAILED, "mmap");
	check_null(ibv_reg_mr(env->pd, buf, 4096, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	check_null(ibv_reg_mr(env->pd, buf, 4096, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	need(munmap(hole + 4096, 4096) == 0, "munmap");
	check_null(ibv_reg_mr(env->pd, hole, 8192, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	check_null(ibv_reg_mr(env->pd, NULL, 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	need(mprotect(hole, 4096, PROT_READ) == 0, "mprotect");
	check_null(ibv_reg_mr(env->pd, hole, 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT);
}

static void beyond_the_limits(struct env *env)
{
	const struct ibv_device_attr *max = &env->dev.attr;
	struct ibv_cq *cq = env->bystander.a.cq;
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = max->max_srq_wr + 1, .max_sge = 1 } };
	struct ibv_qp_init_attr init;

#define refuse(...) do { \
		init = (struct ibv_qp_init_attr){ \
			.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, \
			.cap = { 4, 4, 1, 1, 0 }, \
		}; \
		__VA_ARGS__; \
		check_null(ibv_create_qp(env->pd, &init), EINVAL); \
	} while (0)
	refuse(init.cap.max_send_wr = max->max_qp_wr + 1);
	refuse(init.cap.max_recv_wr = max->max_qp_wr + 1);
	refuse(init.cap.max_send_sge = max->max_sge + 1);
	refuse(init.cap.max_recv_sge = max->max_sge + 1);
	refuse(init.cap.max_inline_data = 1u << 30);
	refuse(init.send_cq = NULL);
#undef refuse
	check_null(ibv_create_cq(env->dev.ctx, 0, NULL, NULL, 0), EINVAL);
	check_null(ibv_create_cq(env->dev.ctx, -1, NULL, NULL, 0), EINVAL);
	check_null(ibv_create_cq(env->dev.ctx, max->max_cqe + 1, NULL, NULL, 0), EINVAL);
	check_null(ibv_create_cq(env->dev.ctx, 4, NULL, NULL, env->dev.ctx->num_comp_vectors),
		   EINVAL);
	check_null(ibv_create_srq(env->pd, &srq), EINVAL);
}

static void bad_queries(struct env *env)
{
	struct ibv_port_attr port;
	union ibv_gid gid;
	__be16 pkey;

	check_errno(ibv_query_port(env->dev.ctx, 0, &port), EINVAL);
	check_errno(ibv_query_port(env->dev.ctx, 2, &port), EINVAL);
	check(ibv_query_gid(env->dev.ctx, 1, 100000, &gid) != 0, "GID 100000 exists");
	check(ibv_query_gid(env->dev.ctx, 2, 0, &gid) != 0, "port 2 has a GID");
	check(ibv_query_pkey(env->dev.ctx, 1, 100000, &pkey) != 0, "P_Key 100000 exists");
}

/* What this device does not offer says so. */
static void unsupported(struct env *env)
{
	struct ibv_xrcd_init_attr xrcd = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1,
	};
	struct ibv_alloc_dm_attr dm = { .length = 4096 };
	struct ibv_wq_init_attr wq = { .wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1,
				       .pd = env->pd, .cq = env->bystander.a.cq };
	struct ibv_flow_attr flow = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(flow),
				      .port = 1 };
	struct ibv_counters_init_attr counters = { 0 };
	struct ibv_qp_init_attr init = {
		.send_cq = env->bystander.a.cq, .recv_cq = env->bystander.a.cq,
		.qp_type = IBV_QPT_RAW_PACKET, .cap = { 4, 4, 1, 1, 0 },
	};
	struct ibv_xrcd *domain = (errno = 0, ibv_open_xrcd(env->dev.ctx, &xrcd));

	check_pointer(domain, EOPNOTSUPP, "ibv_open_xrcd", __FILE__, __LINE__);
	check_null(ibv_alloc_dm(env->dev.ctx, &dm), EOPNOTSUPP);
	check_null(ibv_create_wq(env->dev.ctx, &wq), EOPNOTSUPP);
	check_null(ibv_create_flow(env->bystander.a.qp, &flow), EOPNOTSUPP);
	check_null(ibv_create_counters(env->dev.ctx, &counters), EOPNOTSUPP);
	check_null(ibv_create_qp(env->pd, &init), EOPNOTSUPP);
	check_null(ibv_reg_dmabuf_mr(env->pd, 0, 4096, 0, 0, IBV_ACCESS_LOCAL_WRITE), EOPNOTSUPP);
}

/* A SEND and a WRITE with these flags, too, are as without. */
static void post_with_flags(struct env *env, unsigned int flags)
{
	struct side *a = &env->bystander.a, *b = &env->bystander.b;
	const enum ibv_wr_opcode ops[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE };

	for (int i = 0; i < 2; i++) {
		struct ibv_sge sge = { (uintptr_t)a->buf, 64, a->mr->lkey };
		struct ibv_send_wr *bad, wr = {
			.wr_id = 60 + i, .sg_list = &sge, .num_sge = 1, .opcode = ops[i],
			.send_flags = IBV_SEND_SIGNALED | flags,
			.wr.rdma = { (uintptr_t)b->buf, b->mr->rkey },
		};

		if (ops[i] == IBV_WR_SEND)
			need0(post_recv(b, 70, 64));
		check_errno(ibv_post_send(a->qp, &wr, &bad), 0);
		expect_wc(a->cq, 60 + i, IBV_WC_SUCCESS);
		if (ops[i] == IBV_WR_SEND)
			expect_wc(b->cq, 70, IBV_WC_SUCCESS);
	}
}

/* What newer programs set and an older provider does not know. */
static void newer_flags(struct env *env)
{
	/* IBV_ACCESS_FLUSH_GLOBAL, IBV_ACCESS_FLUSH_PERSISTENT. */
	const int flush = 1 << 8 | 1 << 9;
	unsigned char *buf = page_alloc(4096);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr = good_attr(env, IBV_QPS_INIT);
	struct ibv_mr *mr;
	struct pair p;

	pair_open(env, &p, NULL, false);
	attr.qp_access_flags = ANY_ACCESS | flush | 1 << 30;
	need0(ibv_modify_qp(p.a.qp, &attr, INIT_MASK));
	need0(ibv_query_qp(p.a.qp, &attr, IBV_QP_ACCESS_FLAGS, &init));
	check(attr.qp_access_flags == ANY_ACCESS, "flags %#x", attr.qp_access_flags);
	mr = ibv_reg_mr(env->pd, buf, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_HUGETLB);
	need(mr, "ibv_reg_mr");
	need0(ibv_dereg_mr(mr));
	/* The checksums of datagrams of IP, which are no part of a connection's messages. */
	post_with_flags(env, IBV_SEND_IP_CSUM);
	post_with_flags(env, 1u << 30);
	/* A region that peers may flush would be more than this device has. */
	check_null(ibv_reg_mr(env->pd, buf, 4096, IBV_ACCESS_LOCAL_WRITE | flush), EOPNOTSUPP);
}

static void resize_cq(struct env *env)
{
	struct side *a = &env->bystander.a, *b = &env->bystander.b;
	int before = a->cq->cqe;

	need0(ibv_resize_cq(a->cq, before * 4));
	check(a->cq->cqe >= before * 4, "resized to %d, is %d", before * 4, a->cq->cqe);
	need0(ibv_resize_cq(a->cq, before));
	check_errno(ibv_resize_cq(a->cq, 0), EINVAL);
	check_errno(ibv_resize_cq(a->cq, env->dev.attr.max_cqe + 1), EINVAL);
	/* What is in the queue stays in it. */
	for (int i = 0; i < 4; i++)
		need0(post_send(a, 50 + i, IBV_WR_RDMA_WRITE, 8, (uintptr_t)b->buf, b->mr->rkey));
	need0(ibv_resize_cq(a->cq, before * 2));
	for (int i = 0; i < 4; i++)
		expect_wc(a->cq, 50 + i, IBV_WC_SUCCESS);
}

const struct error_case api_cases[] = {
	{ "api: modify_qp, every transition", illegal_transitions },
	{ "api: modify_qp, missing and alien attributes", missing_and_alien_attributes },
	{ "api: modify_qp, values out of range", bad_attribute_values },
	{ "api: posting in the wrong state", posting_in_the_wrong_state },
	{ "api: bad work requests", bad_work_requests },
	{ "api: destroying what is in use", busy_objects },
	{ "api: the parent domain of a CQ", domain_of_a_cq },
	{ "api: an SRQ is made smaller", smaller_srq },
	{ "api: registering what can't be", bad_registrations },
	{ "api: beyond the device's limits", beyond_the_limits },
	{ "api: queries of what does not exist", bad_queries },
	{ "api: unsupported objects", unsupported },
	{ "api: flags that newer programs set", newer_flags },
	{ "api: resize_cq", resize_cq },
	{ 0 },
};
