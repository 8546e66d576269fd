/* The plan of a run: what one side asks of the other on one QP, operation after operation. Both
 * sides derive it from the seed: the responder knows what must have arrived without being told.
 *
 * Operations come in batches. The last operation of a batch always takes a receive: when its
 * completion appears at the responder, everything before it has been placed and can be checked. The
 * responder then grants a credit. A batch writes into one of two windows, in turn, and begins only
 * when the batch before the last has been credited: nothing is written where is being checked. */
#ifndef CAUSEWAY_VERIFY_PLAN_H
#define CAUSEWAY_VERIFY_PLAN_H

#include "common.h"

/* Operations of a batch. */
#define BATCH_OPS 32
/* Windows, and so batches in flight. */
#define WINDOWS 2
/* Words of a QP's atomics, beside the counter that all QPs share. */
#define ATOMIC_WORDS 32
/* Window bytes beyond the largest message, so that it can start anywhere in this range. */
#define WINDOW_SLACK 16384
/* Largest message that takes a receive. */
#define SEND_MAX 65536
/* Bytes that a batch may move beside one message of the largest size. */
#define BATCH_SLACK 65536

enum op_kind {
	OP_SEND,
	OP_SEND_IMM,
	OP_SEND_INV,
	OP_WRITE,
	OP_WRITE_IMM,
	OP_READ_STATIC,
	OP_READ_WINDOW,
	OP_FETCH_ADD,
	OP_FETCH_ADD_SHARED,
	OP_CMP_SWAP,
	OP_KINDS,
};

struct op {
	enum op_kind kind;
	uint64_t index;		/* since the start, on this QP and side */
	uint64_t batch;
	bool last;		/* of its batch */
	uint32_t len;
	uint64_t key;		/* of the contents */
	uint64_t offset;	/* in window or static region, or number of the atomic word */
	uint32_t imm;
	uint64_t add;		/* also the value to swap in */
	bool compare_right;	/* CMP_SWAP: compare with the value that is there */
};

/* What both sides must agree on; sent by the client, adopted by the server. */
struct plan_params {
	uint64_t seed;
	uint64_t batches;	/* per QP and side */
	uint32_t qps;
	uint32_t max_size;
};

struct plan {
	const struct plan_params *params;
	struct rng rng;
	uint64_t next;
	uint64_t budget;	/* bytes that the batch may still move */
	bool invalidated;	/* the batch has its SEND_WITH_INV */
};

/* The plan of the requests that side `side` (0 server, 1 client) makes on QP `qp`. */
void plan_start(struct plan *plan, const struct plan_params *params, int side, uint32_t qp);
/* The next operation; false after the last. */
bool plan_next(struct plan *plan, struct op *op);

size_t plan_window_len(const struct plan_params *params);
/* Bytes that one batch can move at most. */
size_t plan_batch_bytes(const struct plan_params *params);

static inline bool op_takes_receive(enum op_kind kind)
{
	return kind <= OP_SEND_INV || kind == OP_WRITE_IMM;
}

static inline bool op_writes(enum op_kind kind)
{
	return kind == OP_WRITE || kind == OP_WRITE_IMM;
}

static inline bool op_reads(enum op_kind kind)
{
	return kind == OP_READ_STATIC || kind == OP_READ_WINDOW;
}

static inline bool op_atomic(enum op_kind kind)
{
	return kind >= OP_FETCH_ADD;
}

const char *op_name(enum op_kind kind);

#endif
