/* State of a verification run. */
#ifndef CAUSEWAY_VERIFY_H
#define CAUSEWAY_VERIFY_H

#include "common.h"
#include "plan.h"

#include <pthread.h>

#define MAX_QPS 512
/* Pieces of a scatter/gather list. */
#define MAX_PIECES 6
/* Untouchable bytes between pieces; at least this many. */
#define PIECE_GAP 16
/* Untouchable bytes before, between and behind the windows. */
#define WINDOW_GAP 4096
/* Credits that can be on their way beside the batches. */
#define CREDITS 4
#define SQ_DEPTH (WINDOWS * BATCH_OPS + 2 * CREDITS)
/* Receives that the peer's batches and credits can take at a time. */
#define RQ_DEPTH (WINDOWS * BATCH_OPS + CREDITS)
#define INLINE_MAX 256
/* Distinguishes a credit's immediate data. */
#define CREDIT_FLAG 0x80000000u
/* Set in the wr_id of a receive. */
#define RECV_FLAG (1ull << 63)
#define SLOT_BYTES (SEND_MAX + (2 + MAX_PIECES * 2) * PIECE_GAP)
/* Buckets of a worker's table of QP numbers. */
#define QPN_BUCKETS (4 * MAX_QPS)

struct piece {
	unsigned char *at;
	uint32_t len;
};

/* A request between posting and retirement. */
struct sent {
	struct op op;
	uint64_t wr_id;
	bool credit, bind;		/* neither: an operation of the plan */
	bool signaled;
	unsigned int pieces;
	struct piece piece[MAX_PIECES];
	const unsigned char *expect;	/* of a READ of the window */
	uint64_t old;			/* that an atomic must return */
};

/* A receive's buffer. */
struct slot {
	unsigned char *base;
	unsigned int pieces;
	struct piece piece[MAX_PIECES];
	bool posted;
};

/* The receives of a QP or an SRQ. */
struct pool {
	struct slot *slots;
	unsigned int count;
	unsigned char *memory;
	struct ibv_mr *mr;
	struct ibv_srq *srq;	/* or NULL */
	struct rng rng;
	/* Slots in the order they were posted, for a QP's own queue. */
	unsigned int *order;
	uint64_t posted, taken;
};

/* What a credit writes: that `batch` has been verified, and a fresh key to invalidate. */
struct credit {
	uint64_t batch;
	uint32_t inv_rkey;
	uint32_t check;
};

struct remote_buf {
	uint64_t addr;
	uint32_t rkey;
	uint32_t pad;
};

/* What one side tells the other of a QP. */
struct qp_info {
	struct qp_addr addr;
	struct remote_buf window, fixed, words, shared, mailbox;
	uint32_t inv_rkey[WINDOWS];
};

struct conn {
	uint32_t index;
	struct run *run;
	struct worker *worker;
	struct ibv_qp *qp;
	uint32_t max_inline;
	struct qp_info mine, peer;
	struct rng rng;

	/* As requester. */
	struct plan plan;
	struct op next;
	bool has_next;
	bool read_window;		/* the next write must wait for a READ */
	uint64_t credits;		/* batches of ours the peer has verified */
	uint64_t retired;		/* batches of ours whose completions are in */
	uint64_t serial, done;		/* requests posted, retired */
	struct sent sent[SQ_DEPTH];
	unsigned char *arena[WINDOWS];	/* local ends of a batch's operations */
	size_t arena_used[WINDOWS];
	unsigned char *expected[WINDOWS];
	size_t expected_used[WINDOWS];
	struct ibv_mr *arena_mr[2];	/* two keys for the same memory */
	unsigned char *arena_memory;
	unsigned char *peer_window[WINDOWS];	/* what the peer's windows must hold */
	uint64_t word[ATOMIC_WORDS];	/* what the peer's words must hold */
	uint64_t shared_sum, shared_seen;
	uint32_t peer_inv_rkey[WINDOWS];

