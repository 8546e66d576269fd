// The operations that are counted: two queue pairs of one process, driven by one thread, and each
// step's answer has arrived before the step that takes it.

#include "../verify/common.h"
#include "counts.h"

#include <stdlib.h>
#include <string.h>

enum {
	DEPTH = 128,
	PSN = 7,
	BYTES = 8,
	// Of a message that takes several lines of a ring.
	LONG_BYTES = 256,
	// Of a WRITE of many datagrams, which go to the kernel in one call.
	STREAM_BYTES = 48 << 10,
	STREAM_CALLS = 64,
	STREAM_SAMPLES = 20,
	MEMORY = 1 << 18,
	AT_STREAM = 1 << 17,
	AT_TARGET = 4096,
	AT_RECEIVED = 8192,
	INLINE_MAX = 64,
	// Every so many unsignaled requests one is signaled, and not counted.
	SIGNALED_EACH = 32,
};

static const struct qp_params params = {
	.access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	// A stepped operation takes long.
	.timeout = 20,
	.retry_cnt = 7,
	.rnr_retry = 7,
	.min_rnr_timer = 1,
	.rd_atomic = 16,
};

static struct device dev;
static unsigned char *memory;
static struct ibv_mr *mr;
// The requester's and the responder's.
static struct ibv_cq *cq[2];
static struct ibv_qp *qp[2];
// Of the next request, and of the next receive.
static uint32_t bytes = BYTES;

void operations_open(void)
{
	struct ibv_pd *pd;

	device_open(&dev, NULL, 0);
	memory = page_alloc(MEMORY);
	pd = ibv_alloc_pd(dev.ctx);
	need(pd, "ibv_alloc_pd");
	mr = ibv_reg_mr(pd, memory, MEMORY, IBV_ACCESS_LOCAL_WRITE | params.access);
	need(mr, "ibv_reg_mr");
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {
			.qp_type = IBV_QPT_RC,
			.cap = { DEPTH, DEPTH, 1, 1, INLINE_MAX },
		};

		cq[i] = ibv_create_cq(dev.ctx, 2 * DEPTH, NULL, NULL, 0);
		need(cq[i], "ibv_create_cq");
		init.send_cq = init.recv_cq = cq[i];
		qp[i] = ibv_create_qp(pd, &init);
		need(qp[i], "ibv_create_qp");
		need0(qp_to_init(qp[i], &params));
	}
	for (int i = 0; i < 2; i++) {
		struct qp_addr peer = { qp[1 - i]->qp_num, PSN, dev.gid };

		need0(qp_to_rtr(qp[i], &dev, &params, &peer));
		need0(qp_to_rts(qp[i], &params, PSN));
	}
}

// Polls without counting until a completion is there.
static void take(struct ibv_cq *from)
{
	struct ibv_wc wc;
	int n;

	do {
		n = ibv_poll_cq(from, 1, &wc);
		need(n >= 0, "ibv_poll_cq");
	} while (n == 0);
	if (wc.status != IBV_WC_SUCCESS)
		fail("%s", ibv_wc_status_str(wc.status));
}

// Polls once, which must give the completion.
static void take_at_once(struct ibv_cq *from)
{
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
	int n;

	counts_begin();
	n = ibv_poll_cq(from, 1, &wc);
	counts_end();
	if (n != 1)
		take(from);
	else if (wc.status != IBV_WC_SUCCESS)
		fail("%s", ibv_wc_status_str(wc.status));
}

static struct ibv_sge at(size_t offset)
{
	return (struct ibv_sge){ (uintptr_t)memory + offset, bytes, mr->lkey };
}

static void request(enum ibv_wr_opcode opcode, int flags, bool counted)
{
	struct ibv_sge sge = at(0);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode,
				  .send_flags = flags }, *bad;
	int rc;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)memory + AT_TARGET;
		wr.wr.atomic.rkey = mr->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)memory + AT_TARGET;
		wr.wr.rdma.rkey = mr->rkey;
	}
	if (counted)
		counts_begin();
	rc = ibv_post_send(qp[0], &wr, &bad);
	if (counted)
		counts_end();
	need0(rc);
}

