// SPDX-License-Identifier: MIT OR Apache-2.0
//
// closed HOW [sleeping]: closes every descriptor that it did not open itself, as a daemon does,
// while the device is open and connected, and opens files and sockets of its own under their
// numbers. The library must leave those alone, and fail what was posted. HOW is loop, range or
// dup2. With another argument, threads sleep for events meanwhile.

#define _GNU_SOURCE
#include "own.h"

#include "../verify/common.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
	// Time for the helper thread, and for the other end.
	ROUNDS = 50,
	ROUND_MS = 4,
	WAKE_S = 3,
};

static const struct qp_params params = {
	.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
	.timeout = 8,
	.retry_cnt = 1,
	.rnr_retry = 1,
	.min_rnr_timer = 1,
	.rd_atomic = 1,
};

static struct device dev;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_comp_channel *channel;
static struct ibv_mr *mr;
static struct ibv_qp *qps[2], *member;
static char *memory;

static void connect_both(void)
{
	struct qp_addr addr[2];

	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq,
			.recv_cq = cq,
			.cap = { 8, 8, 1, 1, 0 },
			.qp_type = IBV_QPT_RC,
			.sq_sig_all = 1,
		};
		qps[i] = ibv_create_qp(pd, &init);
		need(qps[i], "ibv_create_qp");
		need0(qp_to_init(qps[i], &params));
		addr[i] = (struct qp_addr){ qps[i]->qp_num, 7, dev.gid };
	}
	for (int i = 0; i < 2; i++)
		need0(qp_to_rtr(qps[i], &dev, &params, &addr[1 - i]));
	for (int i = 0; i < 2; i++)
		need0(qp_to_rts(qps[i], &params, 7));
}

// A member of a multicast group: a thread of the library's receives for it.
static void join(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { 1, 1, 1, 1, 0 },
		.qp_type = IBV_QPT_UD,
	};
	union ibv_gid group = { .raw = { 0xff, 0x0e, [10] = 0xff, 0xff, 239, 7, 7, 7 } };

	member = ibv_create_qp(pd, &init);
	need(member, "ibv_create_qp");
	need0(ibv_attach_mcast(member, &group, 0));
}

static int post(void)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	int rc = ibv_post_recv(qps[1], &recv, &bad_recv);

	return rc ? rc : ibv_post_send(qps[0], &send, &bad);
}

// Takes completions for a while; returns how many failed.
static int take(int wanted)
{
	struct timespec pause = { .tv_nsec = ROUND_MS * 1000000 };
	int failed = 0;

	for (int round = 0; round < ROUNDS && wanted > 0; round++) {
		struct ibv_wc wc;

		while (ibv_poll_cq(cq, 1, &wc) > 0) {
			failed += wc.status != IBV_WC_SUCCESS;
			wanted--;
		}
		nanosleep(&pause, NULL);
	}
	return failed;
}

static void set_up(void)
{
	device_open(&dev, NULL, 0);
	pd = ibv_alloc_pd(dev.ctx);
	channel = ibv_create_comp_channel(dev.ctx);
	need(pd && channel, "pd, channel");
	cq = ibv_create_cq(dev.ctx, 64, NULL, channel, 0);
	memory = page_alloc(4096);
	need(cq, "cq");
	mr = ibv_reg_mr(pd, memory, 4096, params.access);
	need(mr, "mr");
	connect_both();
	join();
	need0(post());
	need(take(2) == 0, "before");
	need0(ibv_req_notify_cq(cq, 0));
}

static _Atomic pid_t sleepers[2];

static void *sleep_for_completion(void *unused)
{
	struct ibv_cq *from;
	void *context;

	sleepers[0] = gettid();
	return ibv_get_cq_event(channel, &from, &context) ? NULL : unused;
}

static void *sleep_for_failure(void *unused)
{
	struct ibv_async_event event;

	sleepers[1] = gettid();
	// An address of the host may change meanwhile.
	do {
		if (ibv_get_async_event(dev.ctx, &event))
			return unused;
	} while (event.event_type != IBV_EVENT_DEVICE_FATAL);
	return NULL;
}

static void await_sleep(_Atomic pid_t *thread)
{
	struct timespec pause = { .tv_nsec = 1000000 };
	char path[64], text[256];

	do {
		nanosleep(&pause, NULL);
		snprintf(path, sizeof path, "/proc/self/task/%d/syscall", *thread);
		FILE *f = *thread ? fopen(path, "r") : NULL;

		text[0] = 0;
		if (f) {
			need(fgets(text, sizeof text, f), path);
			fclose(f);
		}
	} while (atoi(text) != SYS_ppoll && atoi(text) != SYS_poll);
}

// Threads that sleep for events when everything is closed are told of the failure.
static int sleepers_wake(const char *how)
{
	void *(*const begin[])(void *) = { sleep_for_completion, sleep_for_failure };
	pthread_t threads[2];
	struct timespec by;

	for (int i = 0; i < 2; i++) {
		need0(pthread_create(&threads[i], NULL, begin[i], &dev));
		await_sleep(&sleepers[i]);
	}
	close_all(how);
	open_own(how);
	clock_gettime(CLOCK_REALTIME, &by);
	by.tv_sec += WAKE_S;
	for (int i = 0; i < 2; i++) {
		void *wrong;

		need(pthread_timedjoin_np(threads[i], &wrong, &by) == 0, "a thread sleeps on");
		need(!wrong, "a thread has another event");
	}
	check_own("after sleeps");
	printf("ok woken\n");
	return 0;
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	int failed, posted = 0;

	set_up();
	if (argc > 2)
		return sleepers_wake(how);
	close_all(how);
	open_own(how);
	for (int i = 0; i < 3; i++) {
		int rc = post();

		posted += rc == 0;
		need(rc == 0 || rc == EINVAL || rc == ENOMEM, "post");
	}
	failed = take(2 * posted);
	check_own("after posts");
	// By now the device is known to have failed, by whichever wire.
	posted = post() == 0;
	failed += take(posted);
	ibv_req_notify_cq(cq, 0);
	// Nothing comes any more: a wait fails.
	struct ibv_cq *from;
	void *context;

	while (ibv_get_cq_event(channel, &from, &context) == 0)
		ibv_ack_cq_events(from, 1);
	// None of these need succeed, and none may touch what is not the library's.
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	ibv_modify_qp(qps[0], &attr, IBV_QP_STATE);
	failed += take(2);
	struct ibv_mr *other = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE);

	if (other)
		ibv_dereg_mr(other);
	check_own("after other calls");
	check_child("in a child");
	ibv_destroy_qp(member);
	for (int i = 0; i < 2; i++)
		ibv_destroy_qp(qps[i]);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(cq);
	ibv_destroy_comp_channel(channel);
	ibv_dealloc_pd(pd);
	ibv_close_device(dev.ctx);
	check_own("after the end");
	struct ibv_device **list = ibv_get_device_list(NULL);

	need(list, "ibv_get_device_list");
	ibv_free_device_list(list);
	check_own("at last");
	printf("ok %s failed\n", failed > 0 ? "some" : "none");
	return 0;
}
