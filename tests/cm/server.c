/* A server that accepts whoever comes, answers one message of each, and says after each event how
 * many connections it holds: "live N established M ended K". It ends with its standard input. */
#include "peer.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CQ_ENTRIES 65536
#define POLLED 64
/* Connections at a time; further ones are refused. */
#define LIVE_MAX 2000

static struct ibv_cq *cq;
static int live, established, ended;

static bool accept_request(struct rdma_cm_event *event)
{
	char reversed[56];
	unsigned int length = event->param.conn.private_data_len;
	const char *data = event->param.conn.private_data;
	struct rdma_conn_param param = { .rnr_retry_count = 7, .private_data = reversed };

	/* The test's clients send less. Of random datagrams one in some thousands is a request. */
	if (length > sizeof(reversed)) {
		rdma_reject(event->id, NULL, 0);
		return false;
	}
	for (unsigned int i = 0; i < length; i++)
		reversed[i] = data[length - 1 - i];
	param.private_data_len = (uint8_t)length;
	param.responder_resources = event->param.conn.responder_resources;
	param.initiator_depth = event->param.conn.initiator_depth;
	if (live == LIVE_MAX) {
		/* The identifier can't be destroyed before its event is acknowledged. */
		rdma_reject(event->id, NULL, 0);
		return false;
	}
	link_make(event->id, cq);
	live++;
	if (rdma_accept(event->id, &param)) {
		/* Whoever asked has gone meanwhile: an event will say so. */
		fprintf(stderr, "rdma_accept: %m\n");
	}
	return true;
}

static void handle(struct rdma_cm_event *event)
{
	struct rdma_cm_id *id = event->id;
	struct link *link = id->context;
	bool refused = false;
	enum rdma_cm_event_type kind = event->event;
	bool over = kind == RDMA_CM_EVENT_DISCONNECTED || kind == RDMA_CM_EVENT_REJECTED ||
		    kind == RDMA_CM_EVENT_UNREACHABLE || kind == RDMA_CM_EVENT_CONNECT_ERROR;

	if (kind == RDMA_CM_EVENT_CONNECT_REQUEST) {
		if (event->id->route.addr.dst_sin.sin_port == 0)
			fail("a request from port 0");
		if (!event->id->verbs || !event->id->pd)
			fail("a request without a device or protection domain");
		refused = !accept_request(event);
	} else if (kind == RDMA_CM_EVENT_ESTABLISHED) {
		link->established = true;
		established++;
	} else if (over) {
		ended++;
		live--;
	} else if (kind != RDMA_CM_EVENT_TIMEWAIT_EXIT) {
		fail("%s", rdma_event_str(kind));
	}
	rdma_ack_cm_event(event);
	if (refused)
		need(!rdma_destroy_id(id), "rdma_destroy_id");
	if (over) {
		rdma_disconnect(link->id);
		link_free(link);
	}
	printf("live %d established %d ended %d\n", live, established, ended);
}

/* Until nothing is left: an event comes only for what is completed after the queue was armed. */
static void answer(void)
{
	struct ibv_wc wc[POLLED];
	int found;

	while ((found = ibv_poll_cq(cq, POLLED, wc)) > 0) {
		for (int i = 0; i < found; i++) {
			struct link *link = (struct link *)(uintptr_t)wc[i].wr_id;

			/* Receives of connections that ended are flushed; their links are gone. */
			if (wc[i].status != IBV_WC_SUCCESS || wc[i].opcode != IBV_WC_RECV)
				continue;
			for (int b = 0; b < MESSAGE; b++)
				link->out[b] = (char)~link->in[b];
			link_send(link);
		}
	}
	need(found == 0, "ibv_poll_cq");
}

int serve(const char *port)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_storage any = address_of("::", port);
	struct ibv_comp_channel *completions;
	struct rdma_cm_event *event;
	struct rdma_cm_id *listener;
	struct ibv_context **devices;

	setvbuf(stdout, NULL, _IOLBF, 0);
	need(channel, "rdma_create_event_channel");
	devices = rdma_get_devices(NULL);
	need(devices && devices[0], "rdma_get_devices");
	completions = ibv_create_comp_channel(devices[0]);
	need(completions, "ibv_create_comp_channel");
	cq = ibv_create_cq(devices[0], CQ_ENTRIES, NULL, completions, 0);
	need(cq, "ibv_create_cq");
	need(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
	need(!rdma_bind_addr(listener, (struct sockaddr *)&any), "rdma_bind_addr");
	need(!rdma_listen(listener, 0), "rdma_listen");
	need(!fcntl(channel->fd, F_SETFL, O_NONBLOCK), "fcntl");
	need(!fcntl(completions->fd, F_SETFL, O_NONBLOCK), "fcntl");
	puts("listening");

	for (;;) {
		struct pollfd fds[] = {
			{ .fd = channel->fd, .events = POLLIN },
			{ .fd = completions->fd, .events = POLLIN },
			{ .fd = STDIN_FILENO, .events = POLLIN },
		};
		struct ibv_cq *ready;
		void *context;

		need0(ibv_req_notify_cq(cq, 0));
		answer();
		need(poll(fds, 3, -1) > 0, "poll");
		if (!ibv_get_cq_event(completions, &ready, &context))
			ibv_ack_cq_events(ready, 1);
		while (!rdma_get_cm_event(channel, &event))
			handle(event);
		if (fds[2].revents)
			break;
	}
	need(!rdma_destroy_id(listener), "rdma_destroy_id");
	printf("server ends with %d live\n", live);
	return 0;
}
