/* Sends to a multicast group, or hears what is sent to it, as the standard input says: "tell COUNT
 * TAG" sends datagrams that bear a tag, "hear COUNT TAG" waits until as many of the tag have come,
 * and fails if others do, or one twice, or one with other bytes. Both answer by a line. */
#include "../verify/common.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GRH 40
#define SIZE_MOST 4096
#define RECEIVES 64
#define QKEY 0x11111111
#define MULTICAST_QPN 0xffffff
/* What stands in each datagram behind its head, and in none that is sealed. */
#define MARK 0x7b
/* Long enough for the slowest machine; whoever waits longer waits for ever. */
#define SECONDS 30
#define NUMBERS 65536

struct head {
	uint32_t tag;
	uint32_t number;
};

static struct device dev;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp;
static struct ibv_ah *ah;
static char slots[RECEIVES + 1][GRH + SIZE_MOST];
static uint32_t size;
/* How often each number of the tag has come. */
static unsigned char seen[NUMBERS];
static uint32_t tag_heard, heard, told;

static void receive(uint64_t slot)
{
	struct ibv_sge sge = { (uintptr_t)slots[slot], sizeof(slots[slot]), mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	need0(ibv_post_recv(qp, &recv, &bad));
}

static struct ibv_wc await(void)
{
	time_t until = time(NULL) + SECONDS;
	struct ibv_wc wc;
	int n;

	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		if (time(NULL) > until)
			fail("nothing comes any more after %u", heard);
	need(n > 0, "ibv_poll_cq");
	if (wc.status != IBV_WC_SUCCESS)
		fail("%s", ibv_wc_status_str(wc.status));
	return wc;
}

static void take(const struct ibv_wc *wc)
{
	const char *at = slots[wc->wr_id] + GRH;
	struct head head;

	memcpy(&head, at, sizeof(head));
	if (wc->byte_len != GRH + size || head.tag != tag_heard)
		fail("%u bytes of %u came", wc->byte_len, head.tag);
	for (uint32_t i = sizeof(head); i < size; i++)
		if (at[i] != MARK)
			fail("byte %u of %u is another", i, head.number);
	if (head.number >= NUMBERS || seen[head.number]++)
		fail("%u came twice", head.number);
	heard++;
	receive(wc->wr_id);
}

static void hear(uint32_t count, uint32_t tag)
{
	struct ibv_wc wc;

	if (tag != tag_heard) {
		memset(seen, 0, sizeof(seen));
		tag_heard = tag;
		heard = 0;
	}
	for (uint32_t until = heard + count; heard < until;) {
		wc = await();
		take(&wc);
	}
	printf("heard %u\n", heard);
}

static void tell(uint32_t count, uint32_t tag)
{
	char *at = slots[RECEIVES];
	struct ibv_sge sge = { (uintptr_t)at, size, mr->lkey };
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_SIGNALED }, *bad;

	send.wr.ud.ah = ah;
	send.wr.ud.remote_qpn = MULTICAST_QPN;
	send.wr.ud.remote_qkey = QKEY;
	memset(at, MARK, size);
	for (uint32_t i = 0; i < count; i++) {
		struct head head = { tag, told++ };

		memcpy(at, &head, sizeof(head));
		need0(ibv_post_send(qp, &send, &bad));
		await();
	}
	printf("told %u\n", told);
}

static void make(struct ibv_pd *pd)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_UD,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { 1, RECEIVES, 1, 1, 0 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };

	qp = ibv_create_qp(pd, &init);
	need(qp, "ibv_create_qp");
	need0(ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	need0(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	need0(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

int main(int argc, char **argv)
{
	struct ibv_ah_attr way = { .is_global = 1, .port_num = 1 };
	bool hears = argc > 1 && !strcmp(argv[1], "hear");
	char line[128], what[8];
	struct ibv_pd *pd;
	uint32_t count, tag;

	size = argc > 4 ? atoi(argv[3]) : 0;
	if (size < sizeof(struct head) || size > SIZE_MOST ||
	    inet_pton(AF_INET6, argv[2], &way.grh.dgid) != 1)
		fail("usage: group hear|tell GID SIZE GID_INDEX");
	way.grh.sgid_index = atoi(argv[4]);
	way.grh.hop_limit = 1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	device_open(&dev, NULL, 0);
	pd = ibv_alloc_pd(dev.ctx);
	need(pd, "ibv_alloc_pd");
	cq = ibv_create_cq(dev.ctx, 2 * RECEIVES, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, slots, sizeof(slots), IBV_ACCESS_LOCAL_WRITE);
	need(cq && mr, "ibv_create_cq, ibv_reg_mr");
	make(pd);
	if (hears) {
		for (int i = 0; i < RECEIVES; i++)
			receive(i);
		need0(ibv_attach_mcast(qp, &way.grh.dgid, 0));
	} else {
		ah = ibv_create_ah(pd, &way);
		need(ah, "ibv_create_ah");
	}
	printf("ready\n");
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "%7s %u %u", what, &count, &tag) != 3)
			fail("what is %s", line);
		if (hears)
			hear(count, tag);
		else
			tell(count, tag);
	}
	return 0;
}
