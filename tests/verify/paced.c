// SPDX-License-Identifier: MIT OR Apache-2.0
//
// paced: a queue pair that is limited to a rate sends no faster, in order, and sleeps meanwhile.
// Both ends are queue pairs of this process.
//
// paced flood: sends until standard input ends, and says all along how much.

#define _GNU_SOURCE
#include "common.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEPTH = 256, LONGEST = 64 << 10, KBIT = 125, SECONDS_MAX = 20 };

static const struct qp_params params = {
	.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	.timeout = 14,
	.retry_cnt = 7,
	.rnr_retry = 7,
	.min_rnr_timer = 1,
	.rd_atomic = 16,
};

struct world {
	struct device dev;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq, *receives;
	struct ibv_mr *mr;
	char *memory;
	struct ibv_qp *qp, *peer;
};

// A kind of message, and how many are sent at which rate.
struct load {
	const char *name;
	enum ibv_wr_opcode opcode;
	uint32_t length, count, kbits;
	bool sleeps;
};

static double seconds(clockid_t clock)
{
	struct timespec t;

	need(clock_gettime(clock, &t) == 0, "clock_gettime");
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct ibv_qp *new_qp(struct world *w)
{
	struct ibv_qp_init_attr init = {
		.send_cq = w->cq,
		.recv_cq = w->receives,
		.qp_type = IBV_QPT_RC,
		.cap = { DEPTH, 2 * DEPTH, 1, 1, 0 },
	};
	struct ibv_qp *qp = ibv_create_qp(w->pd, &init);

	need(qp, "ibv_create_qp");
	need0(qp_to_init(qp, &params));
	return qp;
}

static void join(struct world *w)
{
	struct ibv_qp *both[2] = { w->qp = new_qp(w), w->peer = new_qp(w) };

	for (int i = 0; i < 2; i++) {
		struct qp_addr to = { both[!i]->qp_num, 0, w->dev.gid };

		need0(qp_to_rtr(both[i], &w->dev, &params, &to));
		need0(qp_to_rts(both[i], &params, 0));
	}
}

static void part(struct world *w)
{
	need0(ibv_destroy_qp(w->qp));
	need0(ibv_destroy_qp(w->peer));
}

static void limit(struct world *w, uint32_t kbits, uint32_t burst)
{
	struct ibv_qp_rate_limit_attr attr = { .rate_limit = kbits, .max_burst_sz = burst };

	need0(ibv_modify_qp_rate_limit(w->qp, &attr));
}

static void post_receive(struct world *w)
{
	struct ibv_sge range = { (uintptr_t)w->memory + LONGEST, LONGEST, w->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &range, .num_sge = 1 }, *bad;

	need0(ibv_post_recv(w->peer, &wr, &bad));
}

static void post(struct world *w, enum ibv_wr_opcode opcode, uint32_t length, uint64_t id)
{
	struct ibv_sge range = { (uintptr_t)w->memory, length, w->mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.wr_id = id, .sg_list = &range, .num_sge = 1, .opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)w->memory + LONGEST, w->mr->rkey },
	};

	if (opcode == IBV_WR_SEND)
		post_receive(w);
	need0(ibv_post_send(w->qp, &wr, &bad));
}

// Takes completions of sends: how many there were.
static uint32_t take(struct world *w, uint64_t *next, enum ibv_wc_status status)
{
	struct ibv_wc wc;
	uint32_t taken = 0;

	while (ibv_poll_cq(w->receives, 1, &wc) > 0)
		;
	for (; ibv_poll_cq(w->cq, 1, &wc) > 0; taken++) {
		if (wc.status != status)
			fail("a send completes with: %s", ibv_wc_status_str(wc.status));
		if (wc.wr_id != (*next)++)
			fail("send %lu completes out of its turn", wc.wr_id);
	}
	return taken;
}

