/* One side of a connected queue pair that waits by completion events. */
#ifndef CAUSEWAY_IDLE_SIDE_H
#define CAUSEWAY_IDLE_SIDE_H

#include "../verify/common.h"

enum { DEPTH = 8, MESSAGE = 64 };

struct side {
	struct device dev;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	// Receives come to the first MESSAGE bytes, sends go from the next.
	char *buffer;
	int oob;
	// Completions that no await() has counted yet.
	int sent;
	int received;
	// Times that an event was asked for, and events taken.
	long armed;
	long events;
};

// Opens the device and connects to the other side; without `host` it is waited for.
void open_side(struct side *s, const char *host);
void post_recv(struct side *s);
void post_send(struct side *s);
// Sleeps on the completion channel until `sends` sends and `receives` receives have completed, of
// those that no earlier call has counted.
void await(struct side *s, int sends, int receives);
// Takes what has completed; the receives are posted again.
void take_completions(struct side *s);
// Waits for one event, acknowledges it, and asks for the next. Returns 0, or errno.
int take_event(struct side *s);

#endif