	/* As responder. */
	struct plan peer_plan;
	unsigned char *window_memory;
	struct ibv_mr *window_mr;
	struct ibv_mw *window_mw;	/* by which the peer reaches it, or NULL */
	unsigned char *window[WINDOWS];
	unsigned char *shadow[WINDOWS];	/* what the windows must hold */
	size_t dirty_from[WINDOWS], dirty_to[WINDOWS];
	uint64_t *words;
	struct ibv_mr *words_mr;
	struct credit *mailbox;		/* where the peer's credits arrive */
	struct ibv_mr *mailbox_mr;
	struct credit *grant;		/* where ours start */
	struct ibv_mr *grant_mr;
	unsigned char *inv_memory;
	struct ibv_mr *inv_mr;
	struct ibv_mw *inv_mw[WINDOWS];
	bool inv_used[WINDOWS];
	uint64_t batches_in;		/* batches of the peer verified */
	uint64_t granted, granted_done;	/* credits posted, completed */
	struct pool *pool;
};

struct worker {
	struct run *run;
	pthread_t thread;
	unsigned int index;
	struct ibv_comp_channel *channel;
	struct ibv_cq *send_cq, *recv_cq;	/* may be one */
	struct pool srq_pool;
	struct conn **conns;
	unsigned int count;
	struct conn *by_qpn[QPN_BUCKETS];
	uint64_t sent[OP_KINDS], received[OP_KINDS];
	uint64_t events;
};

struct options {
	const char *host, *port, *device;
	int gid_index;
	unsigned int threads;
	unsigned int timeout;
	unsigned int recv_depth;
	bool events, churn;
	uint64_t ops;
};

struct run {
	struct options opt;
	struct plan_params params;
	int side, oob;
	struct device dev;
	struct ibv_pd *pd;
	struct qp_params qp_params;
	struct conn *conns;
	struct worker *workers;
	/* Read by the peer, written by nobody. */
	unsigned char *fixed;
	struct ibv_mr *fixed_mr;
	/* Added to by all QPs of the peer. */
	uint64_t *shared;
	struct ibv_mr *shared_mr;
};

/* setup.c: makes everything and connects all QPs to the peer's; takes it apart again. */
void run_open(struct run *run);
void run_close(struct run *run);
struct conn *worker_find(struct worker *w, uint32_t qpn);
/* The key of the contents of a side's static region. */
uint64_t fixed_key(const struct run *run, int side);
struct ibv_mr *reg(struct run *run, void *at, size_t len, int access);
/* What binds the memory window that the peer may invalidate in batches of window `w`, by a new
 * key. */
struct ibv_send_wr inv_bind(struct conn *c, unsigned int w);

/* verify.c: takes completions off a CQ, and hands them out; true if there were any. */
bool worker_drain(struct worker *w, struct ibv_cq *cq);

/* request.c: posts what may be posted; true if anything was. */
bool request_post(struct conn *c);
/* Takes a completion of the send queue. */
void request_complete(struct conn *c, const struct ibv_wc *wc);

/* respond.c: posts a receive. */
void respond_post(struct pool *pool, struct ibv_qp *qp, unsigned int slot);
/* Takes a completion of the receive queue. */
void respond_complete(struct conn *c, const struct ibv_wc *wc);
/* Compares all that a run leaves behind on this side. */
void respond_final(struct conn *c);
/* Checks a pool's buffers: only gaps and places no message has reached may be looked at. */
void respond_final_pool(const struct pool *pool);

/* farewell.c: has every queue pair say a last thing, and destroys it. */
void farewell(struct run *run);

/* churn.c: registers and deregisters memory until the end; NULL has not begun. */
struct churner *churn_start(struct run *run);
void churn_end(struct churner *churner);

/* Cuts `len` bytes into pieces with gaps, from `*at` on, which moves behind them. */
unsigned int cut(struct rng *rng, unsigned char **at, uint32_t len, unsigned int most,
		 struct piece *piece);
/* Checks that the gaps around pieces are untouched; `what` and `c` are for the message. */
void check_gaps(const struct conn *c, const char *what, const struct piece *piece,
		unsigned int pieces);
/* fail() with the QP's number and place in front. */
_Noreturn void conn_fail(const struct conn *c, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif
