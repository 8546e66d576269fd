/* Posting, polling and the extended interfaces, between two queue pairs of one process. */
#include "check.h"

static void check_send(struct pair *pair)
{
	struct ibv_wc wc;

	for (uint64_t i = 1; i <= 20; i++) {
		memset(pair->buffer, (int)i, 100);
		post_receive(pair, 100 + i);
		CHECK(post_send(pair, i, IBV_SEND_SIGNALED, 100) == 0);
		CHECK(completion(pair->cq[0], &wc) == IBV_WC_SUCCESS);
		CHECK(wc.wr_id == i && wc.opcode == IBV_WC_SEND);
		CHECK(wc.qp_num == pair->qp[0]->qp_num);
		CHECK(completion(pair->cq[1], &wc) == IBV_WC_SUCCESS);
		CHECK(wc.wr_id == 100 + i && wc.opcode == IBV_WC_RECV && wc.byte_len == 100);
		CHECK(wc.qp_num == pair->qp[1]->qp_num && !(wc.wc_flags & IBV_WC_WITH_IMM));
		CHECK(!memcmp(pair->buffer, pair->buffer + 4096, 100));
	}
	CHECK(ibv_poll_cq(pair->cq[0], 1, &wc) == 0);
}

/* Of a chain, what precedes the bad request is posted, and the bad one is pointed at. */
static void check_bad_request(struct pair *pair)
{
	struct ibv_sge sge = { (uintptr_t)pair->buffer, 8, pair->mr->lkey };
	struct ibv_send_wr wr[3], *bad = NULL;
	struct ibv_wc wc;

	memset(wr, 0, sizeof(wr));
	for (int i = 0; i < 3; i++) {
		wr[i] = (struct ibv_send_wr){ .wr_id = i, .next = i < 2 ? &wr[i + 1] : NULL,
					      .sg_list = &sge, .num_sge = 1,
					      .opcode = IBV_WR_SEND_WITH_IMM,
					      .imm_data = 0x01020304,
					      .send_flags = IBV_SEND_SIGNALED };
	}
	wr[1].num_sge = 1000;
	post_receive(pair, 7);
	CHECK(ibv_post_send(pair->qp[0], wr, &bad) == EINVAL);
	CHECK(bad == &wr[1]);
	CHECK(completion(pair->cq[0], &wc) == IBV_WC_SUCCESS && wc.wr_id == 0);
	CHECK(completion(pair->cq[1], &wc) == IBV_WC_SUCCESS && wc.wr_id == 7);
	CHECK(wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == 0x01020304);
	wr[1].num_sge = 1;
	wr[1].opcode = 77;
	CHECK(ibv_post_send(pair->qp[0], &wr[1], &bad) == EINVAL && bad == &wr[1]);
	CHECK(ibv_poll_cq(pair->cq[0], 1, &wc) == 0);
}

void check_posting(struct pair *pair)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct ibv_wc wc;

	check_send(pair);
	check_bad_request(pair);
	post_receive(pair, 8);
	CHECK(post_send(pair, 9, IBV_SEND_SIGNALED | IBV_SEND_INLINE, 64) == 0);
	memset(pair->buffer, 0xee, 64); /* inline: the buffer is ours again at once */
	CHECK(completion(pair->cq[1], &wc) == IBV_WC_SUCCESS);
	CHECK((unsigned char)pair->buffer[4096] != 0xee);
	CHECK(completion(pair->cq[0], &wc) == IBV_WC_SUCCESS && wc.wr_id == 9);
	CHECK(post_send(pair, 10, IBV_SEND_INLINE, 4096) == EINVAL);
	CHECK(ibv_query_qp(pair->qp[0], &attr, IBV_QP_STATE, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_RTS && pair->qp[0]->state == IBV_QPS_RTS);
	CHECK(attr.dest_qp_num == pair->qp[1]->qp_num && attr.timeout == 14);
	CHECK(attr.retry_cnt == 7 && attr.rnr_retry == 7 && attr.max_rd_atomic == 4);
	CHECK(attr.ah_attr.is_global == 1 && attr.path_mtu == IBV_MTU_1024);
	CHECK(init.send_cq == pair->cq[0] && init.qp_type == IBV_QPT_RC && !init.srq);
}

static struct ibv_qp *create_extended(struct ibv_pd *pd, struct ibv_cq_ex *cq)
{
	struct ibv_qp_init_attr plain = qp_attr(ibv_cq_ex_to_cq(cq), ibv_cq_ex_to_cq(cq));
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = plain.send_cq,
		.recv_cq = plain.recv_cq,
		.cap = plain.cap,
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_TSO,
	};

	CHECK(!ibv_create_qp_ex(pd->context, &attr) && errno == EOPNOTSUPP);
	attr.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND |
			      IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_RDMA_READ;
	return ibv_create_qp_ex(pd->context, &attr);
}

