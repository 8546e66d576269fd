/* Endless traffic over RC queue pairs, to be killed or stopped at any moment. Says on standard
 * output, a line each: "running", once every connection works; "count N", completions so far; and
 * of a connection that fails: "failed I STATUS", "event TYPE", then "drained I" when every work
 * request has completed and the queue pair is in the error state. Ends when the last one has. */
#define _GNU_SOURCE
#include "../verify/common.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PEERS_MAX 8
/* Work requests outstanding on either queue of a QP. */
#define DEPTH 16
#define POLL_MAX 16
/* Completions of a connection after which it counts as working. */
#define WARM 50
#define COUNT_MS 50
#define WR_SEND (1ull << 32)

struct conn {
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	/* DEPTH buffers to send from, DEPTH to receive into, DEPTH for the peer to access. */
	unsigned char *mem;
	uint64_t peer_addr;
	uint32_t peer_rkey;
	uint64_t sent, received, done;
	unsigned int sends, recvs;
	bool failed, drained;
};

static struct {
	const char *host, *port, *op;
	size_t size;
	unsigned int depth, peers;
	bool passive, events;
} opt = { .port = "18700", .op = "send", .size = 4096, .depth = DEPTH, .peers = 1 };

static struct device dev;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct conn conns[PEERS_MAX];

static struct qp_params params = {
	.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		  IBV_ACCESS_REMOTE_ATOMIC,
	.timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 1, .rd_atomic = 8,
};

static void say(const char *format, unsigned long long a, const char *b)
{
	printf(format, a, b);
	putchar('\n');
	fflush(stdout);
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ull + t.tv_nsec / 1000000;
}

static unsigned char *slot(const struct conn *c, unsigned int area, uint64_t serial)
{
	return c->mem + (area * DEPTH + serial % DEPTH) * opt.size;
}

static void post_recv(struct conn *c)
{
	uint64_t serial = c->received + c->recvs;
	struct ibv_sge sge = { (uintptr_t)slot(c, 1, serial), opt.size, c->mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = c - conns, .sg_list = &sge, .num_sge = 1 };

	need0(ibv_post_recv(c->qp, &wr, &bad));
	c->recvs++;
}

static void post_send(struct conn *c)
{
	struct ibv_sge sge = { (uintptr_t)slot(c, 0, c->sent), opt.size, c->mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.wr_id = WR_SEND | (c - conns), .sg_list = &sge, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED, .opcode = IBV_WR_SEND,
	};
	uint64_t target = c->peer_addr + c->sent % DEPTH * opt.size;

	wr.wr.rdma.remote_addr = target;
	wr.wr.rdma.rkey = c->peer_rkey;
	if (!strcmp(opt.op, "write")) {
		wr.opcode = IBV_WR_RDMA_WRITE;
	} else if (!strcmp(opt.op, "read")) {
		wr.opcode = IBV_WR_RDMA_READ;
	} else if (!strcmp(opt.op, "atomic")) {
		wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		sge.length = 8;
		wr.wr.atomic.remote_addr = target;
		wr.wr.atomic.compare_add = 1;
		wr.wr.atomic.rkey = c->peer_rkey;
	} else {
		content_fill((void *)(uintptr_t)sge.addr, c->sent, 0, opt.size);
	}
	need0(ibv_post_send(c->qp, &wr, &bad));
	c->sent++;
	c->sends++;
}

static void conn_open(struct conn *c)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH,
			 .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct { struct qp_addr addr; uint64_t mem; uint32_t rkey, pad; } own = { 0 }, peer;
	char port[16];
	int fd;

	snprintf(port, sizeof(port), "%ld", strtol(opt.port, NULL, 10) + (c - conns));
	c->mem = page_alloc(3 * DEPTH * opt.size);
	c->mr = ibv_reg_mr(pd, c->mem, 3 * DEPTH * opt.size, params.access);
	need(c->mr, "ibv_reg_mr");
	c->qp = ibv_create_qp(pd, &init);
	need(c->qp, "ibv_create_qp");
	need0(qp_to_init(c->qp, &params));
	for (int i = 0; i < DEPTH; i++)
		post_recv(c);
	own.addr = (struct qp_addr){ .qpn = c->qp->qp_num, .psn = getpid() & 0xffffff,
				     .gid = dev.gid };
	own.mem = (uintptr_t)slot(c, 2, 0);
	own.rkey = c->mr->rkey;
	fd = oob_connect(opt.host, port);
	oob_send(fd, &own, sizeof(own));
	oob_recv(fd, &peer, sizeof(peer));
	c->peer_addr = peer.mem;
	c->peer_rkey = peer.rkey;
	need0(qp_to_rtr(c->qp, &dev, &params, &peer.addr));
	need0(qp_to_rts(c->qp, &params, own.addr.psn));
	oob_barrier(fd, 1);
	close(fd);
}

/* Says so when all that was posted on a failed connection has come back. */
static void check_drained(struct conn *c)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	if (!c->failed || c->drained || c->sends || c->recvs)
		return;
	need0(ibv_query_qp(c->qp, &attr, IBV_QP_STATE, &init));
	if (attr.qp_state != IBV_QPS_ERR)
		fail("connection %td failed, but its QP is in state %d", c - conns, attr.qp_state);
	c->drained = true;
	say("drained %llu%s", c - conns, "");
}

