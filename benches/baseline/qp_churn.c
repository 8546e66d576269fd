// SPDX-License-Identifier: MIT OR Apache-2.0
//
// What queue pairs cost in number, between processes of one host:
//
//   qp_churn rate N    N connections made, brought to RTS on both ends, and destroyed by two
//                      processes: prints connections per second
//   qp_churn memory N  N idle connections between two processes: prints the growth of resident
//                      memory per queue pair, in bytes: of its process and of the broker
//   qp_churn attach N  N processes, each connected to a neighbour with which it exchanges a
//                      message: prints milliseconds until all have, and KiB per process (PSS)

#define _GNU_SOURCE
#include "../../tests/verify/common.h"

#include "common.h"

#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BATCH = 64, DEPTH = 16, PSN = 7, PAGE = 4096, QPS_MAX = 4096, PROCESSES_MAX = 1024,
       SECONDS_MAX = 60 };

static const struct qp_params params = {
	.access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	.timeout = 14,
	.retry_cnt = 7,
	.rnr_retry = 7,
	.min_rnr_timer = 12,
	.rd_atomic = 1,
};

struct side {
	struct device dev;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char *buffer;
};

static void side_open(struct side *s)
{
	device_open(&s->dev, NULL, 0);
	s->pd = ibv_alloc_pd(s->dev.ctx);
	s->cq = ibv_create_cq(s->dev.ctx, 2 * DEPTH, NULL, NULL, 0);
	s->buffer = page_alloc(PAGE);
	need(s->pd && s->cq, "ibv_alloc_pd, ibv_create_cq");
	s->mr = ibv_reg_mr(s->pd, s->buffer, PAGE, IBV_ACCESS_LOCAL_WRITE);
	need(s->mr, "ibv_reg_mr");
}

static struct ibv_qp *make(const struct side *s, struct qp_addr *own)
{
	struct ibv_qp_init_attr init = {
		.send_cq = s->cq,
		.recv_cq = s->cq,
		.qp_type = IBV_QPT_RC,
		.cap = { DEPTH, DEPTH, 1, 1, 0 },
	};
	struct ibv_qp *qp = ibv_create_qp(s->pd, &init);

	need(qp, "ibv_create_qp");
	need0(qp_to_init(qp, &params));
	*own = (struct qp_addr){ qp->qp_num, PSN, s->dev.gid };
	return qp;
}

// Connects `n` new queue pairs to as many of the process at the other end of `oob`.
static void connect_batch(const struct side *s, int oob, struct ibv_qp **qps, int n)
{
	struct qp_addr own[BATCH], peer[BATCH];

	for (int i = 0; i < n; i++)
		qps[i] = make(s, &own[i]);
	oob_send(oob, own, (size_t)n * sizeof own[0]);
	oob_recv(oob, peer, (size_t)n * sizeof peer[0]);
	for (int i = 0; i < n; i++) {
		need0(qp_to_rtr(qps[i], &s->dev, &params, &peer[i]));
		need0(qp_to_rts(qps[i], &params, PSN));
	}
}

// The resident memory of a process ("self" or its number), in bytes; 0 if there is none.
static long resident(const char *process)
{
	char path[64];
	long total, pages = 0;

	snprintf(path, sizeof path, "/proc/%s/statm", process);
	FILE *f = fopen(path, "r");
	if (!f)
		return 0;
	if (fscanf(f, "%ld %ld", &total, &pages) != 2)
		pages = 0;
	fclose(f);
	return pages * sysconf(_SC_PAGESIZE);
}

// The resident memory of the broker that serves this process, in bytes; 0 if there is none.
static long broker_resident(void)
{
	const char *folder = getenv("CAUSEWAY_RUNTIME_DIR");
	char path[512], pid[16] = "";

	snprintf(path, sizeof path, "%s/broker.pid", folder ? folder : "");
	FILE *f = fopen(path, "r");
	if (!f)
		return 0;
	if (fscanf(f, "%15s", pid) != 1)
		pid[0] = 0;
	fclose(f);
	return pid[0] ? resident(pid) : 0;
}

// The proportional share of memory of a process, in KiB.
static long pss_kib(pid_t pid)
{
	char path[64], line[256];
	long kib = 0;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
	f = fopen(path, "r");
	need(f, path);
	while (fgets(line, sizeof line, f))
		if (sscanf(line, "Pss: %ld", &kib) == 1)
			break;
	fclose(f);
	return kib;
}

static void rate(int oob, int total, bool tell)
{
	struct side s = { 0 };
	struct ibv_qp *qps[BATCH];
	uint32_t step = 0;

	side_open(&s);
	oob_barrier(oob, step);
	uint64_t start = now_ns();
	for (int done = 0; done < total; done += BATCH) {
		connect_batch(&s, oob, qps, BATCH);
		oob_barrier(oob, ++step);
		for (int i = 0; i < BATCH; i++)
			need0(ibv_destroy_qp(qps[i]));
	}
	oob_barrier(oob, ++step);
	if (tell)
		printf("%.0f\n", (double)total * 1e9 / (double)(now_ns() - start));
}

