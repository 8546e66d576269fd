/* Programs that watch a descriptor by edge-triggered epoll hear of each event, whether or not they
 * have taken those before: completion channels, asynchronous events, connection events. */
#include "peer.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define EVENTS 4
/* An event is raised before the call returns that causes it. */
#define WAIT_MS 1000

static struct rdma_event_channel *channel;
static struct rdma_cm_id *ids[EVENTS];
static struct ibv_comp_channel *completions;
static struct ibv_cq *cqs[EVENTS], *other_cq;
static struct ibv_qp *flushed[EVENTS], *drained[EVENTS];
static struct ibv_pd *pd;
static struct sockaddr_storage somebody;

static void to_error(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	need0(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

static struct ibv_qp *new_qp(struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct qp_params params = { .access = 0 };
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);

	need(qp, "ibv_create_qp");
	need0(qp_to_init(qp, &params));
	return qp;
}

static void raise_completion(int i)
{
	to_error(flushed[i]);
}

static void take_completion(void)
{
	struct ibv_cq *cq;
	void *context;

	need(!ibv_get_cq_event(completions, &cq, &context), "ibv_get_cq_event");
	ibv_ack_cq_events(cq, 1);
}

static void raise_async(int i)
{
	to_error(drained[i]);
}

static void take_async(void)
{
	struct ibv_async_event event;

	need(!ibv_get_async_event(pd->context, &event), "ibv_get_async_event");
	if (event.event_type != IBV_EVENT_QP_LAST_WQE_REACHED)
		fail("%s", ibv_event_type_str(event.event_type));
	ibv_ack_async_event(&event);
}

static void raise_connection(int i)
{
	need(!rdma_resolve_addr(ids[i], NULL, (struct sockaddr *)&somebody, RESOLVE_MS),
	     "rdma_resolve_addr");
}

static void take_connection(void)
{
	rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
}

static struct kind {
	const char *name;
	int fd;
	void (*raise)(int i);
	void (*take)(void);
} kinds[] = {
	{ "completion channel", -1, raise_completion, take_completion },
	{ "asynchronous events", -1, raise_async, take_async },
	{ "connection events", -1, raise_connection, take_connection },
};

static void set_up(const char *host)
{
	struct ibv_srq_init_attr of_srq = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_recv_wr wr = { .num_sge = 0 }, *bad;
	struct ibv_context *verbs;
	struct ibv_srq *srq;

	somebody = address_of(host, "9");
	channel = rdma_create_event_channel();
	need(channel, "rdma_create_event_channel");
	for (int i = 0; i < EVENTS; i++)
		need(!rdma_create_id(channel, &ids[i], NULL, RDMA_PS_TCP), "rdma_create_id");
	verbs = rdma_get_devices(NULL)[0];
	pd = ibv_alloc_pd(verbs);
	need(pd, "ibv_alloc_pd");
	srq = ibv_create_srq(pd, &of_srq);
	completions = ibv_create_comp_channel(verbs);
	other_cq = ibv_create_cq(verbs, 2 * EVENTS, NULL, NULL, 0);
	need(srq && completions && other_cq, "completion channel and queues");
	for (int i = 0; i < EVENTS; i++) {
		cqs[i] = ibv_create_cq(verbs, 2, NULL, completions, 0);
		need(cqs[i], "ibv_create_cq");
		need0(ibv_req_notify_cq(cqs[i], 0));
		flushed[i] = new_qp(cqs[i], NULL);
		need0(ibv_post_recv(flushed[i], &wr, &bad));
		drained[i] = new_qp(other_cq, srq);
	}
	kinds[0].fd = completions->fd;
	kinds[1].fd = verbs->async_fd;
	kinds[2].fd = channel->fd;
}

/* How often the kernel woke the waiter is what each call of epoll_wait tells. */
static void watch(const struct kind *kind)
{
	struct pollfd level = { .fd = kind->fd, .events = POLLIN };
	struct epoll_event edge = { .events = EPOLLIN | EPOLLET };
	int epoll = epoll_create1(EPOLL_CLOEXEC);

	need(epoll >= 0, "epoll_create1");
	need(!epoll_ctl(epoll, EPOLL_CTL_ADD, kind->fd, &edge), "epoll_ctl");
	for (int i = 0; i < EVENTS; i++) {
		kind->raise(i);
		if (epoll_wait(epoll, &edge, 1, WAIT_MS) != 1)
			fail("%s: nobody hears of event %d", kind->name, i + 1);
		if (epoll_wait(epoll, &edge, 1, 0))
			fail("%s: event %d is told twice", kind->name, i + 1);
		/* The second is taken before the third comes, and one stays. */
		if (i == 1)
			kind->take();
	}
	for (int i = 1; i < EVENTS; i++) {
		if (poll(&level, 1, 0) != 1)
			fail("%s: %d events, and not readable", kind->name, EVENTS - i);
		kind->take();
	}
	if (poll(&level, 1, 0))
		fail("%s: readable without an event", kind->name);
	close(epoll);
	printf("%s: %d events, each heard of\n", kind->name, EVENTS);
}

int hear_each_event(const char *host)
{
	set_up(host);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		watch(&kinds[i]);
	return 0;
}
