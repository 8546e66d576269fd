// SPDX-License-Identifier: MIT OR Apache-2.0
//
// protected: a process whose memory has been moved to where a peer on this host reaches it protects
// it. Another process, which it talks to by datagrams, gets what is there, as a NIC would read
// pages that it has pinned: of READs and of SENDs, on connections that have carried nothing before.
//
// Exit status 3 if the memory was not moved.

#define _GNU_SOURCE
#include "common.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 1 << 20, SECONDS_MAX = 60, READS_MAX = 20000, KEY = 77 };

// Copied with the header; taken by the kernel where they are; the last piece of which is copied;
// several batches.
static const uint32_t lengths[] = { 8, 1023, 1024, 6000, 70000, 400001 };
enum { LENGTHS = sizeof(lengths) / sizeof(*lengths) };

static const struct qp_params params = {
	.access = IBV_ACCESS_REMOTE_READ,
	.timeout = 14,
	.retry_cnt = 7,
	.rnr_retry = 7,
	.min_rnr_timer = 12,
	.rd_atomic = 1,
};

struct side {
	struct device dev;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint8_t *memory;
};

struct hello {
	struct qp_addr qp;
	uint64_t addr;
	uint32_t rkey;
};

static struct side side_open(void)
{
	struct side s = { 0 };

	device_open(&s.dev, NULL, 0);
	s.pd = ibv_alloc_pd(s.dev.ctx);
	s.cq = ibv_create_cq(s.dev.ctx, 64, NULL, NULL, 0);
	need(s.pd && s.cq, "ibv_alloc_pd, ibv_create_cq");
	s.memory = page_alloc(BYTES);
	s.mr = ibv_reg_mr(s.pd, s.memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	need(s.mr, "ibv_reg_mr");
	return s;
}

static struct ibv_qp *qp_new(const struct side *s)
{
	struct ibv_qp_init_attr init = {
		.send_cq = s->cq,
		.recv_cq = s->cq,
		.qp_type = IBV_QPT_RC,
		.cap = { 4, 4, 1, 1, 0 },
	};
	struct ibv_qp *qp = ibv_create_qp(s->pd, &init);

	need(qp, "ibv_create_qp");
	need0(qp_to_init(qp, &params));
	return qp;
}

static void connect_qp(const struct side *s, struct ibv_qp *qp, const struct qp_addr *peer)
{
	need0(qp_to_rtr(qp, &s->dev, &params, peer));
	need0(qp_to_rts(qp, &params, 0));
}

static void post(const struct side *s, struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t len,
		 const struct hello *peer)
{
	struct ibv_sge sge = { (uintptr_t)s->memory, len, s->mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED,
	};

	if (peer) {
		wr.wr.rdma.remote_addr = peer->addr;
		wr.wr.rdma.rkey = peer->rkey;
	}
	need0(ibv_post_send(qp, &wr, &bad));
}

static void post_recv(const struct side *s, struct ibv_qp *qp)
{
	struct ibv_sge sge = { (uintptr_t)s->memory, BYTES, s->mr->lkey };
	struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };

	need0(ibv_post_recv(qp, &wr, &bad));
}

static void take(const struct side *s, const char *what, uint32_t len)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(s->cq, 1, &wc)) == 0)
		sched_yield();
	need(n == 1, "ibv_poll_cq");
	if (wc.status != IBV_WC_SUCCESS)
		fail("%s of %u bytes: %s", what, len, ibv_wc_status_str(wc.status));
}

// Whether the page at an address is in a file, as what was moved is.
static bool in_file(const void *at)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long from, to, inode, found = 0;
	char line[512];

	need(maps, "/proc/self/maps");
	while (!found && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %*s %*s %*s %lu", &from, &to, &inode) == 3 &&
		    (unsigned long)at >= from && (unsigned long)at < to)
			found = inode;
	fclose(maps);
	return found;
}

// Whether all of the memory has been moved. It moves a piece at a time, from the front.
static bool is_moved(const struct side *s)
{
	for (size_t at = 0; at < BYTES; at += 4096)
		if (!in_file(s->memory + at))
			return false;
	return true;
}

