/* What a process that ends without destroying its queue pairs does to its peer, or one that ends a
 * queue pair and goes on. One side, which stays, listens; the other, named the listener's address,
 * starts a process for each round, which ends by `main` returning, _exit or SIGKILL, or destroys
 * its queue pair, resets it, or moves it to the error state. */
#include "../verify/common.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEPTH 4
#define BYTES 64
/* How long nothing must happen to an idle queue pair, and how long a failure may take. */
#define QUIET_MS 1500
#define FAIL_MS 12000
enum { CONNECTED = 1, ACKNOWLEDGED, LEFT };

static struct device dev;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char data[2][BYTES];

static void make(int oob)
{
	struct qp_params params = { .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
				    .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
				    .min_rnr_timer = 1, .rd_atomic = 1 };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
					 .cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH,
						  .max_send_sge = 1, .max_recv_sge = 1 } };
	struct qp_addr mine, theirs;

	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(pd, &init);
	need(qp, "ibv_create_qp");
	need0(qp_to_init(qp, &params));
	for (int i = 0; i < DEPTH; i++) {
		struct ibv_sge sge = { (uintptr_t)data[1], BYTES, mr->lkey };
		struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad;

		need0(ibv_post_recv(qp, &recv, &bad));
	}
	mine = (struct qp_addr){ .qpn = qp->qp_num, .gid = dev.gid };
	oob_send(oob, &mine, sizeof(mine));
	oob_recv(oob, &theirs, sizeof(theirs));
	need0(qp_to_rtr(qp, &dev, &params, &theirs));
	need0(qp_to_rts(qp, &params, 0));
	oob_barrier(oob, CONNECTED);
}

static void open_all(void)
{
	device_open(&dev, NULL, 0);
	pd = ibv_alloc_pd(dev.ctx);
	need(pd, "ibv_alloc_pd");
	cq = ibv_create_cq(dev.ctx, 4 * DEPTH, NULL, NULL, 0);
	need(cq, "ibv_create_cq");
	mr = ibv_reg_mr(pd, data, sizeof(data), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	need(mr, "ibv_reg_mr");
}

static void post(void)
{
	struct ibv_sge sge = { (uintptr_t)data[0], BYTES, mr->lkey };
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	struct ibv_send_wr *bad;

	need0(ibv_post_send(qp, &send, &bad));
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* Whether a completion comes within this time. */
static bool next(struct ibv_wc *wc, int64_t limit_ms)
{
	int64_t until = now_ms() + limit_ms;

	do {
		int got = ibv_poll_cq(cq, 1, wc);

		need(got >= 0, "ibv_poll_cq");
		if (got)
			return true;
	} while (now_ms() < until);
	return false;
}

static bool has_event(void)
{
	struct pollfd fd = { .fd = dev.ctx->async_fd, .events = POLLIN };

	return poll(&fd, 1, 0) == 1;
}

static enum ibv_qp_state state_of(struct ibv_qp *of)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	need0(ibv_query_qp(of, &attr, IBV_QP_STATE, &init));
	return attr.qp_state;
}

/* The peer has taken what was sent, and ended: the request succeeds. */
static void stays_sent(int round)
{
	struct ibv_wc wc;

	post();
	if (!next(&wc, FAIL_MS))
		fail("round %d: the send does not complete", round);
	if (wc.opcode != IBV_WC_SEND || wc.status)
		fail("round %d: a send that was received: %s", round,
		     ibv_wc_status_str(wc.status));
}

/* The peer has ended, and nothing was under way. */
static void stays_idle(bool killed)
{
	struct ibv_async_event event;
	struct ibv_wc wc;

	if (!killed) {
		if (next(&wc, QUIET_MS))
			fail("an idle queue pair completes: %s", ibv_wc_status_str(wc.status));
		if (has_event())
			fail("an event of an idle queue pair");
		if (state_of(qp) != IBV_QPS_RTS)
			fail("an idle queue pair is in state %d", state_of(qp));
		post();
		if (!next(&wc, FAIL_MS))
			fail("a send to a process that has ended does not fail");
		if (wc.status != IBV_WC_RETRY_EXC_ERR)
			fail("a send to a process that has ended: %s",
			     ibv_wc_status_str(wc.status));
	}
	for (int flushed = 0; flushed < DEPTH; flushed++) {
		if (!next(&wc, FAIL_MS))
			fail("%d of %d receives flushed", flushed, DEPTH);
		if (wc.status != IBV_WC_WR_FLUSH_ERR)
			fail("a receive: %s", ibv_wc_status_str(wc.status));
	}
	while (has_event()) {
		need(!ibv_get_async_event(dev.ctx, &event), "ibv_get_async_event");
		ibv_ack_async_event(&event);
	}
}

/* Whether a process outlives its queue pair, which ends in this way. */
static bool outlives(const char *how)
{
	return !strcmp(how, "destroy") || !strcmp(how, "reset") || !strcmp(how, "error");
}

static void end_queue_pair(const char *how)
{
	struct ibv_qp_attr attr = {
		.qp_state = strcmp(how, "reset") ? IBV_QPS_ERR : IBV_QPS_RESET,
	};

	if (strcmp(how, "destroy"))
		need0(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	else
		need0(ibv_destroy_qp(qp));
}

static void stay(int oob, const char *what, const char *how, int rounds)
{
	struct ibv_wc wc;

	open_all();
	for (int round = 0; round < rounds; round++) {
		char left;

		make(oob);
		stays_sent(round);
		if (strcmp(what, "sent") || outlives(how))
			oob_barrier(oob, ACKNOWLEDGED);
		oob_recv(oob, &left, 1);
		if (strcmp(what, "sent"))
			stays_idle(!strcmp(how, "kill"));
		need0(ibv_destroy_qp(qp));
		while (ibv_poll_cq(cq, 1, &wc) > 0)
			;
	}
	oob_barrier(oob, LEFT);
	printf("stayed %d\n", rounds);
}

static void leave(int oob, const char *what, const char *how)
{
	struct ibv_wc wc;

	open_all();
	make(oob);
	if (!next(&wc, FAIL_MS) || wc.status)
		fail("no message");
	if (outlives(how))
		end_queue_pair(how);
	if (strcmp(what, "sent") || outlives(how))
		oob_barrier(oob, ACKNOWLEDGED);
	if (!strcmp(how, "kill"))
		kill(getpid(), SIGKILL);
	if (!strcmp(how, "_exit"))
		_exit(0);
}

int main(int argc, char **argv)
{
	const char *host = argc > 5 ? argv[5] : NULL, *what = argc > 4 ? argv[2] : "";
	int rounds, oob;

	if (argc < 5)
		fail("usage: leave PORT sent|idle return|_exit|kill|destroy|reset|error ROUNDS "
		     "[HOST]");
	rounds = atoi(argv[4]);
	oob = oob_connect(host, argv[1]);
	if (!host) {
		stay(oob, what, argv[3], rounds);
		return 0;
	}
	for (int round = 0; round < rounds; round++) {
		pid_t child = fork();
		int status;

		need(child >= 0, "fork");
		if (!child) {
			leave(oob, what, argv[3]);
			return 0;
		}
		need(waitpid(child, &status, 0) == child, "waitpid");
		if (WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status) != SIGKILL)
			fail("round %d: status %x", round, status);
		oob_send(oob, "", 1);
	}
	oob_barrier(oob, LEFT);
	return 0;
}
