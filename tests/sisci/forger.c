/*
 * The queue pair of somebody who speaks to a node daemon by himself (strangers.py). Commands come
 * on standard input:
 *
 *	new			another queue pair: "qp NUMBER"
 *	join QPN PSN GID	joins it to the daemon's: "joined"
 *	write ADDRESS RKEY LENGTH, read ADDRESS RKEY LENGTH
 *	send WORD		as a trigger is sent
 *
 * The answer to a request is "done STATUS", of its completion.
 */
#include "../verify/common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES 4096
#define PSN 77

static struct device dev;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static unsigned char *memory;

static const struct qp_params params = {
	.access = IBV_ACCESS_LOCAL_WRITE,
	.rd_atomic = 1,
	.min_rnr_timer = 12,
	.timeout = 14,
	.retry_cnt = 7,
	.rnr_retry = 7,
};

/* The GID that is an IPv4 address: the daemon's is one. */
static int gid_of_ipv4(void)
{
	static const unsigned char prefix[12] = { [10] = 0xff, [11] = 0xff };
	union ibv_gid gid;

	for (int i = 0; i < dev.port.gid_tbl_len; i++)
		if (!ibv_query_gid(dev.ctx, 1, i, &gid) && !memcmp(gid.raw, prefix, sizeof(prefix)))
			return i;
	fail("no address of IPv4");
}

static void another(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { 16, 1, 1, 1, 0 },
		.sq_sig_all = 1,
	};

	if (qp)
		need0(ibv_destroy_qp(qp));
	qp = ibv_create_qp(pd, &init);
	need(qp, "ibv_create_qp");
	need0(qp_to_init(qp, &params));
	printf("qp %u\n", qp->qp_num);
}

static void join(uint32_t qpn, uint32_t psn, const char *hex)
{
	struct qp_addr peer = { .qpn = qpn, .psn = psn };

	for (int i = 0; i < 16; i++)
		need(sscanf(hex + 2 * i, "%2hhx", &peer.gid.raw[i]) == 1, "a GID");
	need0(qp_to_rtr(qp, &dev, &params, &peer));
	need0(qp_to_rts(qp, &params, PSN));
	printf("joined\n");
}

static void request(enum ibv_wr_opcode opcode, uint64_t address, uint32_t rkey, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)memory, length, mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.wr.rdma = { address, rkey },
	};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int n;

	need0(ibv_post_send(qp, &wr, &bad));
	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	need(n == 1, "ibv_poll_cq");
	printf("done %d\n", wc.status);
}

int main(void)
{
	char word[16], hex[40];
	unsigned long long a, b, c;

	device_open(&dev, NULL, 0);
	dev.gid_index = gid_of_ipv4();
	memory = page_alloc(BYTES);
	pd = ibv_alloc_pd(dev.ctx);
	need(pd, "ibv_alloc_pd");
	cq = ibv_create_cq(dev.ctx, 64, NULL, NULL, 0);
	need(cq, "ibv_create_cq");
	mr = ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE);
	need(mr, "ibv_reg_mr");
	while (scanf("%15s", word) == 1) {
		if (!strcmp(word, "new")) {
			another();
		} else if (!strcmp(word, "join") && scanf("%llu %llu %39s", &a, &b, hex) == 3) {
			join((uint32_t)a, (uint32_t)b, hex);
		} else if (!strcmp(word, "send") && scanf("%llu", &a) == 1) {
			uint32_t trigger = (uint32_t)a;

			memcpy(memory, &trigger, sizeof(trigger));
			request(IBV_WR_SEND, 0, 0, sizeof(trigger));
		} else if (scanf("%llu %llu %llu", &a, &b, &c) == 3 && c <= BYTES) {
			request(!strcmp(word, "read") ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, a,
				(uint32_t)b, (uint32_t)c);
		}
		fflush(stdout);
	}
	return 0;
}
