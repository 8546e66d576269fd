/* Objects for the checks: see check.h. */
#include "check.h"
#include <time.h>

int failures;

struct ibv_context *open_first(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;

	NEED(list && list[0]);
	context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	NEED(context);
	return context;
}

struct ibv_qp_init_attr qp_attr(struct ibv_cq *send, struct ibv_cq *recv)
{
	return (struct ibv_qp_init_attr){
		.send_cq = send,
		.recv_cq = recv,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2,
			 .max_recv_sge = 2, .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
	};
}

int to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC,
	};

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						IBV_QP_ACCESS_FLAGS);
}

int connect_to(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1 },
		.max_rd_atomic = 4,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
	};
	int failed;

	if (ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid))
		return errno;
	failed = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						  IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						  IBV_QP_MAX_DEST_RD_ATOMIC |
						  IBV_QP_MIN_RNR_TIMER);
	if (failed)
		return failed;
	attr.qp_state = IBV_QPS_RTS;
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						IBV_QP_MAX_QP_RD_ATOMIC);
}

void pair_create(struct pair *pair, struct ibv_context *context)
{
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_qp_init_attr attr;

	pair->context = context;
	NEED(pair->pd = ibv_alloc_pd(context));
	NEED(pair->channel = ibv_create_comp_channel(context));
	NEED(pair->srq = ibv_create_srq(pair->pd, &srq));
	for (int i = 0; i < 2; i++) {
		NEED(pair->cq[i] = ibv_create_cq(context, 64, pair, pair->channel, 0));
		attr = qp_attr(pair->cq[i], pair->cq[i]);
		attr.srq = i ? pair->srq : NULL;
		NEED(pair->qp[i] = ibv_create_qp(pair->pd, &attr));
		NEED(to_init(pair->qp[i]) == 0);
	}
	NEED(connect_to(pair->qp[0], pair->qp[1]->qp_num) == 0);
	NEED(connect_to(pair->qp[1], pair->qp[0]->qp_num) == 0);
	NEED(pair->buffer = aligned_alloc(4096, BUFFER_SIZE));
	memset(pair->buffer, 0, BUFFER_SIZE);
	NEED(pair->mr = ibv_reg_mr(pair->pd, pair->buffer, BUFFER_SIZE, IBV_ACCESS_LOCAL_WRITE));
}

void pair_destroy(struct pair *pair)
{
	CHECK(ibv_dealloc_pd(pair->pd) == EBUSY);
	CHECK(ibv_destroy_cq(pair->cq[0]) == EBUSY);
	CHECK(ibv_destroy_srq(pair->srq) == EBUSY);
	CHECK(ibv_destroy_comp_channel(pair->channel) == EBUSY);
	CHECK(pair->channel->refcnt == 2);
	for (int i = 0; i < 2; i++) {
		CHECK(ibv_destroy_qp(pair->qp[i]) == 0);
		CHECK(ibv_destroy_cq(pair->cq[i]) == 0);
	}
	CHECK(ibv_destroy_srq(pair->srq) == 0);
	CHECK(ibv_destroy_comp_channel(pair->channel) == 0);
	CHECK(ibv_dereg_mr(pair->mr) == 0);
	CHECK(ibv_dealloc_pd(pair->pd) == 0);
	free(pair->buffer);
}

int completion(struct ibv_cq *cq, struct ibv_wc *wc)
{
	time_t end = time(NULL) + 5;
	int found;

	do {
		found = ibv_poll_cq(cq, 1, wc);
		if (found)
			return found == 1 ? (int)wc->status : -1;
	} while (time(NULL) <= end);
	return -1;
}

void post_receive(struct pair *pair, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)pair->buffer + 4096, 4096, pair->mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 };

	CHECK(ibv_post_srq_recv(pair->srq, &wr, &bad) == 0);
}

int post_send(struct pair *pair, uint64_t id, unsigned int flags, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)pair->buffer, length, pair->mr->lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1,
					.opcode = IBV_WR_SEND, .send_flags = flags };

	return ibv_post_send(pair->qp[0], &wr, &bad);
}
