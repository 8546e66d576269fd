// SPDX-License-Identifier: MIT OR Apache-2.0
//
// What the modes of the scale tests have in common: a process's side of its connections.

#ifndef CAUSEWAY_SCALE_SIDE_H
#define CAUSEWAY_SCALE_SIDE_H

#include "../verify/common.h"

#include <time.h>

enum {
	BATCH = 64,
	QPS_MAX = 65536,
	DEPTH = 4,
	PSN = 7,
	BYTES = 48,
	// A connection's memory: what it sends, what it receives, what the peer writes.
	SLOT = 256,
	AT_SENT = 0,
	AT_RECEIVED = 64,
	AT_WRITTEN = 128,
	SECONDS_MAX = 240,
};

extern const struct qp_params params;

struct side {
	struct device dev;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	unsigned char *memory;
	int slots;
};

// What the other side must know of a connection.
struct end {
	struct qp_addr qp;
	uint64_t written;
	uint32_t rkey;
};

void side_open(struct side *s, int slots);
void side_close(struct side *s);
unsigned char *slot_at(const struct side *s, int slot, int at);
struct ibv_qp *make(const struct side *s, int slot, struct end *own);
void connect_to(const struct side *s, struct ibv_qp *qp, const struct end *peer);
void post_receive(const struct side *s, struct ibv_qp *qp, int slot);
void post(const struct side *s, struct ibv_qp *qp, int slot, uint64_t key,
	  const struct end *write_to);
void take(const struct side *s, int number);
void expect(const struct side *s, int slot, int at, uint64_t key);
int descriptors(void);
void report(int number, const struct timespec *begun);
uint64_t key_of(int who, int slot, int round);
void connect_batch(const struct side *s, int oob, int first, struct ibv_qp **qps,
		   struct end *peers);
void datagrams(int oob, int total, int who);
void farewell(int oob, int total, int who);
int all_qps(int total);
void no_mappings(int oob, int total, int who);

#endif
