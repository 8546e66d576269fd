/*
 * asker ADDRESS PORT: as the client of an ibv_rc_pingpong, sends one message to the queue pair that
 * the server names, and prints status and vendor error of its completion.
 */
#include "../verify/common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* LID, QPN, PSN and GID, as pingpong tells them; then "done". */
#define WORDS "0000:%06x:%06x:%s"
#define WORDS_BYTES 52
#define GID_DIGITS 32
#define BYTES 64

static const struct qp_params params = {
	.timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 12, .rd_atomic = 1,
};

static void tell(int fd, const struct ibv_qp *qp, const union ibv_gid *gid)
{
	char words[WORDS_BYTES] = "", digits[GID_DIGITS + 1];

	for (int i = 0; i < 16; i++)
		snprintf(digits + 2 * i, 3, "%02x", gid->raw[i]);
	snprintf(words, sizeof(words), WORDS, qp->qp_num, 1, digits);
	oob_send(fd, words, sizeof(words));
}

static void hear(int fd, struct qp_addr *peer)
{
	char words[WORDS_BYTES + 1] = "", digits[GID_DIGITS + 1];

	oob_recv(fd, words, WORDS_BYTES);
	need(sscanf(words, "%*x:%x:%x:%32s", &peer->qpn, &peer->psn, digits) == 3, words);
	for (int i = 0; i < 16; i++)
		need(sscanf(digits + 2 * i, "%2hhx", &peer->gid.raw[i]) == 1, digits);
	oob_send(fd, "done", 5);
}

int main(int argc, char **argv)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_SEND, .num_sge = 1,
					.send_flags = IBV_SEND_SIGNALED };
	struct ibv_sge sge = { .length = BYTES };
	struct qp_addr peer;
	struct device dev;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	struct ibv_wc wc;
	void *memory;
	int fd;

	if (argc != 3)
		return EXIT_FAILURE;
	memory = page_alloc(BYTES);
	device_open(&dev, NULL, 0);
	need(pd = ibv_alloc_pd(dev.ctx), "ibv_alloc_pd");
	need(init.send_cq = init.recv_cq = ibv_create_cq(dev.ctx, 2, NULL, NULL, 0),
	     "ibv_create_cq");
	need(mr = ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr");
	need(qp = ibv_create_qp(pd, &init), "ibv_create_qp");
	need0(qp_to_init(qp, &params));
	fd = oob_connect(argv[1], argv[2]);
	tell(fd, qp, &dev.gid);
	hear(fd, &peer);
	need0(qp_to_rtr(qp, &dev, &params, &peer));
	need0(qp_to_rts(qp, &params, 1));
	sge.addr = (uintptr_t)memory;
	sge.lkey = mr->lkey;
	wr.sg_list = &sge;
	need0(ibv_post_send(qp, &wr, &bad));
	while (!ibv_poll_cq(init.send_cq, 1, &wc))
		;
	printf("%s, vendor error 0x%x\n", ibv_wc_status_str(wc.status), wc.vendor_err);
	return EXIT_SUCCESS;
}
