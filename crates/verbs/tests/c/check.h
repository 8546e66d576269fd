/* Assertions that report and go on, and the objects that most checks need. */
#ifndef CHECK_H
#define CHECK_H

#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int failures;

#define CHECK(condition)                                                                       \
	do {                                                                                   \
		errno = 0;                                                                     \
		if (!(condition)) {                                                            \
			printf("%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
			failures++;                                                            \
		}                                                                              \
	} while (0)

/* For what everything after depends on. */
#define NEED(condition)                                                                        \
	do {                                                                                   \
		CHECK(condition);                                                              \
		if (failures)                                                                  \
			exit(1);                                                               \
	} while (0)

#define BUFFER_SIZE 8192

/* Two connected queue pairs of one process, each with its completion queue. */
struct pair {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq[2];
	struct ibv_srq *srq; /* of the second queue pair */
	struct ibv_qp *qp[2];
	struct ibv_mr *mr;
	char *buffer;
};

struct ibv_context *open_first(void);
struct ibv_qp_init_attr qp_attr(struct ibv_cq *send, struct ibv_cq *recv);
int to_init(struct ibv_qp *qp);
int connect_to(struct ibv_qp *qp, uint32_t peer);
void pair_create(struct pair *pair, struct ibv_context *context);
void pair_destroy(struct pair *pair);
/* Waits for one completion, 5 s at most; returns its status, or -1. */
int completion(struct ibv_cq *cq, struct ibv_wc *wc);
void post_receive(struct pair *pair, uint64_t id);
int post_send(struct pair *pair, uint64_t id, unsigned int flags, uint32_t length);

void check_queries(struct ibv_context *context);
void check_creation(struct ibv_context *context);
void check_unsupported(struct ibv_context *context);
void check_buffers(struct ibv_context *context);
void check_posting(struct pair *pair);
void check_extended(struct ibv_context *context);
void check_events(struct pair *pair);
void check_fork(struct pair *pair);

#endif
