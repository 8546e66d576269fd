// SPDX-License-Identifier: MIT OR Apache-2.0
//
// More queue pairs than a slot has, and more than the kernel lets a process map.

#define _GNU_SOURCE
#include "side.h"

#include <errno.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	QKEY = 0x1234,
	GRH = 40,
	// The last number of queue pairs that is no queue pair's.
	QPN_RESERVED = 0xffffff,
	// Mappings that are left where there are no more of them.
	MAPPINGS_LEFT = 12,
	// What a process may allocate then.
	HEAP_BYTES = 4 << 20,
};

static struct ibv_qp *make_datagrams(const struct side *s)
{
	struct ibv_qp_init_attr init = {
		.send_cq = s->cq,
		.recv_cq = s->cq,
		.qp_type = IBV_QPT_UD,
		.cap = { DEPTH, DEPTH, 1, 1, 0 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	struct ibv_qp *qp = ibv_create_qp(s->pd, &init);

	need(qp, "ibv_create_qp");
	need0(ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	need0(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	need0(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	return qp;
}

// Posts a receive for a datagram, whose header lies before what is received.
static void post_datagram_receive(const struct side *s, struct ibv_qp *qp, int slot)
{
	struct ibv_sge sge = { (uintptr_t)slot_at(s, slot, AT_RECEIVED), GRH + BYTES, s->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	need0(ibv_post_recv(qp, &wr, &bad));
}

void datagrams(int oob, int total, int who)
{
	static struct ibv_qp *qps[QPS_MAX];
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } };
	struct ibv_qp **last = qps + total - BATCH;
	uint32_t own[BATCH], peers[BATCH];
	struct side s = { 0 };

	side_open(&s, BATCH);
	for (int i = 0; i < total; i++)
		qps[i] = make_datagrams(&s);
	for (int i = 0; i < BATCH; i++) {
		own[i] = last[i]->qp_num;
		post_datagram_receive(&s, last[i], i);
	}
	oob_send(oob, own, sizeof own);
	oob_recv(oob, peers, sizeof peers);
	to.grh.dgid = s.dev.gid;
	struct ibv_ah *ah = ibv_create_ah(s.pd, &to);
	need(ah, "ibv_create_ah");
	for (int i = 0; i < BATCH; i++) {
		struct ibv_sge sge = { (uintptr_t)slot_at(&s, i, AT_SENT), BYTES, s.mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED,
					  .wr.ud = { ah, peers[i], QKEY } }, *bad;

		content_fill(slot_at(&s, i, AT_SENT), key_of(who, i, 0), 0, BYTES);
		need0(ibv_post_send(last[i], &wr, &bad));
	}
	take(&s, 2 * BATCH);
	oob_barrier(oob, 1);
	for (int i = 0; i < BATCH; i++)
		expect(&s, i, AT_RECEIVED + GRH, key_of(!who, i, 0));
	need0(ibv_destroy_ah(ah));
	for (int i = 0; i < total; i++)
		need0(ibv_destroy_qp(qps[i]));
	side_close(&s);
}

// Takes a number of good completions, among those of receives that are given back.
static void take_sends(const struct side *s, int number)
{
	struct ibv_wc wc;

	while (number > 0) {
		int n = ibv_poll_cq(s->cq, 1, &wc);

		need(n >= 0, "ibv_poll_cq");
		if (n == 0)
			sched_yield();
		else if (wc.status == IBV_WC_SUCCESS)
			number--;
		else if (wc.status != IBV_WC_WR_FLUSH_ERR)
			fail("queue pair %#x: %s", wc.qp_num, ibv_wc_status_str(wc.status));
	}
}

// The child is killed when it has received; nothing that it would have sent later is missed.
void farewell(int oob, int total, int who)
{
	static struct ibv_qp *qps[QPS_MAX];
	static struct end peers[QPS_MAX];
	const int first = total - BATCH;
	struct side s = { 0 };

	side_open(&s, total);
	for (int done = 0; done < total; done += BATCH)
		connect_batch(&s, oob, done, qps + done, peers + done);
	oob_barrier(oob, 1);
	if (!who) {
		take(&s, BATCH);
		raise(SIGKILL);
	}
	for (int i = first; i < total; i++)
		post(&s, qps[i], i, key_of(who, i, 0), NULL);
	take_sends(&s, BATCH);
	for (int i = 0; i < total; i++)
		need0(ibv_destroy_qp(qps[i]));
	side_close(&s);
}

int all_qps(int total)
{
	static struct ibv_qp *qps[QPS_MAX];
	struct side s = { 0 };
	struct timespec begun;
	struct end own;

	alarm(SECONDS_MAX);
	clock_gettime(CLOCK_MONOTONIC, &begun);
	side_open(&s, BATCH);
	if (s.dev.attr.max_qp != total)
		fail("max_qp is %d", s.dev.attr.max_qp);
	struct ibv_qp_init_attr init = { .send_cq = s.cq, .recv_cq = s.cq, .qp_type = IBV_QPT_RC };
	for (int i = 0; i < total; i++) {
		// One number may be missing.
		if (i == total - 1 && qps[i - 1]->qp_num == QPN_RESERVED - 1)
			total--;
		else
			qps[i] = make(&s, i % BATCH, &own);
	}
	report(total, &begun);
	errno = 0;
	if (ibv_create_qp(s.pd, &init) || errno != ENOMEM)
		fail("one more: %m");
	// Each number is given once.
	static unsigned char seen[(QPN_RESERVED + 1) / 8];
	for (int i = 0; i < total; i++) {
		uint32_t qpn = qps[i]->qp_num;

		if (seen[qpn / 8] & 1 << qpn % 8)
			fail("queue pair %#x is there twice", qpn);
		seen[qpn / 8] |= (unsigned char)(1 << qpn % 8);
	}
	for (int i = 0; i < total; i++)
		need0(ibv_destroy_qp(qps[i]));
	need((qps[0] = ibv_create_qp(s.pd, &init)) != NULL, "ibv_create_qp");
	need0(ibv_destroy_qp(qps[0]));
	side_close(&s);
	return 0;
}

// Gives the heap room, which then needs no mappings to grow: without memory everything fails.
static void fill_heap(void)
{
	need(mallopt(M_MMAP_THRESHOLD, 2 * HEAP_BYTES) && mallopt(M_TRIM_THRESHOLD, 4 * HEAP_BYTES),
	     "mallopt");
	// Volatile, so that the compiler keeps both calls.
	void *volatile room = malloc(HEAP_BYTES);

	need(room, "malloc");
	free(room);
}

// Takes all mappings that this process may have, but for a few.
static void take_mappings(void)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	FILE *limit = fopen("/proc/sys/vm/max_map_count", "r");
	size_t most = 0, taken = 0;

	need(limit && fscanf(limit, "%zu", &most) == 1, "max_map_count");
	fclose(limit);
	char *at = mmap(NULL, 2 * most * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(at != MAP_FAILED, "mmap");
	// Each page that differs from its neighbours makes two more.
	while (taken < most && mprotect(at + 2 * taken * page, page, PROT_READ) == 0)
		taken++;
	need(taken < most && errno == ENOMEM, "mprotect");
	for (int i = 0; i < MAPPINGS_LEFT / 2; i++)
		need(mprotect(at + 2 * --taken * page, page, PROT_NONE) == 0, "mprotect");
}

void no_mappings(int oob, int total, int who)
{
	static struct ibv_qp *qps[2 * BATCH];
	struct end own[BATCH], peers[BATCH];
	struct side s = { 0 };
	int refused = 0, rc;

	need(total == BATCH, "a batch");
	side_open(&s, 2 * BATCH);
	connect_batch(&s, oob, 0, qps, peers);
	oob_barrier(oob, 1);
	for (int i = 0; i < BATCH; i++)
		qps[BATCH + i] = make(&s, BATCH + i, &own[i]);
	oob_send(oob, own, sizeof own);
	oob_recv(oob, peers, sizeof peers);
	if (who) {
		fill_heap();
		take_mappings();
	}
	for (int i = 0; i < BATCH; i++) {
		rc = qp_to_rtr(qps[BATCH + i], &s.dev, &params, &peers[i].qp);
		if (rc && rc != ENOMEM)
			fail("ibv_modify_qp: %s", strerror(rc));
		refused += rc != 0;
	}
	if (who ? refused <= BATCH / 2 : refused)
		fail("%d connections were refused", refused);
	oob_barrier(oob, 2);
	for (int i = 0; i < 2 * BATCH; i++)
		need0(ibv_destroy_qp(qps[i]));
	side_close(&s);
}
