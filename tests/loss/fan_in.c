// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Many programs that send to one, all of which sleep until something has completed.
//
//   fan_in PORT SENDERS MESSAGES         receives so many messages of each sender, checks every
//                                        byte, and says how fast they came
//   fan_in PORT SENDERS MESSAGES SERVER  is one of the senders

#define _GNU_SOURCE
#include "../verify/common.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
	BYTES = 64 << 10,
	// Messages under way of each sender, and receives that are posted for it: enough for
	// a program that comes late, so that no sender waits for receives.
	SENDS = 16,
	RECEIVES = 48,
	SENDERS_MAX = 16,
	PSN = 7,
	SECONDS_MAX = 120,
	EVENTS_EACH = 64,
};

static const struct qp_params params = {
	.access = IBV_ACCESS_LOCAL_WRITE,
	.timeout = 14,
	.retry_cnt = 7,
	.rnr_retry = 7,
	.min_rnr_timer = 12,
};

struct side {
	struct device dev;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char *memory;
};

// One of the receiver's connections.
struct sender {
	struct ibv_qp *qp;
	int oob;
	uint32_t number;
	long received;
};

static void side_open(struct side *s, int buffers)
{
	device_open(&s->dev, NULL, 0);
	s->pd = ibv_alloc_pd(s->dev.ctx);
	s->channel = ibv_create_comp_channel(s->dev.ctx);
	need(s->pd && s->channel, "ibv_alloc_pd, ibv_create_comp_channel");
	s->cq = ibv_create_cq(s->dev.ctx, buffers, NULL, s->channel, 0);
	need(s->cq, "ibv_create_cq");
	need0(ibv_req_notify_cq(s->cq, 0));
	s->memory = page_alloc((size_t)buffers * BYTES);
	s->mr = ibv_reg_mr(s->pd, s->memory, (size_t)buffers * BYTES, IBV_ACCESS_LOCAL_WRITE);
	need(s->mr, "ibv_reg_mr");
}

static char *buffer(const struct side *s, uint64_t at)
{
	return s->memory + at * BYTES;
}

// Tells the other side of a new queue pair, and makes it ready to receive.
static struct ibv_qp *make(const struct side *s, int oob)
{
	struct ibv_qp_init_attr init = {
		.send_cq = s->cq,
		.recv_cq = s->cq,
		.qp_type = IBV_QPT_RC,
		.cap = { SENDS, RECEIVES, 1, 1, 0 },
	};
	struct ibv_qp *qp = ibv_create_qp(s->pd, &init);
	struct qp_addr own, peer;

	need(qp, "ibv_create_qp");
	need0(qp_to_init(qp, &params));
	own = (struct qp_addr){ qp->qp_num, PSN, s->dev.gid };
	oob_send(oob, &own, sizeof(own));
	oob_recv(oob, &peer, sizeof(peer));
	need0(qp_to_rtr(qp, &s->dev, &params, &peer));
	return qp;
}

// Sleeps until something has completed.
static int completions(const struct side *s, struct ibv_wc *wc, int most)
{
	for (;;) {
		int n = ibv_poll_cq(s->cq, most, wc);
		struct ibv_cq *cq;
		void *context;

		need(n >= 0, "ibv_poll_cq");
		for (int i = 0; i < n; i++)
			if (wc[i].status != IBV_WC_SUCCESS)
				fail("queue pair %#x: %s", wc[i].qp_num,
				     ibv_wc_status_str(wc[i].status));
		if (n)
			return n;
		need(ibv_get_cq_event(s->channel, &cq, &context) == 0, "ibv_get_cq_event");
		ibv_ack_cq_events(cq, 1);
		need0(ibv_req_notify_cq(s->cq, 0));
	}
}

static uint64_t key_of(uint32_t sender, long message)
{
	return ((uint64_t)sender << 32) + (uint64_t)message;
}

static int listener(const char *port)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	need(fd >= 0, "socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	need(bind(fd, (struct sockaddr *)&any, sizeof(any)) == 0, "bind");
	need(listen(fd, SENDERS_MAX) == 0, "listen");
	return fd;
}