// Sleeps until there is an event.
static void await_event(struct world *w)
{
	struct pollfd fd = { .fd = w->channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *context;

	need(poll(&fd, 1, SECONDS_MAX * 1000) == 1, "no event came");
	need0(ibv_get_cq_event(w->channel, &cq, &context));
	ibv_ack_cq_events(cq, 1);
}

// Sends `count` messages, as many at a time as the queue takes.
static void send_all(struct world *w, const struct load *load)
{
	double end = seconds(CLOCK_MONOTONIC) + SECONDS_MAX;
	uint64_t posted = 0, next = 0;
	uint32_t done = 0;

	while (done < load->count) {
		uint32_t taken;

		for (; posted < load->count && posted - done < DEPTH; posted++)
			post(w, load->opcode, load->length, posted);
		if (load->sleeps)
			need0(ibv_req_notify_cq(w->cq, 0));
		taken = take(w, &next, IBV_WC_SUCCESS);
		done += taken;
		if (load->sleeps && taken == 0)
			await_event(w);
		if (seconds(CLOCK_MONOTONIC) > end)
			fail("%s: %u of %u after %d s", load->name, done, load->count, SECONDS_MAX);
	}
}

// What the rate, the burst of 10 ms and the last message, which is let through whole, allow at the
// least.
static double least(const struct load *load)
{
	double rate = (double)load->kbits * KBIT;

	return (double)(load->count - 1) * load->length / rate - 0.010;
}

static void check_load(struct world *w, const struct load *load)
{
	double wall, cpu;

	limit(w, load->kbits, 0);
	wall = seconds(CLOCK_MONOTONIC);
	cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
	send_all(w, load);
	wall = seconds(CLOCK_MONOTONIC) - wall;
	cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	if (wall < least(load))
		fail("%s: took %.3f s, and at the rate at least %.3f s", load->name, wall,
		     least(load));
	if (load->sleeps && cpu > wall / 2)
		fail("%s: %.3f s of a processor in %.3f s", load->name, cpu, wall);
	printf("%s: %.3f s, %.3f s at the rate, %.3f s of a processor\n", load->name, wall,
	       least(load), cpu);
}

// A limit comes while messages go the short way, and goes while others wait for it.
static void check_changes(struct world *w)
{
	const struct load slow = { "WRITEs of 8, limited meanwhile", IBV_WR_RDMA_WRITE, 8, 2000,
				   1280, false };
	struct load none = slow;
	double start;
	uint64_t next = 0;

	none.name = "WRITEs of 8, not limited";
	limit(w, 0, 0);
	send_all(w, &none);
	check_load(w, &slow);
	// A thousand bytes each second: one goes, and the others would take three seconds.
	limit(w, 0, 0);
	limit(w, 8, 0);
	for (uint64_t id = 0; id < 4; id++)
		post(w, IBV_WR_RDMA_WRITE, 1000, id);
	start = seconds(CLOCK_MONOTONIC);
	while (seconds(CLOCK_MONOTONIC) < start + 0.1)
		take(w, &next, IBV_WC_SUCCESS);
	if (next != 1)
		fail("%lu WRITEs, where the limit lets one through", next);
	start = seconds(CLOCK_MONOTONIC);
	limit(w, 0, 0);
	while (next < 4)
		take(w, &next, IBV_WC_SUCCESS);
	start = seconds(CLOCK_MONOTONIC) - start;
	if (start > 1)
		fail("a limit that is gone holds up sends for %.3f s", start);
	printf("a limit goes: the rest took %.3f ms\n", start * 1e3);
}

static void check_burst(struct world *w)
{
	uint64_t next = 0;

	// Room for sixteen at once, and for the one that begins last.
	limit(w, 8, 16 * 1000);
	for (uint64_t id = 0; id < 18; id++)
		post(w, IBV_WR_RDMA_WRITE, 1000, id);
	for (double end = seconds(CLOCK_MONOTONIC) + 0.2; seconds(CLOCK_MONOTONIC) < end;)
		take(w, &next, IBV_WC_SUCCESS);
	if (next < 10 || next > 17)
		fail("a burst of 10 s lets %lu seconds through", next);
	limit(w, 0, 0);
	while (next < 18)
		take(w, &next, IBV_WC_SUCCESS);
}

// A rate and its burst come together: what waits gets no burst for the rate alone before.
static void check_one_step(struct world *w)
{
	enum { AT_ONCE = 17, COUNT = 24 };
	uint64_t next = 0, before;
	double start, took, most;

	limit(w, 0, 0);
	limit(w, 8, 0);
	for (uint64_t id = 0; id < COUNT; id++)
		post(w, IBV_WR_RDMA_WRITE, 1000, id);
	start = seconds(CLOCK_MONOTONIC);
	// By UDP its acknowledgment comes a moment later: it would count among those of the burst.
	while (next == 0)
		take(w, &next, IBV_WC_SUCCESS);
	before = next;
	// Two messages each second, sixteen at once, and the one that begins last.
	limit(w, 16, 16 * 1000);
	while (seconds(CLOCK_MONOTONIC) < start + 0.2)
		take(w, &next, IBV_WC_SUCCESS);
	took = seconds(CLOCK_MONOTONIC) - start;
	most = AT_ONCE + 2 * took;
	if (next - before < 10 || next - before > most)
		fail("%lu WRITEs in %.3f s, where %.1f may go", next - before, took, most);
	limit(w, 0, 0);
	while (next < COUNT)
		take(w, &next, IBV_WC_SUCCESS);
}

// What waits for its turn is flushed with the queue pair, as all else.
static void check_flush(struct world *w)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	uint64_t next = 0;

	limit(w, 8, 0);
	for (uint64_t id = 0; id < 4; id++)
		post(w, IBV_WR_RDMA_WRITE, 1000, id);
	while (next < 1)
		take(w, &next, IBV_WC_SUCCESS);
	need0(ibv_modify_qp(w->qp, &attr, IBV_QP_STATE));
	while (next < 4)
		take(w, &next, IBV_WC_WR_FLUSH_ERR);
}

