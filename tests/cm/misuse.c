/* What calls say that are made wrongly, or of peers that do not answer. */
#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <string.h>

static int checks, wrong;

static void check(bool good, const char *what, int line)
{
	checks++;
	if (!good) {
		wrong++;
		printf("misuse.c:%d: %s (errno %d)\n", line, what, errno);
	}
}

#define CHECK(cond) (errno = 0, check((cond), #cond, __LINE__))
/* The call fails with -1 and this errno. */
#define FAILS(call, code) (errno = 0, check((call) == -1 && errno == (code), #call, __LINE__))

static struct rdma_cm_id *new_id(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id;

	need(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	return id;
}

static void resolved(struct rdma_event_channel *channel, struct rdma_cm_id *id,
		     struct sockaddr_storage *peer)
{
	need(!rdma_resolve_addr(id, NULL, (struct sockaddr *)peer, RESOLVE_MS), "resolve");
	rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	need(!rdma_resolve_route(id, RESOLVE_MS), "rdma_resolve_route");
	rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
}

static void wrong_states(struct rdma_event_channel *channel, struct sockaddr_storage *peer)
{
	struct rdma_cm_id *id = new_id(channel), *other;
	struct rdma_conn_param param = { .retry_count = 7 };
	struct sockaddr_storage any = address_of("0.0.0.0", "0");
	struct sockaddr_storage mapped = address_of("::ffff:127.0.0.1", "0");
	struct sockaddr unix_address = { .sa_family = AF_UNIX };
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC };
	char data[200] = "";

	FAILS(rdma_create_id(channel, &other, NULL, (enum rdma_port_space)99), EINVAL);
	FAILS(rdma_bind_addr(id, NULL), EINVAL);
	FAILS(rdma_bind_addr(id, &unix_address), EAFNOSUPPORT);
	FAILS(rdma_connect(id, &param), EINVAL);
	FAILS(rdma_resolve_route(id, RESOLVE_MS), EINVAL);
	FAILS(rdma_accept(id, &param), EINVAL);
	FAILS(rdma_reject(id, NULL, 0), EINVAL);
	FAILS(rdma_disconnect(id), EINVAL);
	FAILS(rdma_create_qp(id, NULL, &attr), EINVAL);
	FAILS(rdma_establish(id), EINVAL);
	FAILS(rdma_notify(id, IBV_EVENT_PORT_ERR), EINVAL);
	FAILS(rdma_get_request(id, &other), EINVAL);
	CHECK(rdma_get_src_port(id) == 0 && rdma_get_dst_port(id) == 0);
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&any));
	CHECK(rdma_get_src_port(id) != 0);
	CHECK(rdma_get_local_addr(id)->sa_family == AF_INET);
	FAILS(rdma_bind_addr(id, (struct sockaddr *)&any), EINVAL);

	/* An IPv4 address may be written as one of IPv6. */
	other = new_id(channel);
	CHECK(!rdma_bind_addr(other, (struct sockaddr *)&mapped));
	CHECK(rdma_get_local_addr(other)->sa_family == AF_INET && !rdma_destroy_id(other));

	/* The port is taken while the first identifier lives, and free afterwards. */
	other = new_id(channel);
	any = *(struct sockaddr_storage *)rdma_get_local_addr(id);
	FAILS(rdma_bind_addr(other, (struct sockaddr *)&any), EADDRINUSE);
	CHECK(!rdma_destroy_id(id));
	CHECK(!rdma_bind_addr(other, (struct sockaddr *)&any));
	CHECK(!rdma_listen(other, 1));
	CHECK(!rdma_listen(other, 2));
	FAILS(rdma_resolve_addr(other, NULL, (struct sockaddr *)peer, RESOLVE_MS), EINVAL);
	CHECK(!rdma_destroy_id(other));

	id = new_id(channel);
	resolved(channel, id, peer);
	CHECK(id->verbs && id->port_num == 1 && id->route.num_paths == 1);
	FAILS(rdma_listen(id, 1), EINVAL);
	param.private_data = data;
	param.private_data_len = 57;
	FAILS(rdma_connect(id, &param), EINVAL);
	param.private_data_len = 0;
	param.responder_resources = 254;
	FAILS(rdma_connect(id, &param), EINVAL);
	CHECK(!rdma_destroy_id(id));
}

