// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Preloaded under perftest, before the verbs library: work requests complete at once and nothing is
// moved. What a tool then measures is its own loop, the part of its figures that no device can
// take away. For one-sided tools (ib_read_lat, ib_write_bw), whose server does nothing.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <string.h>

enum { PENDING_MAX = 4096 };

// Signaled work requests that have not been polled.
static uint64_t pending[PENDING_MAX];
static unsigned head, tail;

static int null_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)qp;
	for (; wr; wr = wr->next) {
		if (!(wr->send_flags & IBV_SEND_SIGNALED))
			continue;
		if (head - tail == PENDING_MAX) {
			*bad = wr;
			return ENOMEM;
		}
		pending[head++ % PENDING_MAX] = wr->wr_id;
	}
	return 0;
}

static int null_poll_cq(struct ibv_cq *cq, int entries, struct ibv_wc *wc)
{
	int n = 0;

	(void)cq;
	for (; n < entries && tail != head; n++)
		wc[n] = (struct ibv_wc){ .wr_id = pending[tail++ % PENDING_MAX] };
	return n;
}

// The last step of connecting: from here on nothing reaches the device.
__attribute__((visibility("default")))
int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	int (*real)(struct ibv_qp *, struct ibv_qp_attr *, int) = dlsym(RTLD_NEXT, "ibv_modify_qp");
	int rc = real ? real(qp, attr, mask) : ENOSYS;

	if (!rc && mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_RTS) {
		qp->context->ops.post_send = null_post_send;
		qp->context->ops.poll_cq = null_poll_cq;
	}
	return rc;
}