static void refused(int rc, const char *what)
{
	if (rc != EINVAL)
		fail("%s: %d", what, rc);
}

static void check_attributes(struct world *w)
{
	struct ibv_qp_rate_limit_attr more = { .rate_limit = 8, .comp_mask = 1 };
	struct ibv_qp_attr attr = { .rate_limit = 5000 };
	struct ibv_qp_init_attr init;
	struct ibv_device_attr_ex device;
	struct ibv_packet_pacing_caps *caps = &device.packet_pacing_caps;
	struct ibv_qp *qp = new_qp(w);

	need0(ibv_query_device_ex(w->dev.ctx, NULL, &device));
	if (!(caps->supported_qpts & 1 << IBV_QPT_RC) || !caps->qp_rate_limit_max)
		fail("no pacing is offered");
	need0(ibv_modify_qp(w->qp, &attr, IBV_QP_RATE_LIMIT));
	need0(ibv_query_qp(w->qp, &attr, IBV_QP_RATE_LIMIT, &init));
	if (attr.rate_limit != 5000)
		fail("a rate of 5000 was set, and is %u", attr.rate_limit);
	refused(ibv_modify_qp(qp, &attr, IBV_QP_RATE_LIMIT), "a rate in INIT");
	need0(ibv_destroy_qp(qp));
	attr.rate_limit = caps->qp_rate_limit_max + 1;
	refused(ibv_modify_qp(w->qp, &attr, IBV_QP_RATE_LIMIT), "a rate above the highest");
	refused(ibv_modify_qp_rate_limit(w->qp, &more), "attributes of another time");
	need0(ibv_query_qp(w->qp, &attr, IBV_QP_RATE_LIMIT, &init));
	if (attr.rate_limit != 5000)
		fail("what was refused has changed the rate to %u", attr.rate_limit);
	limit(w, 0, 0);
}

// Every 10 ms a line: the time, and how many bytes have been sent.
static void flood(struct world *w)
{
	enum { LENGTH = 1000 };
	struct pollfd input = { .fd = 0, .events = POLLIN };
	uint64_t posted = 0, next = 0;
	double told = 0;

	while (poll(&input, 1, 0) == 0) {
		for (; posted - next < DEPTH; posted++)
			post(w, IBV_WR_RDMA_WRITE, LENGTH, posted);
		take(w, &next, IBV_WC_SUCCESS);
		if (seconds(CLOCK_MONOTONIC) < told + 0.01)
			continue;
		told = seconds(CLOCK_MONOTONIC);
		printf("%.4f %lu\n", told, next * LENGTH);
		fflush(stdout);
	}
}

static void check_all(struct world *w)
{
	static const struct load loads[] = {
		{ "WRITEs of 64 KiB", IBV_WR_RDMA_WRITE, LONGEST, 64, 80000, false },
		{ "READs of 64 KiB", IBV_WR_RDMA_READ, LONGEST, 64, 80000, false },
		{ "SENDs of 1000, sleeping", IBV_WR_SEND, 1000, 4000, 80000, true },
		{ "WRITEs of 64 KiB, sleeping", IBV_WR_RDMA_WRITE, LONGEST, 64, 80000, true },
	};

	check_attributes(w);
	for (size_t i = 0; i < sizeof(loads) / sizeof(*loads); i++)
		check_load(w, &loads[i]);
	check_changes(w);
	check_burst(w);
	check_one_step(w);
	check_flush(w);
}

int main(int argc, char **argv)
{
	struct world w = { 0 };

	device_open(&w.dev, NULL, 0);
	w.pd = ibv_alloc_pd(w.dev.ctx);
	need(w.pd, "ibv_alloc_pd");
	w.channel = ibv_create_comp_channel(w.dev.ctx);
	need(w.channel, "ibv_create_comp_channel");
	w.cq = ibv_create_cq(w.dev.ctx, 2 * DEPTH, NULL, w.channel, 0);
	w.receives = ibv_create_cq(w.dev.ctx, 4 * DEPTH, NULL, NULL, 0);
	need(w.cq && w.receives, "ibv_create_cq");
	w.memory = page_alloc(2 * LONGEST);
	w.mr = ibv_reg_mr(w.pd, w.memory, 2 * LONGEST, params.access);
	need(w.mr, "ibv_reg_mr");
	join(&w);
	if (argc > 1 && strcmp(argv[1], "flood") == 0)
		flood(&w);
	else
		check_all(&w);
	part(&w);
	need0(ibv_dereg_mr(w.mr));
	need0(ibv_destroy_cq(w.cq));
	need0(ibv_destroy_cq(w.receives));
	need0(ibv_destroy_comp_channel(w.channel));
	need0(ibv_dealloc_pd(w.pd));
	need0(ibv_close_device(w.dev.ctx));
	free(w.memory);
	return 0;
}