/* The next event, and what it says. */
static void answer_is(struct rdma_event_channel *channel, enum rdma_cm_event_type kind, int status)
{
	struct rdma_cm_event *event;

	need(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	check(event->event == kind && event->status == status, rdma_event_str(event->event),
	      event->status);
	rdma_ack_cm_event(event);
}

static void peers_that_do_not_answer(struct rdma_event_channel *channel, const char *host)
{
	/* Nobody listens at the discard port. */
	struct sockaddr_storage nobody = address_of(host, "9");
	/* Of which link is not said. */
	struct sockaddr_storage nowhere = address_of("fe80::1", "9");
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_cm_id *id = new_id(channel);
	struct ibv_cq *cq;
	struct ibv_wc wc;

	resolved(channel, id, &nobody);
	cq = ibv_create_cq(id->verbs, 4, NULL, NULL, 0);
	need(cq, "ibv_create_cq");
	link_make(id, cq);
	CHECK(!rdma_connect(id, &param));
	answer_is(channel, RDMA_CM_EVENT_REJECTED, 8);
	/* The receive that was posted is given back. */
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
	link_free(id->context);
	need0(ibv_destroy_cq(cq));

	/* Given up at once, nothing of it is heard again. */
	id = new_id(channel);
	resolved(channel, id, &nobody);
	CHECK(!rdma_connect(id, &param));
	CHECK(!rdma_destroy_id(id));

	id = new_id(channel);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&nowhere, RESOLVE_MS));
	answer_is(channel, RDMA_CM_EVENT_ADDR_ERROR, -EINVAL);
	CHECK(!rdma_destroy_id(id));
}

static void channels(struct rdma_event_channel *channel, struct sockaddr_storage *peer)
{
	struct rdma_event_channel *second = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(channel);
	struct pollfd fds[] = {
		{ .fd = channel->fd, .events = POLLIN }, { .fd = second->fd, .events = POLLIN },
	};
	struct rdma_cm_event *event;

	/* Readable if and only if an event is queued; events move with their identifier. */
	CHECK(poll(fds, 2, 0) == 0);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)peer, RESOLVE_MS));
	CHECK(poll(fds, 2, 0) == 1 && fds[0].revents);
	CHECK(!rdma_migrate_id(id, second));
	CHECK(poll(fds, 2, 0) == 1 && fds[1].revents);
	CHECK(id->channel == second);
	event = expect(second, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(event->id == id && poll(fds, 2, 0) == 0);
	rdma_ack_cm_event(event);
	need(!fcntl(second->fd, F_SETFL, O_NONBLOCK), "fcntl");
	FAILS(rdma_get_cm_event(second, &event), EAGAIN);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(second);
}

static void options(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = new_id(channel);
	uint8_t byte = 14;
	int number = 1;

	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 1));
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1));
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &number, 4));
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &number, 4));
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &number, 4), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, 99, &byte, 1), EINVAL);
	byte = 32;
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1), EINVAL);
	CHECK(!rdma_destroy_id(id));
}

