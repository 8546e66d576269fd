// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Many queue pairs, many processes, many connections. Each mode checks contents, and that nothing
// is left behind:
//
//   scale qps N        N queue pairs between two processes: a SEND and a WRITE on each, both ways
//   scale create N     N queue pairs, which are all that the device says it has
//   scale datagrams N  N UD queue pairs in each of two processes, the last of which send
//   scale farewell N   N queue pairs between two processes; one is killed when it has received on
//                      the last of them: what was sent there was sent
//   scale mappings N   N queue pairs, and as many again where the process may have no more mappings
//   scale churn N      N connections one after another in batches, with a SEND on each
//   scale processes N  N processes in a ring, each connected to both neighbours; every fourth is
//                      killed, its neighbours are told, and the others go on

#define _GNU_SOURCE
#include "side.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	KILLED_EACH = 4,
	// What a process may have open more after its connections than before: what is made
	// once, when it is first wanted.
	DESCRIPTORS_MORE_MAX = 16,
	PROCESSES_MAX = 1024,
};

static void many_qps(int oob, int total, int who)
{
	static struct ibv_qp *qps[QPS_MAX];
	static struct end peers[QPS_MAX];
	struct side s = { 0 };
	struct timespec begun;

	clock_gettime(CLOCK_MONOTONIC, &begun);
	side_open(&s, total);
	for (int done = 0; done < total; done += BATCH)
		connect_batch(&s, oob, done, qps + done, peers + done);
	oob_barrier(oob, 1);
	// All sends are under way at once.
	for (int i = 0; i < total; i++)
		post(&s, qps[i], i, key_of(who, i, 0), NULL);
	take(&s, 2 * total);
	for (int i = 0; i < total; i++) {
		expect(&s, i, AT_RECEIVED, key_of(!who, i, 0));
		post(&s, qps[i], i, key_of(who, i, 1), &peers[i]);
	}
	take(&s, total);
	oob_barrier(oob, 2);
	if (who)
		report(total, &begun);
	for (int i = 0; i < total; i++) {
		expect(&s, i, AT_WRITTEN, key_of(!who, i, 1));
		need0(ibv_destroy_qp(qps[i]));
	}
	oob_barrier(oob, 3);
	side_close(&s);
}

static void churn(int oob, int total, int who)
{
	struct ibv_qp *qps[BATCH];
	struct end peers[BATCH];
	struct side s = { 0 };
	int before = 0;

	side_open(&s, BATCH);
	for (int round = 0; round < total / BATCH; round++) {
		connect_batch(&s, oob, 0, qps, peers);
		oob_barrier(oob, 2 * (uint32_t)round);
		for (int i = 0; i < BATCH; i++)
			post(&s, qps[i], i, key_of(who, i, round), NULL);
		take(&s, 2 * BATCH);
		for (int i = 0; i < BATCH; i++)
			expect(&s, i, AT_RECEIVED, key_of(!who, i, round));
		// Who has destroyed its end before the other has taken its message, fails it.
		oob_barrier(oob, 2 * (uint32_t)round + 1);
		for (int i = 0; i < BATCH; i++)
			need0(ibv_destroy_qp(qps[i]));
		if (round == 0)
			before = descriptors();
	}
	if (descriptors() > before + DESCRIPTORS_MORE_MAX)
		fail("%d descriptors are open, %d were", descriptors(), before);
	oob_barrier(oob, UINT32_MAX);
	side_close(&s);
}

// Returns how the other process ended.
static int two_processes(void (*run)(int oob, int total, int who), int total)
{
	int fds[2], status;

	need(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0, "socketpair");
	pid_t peer = fork();
	need(peer >= 0, "fork");
	close(fds[peer == 0]);
	alarm(SECONDS_MAX);
	run(fds[peer != 0], total, peer != 0);
	if (peer == 0)
		_exit(0);
	need(waitpid(peer, &status, 0) == peer, "waitpid");
	return status;
}

// What all processes of a ring share. `ends[i][0]` leads to the one before, `[1]` to the next.
struct meeting {
	pthread_barrier_t attached;
	pthread_barrier_t connected;
	pthread_barrier_t talked;
	pthread_barrier_t killed;
	struct end ends[PROCESSES_MAX][2];
};

enum { BEFORE, NEXT };

static bool is_killed(int who)
{
	return who % KILLED_EACH == 0;
}

// Waits for the connection to a neighbour that was killed to fail, as a transport's does.
static void expect_failure(const struct side *s, struct ibv_qp *qp, int slot)
{
	struct ibv_wc wc;
	int n;

	post(s, qp, slot, 0, NULL);
	while ((n = ibv_poll_cq(s->cq, 1, &wc)) == 0)
		sched_yield();
	need(n == 1, "ibv_poll_cq");
	if (wc.status == IBV_WC_SUCCESS)
		fail("a message to the dead arrived");
}

