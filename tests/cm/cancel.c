/* Threads that are cancelled in the calls that wait for events, which are cancellation points. */
#define _GNU_SOURCE
#include "peer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define JOIN_SECONDS 10
#define ROUNDS 300
#define DEPTH 16
#define BYTES 64

/* From RRECV_ALL on they must not be called with asynchronous cancellation. */
enum call {
	CQ_EVENT, ASYNC_EVENT, CM_EVENT, GET_REQUEST, RACCEPT, RCONNECT,
	RRECV_ALL, RRECV, RSEND, RPOLL, RSELECT, CALLS
};
static const char *const NAMES[] = { "ibv_get_cq_event", "ibv_get_async_event",
				     "rdma_get_cm_event", "rdma_get_request", "raccept",
				     "rconnect", "rrecv of all", "rrecv", "rsend", "rpoll",
				     "rselect" };

static struct device dev;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct rdma_event_channel *cm_channel;
static struct rdma_cm_id *listener;
/* Nobody connects to the first, nor accepts from the second; a connection without data, whose peer
 * does not read. */
static int empty, deaf, stream, peer;
static struct sockaddr_storage deaf_address;

/* A thread that waits, and how. */
struct waiter {
	pthread_t thread;
	enum call call;
	int type, state;
	_Atomic pid_t tid;
	atomic_bool cleaned, returned;
};

static void cleaned(void *arg)
{
	((struct waiter *)arg)->cleaned = true;
}

static int connect_to_the_deaf(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	need(fd >= 0, "rsocket");
	return rconnect(fd, (struct sockaddr *)&deaf_address, sizeof(struct sockaddr_in));
}

static int wait_for_stream(enum call call)
{
	static char data[1 << 22];
	struct pollfd polled = { .fd = stream, .events = POLLIN };
	fd_set read;

	switch (call) {
	case RRECV:
		return rrecv(stream, data, 1, 0) < 0;
	case RRECV_ALL:
		return rrecv(stream, data, sizeof(data), MSG_WAITALL) < 0;
	case RSEND:
		return rsend(stream, data, sizeof(data), 0) < 0;
	case RPOLL:
		return rpoll(&polled, 1, -1) < 0;
	default:
		FD_ZERO(&read);
		FD_SET(stream, &read);
		return rselect(stream + 1, &read, NULL, NULL, NULL) < 0;
	}
}

static int wait_once(enum call call)
{
	struct ibv_async_event event;
	struct rdma_cm_event *cm;
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	void *context;

	switch (call) {
	case CQ_EVENT:
		if (ibv_get_cq_event(channel, &cq, &context))
			return -1;
		ibv_ack_cq_events(cq, 1);
		need0(ibv_req_notify_cq(cq, 0));
		return 0;
	case ASYNC_EVENT:
		if (ibv_get_async_event(dev.ctx, &event))
			return -1;
		ibv_ack_async_event(&event);
		return 0;
	case CM_EVENT:
		return rdma_get_cm_event(cm_channel, &cm);
	case GET_REQUEST:
		return rdma_get_request(listener, &id);
	case RACCEPT:
		return raccept(empty, NULL, NULL) < 0;
	case RCONNECT:
		return connect_to_the_deaf();
	default:
		return wait_for_stream(call);
	}
}

static void *wait_for_ever(void *arg)
{
	struct waiter *waiter = arg;

	pthread_setcancelstate(waiter->state, NULL);
	pthread_cleanup_push(cleaned, waiter);
	pthread_setcanceltype(waiter->type, NULL);
	waiter->tid = (pid_t)syscall(SYS_gettid);
	while (!wait_once(waiter->call) && waiter->state == PTHREAD_CANCEL_ENABLE)
		;
	waiter->returned = true;
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	for (;;)
		pthread_testcancel();
	pthread_cleanup_pop(0);
	return NULL;
}

static void start(struct waiter *waiter)
{
	waiter->tid = 0;
	waiter->cleaned = waiter->returned = false;
	need0(pthread_create(&waiter->thread, NULL, wait_for_ever, waiter));
}

static void joined(struct waiter *waiter, const char *when)
{
	struct timespec until;
	void *result;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += JOIN_SECONDS;
	if (pthread_timedjoin_np(waiter->thread, &result, &until))
		fail("%s, %s: the cancelled thread does not end", NAMES[waiter->call], when);
	if (result != PTHREAD_CANCELED || !waiter->cleaned ||
	    waiter->returned != (waiter->state == PTHREAD_CANCEL_DISABLE))
		fail("%s, %s: result %p, cleaned %d, returned %d", NAMES[waiter->call], when,
		     result, waiter->cleaned, waiter->returned);
}

