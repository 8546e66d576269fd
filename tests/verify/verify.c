/* Moves random data with every RC operation between two processes and compares every byte and
 * every completion. One side listens, the other names its host; both plan the same run. */
#define _GNU_SOURCE
#include "verify.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Completions of one call of ibv_poll_cq. */
#define POLL_MAX 16
/* Polls without success before the CPU is offered to others. */
#define SPINS 64

static struct run run = {
	.opt = { .port = "18600", .threads = 1, .timeout = 600, .recv_depth = RQ_DEPTH,
		 .ops = 100000 },
	.params = { .seed = 1, .qps = 4, .max_size = 1 << 20 },
	.qp_params = {
		.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.min_rnr_timer = 1,
		.rd_atomic = 16,
	},
};

void conn_fail(const struct conn *c, const char *format, ...)
{
	char text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fail("side %d, seed %" PRIu64 ", QP %u (%#x; %" PRIu64 " posted, %" PRIu64 " retired, %"
	     PRIu64 " batches in): %s", c->run->side, c->run->params.seed, c->index,
	     c->qp ? c->qp->qp_num : 0, c->serial, c->done, c->batches_in, text);
}

bool worker_drain(struct worker *w, struct ibv_cq *cq)
{
	struct ibv_wc wc[POLL_MAX];
	int n = ibv_poll_cq(cq, POLL_MAX, wc);

	if (n < 0)
		fail("ibv_poll_cq: %d", n);
	for (int i = 0; i < n; i++) {
		struct conn *c = worker_find(w, wc[i].qp_num);

		if (wc[i].wr_id & RECV_FLAG)
			respond_complete(c, &wc[i]);
		else if (wc[i].wr_id >> 32 == c->index)
			request_complete(c, &wc[i]);
		else
			conn_fail(c, "a completion of wr_id %#" PRIx64, wc[i].wr_id);
	}
	return n > 0;
}

static bool progress(struct worker *w)
{
	bool any = false;

	for (unsigned int i = 0; i < w->count; i++)
		any |= request_post(w->conns[i]);
	any |= worker_drain(w, w->send_cq);
	if (w->recv_cq != w->send_cq)
		any |= worker_drain(w, w->recv_cq);
	return any;
}

static bool finished(const struct worker *w)
{
	uint64_t batches = w->run->params.batches;

	for (unsigned int i = 0; i < w->count; i++) {
		const struct conn *c = w->conns[i];

		if (c->done != c->serial || c->retired != batches || c->credits != batches ||
		    c->batches_in != batches || c->granted != batches)
			return false;
	}
	return true;
}

/* Asks for events. The last message of a batch and the credits are solicited, so where receives
 * have a CQ of their own and never run out, nothing else needs to wake us. */
static void arm(struct worker *w)
{
	bool solicited = w->recv_cq != w->send_cq && w->run->opt.recv_depth == RQ_DEPTH;

	need0(ibv_req_notify_cq(w->send_cq, 0));
	if (w->recv_cq != w->send_cq)
		need0(ibv_req_notify_cq(w->recv_cq, solicited));
}

static void wait_event(struct worker *w)
{
	struct ibv_cq *cq;
	void *context;

	need(ibv_get_cq_event(w->channel, &cq, &context) == 0, "ibv_get_cq_event");
	if (context != w || (cq != w->send_cq && cq != w->recv_cq))
		fail("an event of a CQ that is not this thread's");
	ibv_ack_cq_events(cq, 1);
	w->events++;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	unsigned int idle = 0;

	while (!finished(w)) {
		if (progress(w)) {
			idle = 0;
		} else if (w->channel) {
			arm(w);
			/* What came before the CQs were armed raises no event. */
			if (!progress(w) && !finished(w))
				wait_event(w);
		} else if (++idle >= SPINS) {
			sched_yield();
			idle = 0;
		}
	}
	return NULL;
}

/* What a device tells of itself as its host's addresses come. */
static bool harmless(enum ibv_event_type type)
{
	return type == IBV_EVENT_COMM_EST || type == IBV_EVENT_GID_CHANGE ||
	       type == IBV_EVENT_PORT_ACTIVE;
}