static void ring_member(struct meeting *m, int who, int total)
{
	const int neighbour[2] = { (who + total - 1) % total, (who + 1) % total };
	struct ibv_qp *qps[2];
	struct side s = { 0 };

	alarm(SECONDS_MAX);
	side_open(&s, 2);
	for (int i = 0; i < 2; i++)
		qps[i] = make(&s, i, &m->ends[who][i]);
	pthread_barrier_wait(&m->attached);
	for (int i = 0; i < 2; i++) {
		connect_to(&s, qps[i], &m->ends[neighbour[i]][!i]);
		post_receive(&s, qps[i], i);
	}
	// With so many on few processors, a neighbour may not be connected for longer than a
	// sender's retries last.
	pthread_barrier_wait(&m->connected);
	for (int i = 0; i < 2; i++)
		post(&s, qps[i], i, key_of(who, i, 0), NULL);
	take(&s, 4);
	for (int i = 0; i < 2; i++)
		expect(&s, i, AT_RECEIVED, key_of(neighbour[i], !i, 0));
	pthread_barrier_wait(&m->talked);
	if (is_killed(who))
		raise(SIGKILL);
	pthread_barrier_wait(&m->killed);
	for (int i = 0; i < 2; i++)
		if (is_killed(neighbour[i]))
			expect_failure(&s, qps[i], i);
	for (int i = 0; i < 2; i++)
		need0(ibv_destroy_qp(qps[i]));
	side_close(&s);
	_exit(0);
}

static void barrier_init(pthread_barrier_t *barrier, int members)
{
	pthread_barrierattr_t across;

	pthread_barrierattr_init(&across);
	pthread_barrierattr_setpshared(&across, PTHREAD_PROCESS_SHARED);
	need((errno = pthread_barrier_init(barrier, &across, (unsigned)members)) == 0, "barrier");
}

static int many_processes(int total)
{
	static pid_t pids[PROCESSES_MAX];
	struct meeting *m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int wrong = 0, status;

	need(m != MAP_FAILED, "mmap");
	barrier_init(&m->attached, total);
	barrier_init(&m->connected, total);
	barrier_init(&m->talked, total);
	// The killed do not come, this process does: when they are dead.
	barrier_init(&m->killed, total - total / KILLED_EACH + 1);
	alarm(SECONDS_MAX);
	for (int i = 0; i < total; i++) {
		pids[i] = fork();
		need(pids[i] >= 0, "fork");
		if (pids[i] == 0)
			ring_member(m, i, total);
	}
	for (int i = 0; i < total; i += KILLED_EACH) {
		need(waitpid(pids[i], &status, 0) == pids[i], "waitpid");
		wrong += !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL;
	}
	if (wrong)
		fail("%d processes ended before their time", wrong);
	pthread_barrier_wait(&m->killed);
	for (int i = 0; i < total; i++) {
		if (is_killed(i))
			continue;
		need(waitpid(pids[i], &status, 0) == pids[i], "waitpid");
		wrong += status != 0;
	}
	if (wrong)
		fail("%d processes failed", wrong);
	return 0;
}

int main(int argc, char **argv)
{
	int n = argc == 3 ? atoi(argv[2]) : 0;

	if (n > 0 && n <= QPS_MAX && n % BATCH == 0 && !strcmp(argv[1], "qps"))
		return two_processes(many_qps, n) != 0;
	if (n > 0 && n % BATCH == 0 && !strcmp(argv[1], "churn"))
		return two_processes(churn, n) != 0;
	if (n > 0 && n <= QPS_MAX && !strcmp(argv[1], "create"))
		return all_qps(n);
	if (n > 0 && n <= QPS_MAX && n % BATCH == 0 && !strcmp(argv[1], "datagrams"))
		return two_processes(datagrams, n) != 0;
	if (n > 0 && n <= QPS_MAX && n % BATCH == 0 && !strcmp(argv[1], "farewell"))
		return two_processes(farewell, n) != SIGKILL;
	if (n == BATCH && !strcmp(argv[1], "mappings"))
		return two_processes(no_mappings, n) != 0;
	if (n > 0 && n <= PROCESSES_MAX && n % KILLED_EACH == 0 && !strcmp(argv[1], "processes"))
		return many_processes(n);
	fprintf(stderr, "usage: scale qps|create|datagrams|farewell|mappings|churn|processes N\n");
	return 2;
}
