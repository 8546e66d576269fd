// SPDX-License-Identifier: MIT OR Apache-2.0
//
// closed_cm HOW cm|rsocket: as closed, for connections through librdmacm.

#include "own.h"

#include <arpa/inet.h>
#include <err.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>

enum { PORT = 7911, RESOLVE_MS = 5000, BYTES = 64, NAP_US = 200000 };

#define need(good)                                                                         \
	do {                                                                               \
		if (!(good))                                                               \
			err(1, "%s", #good);                                               \
	} while (0)

static struct sockaddr_in at;

static struct rdma_cm_id *next(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	need(!rdma_get_cm_event(channel, &event));
	if (event->event != kind)
		errx(1, "%s, not %s", rdma_event_str(event->event), rdma_event_str(kind));
	id = event->id;
	need(!rdma_ack_cm_event(event));
	return id;
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { 4, 4, 1, 1, 0 },
		.qp_type = IBV_QPT_RC,
	};

	need(!rdma_create_qp(id, NULL, &attr));
}

static void cm(const char *how)
{
	struct rdma_event_channel *here = rdma_create_event_channel();
	struct rdma_event_channel *there = rdma_create_event_channel();
	struct rdma_cm_id *listener, *client, *server, *late;
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };

	need(here && there);
	need(!rdma_create_id(there, &listener, NULL, RDMA_PS_TCP));
	need(!rdma_bind_addr(listener, (struct sockaddr *)&at));
	need(!rdma_listen(listener, 4));
	need(!rdma_create_id(here, &client, NULL, RDMA_PS_TCP));
	need(!rdma_resolve_addr(client, NULL, (struct sockaddr *)&at, RESOLVE_MS));
	next(here, RDMA_CM_EVENT_ADDR_RESOLVED);
	need(!rdma_resolve_route(client, RESOLVE_MS));
	next(here, RDMA_CM_EVENT_ROUTE_RESOLVED);
	make_qp(client);
	need(!rdma_connect(client, &param));
	server = next(there, RDMA_CM_EVENT_CONNECT_REQUEST);
	make_qp(server);
	need(!rdma_accept(server, &param));
	next(here, RDMA_CM_EVENT_ESTABLISHED);
	next(there, RDMA_CM_EVENT_ESTABLISHED);

	close_all(how);
	open_own(how);
	usleep(NAP_US);
	check_own("after a while");
	// None of these need succeed.
	rdma_disconnect(client);
	if (rdma_create_id(here, &late, NULL, RDMA_PS_TCP) == 0) {
		rdma_resolve_addr(late, NULL, (struct sockaddr *)&at, RESOLVE_MS);
		rdma_destroy_id(late);
	}
	check_own("after calls");
	check_child("in a child");
	usleep(NAP_US);
	rdma_destroy_qp(client);
	rdma_destroy_qp(server);
	rdma_destroy_id(client);
	rdma_destroy_id(server);
	rdma_destroy_id(listener);
	rdma_destroy_event_channel(here);
	rdma_destroy_event_channel(there);
	check_own("after the end");
}

static void *take(void *listener)
{
	return (void *)(intptr_t)raccept((int)(intptr_t)listener, NULL, NULL);
}

static void rsocket_streams(const char *how)
{
	char bytes[BYTES] = "hello", got[BYTES];
	pthread_t thread;
	void *accepted;
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), client, server;

	need(listener >= 0);
	need(!rbind(listener, (struct sockaddr *)&at, sizeof at) && !rlisten(listener, 4));
	need(!pthread_create(&thread, NULL, take, (void *)(intptr_t)listener));
	client = rsocket(AF_INET, SOCK_STREAM, 0);
	need(client >= 0 && !rconnect(client, (struct sockaddr *)&at, sizeof at));
	need(!pthread_join(thread, &accepted));
	server = (int)(intptr_t)accepted;
	need(server >= 0);
	need(rsend(client, bytes, BYTES, 0) == BYTES);
	need(rrecv(server, got, BYTES, MSG_WAITALL) == BYTES && !memcmp(bytes, got, BYTES));

	close_all(how);
	open_own(how);
	for (int i = 0; i < 4; i++) {
		rsend(client, bytes, BYTES, MSG_DONTWAIT);
		rrecv(server, got, BYTES, MSG_DONTWAIT);
	}
	check_own("after calls");
	check_child("in a child");
	usleep(NAP_US);
	rclose(client);
	rclose(server);
	rclose(listener);
	check_own("after the end");
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "", *what = argc > 2 ? argv[2] : "";

	alarm(60);
	at = (struct sockaddr_in){
		.sin_family = AF_INET,
		.sin_port = htons(PORT),
		.sin_addr = { htonl(INADDR_LOOPBACK) },
	};
	if (!strcmp(what, "rsocket"))
		rsocket_streams(how);
	else
		cm(how);
	printf("ok\n");
	return 0;
}
