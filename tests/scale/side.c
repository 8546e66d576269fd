// SPDX-License-Identifier: MIT OR Apache-2.0

#define _GNU_SOURCE
#include "side.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { MIB = 1 << 20 };

const struct qp_params params = {
	.access = IBV_ACCESS_REMOTE_WRITE,
	.timeout = 14,
	.retry_cnt = 7,
	.rnr_retry = 7,
	.min_rnr_timer = 12,
	.rd_atomic = 1,
};

void side_open(struct side *s, int slots)
{
	device_open(&s->dev, NULL, 0);
	s->slots = slots;
	s->pd = ibv_alloc_pd(s->dev.ctx);
	s->cq = ibv_create_cq(s->dev.ctx, slots * 2 * DEPTH, NULL, NULL, 0);
	s->memory = page_alloc((size_t)slots * SLOT);
	need(s->pd && s->cq, "ibv_alloc_pd, ibv_create_cq");
	s->mr = ibv_reg_mr(s->pd, s->memory, (size_t)slots * SLOT,
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	need(s->mr, "ibv_reg_mr");
}

void side_close(struct side *s)
{
	need0(ibv_dereg_mr(s->mr));
	need0(ibv_destroy_cq(s->cq));
	need0(ibv_dealloc_pd(s->pd));
	need0(ibv_close_device(s->dev.ctx));
	free(s->memory);
}

unsigned char *slot_at(const struct side *s, int slot, int at)
{
	return s->memory + (size_t)slot * SLOT + at;
}

struct ibv_qp *make(const struct side *s, int slot, struct end *own)
{
	struct ibv_qp_init_attr init = {
		.send_cq = s->cq,
		.recv_cq = s->cq,
		.qp_type = IBV_QPT_RC,
		.cap = { DEPTH, DEPTH, 1, 1, 0 },
	};
	struct ibv_qp *qp = ibv_create_qp(s->pd, &init);

	need(qp, "ibv_create_qp");
	need0(qp_to_init(qp, &params));
	own->qp = (struct qp_addr){ qp->qp_num, PSN, s->dev.gid };
	own->written = (uintptr_t)slot_at(s, slot, AT_WRITTEN);
	own->rkey = s->mr->rkey;
	return qp;
}

void connect_to(const struct side *s, struct ibv_qp *qp, const struct end *peer)
{
	need0(qp_to_rtr(qp, &s->dev, &params, &peer->qp));
	need0(qp_to_rts(qp, &params, PSN));
}

void post_receive(const struct side *s, struct ibv_qp *qp, int slot)
{
	struct ibv_sge sge = { (uintptr_t)slot_at(s, slot, AT_RECEIVED), BYTES, s->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = (uint64_t)slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	need0(ibv_post_recv(qp, &wr, &bad));
}

void post(const struct side *s, struct ibv_qp *qp, int slot, uint64_t key,
	  const struct end *write_to)
{
	struct ibv_sge sge = { (uintptr_t)slot_at(s, slot, AT_SENT), BYTES, s->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = (uint64_t)slot, .sg_list = &sge, .num_sge = 1,
				  .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;

	content_fill(slot_at(s, slot, AT_SENT), key, 0, BYTES);
	if (write_to) {
		wr.opcode = IBV_WR_RDMA_WRITE;
		wr.wr.rdma.remote_addr = write_to->written;
		wr.wr.rdma.rkey = write_to->rkey;
	}
	need0(ibv_post_send(qp, &wr, &bad));
}

// Takes a number of completions, all of which must be good.
void take(const struct side *s, int number)
{
	struct ibv_wc wc[16];

	while (number > 0) {
		int n = ibv_poll_cq(s->cq, 16, wc);

		need(n >= 0, "ibv_poll_cq");
		for (int i = 0; i < n; i++)
			if (wc[i].status != IBV_WC_SUCCESS)
				fail("queue pair %#x: %s", wc[i].qp_num,
				     ibv_wc_status_str(wc[i].status));
		number -= n;
		if (n == 0)
			sched_yield();
	}
	if (number < 0)
		fail("%d completions too many", -number);
}

void expect(const struct side *s, int slot, int at, uint64_t key)
{
	if (content_check(slot_at(s, slot, at), key, 0, BYTES) >= 0)
		fail("connection %d: wrong bytes at %d", slot, at);
}

// How many descriptors this process has open.
int descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	need(dir, "/proc/self/fd");
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

// Says what so many queue pairs have cost.
void report(int number, const struct timespec *begun)
{
	FILE *status = fopen("/proc/self/status", "r");
	struct timespec now;
	char line[256];
	long kib = 0;

	need(status, "/proc/self/status");
	while (fgets(line, sizeof line, status))
		if (sscanf(line, "VmRSS: %ld", &kib) == 1)
			break;
	fclose(status);
	clock_gettime(CLOCK_MONOTONIC, &now);
	printf("%d queue pairs: %.1f s, %ld MiB, %d descriptors\n", number,
	       (double)(now.tv_sec - begun->tv_sec) +
		       (double)(now.tv_nsec - begun->tv_nsec) / 1e9,
	       kib * 1024 / MIB, descriptors());
	fflush(stdout);
}

// Every content is of its own: who sent it, by which connection, when.
uint64_t key_of(int who, int slot, int round)
{
	return ((uint64_t)(who + 1) << 40) | ((uint64_t)round << 20) | (uint64_t)slot;
}

// Makes and connects the queue pairs of the slots from `first` on.
void connect_batch(const struct side *s, int oob, int first, struct ibv_qp **qps,
		   struct end *peers)
{
	struct end own[BATCH];

	for (int i = 0; i < BATCH; i++)
		qps[i] = make(s, first + i, &own[i]);
	oob_send(oob, own, sizeof own);
	oob_recv(oob, peers, sizeof own);
	for (int i = 0; i < BATCH; i++) {
		connect_to(s, qps[i], &peers[i]);
		post_receive(s, qps[i], first + i);
	}
}