static void receive(int end, bool counted)
{
	struct ibv_sge sge = at(AT_RECEIVED);
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	int rc;

	if (counted)
		counts_begin();
	rc = ibv_post_recv(qp[end], &wr, &bad);
	if (counted)
		counts_end();
	need0(rc);
}

static void posted_write(void)
{
	static unsigned int number;

	request(IBV_WR_RDMA_WRITE, 0, true);
	if (++number % SIGNALED_EACH == 0) {
		request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, false);
		take(cq[0]);
	}
}

static void posted_inline_write(void)
{
	static unsigned int number;

	request(IBV_WR_RDMA_WRITE, IBV_SEND_INLINE, true);
	if (++number % SIGNALED_EACH == 0) {
		request(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, false);
		take(cq[0]);
	}
}

static void signaled(enum ibv_wr_opcode opcode)
{
	request(opcode, IBV_SEND_SIGNALED, true);
	take_at_once(cq[0]);
}

static void signaled_write(void)
{
	signaled(IBV_WR_RDMA_WRITE);
}

static void read_round(void)
{
	signaled(IBV_WR_RDMA_READ);
}

static void atomic_round(void)
{
	signaled(IBV_WR_ATOMIC_FETCH_AND_ADD);
}

static void send_round(void)
{
	receive(1, true);
	request(IBV_WR_SEND, IBV_SEND_SIGNALED, true);
	take_at_once(cq[1]);
	take_at_once(cq[0]);
}

static void long_send_round(void)
{
	bytes = LONG_BYTES;
	send_round();
}

static void send_to_network(void)
{
	receive(1, false);
	request(IBV_WR_SEND, IBV_SEND_SIGNALED, true);
	take(cq[1]);
	take(cq[0]);
}

// A WRITE of many datagrams: its sending counts, or else the poll that receives them.
static void stream(bool sending)
{
	struct ibv_sge sge = { (uintptr_t)memory, STREAM_BYTES, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
	int n = 0;

	wr.wr.rdma.remote_addr = (uintptr_t)memory + AT_STREAM;
	wr.wr.rdma.rkey = mr->rkey;
	if (sending)
		counts_begin();
	need0(ibv_post_send(qp[0], &wr, &bad));
	if (sending) {
		counts_end();
	} else {
		counts_begin();
		n = ibv_poll_cq(cq[0], 1, &wc);
		counts_end();
	}
	if (n == 0)
		take(cq[0]);
	else if (n < 0 || wc.status != IBV_WC_SUCCESS)
		fail("a WRITE: %s", ibv_wc_status_str(wc.status));
}

static void stream_sent(void)
{
	stream(true);
}

static void stream_received(void)
{
	stream(false);
}

static void empty_poll(void)
{
	struct ibv_wc wc;

	counts_begin();
	need(ibv_poll_cq(cq[0], 1, &wc) == 0, "an empty completion queue");
	counts_end();
}

const struct operation operations[] = {
	{ "posted-write", posted_write, 1, false, SAMPLES_MAX },
	{ "posted-inline-write", posted_inline_write, 1, false, SAMPLES_MAX },
	{ "signaled-write", signaled_write, 2, false, SAMPLES_MAX },
	{ "read", read_round, 2, false, SAMPLES_MAX },
	{ "atomic", atomic_round, 2, false, SAMPLES_MAX },
	{ "send-round", send_round, 4, false, SAMPLES_MAX },
	{ "long-send-round", long_send_round, 4, false, SAMPLES_MAX },
	{ "empty-poll", empty_poll, 1, false, SAMPLES_MAX },
	{ "stream-sent", stream_sent, STREAM_CALLS, false, STREAM_SAMPLES },
	{ "stream-received", stream_received, STREAM_CALLS, false, STREAM_SAMPLES },
	{ "send-to-network", send_to_network, 6, true, SAMPLES_MAX },
};
const int operations_number = sizeof(operations) / sizeof(*operations);