static void cancel_each(int type, const char *when)
{
	int calls = type == PTHREAD_CANCEL_ASYNCHRONOUS ? RRECV_ALL : CALLS;

	for (int call = 0; call < calls; call++) {
		struct waiter waiter = { .call = call, .type = type };

		/* In the wait, and before it. */
		start(&waiter);
		await_sleep(&waiter.tid);
		need0(pthread_cancel(waiter.thread));
		joined(&waiter, when);
		start(&waiter);
		need0(pthread_cancel(waiter.thread));
		joined(&waiter, "at once");
	}
}

static int listening(struct sockaddr_storage *at)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof(*at);

	need(fd >= 0, "rsocket");
	need(!rbind(fd, (struct sockaddr *)at, sizeof(struct sockaddr_in)), "rbind");
	need(!rlisten(fd, -1), "rlisten");
	need(!rgetsockname(fd, (struct sockaddr *)at, &len), "rgetsockname");
	return fd;
}

static void streams_make(void)
{
	struct sockaddr_storage at = address_of("127.0.0.1", "0");
	struct pollfd polled = { .events = POLLOUT };

	deaf_address = at;
	empty = listening(&at);
	deaf = listening(&deaf_address);
	stream = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	need(stream >= 0, "rsocket");
	need(rconnect(stream, (struct sockaddr *)&at, sizeof(struct sockaddr_in)) &&
	     errno == EINPROGRESS, "rconnect");
	peer = raccept(empty, NULL, NULL);
	need(peer >= 0, "raccept");
	polled.fd = stream;
	need(rpoll(&polled, 1, -1) == 1 && polled.revents == POLLOUT, "rpoll");
	need(!rfcntl(stream, F_SETFL, 0), "rfcntl");
	/* Some of what is to be received is there. */
	need(rsend(peer, "a", 1, 0) == 1, "rsend");
}

/* The locks are free: a stream is used and ended as ever. */
static void streams_free(void)
{
	char data[1 << 16];
	ssize_t got;

	need(!rshutdown(stream, SHUT_WR), "rshutdown");
	do {
		got = rrecv(peer, data, sizeof(data), 0);
		need(got >= 0, "rrecv");
	} while (got);
	need(rsend(peer, "b", 1, 0) == 1, "rsend");
	need(rrecv(stream, data, 1, MSG_WAITALL) == 1, "rrecv");
	need(!rclose(peer) && !rclose(stream) && !rclose(empty) && !rclose(deaf), "rclose");
}

/* Two queue pairs of this process, and their queues. */
struct loop {
	struct ibv_qp *qp[2];
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char data[2][BYTES];
};

static void loop_make(struct loop *loop, struct ibv_comp_channel *told)
{
	struct qp_params params = { .access = IBV_ACCESS_LOCAL_WRITE, .timeout = 14,
				    .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 1 };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
					 .cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH,
						  .max_send_sge = 1, .max_recv_sge = 1 } };

	memset(loop, 0, sizeof(*loop));
	loop->cq = ibv_create_cq(dev.ctx, 4 * DEPTH, NULL, told, 0);
	need(loop->cq, "ibv_create_cq");
	loop->mr = ibv_reg_mr(pd, loop->data, sizeof(loop->data), IBV_ACCESS_LOCAL_WRITE);
	need(loop->mr, "ibv_reg_mr");
	init.send_cq = init.recv_cq = loop->cq;
	for (int i = 0; i < 2; i++) {
		loop->qp[i] = ibv_create_qp(pd, &init);
		need(loop->qp[i], "ibv_create_qp");
		need0(qp_to_init(loop->qp[i], &params));
	}
	for (int i = 0; i < 2; i++) {
		struct qp_addr peer = { .qpn = loop->qp[1 - i]->qp_num, .gid = dev.gid };

		need0(qp_to_rtr(loop->qp[i], &dev, &params, &peer));
		need0(qp_to_rts(loop->qp[i], &params, 0));
	}
}

static void loop_free(struct loop *loop)
{
	need0(ibv_destroy_qp(loop->qp[0]));
	need0(ibv_destroy_qp(loop->qp[1]));
	need0(ibv_dereg_mr(loop->mr));
	need0(ibv_destroy_cq(loop->cq));
}

/* A message from one to the other, and both completions. */
static void loop_turn(struct loop *loop)
{
	struct ibv_sge sge[2];
	struct ibv_recv_wr recv = { .sg_list = &sge[1], .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .sg_list = &sge[0], .num_sge = 1, .opcode = IBV_WR_SEND };
	struct ibv_send_wr *bad_send;
	struct ibv_wc wc;

	for (int i = 0; i < 2; i++)
		sge[i] = (struct ibv_sge){ (uintptr_t)loop->data[i], BYTES, loop->mr->lkey };
	need0(ibv_post_recv(loop->qp[1], &recv, &bad_recv));
	need0(ibv_post_send(loop->qp[0], &send, &bad_send));
	for (int done = 0; done < 2;) {
		int got = ibv_poll_cq(loop->cq, 1, &wc);

		need(got >= 0, "ibv_poll_cq");
		if (got && wc.status)
			fail("completion: %s", ibv_wc_status_str(wc.status));
		done += got;
	}
}