// Uses the memory by a connection within this process, until it has been moved.
static bool be_moved(const struct side *s)
{
	struct ibv_qp *a = qp_new(s), *b = qp_new(s);
	struct hello own = { .addr = (uintptr_t)s->memory, .rkey = s->mr->rkey };
	// Another region than the one that moves.
	struct side reader = *s;

	reader.memory = page_alloc(BYTES);
	reader.mr = ibv_reg_mr(s->pd, reader.memory, BYTES, IBV_ACCESS_LOCAL_WRITE);
	need(reader.mr, "ibv_reg_mr");
	connect_qp(s, a, &(struct qp_addr){ b->qp_num, 0, s->dev.gid });
	connect_qp(s, b, &(struct qp_addr){ a->qp_num, 0, s->dev.gid });
	for (int i = 0; i < READS_MAX && !is_moved(s); i++) {
		post(&reader, a, IBV_WR_RDMA_READ, 30000, &own);
		take(s, "a READ of its own", 30000);
	}
	return is_moved(s);
}

static struct ibv_qp *meet(const struct side *s, int oob, struct hello *peer)
{
	struct ibv_qp *qp = qp_new(s);
	struct hello own = { { qp->qp_num, 0, s->dev.gid }, (uintptr_t)s->memory, s->mr->rkey };

	oob_send(oob, &own, sizeof(own));
	oob_recv(oob, peer, sizeof(*peer));
	connect_qp(s, qp, &peer->qp);
	return qp;
}

static int owner(int oob)
{
	struct side s;
	struct hello peer;
	bool moved;

	alarm(SECONDS_MAX);
	s = side_open();
	content_fill(s.memory, KEY, 0, BYTES);
	moved = be_moved(&s);
	oob_send(oob, &moved, sizeof(moved));
	if (!moved)
		return 3;
	need(mprotect(s.memory, BYTES, PROT_NONE) == 0, "mprotect");
	for (int i = 0; i < 2 * LENGTHS; i++) {
		struct ibv_qp *qp = meet(&s, oob, &peer);

		oob_barrier(oob, 2 * i);
		if (i % 2) {
			post(&s, qp, IBV_WR_SEND, lengths[i / 2], NULL);
			take(&s, "a SEND", lengths[i / 2]);
		}
		oob_barrier(oob, 2 * i + 1);
		need0(ibv_destroy_qp(qp));
	}
	return 0;
}

static int stranger(int oob)
{
	struct side s;
	struct hello peer;
	bool moved;

	alarm(SECONDS_MAX);
	need(setenv("CAUSEWAY_WIRE", "udp", 1) == 0, "setenv");
	s = side_open();
	oob_recv(oob, &moved, sizeof(moved));
	for (int i = 0; i < 2 * LENGTHS && moved; i++) {
		uint32_t len = lengths[i / 2];
		struct ibv_qp *qp = meet(&s, oob, &peer);

		memset(s.memory, 0, BYTES);
		if (i % 2)
			post_recv(&s, qp);
		oob_barrier(oob, 2 * i);
		if (i % 2 == 0)
			post(&s, qp, IBV_WR_RDMA_READ, len, &peer);
		take(&s, i % 2 ? "the receive" : "a READ", len);
		if (content_check(s.memory, KEY, 0, len) >= 0)
			fail("%s of %u bytes is damaged", i % 2 ? "a SEND" : "a READ", len);
		oob_barrier(oob, 2 * i + 1);
		need0(ibv_destroy_qp(qp));
	}
	return 0;
}

int main(void)
{
	int fds[2], status, result;
	pid_t peer;

	need(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0, "socketpair");
	peer = fork();
	need(peer >= 0, "fork");
	close(fds[peer == 0]);
	if (peer == 0)
		_exit(stranger(fds[0]));
	result = owner(fds[1]);
	need(waitpid(peer, &status, 0) == peer && status == 0, "the peer");
	if (result)
		fprintf(stderr, "protected: the memory was not moved\n");
	else
		printf("protected: %d transfers, 0 errors\n", 2 * LENGTHS);
	return result;
}
