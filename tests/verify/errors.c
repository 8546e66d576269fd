/* Runs the error cases, each in a process of its own, so that none can spoil another. */
#define _GNU_SOURCE
#include "err.h"

#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What must come comes within this; only a failing case waits so long. */
#define PATIENCE_S 15
/* A case that hangs is killed after this. */
#define CASE_S 60

static const char *device_name;
static int gid_index;

void case_fail(const char *file, int line, const char *format, ...)
{
	va_list args;

	printf("     %s:%d: ", file, line);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
	_exit(1);
}

void check_returns(int rc, int error, const char *what, const char *file, int line)
{
	int got = rc < 0 ? errno : rc;

	if (got != error)
		case_fail(file, line, "%s: %s instead of %s", what, got ? strerror(got) : "success",
			  strerror(error));
}

void check_pointer(const void *p, int error, const char *what, const char *file, int line)
{
	int got = errno;

	if (p || got != error)
		case_fail(file, line, "%s: %s instead of %s", what, p ? "success" : strerror(got),
			  strerror(error));
}

static time_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

void side_open(struct env *env, struct side *s, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = {
		.srq = srq,
		.cap = {
			.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2,
			.max_recv_sge = 2, .max_inline_data = 64,
		},
		.qp_type = IBV_QPT_RC,
	};

	if (!s->cq)
		s->cq = ibv_create_cq(env->dev.ctx, 4 * DEPTH, NULL, NULL, 0);
	need(s->cq, "ibv_create_cq");
	init.send_cq = s->cq;
	init.recv_cq = s->cq;
	s->qp = ibv_create_qp(env->pd, &init);
	need(s->qp, "ibv_create_qp");
	s->buf = page_alloc(BUF_BYTES);
	s->mr = ibv_reg_mr(env->pd, s->buf, BUF_BYTES, ANY_ACCESS);
	need(s->mr, "ibv_reg_mr");
	s->psn = 0x123400 + s->qp->qp_num % 256;
}

void side_connect(struct env *env, struct side *s, const struct side *peer)
{
	struct qp_addr addr = { peer->qp->qp_num, peer->psn, env->dev.gid };

	need0(qp_to_init(s->qp, &env->params));
	need0(qp_to_rtr(s->qp, &env->dev, &env->params, &addr));
	need0(qp_to_rts(s->qp, &env->params, s->psn));
}

void pair_open(struct env *env, struct pair *p, struct ibv_srq *srq, bool connect)
{
	memset(p, 0, sizeof(*p));
	side_open(env, &p->a, NULL);
	side_open(env, &p->b, srq);
	if (connect) {
		side_connect(env, &p->a, &p->b);
		side_connect(env, &p->b, &p->a);
	}
}

int post_recv(struct side *s, uint64_t wr_id, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)s->buf, len, s->mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 };

	return ibv_post_recv(s->qp, &wr, &bad);
}

int post_send(struct side *s, uint64_t wr_id, enum ibv_wr_opcode op, uint32_t len,
	      uint64_t remote, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)s->buf, len, s->mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = op,
		.send_flags = IBV_SEND_SIGNALED,
	};

	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = remote;
		wr.wr.atomic.rkey = rkey;
	} else if (op == IBV_WR_SEND_WITH_INV) {
		wr.invalidate_rkey = rkey;
	} else {
		wr.wr.rdma.remote_addr = remote;
		wr.wr.rdma.rkey = rkey;
	}
	return ibv_post_send(s->qp, &wr, &bad);
}

struct ibv_wc expect_wc(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc = { 0 };
	time_t end = now() + PATIENCE_S;
	int n;

	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		check(now() < end, "no completion; wr_id %lu, %s expected", wr_id,
		      ibv_wc_status_str(status));
	check(n == 1, "ibv_poll_cq returns %d", n);
	check(wc.wr_id == wr_id && wc.status == status, "wr_id %lu: %s; wr_id %lu, %s expected",
	      wc.wr_id, ibv_wc_status_str(wc.status), wr_id, ibv_wc_status_str(status));
	return wc;
}

void expect_quiet(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n = ibv_poll_cq(cq, 1, &wc);

	check(n == 0, "an unexpected completion: wr_id %lu, %s", wc.wr_id,
	      ibv_wc_status_str(wc.status));
}

union event_object expect_event(struct env *env, enum ibv_event_type type)
{
	struct pollfd fd = { .fd = env->dev.ctx->async_fd, .events = POLLIN };
	time_t end = now() + PATIENCE_S;
	struct ibv_async_event event;
	union event_object object;

