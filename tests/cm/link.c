/* A connection as both programs use it. */
#include "peer.h"

#include <netdb.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

struct sockaddr_storage address_of(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *found;
	struct sockaddr_storage storage = { 0 };

	if (getaddrinfo(host, port, &hints, &found))
		fail("no address: %s", host);
	memcpy(&storage, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	return storage;
}

struct rdma_cm_event *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;

	need(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	if (event->event != kind || event->status)
		fail("%s with status %d, not %s", rdma_event_str(event->event), event->status,
		     rdma_event_str(kind));
	return event;
}

static void post_receive(struct link *link)
{
	struct ibv_sge sge = { (uintptr_t)link->in, MESSAGE, link->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = (uintptr_t)link, .sg_list = &sge, .num_sge = 1 }, *bad;

	need0(ibv_post_recv(link->id->qp, &wr, &bad));
}

struct link *link_make(struct rdma_cm_id *id, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct link *link = calloc(1, sizeof(*link));

	need(link, "calloc");
	need(!rdma_create_qp(id, NULL, &attr), "rdma_create_qp");
	link->id = id;
	link->mr = ibv_reg_mr(id->pd, link, sizeof(*link), IBV_ACCESS_LOCAL_WRITE);
	need(link->mr, "ibv_reg_mr");
	id->context = link;
	post_receive(link);
	return link;
}

void link_send(struct link *link)
{
	struct ibv_sge sge = { (uintptr_t)link->out, MESSAGE, link->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = (uintptr_t)link,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;

	need0(ibv_post_send(link->id->qp, &wr, &bad));
}

void link_free(struct link *link)
{
	rdma_destroy_qp(link->id);
	need0(ibv_dereg_mr(link->mr));
	need(!rdma_destroy_id(link->id), "rdma_destroy_id");
	free(link);
}

void await_sleep(const _Atomic pid_t *tid)
{
	char path[64], text[32] = "";
	long number = -1;
	FILE *file;

	while (!*tid)
		sched_yield();
	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", *tid);
	while (number != SYS_ppoll && number != SYS_poll && number != SYS_read) {
		sched_yield();
		file = fopen(path, "r");
		need(file, "a thread that still waits");
		if (fgets(text, sizeof(text), file) && sscanf(text, "%ld", &number) != 1)
			number = -1;
		fclose(file);
	}
}
