// SPDX-License-Identifier: MIT OR Apache-2.0
//
// closed HOW: closes every descriptor that it did not open itself, as a daemon does, while the
// device is open and connected, and opens files and sockets of its own under their numbers. The
// library must leave those alone, and fail what was posted. HOW is loop, range or dup2.

#define _GNU_SOURCE
#include "../verify/common.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
	// More than the library has.
	FILES = 96,
	PAIRS = 32,
	FILE_BYTES = 64,
	AT = 16,
	HIGHEST = 4096,
	// Time for the helper thread, and for the other end.
	ROUNDS = 50,
	ROUND_MS = 4,
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
static struct ibv_qp *qps[2];
static char *memory;

// The program's own.
static int files[FILES];
static int pairs[PAIRS][2];

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
	need0(post());
	need(take(2) == 0, "before");
	need0(ibv_req_notify_cq(cq, 0));
}

static int new_file(void)
{
	char text[FILE_BYTES];
	int fd = memfd_create("own", 0);

	memset(text, 'x', sizeof text);
	need(fd >= 0 && write(fd, text, sizeof text) == sizeof text, "file");
	need(lseek(fd, AT, SEEK_SET) == AT, "lseek");
	return fd;
}

static void close_all(const char *how)
{
	if (strcmp(how, "range") == 0) {
		need(syscall(SYS_close_range, 3, ~0U, 0) == 0, "close_range");
	} else if (strcmp(how, "loop") == 0) {
		for (int fd = 3; fd < HIGHEST; fd++)
			syscall(SYS_close, fd);
	} else {
		// Files take the places of what is open, the other half of it stays.
		for (int i = 0; i < FILES; i += 2) {
			int fd = 3 + i;

			files[i] = fd;
			if (fcntl(fd, F_GETFD) >= 0) {
				int file = new_file();

				need(dup2(file, fd) == fd, "dup2");
				close(file);
			} else {
				need(dup2(new_file(), fd) == fd, "dup2");
			}
		}
	}
}

static void open_own(const char *how)
{
	bool all = strcmp(how, "dup2") != 0;

	for (int i = 0; i < FILES; i++) {
		if (all || i % 2)
			files[i] = new_file();
	}
	for (int i = 0; i < PAIRS; i++) {
		int type = i % 2 ? SOCK_STREAM : SOCK_DGRAM;

		need(socketpair(AF_UNIX, type, 0, pairs[i]) == 0, "socketpair");
		need(write(pairs[i][0], "hello", 5) == 5, "write");
	}
}

static void check_own(const char *when)
{
	for (int i = 0; i < FILES; i++) {
		char text[FILE_BYTES + 2] = "";

		if (pread(files[i], text, FILE_BYTES + 1, 0) != FILE_BYTES)
			fail("%s: file %d has another length: %m", when, files[i]);
		if (strspn(text, "x") < FILE_BYTES)
			fail("%s: file %d was written to", when, files[i]);
		if (lseek(files[i], 0, SEEK_CUR) != AT)
			fail("%s: file %d was read or written", when, files[i]);
	}
	for (int i = 0; i < PAIRS; i++) {
		char text[64];
		ssize_t n = recv(pairs[i][1], text, sizeof text, MSG_PEEK | MSG_DONTWAIT);

		if (n != 5 || memcmp(text, "hello", 5) != 0)
			fail("%s: the sockets %d, %d: %zd bytes", when, pairs[i][0],
			     pairs[i][1], n);
		if (recv(pairs[i][0], text, sizeof text, MSG_PEEK | MSG_DONTWAIT) != -1)
			fail("%s: something was sent by socket %d", when, pairs[i][1]);
	}
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	int failed, posted = 0;

	set_up();
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
	// None of these need succeed, and none may touch what is not the library's.
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	ibv_modify_qp(qps[0], &attr, IBV_QP_STATE);
	failed += take(2);
	struct ibv_mr *other = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE);

	if (other)
		ibv_dereg_mr(other);
	check_own("after other calls");
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
