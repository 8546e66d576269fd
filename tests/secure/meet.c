/* A process with so many queue pairs, each of which is connected when the standard input says so:
 * "hear INDEX NUMBER ADDRESS" has one hear its peer, "meet INDEX NUMBER ADDRESS" connects one, has
 * it send a message, and tells how long that took and how it ended. */
#include "../verify/common.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QPS_MAX 64
#define BYTES 64

static const struct qp_params params = {
	.access = IBV_ACCESS_LOCAL_WRITE,
	.timeout = 14,
	.retry_cnt = 7,
	.rnr_retry = 7,
	.min_rnr_timer = 1,
	.rd_atomic = 1,
};

static struct device dev;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char data[2][BYTES];

static struct ibv_qp *make(struct ibv_pd *pd)
{
	struct ibv_sge sge = { (uintptr_t)data[1], BYTES, mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { 1, 1, 1, 1, 0 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	need(qp, "ibv_create_qp");
	need0(qp_to_init(qp, &params));
	need0(ibv_post_recv(qp, &recv, &bad));
	return qp;
}

static void hear(struct ibv_qp *qp, uint32_t number, const char *address)
{
	struct qp_addr peer = { .qpn = number };

	peer.gid.raw[10] = peer.gid.raw[11] = 0xff;
	if (inet_pton(AF_INET, address, &peer.gid.raw[12]) != 1)
		fail("%s is no address", address);
	need0(qp_to_rtr(qp, &dev, &params, &peer));
}

static struct ibv_wc await(void)
{
	struct ibv_wc wc;
	void *context;
	int n;

	for (;;) {
		need0(ibv_req_notify_cq(cq, 0));
		n = ibv_poll_cq(cq, 1, &wc);
		need(n >= 0, "ibv_poll_cq");
		if (n)
			return wc;
		need0(ibv_get_cq_event(channel, &cq, &context));
		ibv_ack_cq_events(cq, 1);
	}
}

static void meet(struct ibv_qp *qp, uint32_t number, const char *address)
{
	struct ibv_sge sge = { (uintptr_t)data[0], BYTES, mr->lkey };
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct timespec begun, now;
	struct ibv_wc wc;

	clock_gettime(CLOCK_MONOTONIC, &begun);
	hear(qp, number, address);
	need0(qp_to_rts(qp, &params, 0));
	need0(ibv_post_send(qp, &send, &bad));
	wc = await();
	clock_gettime(CLOCK_MONOTONIC, &now);
	printf("met in %ld us: %s\n",
	       (now.tv_sec - begun.tv_sec) * 1000000 + (now.tv_nsec - begun.tv_nsec) / 1000,
	       ibv_wc_status_str(wc.status));
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 0;
	struct ibv_qp *qps[QPS_MAX];
	char line[128], what[8], address[64];
	struct ibv_pd *pd;
	uint32_t number;
	int index;

	if (count < 1 || count > QPS_MAX)
		fail("1 to %d queue pairs", QPS_MAX);
	setvbuf(stdout, NULL, _IOLBF, 0);
	device_open(&dev, NULL, 0);
	pd = ibv_alloc_pd(dev.ctx);
	channel = ibv_create_comp_channel(dev.ctx);
	need(pd && channel, "ibv_alloc_pd, ibv_create_comp_channel");
	cq = ibv_create_cq(dev.ctx, 2 * QPS_MAX, NULL, channel, 0);
	mr = ibv_reg_mr(pd, data, sizeof(data), IBV_ACCESS_LOCAL_WRITE);
	need(cq && mr, "ibv_create_cq, ibv_reg_mr");
	for (int i = 0; i < count; i++) {
		qps[i] = make(pd);
		printf("%u ", qps[i]->qp_num);
	}
	printf("\n");
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "%7s %d %u %63s", what, &index, &number, address) != 4 ||
		    index < 0 || index >= count)
			fail("what is %s", line);
		if (strcmp(what, "meet")) {
			hear(qps[index], number, address);
			printf("hears\n");
		} else {
			meet(qps[index], number, address);
		}
	}
	return 0;
}