static void completed(const struct ibv_wc *wc)
{
	struct conn *c = &conns[wc->wr_id & (WR_SEND - 1)];
	bool is_send = wc->wr_id & WR_SEND;

	if (is_send)
		c->sends--;
	else
		c->recvs--;
	if (wc->status != IBV_WC_SUCCESS) {
		if (!c->failed)
			say("failed %llu %s", c - conns, ibv_wc_status_str(wc->status));
		c->failed = true;
		check_drained(c);
		return;
	}
	if (c->failed && !is_send)
		fail("a receive succeeds after connection %td failed", c - conns);
	c->done++;
	if (is_send || c->failed) {
		check_drained(c);
		return;
	}
	if (wc->byte_len != opt.size ||
	    content_check(slot(c, 1, c->received), c->received, 0, opt.size) >= 0)
		fail("message %" PRIu64 " of connection %td is wrong", c->received, c - conns);
	c->received++;
	post_recv(c);
}

static void async_events(void)
{
	struct ibv_async_event event;

	while (ibv_get_async_event(dev.ctx, &event) == 0) {
		say("event %llu %s", event.event_type, ibv_event_type_str(event.event_type));
		ibv_ack_async_event(&event);
	}
}

static void sleep_on_channel(void)
{
	struct ibv_cq *which;
	void *context;

	need(ibv_get_cq_event(channel, &which, &context) == 0, "ibv_get_cq_event");
	ibv_ack_cq_events(which, 1);
	need0(ibv_req_notify_cq(cq, 0));
}

/* Prints how far all have come; true while a connection lives. */
static bool report(void)
{
	static uint64_t last, last_ms;
	static bool running;
	uint64_t total = 0, least = UINT64_MAX;
	bool alive = false;

	for (unsigned int i = 0; i < opt.peers; i++) {
		total += conns[i].done;
		least = conns[i].done < least ? conns[i].done : least;
		alive |= !conns[i].drained;
	}
	if (!running && (opt.passive || least >= WARM)) {
		running = true;
		puts("running");
		fflush(stdout);
	}
	if (total != last && now_ms() - last_ms >= COUNT_MS) {
		say("count %llu%s", total, "");
		last = total;
		last_ms = now_ms();
	}
	return alive;
}

static void run(void)
{
	struct ibv_wc wc[POLL_MAX];

	for (;;) {
		bool idle = true;
		int n;

		for (unsigned int i = 0; i < opt.peers && !opt.passive; i++)
			while (!conns[i].failed && conns[i].sends < opt.depth)
				post_send(&conns[i]);
		while ((n = ibv_poll_cq(cq, POLL_MAX, wc)) > 0) {
			for (int i = 0; i < n; i++)
				completed(&wc[i]);
			idle = false;
		}
		if (n < 0)
			fail("ibv_poll_cq: %d", n);
		async_events();
		if (!report())
			return;
		/* What has just completed makes room for more to be posted first. */
		if (opt.events && idle)
			sleep_on_channel();
	}
}

static void parse(int argc, char **argv)
{
	static const struct option options[] = {
		{ "port", 1, 0, 'p' }, { "op", 1, 0, 'o' }, { "size", 1, 0, 's' },
		{ "depth", 1, 0, 'd' }, { "peers", 1, 0, 'n' }, { "passive", 0, 0, 'P' },
		{ "events", 0, 0, 'e' }, { "no-timeout", 0, 0, 't' }, { 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'p': opt.port = optarg; break;
		case 'o': opt.op = optarg; break;
		case 's': opt.size = strtoul(optarg, NULL, 10); break;
		case 'd': opt.depth = strtoul(optarg, NULL, 10); break;
		case 'n': opt.peers = strtoul(optarg, NULL, 10); break;
		case 'P': opt.passive = true; break;
		case 'e': opt.events = true; break;
		/* As ibv_modify_qp(3) has it. */
		case 't': params.timeout = 0; break;
		default: fail("unknown option");
		}
	}
	opt.host = argv[optind];
	if (opt.depth < 1 || opt.depth > DEPTH)
		fail("as many under way as 1 to %d", DEPTH);
	if (opt.peers < 1 || opt.peers > PEERS_MAX || opt.size < 8 || opt.size % 8)
		fail("sizes are multiples of 8, peers 1 to %d", PEERS_MAX);
}

int main(int argc, char **argv)
{
	parse(argc, argv);
	device_open(&dev, NULL, 0);
	need(fcntl(dev.ctx->async_fd, F_SETFL, O_NONBLOCK) == 0, "fcntl");
	need(pd = ibv_alloc_pd(dev.ctx), "ibv_alloc_pd");
	need(channel = ibv_create_comp_channel(dev.ctx), "ibv_create_comp_channel");
	need(cq = ibv_create_cq(dev.ctx, 2 * DEPTH * PEERS_MAX, NULL, channel, 0), "ibv_create_cq");
	need0(ibv_req_notify_cq(cq, 0));
	for (unsigned int i = 0; i < opt.peers; i++)
		conn_open(&conns[i]);
	run();
	async_events();
	return 0;
}