/* Nothing may complete any more, and no asynchronous event of trouble may have come. */
static void check_quiet(void)
{
	struct ibv_async_event event;
	struct ibv_wc wc;
	int flags = fcntl(run.dev.ctx->async_fd, F_GETFL);

	for (unsigned int i = 0; i < run.opt.threads; i++)
		if (ibv_poll_cq(run.workers[i].send_cq, 1, &wc) ||
		    ibv_poll_cq(run.workers[i].recv_cq, 1, &wc))
			fail("a completion too many: wr_id %#" PRIx64, wc.wr_id);
	need(fcntl(run.dev.ctx->async_fd, F_SETFL, flags | O_NONBLOCK) == 0, "fcntl");
	while (ibv_get_async_event(run.dev.ctx, &event) == 0) {
		if (!harmless(event.event_type))
			fail("asynchronous event: %s", ibv_event_type_str(event.event_type));
		ibv_ack_async_event(&event);
	}
	if (errno != EAGAIN)
		fail("ibv_get_async_event: %m");
}

/* Compares what the peer's atomics must have made of this side's words with what is there. */
static void check_words(void)
{
	uint64_t sum = 0, part, words[ATOMIC_WORDS];

	for (uint32_t i = 0; i < run.params.qps; i++) {
		struct conn *c = &run.conns[i];

		oob_send(run.oob, c->word, sizeof(c->word));
		oob_send(run.oob, &c->shared_sum, sizeof(c->shared_sum));
		oob_recv(run.oob, words, sizeof(words));
		oob_recv(run.oob, &part, sizeof(part));
		sum += part;
		for (unsigned int j = 0; j < ATOMIC_WORDS; j++)
			if (words[j] != c->words[j])
				conn_fail(c, "word %u is %#" PRIx64 ", must be %#" PRIx64, j,
					  c->words[j], words[j]);
	}
	if (sum != *run.shared)
		fail("shared counter is %" PRIu64 ", must be %" PRIu64, *run.shared, sum);
}

static void check_rest(void)
{
	size_t len = plan_window_len(&run.params);
	ssize_t bad = content_check(run.fixed, fixed_key(&run, run.side), 0, len);

	check_quiet();
	check_words();
	for (uint32_t i = 0; i < run.params.qps; i++)
		respond_final(&run.conns[i]);
	if (bad >= 0)
		fail("memory registered for reading only changed at byte %zd", bad);
}

/* Says where a run that does not end has stopped. */
static void on_alarm(int signal)
{
	(void)signal;
	dprintf(2, "verify: not done after %u s, side %d, seed %" PRIu64 "\n", run.opt.timeout,
		run.side, run.params.seed);
	for (uint32_t i = 0; run.conns && i < run.params.qps; i++) {
		struct conn *c = &run.conns[i];

		dprintf(2, "  QP %u (%#x): %" PRIu64 " posted, %" PRIu64 " retired, %" PRIu64
			" of %" PRIu64 " batches credited, %" PRIu64 " in, %" PRIu64 " granted\n",
			i, c->qp ? c->qp->qp_num : 0, c->serial, c->done, c->credits,
			run.params.batches, c->batches_in, c->granted);
	}
	_exit(3);
}

static uint64_t report(double seconds)
{
	uint64_t all = 0, events = 0;

	for (int k = 0; k < OP_KINDS; k++) {
		uint64_t sent = 0, received = 0;

		for (unsigned int i = 0; i < run.opt.threads; i++) {
			sent += run.workers[i].sent[k];
			received += run.workers[i].received[k];
		}
		printf("%-22s %10" PRIu64 " made %10" PRIu64 " served\n", op_name(k), sent,
		       received);
		all += sent + received;
	}
	for (unsigned int i = 0; i < run.opt.threads; i++)
		events += run.workers[i].events;
	printf("%u QPs, %u threads, seed %" PRIu64 ", %.1f s, %.2f us per operation, %" PRIu64
	       " events\n", run.params.qps, run.opt.threads, run.params.seed, seconds,
	       seconds * 1e6 / all, events);
	return all;
}