static void post_receive(const struct side *s, const struct sender *from, uint64_t at)
{
	struct ibv_sge sge = { (uintptr_t)buffer(s, at), BYTES, s->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = at, .sg_list = &sge, .num_sge = 1 }, *bad;

	need0(ibv_post_recv(from->qp, &wr, &bad));
}

static double seconds_since(const struct timespec *begun)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec - begun->tv_sec + (now.tv_nsec - begun->tv_nsec) / 1e9;
}

// Takes all messages, and checks them: a connection's arrive in its receives' order.
static void take_all(const struct side *s, struct sender *from, int senders, long messages)
{
	struct ibv_wc wc[EVENTS_EACH];

	for (long left = senders * messages; left > 0;) {
		int n = completions(s, wc, EVENTS_EACH);

		for (int i = 0; i < n; i++) {
			struct sender *it = &from[wc[i].wr_id / RECEIVES];
			uint64_t key = key_of(it->number, it->received);

			if (wc[i].byte_len != BYTES ||
			    content_check(buffer(s, wc[i].wr_id), key, 0, BYTES) >= 0)
				fail("message %ld of sender %u is not what was sent",
				     it->received, it->number);
			it->received++;
			post_receive(s, it, wc[i].wr_id);
		}
		left -= n;
	}
}

static void receive(const char *port, int senders, long messages)
{
	static struct sender from[SENDERS_MAX];
	struct side s = { 0 };
	struct timespec begun;
	int fd = listener(port);
	double seconds;

	side_open(&s, senders * RECEIVES);
	printf("ready\n");
	for (int i = 0; i < senders; i++) {
		from[i].oob = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
		need(from[i].oob >= 0, "accept");
		from[i].number = (uint32_t)i;
		from[i].qp = make(&s, from[i].oob);
		for (int at = 0; at < RECEIVES; at++)
			post_receive(&s, &from[i], (uint64_t)i * RECEIVES + (uint64_t)at);
	}
	// Both ends begin at once, and all connections do.
	for (int i = 0; i < senders; i++)
		oob_send(from[i].oob, &from[i].number, sizeof(from[i].number));
	clock_gettime(CLOCK_MONOTONIC, &begun);
	for (int i = 0; i < senders; i++)
		need0(qp_to_rts(from[i].qp, &params, PSN));
	take_all(&s, from, senders, messages);
	seconds = seconds_since(&begun);
	for (int i = 0; i < senders; i++)
		oob_barrier(from[i].oob, 1);
	printf("%.1f MB/s\n", 1e-6 * BYTES * (double)(senders * messages) / seconds);
}

static void post_send(const struct side *s, struct ibv_qp *qp, uint32_t own, long message)
{
	uint64_t at = (uint64_t)message % SENDS;
	struct ibv_sge sge = { (uintptr_t)buffer(s, at), BYTES, s->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = at, .sg_list = &sge, .num_sge = 1,
				  .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;

	content_fill(buffer(s, at), key_of(own, message), 0, BYTES);
	need0(ibv_post_send(qp, &wr, &bad));
}

static void send_all(const char *port, long messages, const char *server)
{
	struct ibv_wc wc[SENDS];
	struct side s = { 0 };
	int oob = oob_connect(server, port);
	struct ibv_qp *qp;
	uint32_t own;
	long sent = 0;

	side_open(&s, SENDS);
	qp = make(&s, oob);
	oob_recv(oob, &own, sizeof(own));
	need0(qp_to_rts(qp, &params, PSN));
	for (long done = 0; done < messages; done += completions(&s, wc, SENDS))
		while (sent < messages && sent - done < SENDS)
			post_send(&s, qp, own, sent++);
	oob_barrier(oob, 1);
	printf("sent\n");
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc < 4 || argc > 5 || atoi(argv[2]) < 1 || atoi(argv[2]) > SENDERS_MAX)
		fail("usage: fan_in PORT SENDERS MESSAGES [SERVER]");
	alarm(SECONDS_MAX);
	if (argc == 5)
		send_all(argv[1], atol(argv[3]), argv[4]);
	else
		receive(argv[1], atoi(argv[2]), atol(argv[3]));
	return 0;
}
