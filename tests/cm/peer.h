/* What the programs of the connection manager's tests share. */
#ifndef CAUSEWAY_CM_PEER_H
#define CAUSEWAY_CM_PEER_H

#include "../verify/common.h"

#include <rdma/rdma_cma.h>

#include <sys/types.h>

#define MESSAGE 64
#define RESOLVE_MS 5000

/* A connection and the one buffer of each direction. */
struct link {
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	struct link *next;
	bool established;
	char in[MESSAGE], out[MESSAGE];
};

/* Gives an identifier a link: a queue pair on `cq` with a receive posted. */
struct link *link_make(struct rdma_cm_id *id, struct ibv_cq *cq);
/* Sends what lies in link->out. */
void link_send(struct link *link);
/* Destroys queue pair, memory region and identifier. */
void link_free(struct link *link);

/* The address of the command line. */
struct sockaddr_storage address_of(const char *host, const char *port);
/* The next event of a channel, which must be of this kind and successful. */
struct rdma_cm_event *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type kind);

/* Returns when the thread, which sets `tid` itself, sleeps in poll(2) or read(2). */
void await_sleep(const _Atomic pid_t *tid);

int serve(const char *port);
int connect_one_by_one(const char *host, const char *port, int count);
int connect_at_once(const char *host, const char *port, int count);
int die_at(const char *host, const char *port, const char *stage);
int hold_one(const char *host, const char *port);
int misuse(const char *host, const char *port);
int hear_each_event(const char *host);
int cancelled(const char *host, const char *port);
int hear_signals(const char *host, const char *port);

#endif