static void usage(void)
{
	fputs("usage: verify [options] [HOST]\n"
	      "Without HOST, waits for the side that names this host.\n"
	      "  --port P         TCP port for meeting (18600)\n"
	      "  --dev NAME       device (the first)\n"
	      "  --gid I          index of the GID to use (0)\n"
	      "  --threads T      threads of this side (1)\n"
	      "  --events         sleep on completion channels instead of polling\n"
	      "  --churn          register and reallocate memory meanwhile\n"
	      "  --recv-depth N   receives per QP; few provoke receiver-not-ready\n"
	      "  --rnr-timer N    code of the pause after that (1)\n"
	      "  --timeout S      give up after so many seconds (600)\n"
	      "of the side that names a host:\n"
	      "  --qps N          queue pairs (4)\n"
	      "  --ops N          operations of both sides together (100000)\n"
	      "  --seed S         which random run (1)\n"
	      "  --max-size B     largest message (1048576)\n", stderr);
	exit(2);
}

static uint64_t number(const char *text, uint64_t least, uint64_t most)
{
	char *end;
	uint64_t n;

	errno = 0;
	n = strtoull(text, &end, 0);
	if (errno || *end || end == text || n < least || n > most) {
		fprintf(stderr, "verify: %s is not a number from %" PRIu64 " to %" PRIu64 "\n",
			text, least, most);
		exit(2);
	}
	return n;
}

static void parse(int argc, char **argv)
{
	static const struct option options[] = {
		{ "port", 1, 0, 'p' }, { "dev", 1, 0, 'd' }, { "gid", 1, 0, 'g' },
		{ "threads", 1, 0, 't' }, { "events", 0, 0, 'e' }, { "recv-depth", 1, 0, 'r' },
		{ "timeout", 1, 0, 'T' }, { "qps", 1, 0, 'q' }, { "ops", 1, 0, 'n' },
		{ "seed", 1, 0, 's' }, { "max-size", 1, 0, 'm' }, { "rnr-timer", 1, 0, 'R' },
		{ "churn", 0, 0, 'c' }, { 0 },
	};
	struct options *o = &run.opt;
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'p': o->port = optarg; break;
		case 'd': o->device = optarg; break;
		case 'g': o->gid_index = number(optarg, 0, 255); break;
		case 't': o->threads = number(optarg, 1, 256); break;
		case 'e': o->events = true; break;
		case 'c': o->churn = true; break;
		case 'r': o->recv_depth = number(optarg, 1, RQ_DEPTH); break;
		case 'T': o->timeout = number(optarg, 1, 1u << 30); break;
		case 'q': run.params.qps = number(optarg, 1, MAX_QPS); break;
		case 'n': o->ops = number(optarg, 1, 1ull << 40); break;
		case 's': run.params.seed = number(optarg, 0, UINT64_MAX); break;
		case 'm': run.params.max_size = number(optarg, 1, 1u << 30); break;
		case 'R': run.qp_params.min_rnr_timer = number(optarg, 0, 31); break;
		default: usage();
		}
	}
	if (argc - optind > 1)
		usage();
	o->host = argv[optind];
}

int main(int argc, char **argv)
{
	struct timespec from, to;
	struct churner *churner;
	uint64_t per_batch;

	parse(argc, argv);
	per_batch = 2ull * run.params.qps * BATCH_OPS;
	run.params.batches = (run.opt.ops + per_batch - 1) / per_batch;
	signal(SIGALRM, on_alarm);
	alarm(run.opt.timeout);
	run_open(&run);
	churner = run.opt.churn ? churn_start(&run) : NULL;
	clock_gettime(CLOCK_MONOTONIC, &from);
	for (unsigned int i = 0; i < run.opt.threads; i++)
		need((errno = pthread_create(&run.workers[i].thread, NULL, work,
					     &run.workers[i])) == 0, "pthread_create");
	for (unsigned int i = 0; i < run.opt.threads; i++)
		need((errno = pthread_join(run.workers[i].thread, NULL)) == 0, "pthread_join");
	clock_gettime(CLOCK_MONOTONIC, &to);
	churn_end(churner);
	oob_barrier(run.oob, 2);
	check_rest();
	oob_barrier(run.oob, 3);
	per_batch = report(to.tv_sec - from.tv_sec + (to.tv_nsec - from.tv_nsec) * 1e-9);
	run_close(&run);
	printf("verify: %" PRIu64 " operations, 0 errors\n", per_batch);
	return 0;
}