/* What MVAPICH2 does: a thread that waits for asynchronous events, with asynchronous cancellation,
 * beside one that sends; cancelled at the end of each run, at any moment. */
static void cancel_beside_traffic(int type, const char *when)
{
	struct rng rng = rng_for(1, type, 0);
	struct loop loop;

	loop_make(&loop, NULL);
	for (int round = 0; round < ROUNDS; round++) {
		struct waiter waiter = { .call = round % 2 ? ASYNC_EVENT : CQ_EVENT,
					 .type = type };

		start(&waiter);
		for (uint64_t turns = rng_below(&rng, 40); turns; turns--)
			loop_turn(&loop);
		need0(pthread_cancel(waiter.thread));
		for (uint64_t turns = rng_below(&rng, 20); turns; turns--)
			loop_turn(&loop);
		joined(&waiter, when);
	}
	loop_turn(&loop);
	loop_free(&loop);
}

/* A thread that waits for the completions of another's traffic: where they come often it looks for
 * them before it sleeps, and is cancelled there as it is asleep. */
static void cancel_where_events_are_frequent(void)
{
	struct rng rng = rng_for(2, 0, 0);
	struct loop loop;

	loop_make(&loop, channel);
	need0(ibv_req_notify_cq(loop.cq, 0));
	for (int round = 0; round < ROUNDS; round++) {
		struct waiter waiter = { .call = CQ_EVENT, .type = PTHREAD_CANCEL_DEFERRED };

		start(&waiter);
		for (uint64_t turns = rng_below(&rng, 100); turns; turns--)
			loop_turn(&loop);
		need0(pthread_cancel(waiter.thread));
		for (uint64_t turns = rng_below(&rng, 20); turns; turns--)
			loop_turn(&loop);
		joined(&waiter, "while events are frequent");
	}
	loop_free(&loop);
}

/* A thread that has switched cancellation off is not cancelled: it gets its event. */
static void off_is_off(void)
{
	struct waiter waiter = { .call = CQ_EVENT, .state = PTHREAD_CANCEL_DISABLE };
	struct ibv_cq *cq = ibv_create_cq(dev.ctx, 4, NULL, channel, 0);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq,
					 .cap = { .max_send_wr = 1, .max_recv_wr = 1,
						  .max_send_sge = 1, .max_recv_sge = 1 } };
	struct qp_params params = { .access = IBV_ACCESS_LOCAL_WRITE };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad;
	struct ibv_qp *qp;

	need(cq, "ibv_create_cq");
	need0(ibv_req_notify_cq(cq, 0));
	qp = ibv_create_qp(pd, &init);
	need(qp, "ibv_create_qp");
	need0(qp_to_init(qp, &params));
	start(&waiter);
	await_sleep(&waiter.tid);
	need0(pthread_cancel(waiter.thread));
	await_sleep(&waiter.tid);
	if (waiter.returned || waiter.cleaned)
		fail("a thread with cancellation off was cancelled");
	need0(ibv_post_recv(qp, &recv, &bad));
	need0(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	joined(&waiter, "off");
	need0(ibv_destroy_qp(qp));
	need0(ibv_destroy_cq(cq));
}

int cancelled(const char *host, const char *port)
{
	struct sockaddr_storage any = address_of(host, port);

	device_open(&dev, NULL, 0);
	pd = ibv_alloc_pd(dev.ctx);
	need(pd, "ibv_alloc_pd");
	channel = ibv_create_comp_channel(dev.ctx);
	need(channel, "ibv_create_comp_channel");
	cm_channel = rdma_create_event_channel();
	need(cm_channel, "rdma_create_event_channel");
	need(!rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
	need(!rdma_bind_addr(listener, (struct sockaddr *)&any), "rdma_bind_addr");
	need(!rdma_listen(listener, 4), "rdma_listen");
	streams_make();
	cancel_each(PTHREAD_CANCEL_DEFERRED, "deferred");
	cancel_each(PTHREAD_CANCEL_ASYNCHRONOUS, "asynchronous");
	streams_free();
	off_is_off();
	cancel_beside_traffic(PTHREAD_CANCEL_DEFERRED, "beside traffic, deferred");
	cancel_beside_traffic(PTHREAD_CANCEL_ASYNCHRONOUS, "beside traffic, asynchronous");
	cancel_where_events_are_frequent();
	rdma_destroy_event_channel(cm_channel);
	need(!rdma_destroy_id(listener), "rdma_destroy_id");
	need0(ibv_destroy_comp_channel(channel));
	need0(ibv_dealloc_pd(pd));
	need0(ibv_close_device(dev.ctx));
	printf("cancelled\n");
	return 0;
}
