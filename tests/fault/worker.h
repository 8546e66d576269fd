/* What the two parts of the worker share: where everything is, and what the sides say. */
#ifndef CAUSEWAY_FAULT_WORKER_H
#define CAUSEWAY_FAULT_WORKER_H

#include "../verify/common.h"

#define REMOTE (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
		IBV_ACCESS_REMOTE_ATOMIC)
#define PAGE 4096
/* Work requests on either queue. */
#define DEPTH 16
/* Operations of a cycle, and how many kinds there are. */
#define OPS 24
#define KINDS 6
/* How long what was posted may take to complete once the queue pair has failed. */
#define DRAIN_MS 2000
/* How often a registration is ended that is busy; each call waits 2 s. */
#define BUSY_MOST 8

/* The window, which the peer reaches all the time. Its first byte is EDGE into a page. */
#define EDGE 96
#define WINDOW_LEN (48 * PAGE)
#define CELL (PAGE - EDGE)
#define SMALL_AT (2 * PAGE)
#define SMALL_LEN 512
#define READ_AT (6 * PAGE)
#define READ_LEN (2 * PAGE)
#define BIG_AT (8 * PAGE)
#define BIG_LEN 24000

/* What is taken back while the peer accesses it. */
#define VICTIM_OP (64 << 10)
#define VICTIM_OPS 8
#define VICTIM_LEN (VICTIM_OPS * VICTIM_OP)
#define VICTIM_DEPTH 4

/* Local memory: buffers of the operations, of receives, and for the victim. */
#define SLOT_LEN 24576
#define SOURCE (2 * DEPTH * SLOT_LEN)
#define SINK (SOURCE + VICTIM_OP)
#define LOCAL_LEN (SINK + VICTIM_OP)

/* Contents that belong to no operation. */
#define KEY_READ (1ull << 40)
#define KEY_SOURCE (2ull << 40)

#define QUEUE_MAX 8
/* Most queue pairs beside the one that is used. */
#define IDLE_MAX 20

enum kind {
	ANEW = 1, MEET_QP, MEET_CONNECTED, MEET_MOVED, MEET_VICTIM, MEET_DENIED, MEET_TAKEN,
	MEET_END,
};

struct message {
	uint32_t kind, cycle;
	struct qp_addr addr, idle[IDLE_MAX];
	uint64_t at;
	uint32_t rkey, pad;
};

struct side {
	/* `filled`: the window holds what belongs to this cycle. */
	bool server, connected, filled;
	/* The queue pair has failed, and whether it may have. */
	bool failed, may_fail;
	enum ibv_wc_status status;
	unsigned int cycle, sends, recvs, received;
	/* The longest of its kind since it was last asked, in milliseconds. */
	unsigned int dereg_ms, destroy_ms, drain_ms;
	struct device dev;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp, *idle[IDLE_MAX];
	unsigned int idles;
	/* `kept`: registered from one connection to the next, as long as nothing goes wrong. */
	struct ibv_mr *local_mr, *window_mr, *victim_mr, *kept_mr;
	unsigned char *local, *window, *victim, *kept;
};

struct link_to_peer {
	int fd;
	bool dead, anew;
	uint32_t anew_cycle;
	struct message queue[QUEUE_MAX];
	unsigned int queued;
	uint64_t window;
	uint32_t window_key;
};

extern struct side me;
extern struct link_to_peer peer;

/* A line on standard output. */
void say(const char *what, const char *detail);
uint64_t now_ms(void);
/* Whether the cycle cannot go on. */
bool trouble(void);
/* Looks at completions and the peer's words, waiting a little for those. False if trouble(). */
bool step(int wait_ms);
/* Tells the peer something and hears the same of it. False if trouble(). */
bool exchange(struct message *own, struct message *theirs);

/* Handles completions. True if there were any. */
bool poll_completions(void);
void post_recv(void);
/* One access to the victim. */
void post_victim(const struct message *victim, unsigned int serial);
/* Does every kind of operation, and takes in the peer's messages. False if trouble(). */
bool move_data(void);
/* Checks what the peer wrote; `partial`: it may have been interrupted anywhere. */
void check_window(bool partial);

#endif
