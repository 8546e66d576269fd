/* Asynchronous events of queue pairs and of the port. */
#define _GNU_SOURCE
#include "err.h"

#include <poll.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

/* What must come comes within this; only a failing case waits so long. */
#define PATIENCE_MS 20000

static void communication_established(struct env *env)
{
	struct pair p;

	pair_open(env, &p, NULL, false);
	side_connect(env, &p.a, &p.b);
	need0(qp_to_init(p.b.qp, &env->params));
	need0(qp_to_rtr(p.b.qp, &env->dev, &env->params,
			&(struct qp_addr){ p.a.qp->qp_num, p.a.psn, env->dev.gid }));
	need0(post_recv(&p.b, 1, 64));
	need0(post_send(&p.a, 2, IBV_WR_SEND, 64, 0, 0));
	check(expect_event(env, IBV_EVENT_COMM_EST).qp == p.b.qp, "the event of another QP");
	expect_wc(p.b.cq, 1, IBV_WC_SUCCESS);
	expect_wc(p.a.cq, 2, IBV_WC_SUCCESS);
	need0(qp_to_rts(p.b.qp, &env->params, p.b.psn));
}

static void peer_lost(struct env *env)
{
	struct pair p;

	pair_open(env, &p, NULL, true);
	need0(post_recv(&p.b, 1, 64));
	need0(post_send(&p.a, 2, IBV_WR_SEND, 64, 0, 0));
	expect_wc(p.b.cq, 1, IBV_WC_SUCCESS);
	expect_wc(p.a.cq, 2, IBV_WC_SUCCESS);
	need0(ibv_destroy_qp(p.b.qp));
	need0(post_send(&p.a, 3, IBV_WR_SEND, 64, 0, 0));
	check(expect_event(env, IBV_EVENT_QP_FATAL).qp == p.a.qp, "the event of another QP");
	expect_wc(p.a.cq, 3, IBV_WC_RETRY_EXC_ERR);
}

static void send_queue_drained(struct env *env)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	struct ibv_qp_init_attr init;
	struct pair p;

	pair_open(env, &p, NULL, true);
	/* Under way until the peer is ready for it. */
	need0(post_send(&p.a, 2, IBV_WR_SEND, 64, 0, 0));
	usleep(10000);
	need0(ibv_modify_qp(p.a.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
	need0(ibv_query_qp(p.a.qp, &attr, IBV_QP_STATE, &init));
	check(attr.qp_state == IBV_QPS_SQD && attr.sq_draining, "it does not drain");
	need0(post_recv(&p.b, 1, 64));
	check(expect_event(env, IBV_EVENT_SQ_DRAINED).qp == p.a.qp, "the event of another QP");
	need0(ibv_query_qp(p.a.qp, &attr, IBV_QP_STATE, &init));
	check(attr.qp_state == IBV_QPS_SQD && !attr.sq_draining, "it still drains");
	expect_wc(p.a.cq, 2, IBV_WC_SUCCESS);
}

/* Events that come next, up to the one that is expected last. Port events concern port 1. */
static unsigned int port_events(struct ibv_context *ctx, enum ibv_event_type last)
{
	unsigned int seen = 0;

	while (!(seen & 1u << last)) {
		struct pollfd fd = { .fd = ctx->async_fd, .events = POLLIN };
		struct ibv_async_event event;

		check(poll(&fd, 1, PATIENCE_MS) == 1, "no %s, but %#x",
		      ibv_event_type_str(last), seen);
		need(ibv_get_async_event(ctx, &event) == 0, "ibv_get_async_event");
		check(event.element.port_num == 1, "%s of port %d",
		      ibv_event_type_str(event.event_type), event.element.port_num);
		seen |= 1u << event.event_type;
		ibv_ack_async_event(&event);
	}
	return seen;
}

static enum ibv_port_state port_state(struct ibv_context *ctx)
{
	struct ibv_port_attr attr;

	need0(ibv_query_port(ctx, 1, &attr));
	return attr.state;
}

/* In a network of its own, where interfaces come and go. */
static void watch_port(void)
{
	struct ibv_device **list;
	struct ibv_context *ctx;

	need(unshare(CLONE_NEWNET) == 0, "unshare");
	need(system("ip link set lo up && ip link add d0 type veth peer name d1") == 0, "ip");
	need(system("ip link set d1 up") == 0, "ip");
	list = ibv_get_device_list(NULL);
	ctx = ibv_open_device(list[0]);
	need(ctx, "ibv_open_device");
	/* Nothing but a loopback: it serves. */
	check(port_state(ctx) == IBV_PORT_ACTIVE, "the port is down at first");
	need(system("ip addr add 10.99.0.1/24 dev d0 && ip link set d0 up") == 0, "ip");
	port_events(ctx, IBV_EVENT_PORT_ACTIVE);
	port_events(ctx, IBV_EVENT_GID_CHANGE);
	need(system("ip addr add 10.99.0.2/24 dev d0") == 0, "ip");
	port_events(ctx, IBV_EVENT_GID_CHANGE);
	check(port_state(ctx) == IBV_PORT_ACTIVE, "the port is down");
	need(system("ip link set d1 down && ip link set d0 down") == 0, "ip");
	port_events(ctx, IBV_EVENT_PORT_ERR);
	check(port_state(ctx) == IBV_PORT_DOWN, "the port is up without a network");
	need(system("ip link set d0 up && ip link set d1 up") == 0, "ip");
	port_events(ctx, IBV_EVENT_PORT_ACTIVE);
	check(port_state(ctx) == IBV_PORT_ACTIVE, "the port is down again");
	need0(ibv_close_device(ctx));
}

static void port(struct env *env)
{
	int status;
	pid_t pid = fork();

	(void)env;
	need(pid >= 0, "fork");
	if (pid == 0) {
		alarm(60);
		watch_port();
		_exit(0);
	}
	need(waitpid(pid, &status, 0) == pid, "waitpid");
	check(status == 0, "status %#x", status);
}

const struct error_case event_cases[] = {
	{ "event: COMM_EST", communication_established },
	{ "event: QP_FATAL when the peer is lost", peer_lost },
	{ "event: SQ_DRAINED", send_queue_drained },
	{ "event: PORT_ERR, PORT_ACTIVE, GID_CHANGE", port },
	{ 0 },
};
