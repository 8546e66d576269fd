// SPDX-License-Identifier: MIT OR Apache-2.0
//
// idle [HOST]: two sides with a connected QP that has been busy must cost nothing once nobody
// polls, and still answer when woken. Without HOST the server. Exits with 1 if a side was not idle.

#define _GNU_SOURCE
#include "../verify/common.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum {
	TURNS = 500,
	DEPTH = 8,
	IDLE_SECONDS = 3,
	// After the last message: time for timers and the helper thread to come to rest.
	SETTLE_MS = 500,
	// A side that polls would use 3000 ms, one that ticks every 200 us about 15000
	// switches, one that ticks every 200 ms fifteen. Looking costs a switch, and some
	// microseconds. Over UDP each side asks now and then whether the other is there.
	CPU_MS_MAX = 20,
	SWITCHES_MAX = 10,
	SWITCHES_MAX_UDP = 60,
};

struct side {
	struct device dev;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *buffer;
	int oob;
	// Completions that no await() has counted yet.
	int sent;
	int received;
};

static const struct qp_params params = {
	.access = IBV_ACCESS_LOCAL_WRITE,
	.timeout = 14,
	.retry_cnt = 7,
	.rnr_retry = 7,
	.min_rnr_timer = 12,
	.rd_atomic = 1,
};

