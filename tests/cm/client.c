/* Clients: one connection after the other, many at once, and one that dies on the way. */
#include "peer.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CQ_PER_LINK 4
#define HELLO "connect, please"
/* How long a connection is watched that should not end, and a child outlives its parent. */
#define WATCH_MS 300
#define CHILD_SECONDS 60

static struct rdma_conn_param usual(void)
{
	return (struct rdma_conn_param){
		.private_data = HELLO,
		.private_data_len = sizeof(HELLO),
		.responder_resources = 1,
		.initiator_depth = 1,
		.retry_count = 7,
		.rnr_retry_count = 7,
	};
}

/* The server answers private data with the same, reversed. */
static void check_private(const struct rdma_cm_event *event)
{
	const char *data = event->param.conn.private_data;

	if (event->param.conn.private_data_len < sizeof(HELLO))
		fail("%d bytes of private data", event->param.conn.private_data_len);
	for (size_t i = 0; i < sizeof(HELLO); i++)
		if (data[i] != HELLO[sizeof(HELLO) - 1 - i])
			fail("private data differ");
}

static void await(struct ibv_cq *cq, int completions)
{
	struct ibv_wc wc;

	while (completions > 0) {
		int found = ibv_poll_cq(cq, 1, &wc);

		need(found >= 0, "ibv_poll_cq");
		if (found && wc.status != IBV_WC_SUCCESS)
			fail("a completion with %s", ibv_wc_status_str(wc.status));
		completions -= found;
	}
}

static void check_answer(const struct link *link)
{
	for (int b = 0; b < MESSAGE; b++)
		if (link->in[b] != (char)~link->out[b])
			fail("the answer is wrong");
}

static void die_if(const char *stage, const char *here)
{
	if (stage && !strcmp(stage, here))
		raise(SIGKILL);
}

/* Says that the connection stands, and watches it until standard input ends. */
static void hold(struct rdma_event_channel *channel)
{
	struct pollfd fds[] = {
		{ .fd = channel->fd, .events = POLLIN }, { .fd = STDIN_FILENO, .events = POLLIN },
	};
	struct rdma_cm_event *event;

	puts("established");
	fflush(stdout);
	need(poll(fds, 2, -1) > 0, "poll");
	if (!fds[0].revents)
		need(poll(fds, 1, WATCH_MS) >= 0, "poll");
	if (fds[0].revents) {
		need(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
		fail("%s", rdma_event_str(event->event));
	}
}

/* A child that does nothing, and holds what its parent had open. */
static void fork_idle(void)
{
	pid_t child = fork();

	need(child >= 0, "fork");
	if (child == 0) {
		sleep(CHILD_SECONDS);
		_exit(0);
	}
}

static void connect_once(struct rdma_event_channel *channel, struct sockaddr_storage *peer,
			 const char *stage, int n)
{
	struct rdma_conn_param param = usual();
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	struct link *link;

	need(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	need(!rdma_resolve_addr(id, NULL, (struct sockaddr *)peer, RESOLVE_MS), "resolve_addr");
	rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	need(!rdma_resolve_route(id, RESOLVE_MS), "rdma_resolve_route");
	rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
	cq = ibv_create_cq(id->verbs, CQ_PER_LINK, NULL, NULL, 0);
	need(cq, "ibv_create_cq");
	link = link_make(id, cq);
	die_if(stage, "resolved");
	need(!rdma_connect(id, &param), "rdma_connect");
	die_if(stage, "requested");
	event = expect(channel, RDMA_CM_EVENT_ESTABLISHED);
	die_if(stage, "established");
	check_private(event);
	rdma_ack_cm_event(event);
	if (stage && !strcmp(stage, "held"))
		hold(channel);
	if (stage && !strcmp(stage, "forked"))
		fork_idle();
	die_if(stage, "forked");
	memset(link->out, n, MESSAGE);
	link_send(link);
	die_if(stage, "sent");
	await(cq, 2);
	check_answer(link);
	die_if(stage, "answered");
	need(!rdma_disconnect(id), "rdma_disconnect");
	die_if(stage, "disconnecting");
	rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_DISCONNECTED));
	die_if(stage, "disconnected");
	link_free(link);
	need0(ibv_destroy_cq(cq));
}

int connect_one_by_one(const char *host, const char *port, int count)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_storage peer = address_of(host, port);

	need(channel, "rdma_create_event_channel");
	for (int n = 0; n < count; n++)
		connect_once(channel, &peer, NULL, n);
	rdma_destroy_event_channel(channel);
	printf("%d connections\n", count);
	return 0;
}

int hold_one(const char *host, const char *port)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_storage peer = address_of(host, port);

	need(channel, "rdma_create_event_channel");
	connect_once(channel, &peer, "held", 1);
	rdma_destroy_event_channel(channel);
	return 0;
}

int die_at(const char *host, const char *port, const char *stage)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_storage peer = address_of(host, port);

	need(channel, "rdma_create_event_channel");
	connect_once(channel, &peer, stage, 1);
	fail("nothing died at \"%s\"", stage);
}

/* One event of many connections that are being made; true when one is established. */
static bool advance(struct rdma_cm_event *event, struct ibv_cq **cq, int count)
{
	struct rdma_conn_param param = usual();
	struct rdma_cm_id *id = event->id;
	enum rdma_cm_event_type kind = event->event;

	if (event->status)
		fail("%s: %d", rdma_event_str(kind), event->status);
	if (kind == RDMA_CM_EVENT_ESTABLISHED)
		check_private(event);
	rdma_ack_cm_event(event);
	switch (kind) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		need(!rdma_resolve_route(id, RESOLVE_MS), "rdma_resolve_route");
		return false;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		if (!*cq)
			*cq = ibv_create_cq(id->verbs, CQ_PER_LINK * count, NULL, NULL, 0);
		need(*cq, "ibv_create_cq");
		link_make(id, *cq);
		need(!rdma_connect(id, &param), "rdma_connect");
		return false;
	case RDMA_CM_EVENT_ESTABLISHED:
		return true;
	default:
		fail("%s", rdma_event_str(kind));
	}
}

int connect_at_once(const char *host, const char *port, int count)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_storage peer = address_of(host, port);
	struct rdma_cm_id **ids = calloc((size_t)count, sizeof(*ids));
	struct rdma_cm_event *event;
	struct ibv_cq *cq = NULL;

	need(channel && ids, "memory");
	for (int n = 0; n < count; n++) {
		need(!rdma_create_id(channel, &ids[n], NULL, RDMA_PS_TCP), "rdma_create_id");
		need(!rdma_resolve_addr(ids[n], NULL, (struct sockaddr *)&peer, RESOLVE_MS),
		     "rdma_resolve_addr");
	}
	for (int ready = 0; ready < count;) {
		need(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
		ready += advance(event, &cq, count);
	}
	for (int n = 0; n < count; n++) {
		struct link *link = ids[n]->context;

		memset(link->out, n, MESSAGE);
		link_send(link);
	}
	await(cq, 2 * count);
	for (int n = 0; n < count; n++) {
		check_answer(ids[n]->context);
		need(!rdma_disconnect(ids[n]), "rdma_disconnect");
	}
	for (int n = 0; n < count;) {
		need(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
		n += event->event == RDMA_CM_EVENT_DISCONNECTED;
		rdma_ack_cm_event(event);
	}
	for (int n = 0; n < count; n++)
		link_free(ids[n]->context);
	need0(ibv_destroy_cq(cq));
	rdma_destroy_event_channel(channel);
	printf("%d connections at once\n", count);
	return 0;
}