/* Polls one completion through the extended interface. */
static void expect(struct ibv_cq_ex *cq, uint64_t id, enum ibv_wc_opcode opcode, uint32_t qpn)
{
	struct ibv_poll_cq_attr attr = { 0 };
	struct timespec now;
	uint64_t ts;
	int result;

	do
		result = ibv_start_poll(cq, &attr);
	while (result == ENOENT);
	NEED(result == 0);
	if (cq->status != IBV_WC_SUCCESS)
		printf("status: %s\n", ibv_wc_status_str(cq->status));
	CHECK(cq->wr_id == id && cq->status == IBV_WC_SUCCESS);
	CHECK(ibv_wc_read_opcode(cq) == opcode && ibv_wc_read_qp_num(cq) == qpn);
	clock_gettime(CLOCK_MONOTONIC, &now);
	ts = ibv_wc_read_completion_ts(cq);
	CHECK(ts > 0 && ts <= now.tv_sec * 1000000000ull + now.tv_nsec);
	clock_gettime(CLOCK_REALTIME, &now);
	ts = ibv_wc_read_completion_wallclock_ns(cq) / 1000000000ull;
	CHECK(ts <= (uint64_t)now.tv_sec + 1 && ts + 60 > (uint64_t)now.tv_sec);
	CHECK(ibv_next_poll(cq) == ENOENT);
	ibv_end_poll(cq);
	CHECK(ibv_start_poll(cq, &attr) == ENOENT);
}

/* One batch: WRITE from two places, atomic; then batches that must post nothing. */
static void check_batches(struct ibv_qp *qp, struct ibv_cq_ex *cq, struct ibv_mr *mr, char *at)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	struct ibv_data_buf parts[2] = { { "hello ", 6 }, { "world", 5 } };
	struct ibv_poll_cq_attr none = { 0 };

	NEED(ex);
	ibv_wr_start(ex);
	ex->wr_id = 1;
	ex->wr_flags = 0;
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)at + 1024);
	ibv_wr_set_inline_data_list(ex, 2, parts);
	ex->wr_id = 2;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_atomic_fetch_add(ex, mr->rkey, (uintptr_t)at + 2048, 5);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)at, 8);
	CHECK(ibv_wr_complete(ex) == 0);
	expect(cq, 2, IBV_WC_FETCH_ADD, qp->qp_num);
	CHECK(!memcmp(at + 1024, "hello world", 12));
	CHECK(*(uint64_t *)at == 37 && *(uint64_t *)(at + 2048) == 42);

	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)at + 1024);
	ibv_wr_set_inline_data(ex, "x", 1);
	ibv_wr_abort(ex);
	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)at + 1024);
	ibv_wr_set_inline_data(ex, "x", 1);
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)at + 1024);
	ibv_wr_set_inline_data(ex, at, 4096);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	ibv_wr_start(ex);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)at, 8);
	CHECK(ibv_wr_complete(ex) == EINVAL);
	CHECK(ibv_start_poll(cq, &none) == ENOENT);
	CHECK(at[1024] == 'h');
}

void check_extended(struct ibv_context *context)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 32,
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK |
			    IBV_WC_EX_WITH_CVLAN,
	};
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
	char *buffer = aligned_alloc(4096, 4096);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	const char *wire = getenv("CAUSEWAY_WIRE");
	struct ibv_cq_ex *cq;
	struct ibv_qp *qp, *peer;
	struct ibv_mr *mr;

	CHECK(!ibv_create_cq_ex(context, &attr) && errno == EOPNOTSUPP);
	attr.wc_flags &= ~IBV_WC_EX_WITH_CVLAN;
	NEED(pd && buffer && (cq = ibv_create_cq_ex(context, &attr)));
	memset(buffer, 0, 4096);
	*(uint64_t *)(buffer + 2048) = 37;
	NEED(mr = ibv_reg_mr(pd, buffer, 4096, access));
	NEED(qp = create_extended(pd, cq));
	NEED(peer = create_extended(pd, cq));
	NEED(to_init(qp) == 0 && to_init(peer) == 0);
	/* A queue pair may be its own peer, if not over a ring, whose two ends are two. */
	NEED(connect_to(peer, wire && !strcmp(wire, "udp") ? peer->qp_num : qp->qp_num) == 0);
	NEED(connect_to(qp, wire && !strcmp(wire, "udp") ? qp->qp_num : peer->qp_num) == 0);
	check_batches(qp, cq, mr, buffer);
	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK(ibv_destroy_qp(peer) == 0);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
	free(buffer);
}