/* What a call that fails has made of its arguments, and one that succeeds has granted. */
static void descriptions(struct rdma_event_channel *channel, struct sockaddr_storage *peer)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 1 << 30 } };
	struct ibv_qp_init_attr_ex longer = { .qp_type = IBV_QPT_RC, .cap = attr.cap };
	struct ibv_srq_init_attr_ex queue = { .attr = { .max_wr = 5, .max_sge = 1 } };
	struct rdma_cm_id *id = new_id(channel);

	resolved(channel, id, peer);
	/* The queues that were made for it are gone: what names them could not be tried again. */
	FAILS(rdma_create_qp(id, NULL, &attr), EINVAL);
	CHECK(!attr.send_cq && !attr.recv_cq && !id->send_cq && !id->recv_cq);
	attr.cap.max_inline_data = 16;
	CHECK(!rdma_create_qp(id, NULL, &attr));
	rdma_destroy_qp(id);
	FAILS(rdma_create_qp_ex(id, &longer), EINVAL);
	CHECK(!longer.send_cq && !longer.recv_cq);

	queue.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_RESERVED;
	FAILS(rdma_create_srq_ex(id, &queue), EOPNOTSUPP);
	queue.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
	queue.attr.max_wr = 0;
	FAILS(rdma_create_srq_ex(id, &queue), EINVAL);
	queue.attr.max_wr = 5;
	queue.attr.srq_limit = 3;
	CHECK(!rdma_create_srq_ex(id, &queue) && id->srq);
	rdma_destroy_srq(id);
	CHECK(!rdma_destroy_id(id));
}

/* A listener has the protection domain that it was made with, which its connections get. */
static void domains(struct rdma_event_channel *channel, struct sockaddr_storage *peer,
		    const char *port)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP };
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct rdma_cm_id *id = new_id(channel), *listener;
	struct rdma_addrinfo *info;
	struct ibv_pd *pd;

	resolved(channel, id, peer);
	pd = ibv_alloc_pd(id->verbs);
	need(pd, "ibv_alloc_pd");
	CHECK(!rdma_getaddrinfo(NULL, port, &hints, &info));
	CHECK(!rdma_create_ep(&listener, info, pd, NULL) && listener->pd == pd);
	rdma_destroy_ep(listener);
	CHECK(!rdma_create_ep(&listener, info, pd, &attr) && listener->pd == pd);
	rdma_destroy_ep(listener);
	CHECK(!rdma_create_ep(&listener, info, NULL, NULL) && listener->pd != pd);
	rdma_destroy_ep(listener);
	rdma_freeaddrinfo(info);
	need0(ibv_dealloc_pd(pd));
	CHECK(!rdma_destroy_id(id));
}

static void names(const char *host, const char *port)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP };
	struct rdma_addrinfo *info = NULL;

	CHECK(!rdma_getaddrinfo(host, port, NULL, &info));
	CHECK(info && info->ai_dst_addr && !info->ai_src_addr && info->ai_qp_type == IBV_QPT_RC &&
	      info->ai_port_space == RDMA_PS_TCP);
	rdma_freeaddrinfo(info);
	CHECK(!rdma_getaddrinfo(NULL, port, &hints, &info));
	CHECK(info && info->ai_src_addr && !info->ai_dst_addr);
	rdma_freeaddrinfo(info);
	hints.ai_family = AF_INET6;
	CHECK(!rdma_getaddrinfo(NULL, port, &hints, &info));
	CHECK(info && info->ai_src_addr->sa_family == AF_INET6 && !info->ai_next);
	rdma_freeaddrinfo(info);
	hints.ai_flags = RAI_NUMERICHOST;
	CHECK(rdma_getaddrinfo("no address", port, &hints, &info) != 0);
	FAILS(rdma_getaddrinfo(NULL, NULL, NULL, &info), EINVAL);
}

int misuse(const char *host, const char *port)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_storage peer = address_of(host, port);

	need(channel, "rdma_create_event_channel");
	wrong_states(channel, &peer);
	peers_that_do_not_answer(channel, host);
	channels(channel, &peer);
	options(channel);
	descriptions(channel, &peer);
	domains(channel, &peer, port);
	names(host, port);
	rdma_destroy_event_channel(channel);
	printf("%d checks, %d wrong\n", checks, wrong);
	return wrong != 0;
}