static void post_recv(struct side *s)
{
	struct ibv_sge sge = { (uintptr_t)s->buffer, 64, s->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	need0(ibv_post_recv(s->qp, &wr, &bad));
}

static void post_send(struct side *s)
{
	struct ibv_sge sge = { (uintptr_t)s->buffer + 64, 64, s->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;

	need0(ibv_post_send(s->qp, &wr, &bad));
}

// Sleeps on the completion channel until `sends` sends and `receives` receives have completed, of
// those that no earlier call has counted.
static void await(struct side *s, int sends, int receives)
{
	struct ibv_wc wc;
	struct ibv_cq *cq;
	void *context;
	int n;

	for (;;) {
		while ((n = ibv_poll_cq(s->cq, 1, &wc)) == 1) {
			if (wc.status != IBV_WC_SUCCESS)
				fail("%s", ibv_wc_status_str(wc.status));
			if (wc.opcode == IBV_WC_RECV) {
				s->received++;
				post_recv(s);
			} else {
				s->sent++;
			}
		}
		need(n == 0, "ibv_poll_cq");
		if (s->sent >= sends && s->received >= receives)
			break;
		need0(ibv_get_cq_event(s->channel, &cq, &context));
		ibv_ack_cq_events(cq, 1);
		need0(ibv_req_notify_cq(cq, 0));
	}
	s->sent -= sends;
	s->received -= receives;
}

static void open_side(struct side *s, const char *host)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	struct qp_addr own, peer;

	device_open(&s->dev, NULL, 0);
	s->buffer = page_alloc(4096);
	struct ibv_pd *pd = ibv_alloc_pd(s->dev.ctx);
	need(pd, "ibv_alloc_pd");
	s->mr = ibv_reg_mr(pd, s->buffer, 4096, IBV_ACCESS_LOCAL_WRITE);
	s->channel = ibv_create_comp_channel(s->dev.ctx);
	need(s->mr && s->channel, "ibv_reg_mr, ibv_create_comp_channel");
	s->cq = ibv_create_cq(s->dev.ctx, 4 * DEPTH, NULL, s->channel, 0);
	need(s->cq, "ibv_create_cq");
	need0(ibv_req_notify_cq(s->cq, 0));
	init.send_cq = init.recv_cq = s->cq;
	init.cap.max_send_wr = init.cap.max_recv_wr = DEPTH;
	init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	s->qp = ibv_create_qp(pd, &init);
	need(s->qp, "ibv_create_qp");
	own = (struct qp_addr){ .qpn = s->qp->qp_num, .psn = 7, .gid = s->dev.gid };
	s->oob = oob_connect(host, getenv("IDLE_PORT") ? getenv("IDLE_PORT") : "18700");
	oob_send(s->oob, &own, sizeof own);
	oob_recv(s->oob, &peer, sizeof peer);
	need0(qp_to_init(s->qp, &params));
	for (int i = 0; i < DEPTH; i++)
		post_recv(s);
	need0(qp_to_rtr(s->qp, &s->dev, &params, &peer));
	need0(qp_to_rts(s->qp, &params, own.psn));
	oob_barrier(s->oob, 1);
}

struct usage {
	double cpu_ms;
	long switches;
	double broker_ms;
};

// The processor time of this user's broker, in milliseconds; 0 if there is none.
static double broker_ms(void)
{
	char path[512];
	long user = 0, kernel = 0;
	int pid = 0;
	FILE *f;

	snprintf(path, sizeof path, "%s/broker.pid", getenv("CAUSEWAY_RUNTIME_DIR"));
	f = fopen(path, "r");
	if (!f)
		return 0;
	if (fscanf(f, "%d", &pid) != 1)
		pid = 0;
	fclose(f);
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	f = fopen(path, "r");
	if (!f)
		return 0;
	if (fscanf(f, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user,
		   &kernel) != 2)
		user = kernel = 0;
	fclose(f);
	return (double)(user + kernel) * 1000.0 / (double)sysconf(_SC_CLK_TCK);
}

static double own_ms(const struct rusage *r)
{
	return (double)(r->ru_utime.tv_sec + r->ru_stime.tv_sec) * 1e3 +
	       (double)(r->ru_utime.tv_usec + r->ru_stime.tv_usec) / 1e3;
}

static void sleep_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

// What is watched, and where the other side is told that it was.
struct watch {
	struct usage used;
	int oob;
};

// What this process and the broker use while nothing is to be done. The broker is looked at outside
// of the time in which this process is: that costs, too.
static void *watch(void *arg)
{
	struct watch *w = arg;
	struct usage *u = &w->used;
	struct rusage before, after;

	sleep_ms(SETTLE_MS);
	u->broker_ms = -broker_ms();
	getrusage(RUSAGE_SELF, &before);
	sleep_ms(IDLE_SECONDS * 1000);
	getrusage(RUSAGE_SELF, &after);
	u->broker_ms += broker_ms();
	u->cpu_ms = own_ms(&after) - own_ms(&before);
	u->switches = after.ru_nvcsw - before.ru_nvcsw;
	// Neither side is disturbed before both have been watched.
	oob_barrier(w->oob, 3);
	return NULL;
}

int main(int argc, char **argv)
{
	struct side s = { 0 };
	struct watch watched = { 0 };
	bool client = argc > 1;
	pthread_t watcher;

	open_side(&s, client ? argv[1] : NULL);
	for (int i = 0; i < TURNS; i++) {
		if (client)
			post_send(&s);
		await(&s, client, 1);
		if (!client) {
			post_send(&s);
			await(&s, 1, 0);
		}
	}
	oob_barrier(s.oob, 2);
	watched.oob = s.oob;
	need(pthread_create(&watcher, NULL, watch, &watched) == 0, "pthread_create");
	if (client) {
		pthread_join(watcher, NULL);
		post_send(&s);
		await(&s, 1, 1);
	} else {
		// Sleeps in ibv_get_cq_event until the client's message.
		await(&s, 0, 1);
		pthread_join(watcher, NULL);
		post_send(&s);
		await(&s, 1, 0);
	}
	oob_barrier(s.oob, 4);
	struct usage used = watched.used;
	const char *wire = getenv("CAUSEWAY_WIRE");
	long most = wire && !strcmp(wire, "shm") ? SWITCHES_MAX : SWITCHES_MAX_UDP;
	printf("in %d s without work: %.1f ms of processor, %ld switches, broker %.0f ms\n",
	       IDLE_SECONDS, used.cpu_ms, used.switches, used.broker_ms);
	return used.cpu_ms > CPU_MS_MAX || used.switches > most ||
	       used.broker_ms > CPU_MS_MAX;
}