static void memory(int oob, int total, bool tell)
{
	static struct ibv_qp *qps[QPS_MAX];
	struct side s = { 0 };

	side_open(&s);
	// The first ones pay for what all share.
	connect_batch(&s, oob, qps, BATCH);
	oob_barrier(oob, 1);
	long before = resident("self"), broker_before = broker_resident();
	for (int done = BATCH; done < total; done += BATCH)
		connect_batch(&s, oob, qps + done, BATCH);
	oob_barrier(oob, 2);
	if (tell)
		printf("%ld %ld\n", (resident("self") - before) / (total - BATCH),
		       (broker_resident() - broker_before) / (2 * (total - BATCH)));
	oob_barrier(oob, 3);
}

static int two_processes(void (*run)(int oob, int total, bool tell), int total)
{
	int fds[2], status;

	need(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0, "socketpair");
	pid_t peer = fork();
	need(peer >= 0, "fork");
	close(fds[peer == 0]);
	pin(peer == 0);
	run(fds[peer != 0], total, peer != 0);
	if (peer == 0)
		_exit(0);
	need(waitpid(peer, &status, 0) == peer, "waitpid");
	return status != 0;
}

// What all processes of `attach` share.
struct meeting {
	pthread_barrier_t attached;
	pthread_barrier_t talked;
	pthread_barrier_t counted;
	struct qp_addr addresses[PROCESSES_MAX];
};

// Sends a message to the neighbour, receives its message.
static void talk(const struct side *s, struct ibv_qp *qp)
{
	struct ibv_sge sge = { (uintptr_t)s->buffer, 8, s->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;

	need0(ibv_post_send(qp, &wr, &bad));
	for (int done = 0; done < 2;) {
		int n = ibv_poll_cq(s->cq, 1, &wc);
		need(n >= 0, "ibv_poll_cq");
		if (n == 0) {
			sched_yield();
			continue;
		}
		if (wc.status != IBV_WC_SUCCESS)
			fail("SEND: %s", ibv_wc_status_str(wc.status));
		done++;
	}
}

static void attached(struct meeting *m, int own)
{
	struct side s = { 0 };

	alarm(SECONDS_MAX);
	side_open(&s);
	struct ibv_qp *qp = make(&s, &m->addresses[own]);
	struct ibv_sge sge = { (uintptr_t)s.buffer + 64, 64, s.mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	need0(ibv_post_recv(qp, &wr, &bad));
	pthread_barrier_wait(&m->attached);
	need0(qp_to_rtr(qp, &s.dev, &params, &m->addresses[own ^ 1]));
	need0(qp_to_rts(qp, &params, PSN));
	talk(&s, qp);
	pthread_barrier_wait(&m->talked);
	pthread_barrier_wait(&m->counted);
	_exit(0);
}

static int attach(int total)
{
	static pid_t pids[PROCESSES_MAX];
	struct meeting *m = shared(sizeof *m);
	pthread_barrierattr_t across;
	long kib = 0;
	int failed = 0, status;

	pthread_barrierattr_init(&across);
	pthread_barrierattr_setpshared(&across, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&m->attached, &across, (unsigned)total);
	pthread_barrier_init(&m->talked, &across, (unsigned)total + 1);
	pthread_barrier_init(&m->counted, &across, (unsigned)total + 1);
	alarm(SECONDS_MAX);
	uint64_t start = now_ns();
	for (int i = 0; i < total; i++) {
		pids[i] = fork();
		need(pids[i] >= 0, "fork");
		if (pids[i] == 0)
			attached(m, i);
	}
	pthread_barrier_wait(&m->talked);
	uint64_t end = now_ns();
	for (int i = 0; i < total; i++)
		kib += pss_kib(pids[i]);
	pthread_barrier_wait(&m->counted);
	for (int i = 0; i < total; i++)
		failed |= waitpid(pids[i], &status, 0) != pids[i] || status != 0;
	printf("%.0f %ld\n", (double)(end - start) / 1e6, kib / total);
	return failed;
}

int main(int argc, char **argv)
{
	if (argc == 3) {
		int n = (int)number(argv[2]);

		if (!strcmp(argv[1], "rate"))
			return two_processes(rate, (n + BATCH - 1) / BATCH * BATCH);
		if (!strcmp(argv[1], "memory") && n > BATCH && n <= QPS_MAX)
			return two_processes(memory, (n + BATCH - 1) / BATCH * BATCH);
		if (!strcmp(argv[1], "attach") && n % 2 == 0 && n <= PROCESSES_MAX)
			return attach(n);
	}
	fprintf(stderr, "usage: qp_churn rate|memory|attach N\n");
	return 2;
}