	for (;;) {
		check(now() < end && poll(&fd, 1, PATIENCE_S * 1000) == 1, "no event, %s expected",
		      ibv_event_type_str(type));
		need(ibv_get_async_event(env->dev.ctx, &event) == 0, "ibv_get_async_event");
		object.qp = event.element.qp;
		ibv_ack_async_event(&event);
		if (event.event_type == type)
			return object;
	}
}

void expect_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	need0(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	check(attr.qp_state == state, "QP is in state %d, must be %d", attr.qp_state, state);
}

/* A SEND each way, and a WRITE, with their contents. */
void bystander_check(struct env *env)
{
	struct side *a = &env->bystander.a, *b = &env->bystander.b, *swap;
	static uint64_t key;

	for (int i = 0; i < 2; i++) {
		need0(post_recv(b, 11, 512));
		content_fill(a->buf, ++key, 0, 512);
		need0(post_send(a, 12, IBV_WR_SEND, 512, 0, 0));
		expect_wc(b->cq, 11, IBV_WC_SUCCESS);
		expect_wc(a->cq, 12, IBV_WC_SUCCESS);
		check(content_check(b->buf, key, 0, 512) < 0, "a bystander's SEND is damaged");
		need0(post_send(a, 13, IBV_WR_RDMA_WRITE, 512, (uintptr_t)b->buf + 4096,
				b->mr->rkey));
		expect_wc(a->cq, 13, IBV_WC_SUCCESS);
		check(content_check(b->buf + 4096, key, 0, 512) < 0,
		      "a bystander's WRITE is damaged");
		expect_quiet(a->cq);
		expect_quiet(b->cq);
		swap = a;
		a = b;
		b = swap;
	}
}

static int run_case(const struct error_case *c)
{
	struct env env = {
		.params = {
			.access = ANY_ACCESS, .timeout = 10, .retry_cnt = 1, .rnr_retry = 7,
			.min_rnr_timer = 1, .rd_atomic = 4,
		},
	};

	alarm(CASE_S);
	device_open(&env.dev, device_name, gid_index);
	env.pd = ibv_alloc_pd(env.dev.ctx);
	need(env.pd, "ibv_alloc_pd");
	pair_open(&env, &env.bystander, NULL, true);
	bystander_check(&env);
	c->run(&env);
	bystander_check(&env);
	return 0;
}

static bool passes(const struct error_case *c)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	need(pid >= 0, "fork");
	if (pid == 0) {
		int rc = run_case(c);

		fflush(stdout);
		/* What a case leaves behind is the broker's to clean up, as after any crash. */
		_exit(rc);
	}
	need(waitpid(pid, &status, 0) == pid, "waitpid");
	if (WIFSIGNALED(status))
		printf("     killed by signal %d%s\n", WTERMSIG(status),
		       WTERMSIG(status) == SIGALRM ? " (it hung)" : "");
	printf("%s %s\n", status == 0 ? "PASS" : "FAIL", c->name);
	return status == 0;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "dev", 1, 0, 'd' }, { "gid", 1, 0, 'g' }, { "without", 1, 0, 'w' }, { 0 },
	};
	const struct error_case *tables[] = {
		remote_cases, local_cases, api_cases, datagram_cases, window_cases,
		event_cases, memory_cases, signal_cases, end_cases, key_cases,
		twice_cases,
	};
	unsigned int passed = 0, failed = 0;
	const char *without = NULL;
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c == '?') {
			fputs("usage: errors [--dev NAME] [--gid I] [--without PART OF A NAME] "
			      "[PART OF A CASE'S NAME]\n", stderr);
			return 2;
		}
		if (c == 'd')
			device_name = optarg;
		else if (c == 'w')
			without = optarg;
		else
			gid_index = atoi(optarg);
	}
	for (size_t t = 0; t < sizeof(tables) / sizeof(*tables); t++)
		for (const struct error_case *e = tables[t]; e->name; e++) {
			if ((argv[optind] && !strstr(e->name, argv[optind])) ||
			    (without && strstr(e->name, without)))
				continue;
			if (passes(e))
				passed++;
			else
				failed++;
		}
	if (passed + failed == 0) {
		fprintf(stderr, "errors: no case is called %s\n", argv[optind]);
		return 2;
	}
	printf("%u passed, %u failed\n", passed, failed);
	return failed != 0;
}
