// SPDX-License-Identifier: MIT OR Apache-2.0
//
// threads CPU CPU SIZE: how WRITEs of SIZE bytes scale with threads, in millions a second.
//
// Prints, after the size: one bare loop, and two on a processor each, of what a WRITE can't do
// without (a copy, and two exchanges of a word of its own); one thread; two threads with a queue
// pair and a completion queue each; two processes with one thread each; one thread that posts while
// another polls; two threads with a queue pair each on one completion queue. Each way begins in
// processes of its own. Where two bare loops are no faster than one, the machine does not scale,
// and nothing else can.

#define _GNU_SOURCE
#include "../../tests/verify/common.h"

#include "common.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	WORKERS = 2,
	// Signaled once in a batch, of which so many may be under way.
	BATCH = 32,
	BATCHES = 2,
	DEPTH = BATCH * (BATCHES + 1),
	PSN = 7,
	PAGE = 4096,
	// Two cache lines: processors fetch them in pairs.
	LINE = 128,
	// With a pause after each batch of these the target's memory is moved to where it is
	// written directly, and mapped: by threads that need a processor.
	WARM_UP_BATCHES = 100,
	PAUSE_US = 1000,
	// The first part of the time measured, in which caches fill.
	SETTLE_US = 20000,
	WINDOWS = 15,
	WINDOW_US = 10000,
};

enum way { BARE_ONE, BARE_TWO, ONE, THREADS, PROCESSES, SPLIT, SHARED_CQ, WAYS };

static const struct qp_params params = {
	.access = IBV_ACCESS_REMOTE_WRITE,
	.timeout = 14,
	.retry_cnt = 7,
	.rnr_retry = 7,
	.min_rnr_timer = 1,
	.rd_atomic = 1,
};

// A number that one thread writes, on a line of its own.
struct cell {
	_Alignas(LINE) _Atomic uint64_t value;
};

// What all processes share.
struct board {
	struct cell ready, go, stop;
	struct cell done[WORKERS];
};

struct place {
	struct qp_addr addr;
	uint64_t buffer;
	uint32_t rkey;
};

struct queue {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	struct place peer;
	struct cell completed;
};

// One process's end.
struct side {
	struct device dev;
	struct ibv_mr *mr;
	char *buffer;
	struct queue queues[WORKERS];
};

struct worker {
	pthread_t thread;
	struct side *side;
	int number;
};

static struct board *board;
static size_t size;
// From a thread's bytes to the next one's: no two write to one line.
static size_t stride;
static int cpus[WORKERS];

static uint64_t get(struct cell *cell)
{
	return atomic_load_explicit(&cell->value, memory_order_acquire);
}

static void set(struct cell *cell, uint64_t value)
{
	atomic_store_explicit(&cell->value, value, memory_order_release);
}

static void start(int number)
{
	pin(cpus[number]);
	atomic_fetch_add(&board->ready.value, 1);
	while (!get(&board->go))
		;
}

static void *bare(void *arg)
{
	struct worker *w = arg;
	struct cell *own = page_alloc(sizeof *own);
	char *from = page_alloc(size), *to = page_alloc(size);

	start(w->number);
	for (uint64_t n = 0; !get(&board->stop);) {
		for (int i = 0; i < BATCH; i++) {
			atomic_exchange(&own->value, 1);
			memcpy(to, from, size);
			__asm__ volatile("" : : "r"(to) : "memory");
			atomic_exchange(&own->value, 0);
		}
		set(&board->done[w->number], n += BATCH);
	}
	return NULL;
}

static void post_batch(struct side *s, int number)
{
	struct queue *q = &s->queues[number];
	struct ibv_sge sge = { (uintptr_t)s->buffer + number * stride, size, s->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = number,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { q->peer.buffer + number * stride, q->peer.rkey },
	}, *bad;

	for (int i = 0; i < BATCH; i++) {
		wr.send_flags = i == BATCH - 1 ? IBV_SEND_SIGNALED : 0;
		need0(ibv_post_send(q->qp, &wr, &bad));
	}
}

// Takes what has completed, whosever it is.
static void poll_once(struct side *s, struct ibv_cq *cq)
{
	struct ibv_wc wc[2 * BATCHES];
	int n = ibv_poll_cq(cq, 2 * BATCHES, wc);

	need(n >= 0, "ibv_poll_cq");
	for (int i = 0; i < n; i++) {
		if (wc[i].status != IBV_WC_SUCCESS)
			fail("completion: %s", ibv_wc_status_str(wc[i].status));
		atomic_fetch_add(&s->queues[wc[i].wr_id].completed.value, 1);
	}
}

static void warm_up(struct side *s, int number)
{
	struct queue *q = &s->queues[number];

	for (uint64_t posted = 1; posted <= WARM_UP_BATCHES; posted++) {
		post_batch(s, number);
		while (get(&q->completed) < posted)
			poll_once(s, q->cq);
		usleep(PAUSE_US);
	}
	set(&q->completed, 0);
}

static void *post_and_poll(void *arg)
{
	struct worker *w = arg;
	struct queue *q = &w->side->queues[w->number];
	uint64_t posted = 0;

	start(w->number);
	while (!get(&board->stop)) {
		post_batch(w->side, w->number);
		posted++;
		while (posted - get(&q->completed) >= BATCHES && !get(&board->stop))
			poll_once(w->side, q->cq);
		set(&board->done[w->number], BATCH * get(&q->completed));
	}
	while (get(&q->completed) < posted)
		poll_once(w->side, q->cq);
	return NULL;
}

// Worker 0 of a pair that shares a queue pair.
static void *post_only(void *arg)
{
	struct worker *w = arg;
	struct queue *q = &w->side->queues[0];

	start(w->number);
	for (uint64_t posted = 0; !get(&board->stop); posted++) {
		post_batch(w->side, 0);
		while (posted + 1 - get(&q->completed) >= BATCHES && !get(&board->stop))
			;
	}
	return NULL;
}

// Worker 1 of it.
static void *poll_only(void *arg)
{
	struct worker *w = arg;
	struct queue *q = &w->side->queues[0];

	start(w->number);
	while (!get(&board->stop)) {
		poll_once(w->side, q->cq);
		set(&board->done[0], BATCH * get(&q->completed));
	}
	return NULL;
}

static void side_open(struct side *s, int queues, bool shared_cq, int oob)
{
	// Whole pages: only those are moved to where peers reach them.
	size_t length = (WORKERS * stride + PAGE - 1) / PAGE * PAGE;
	struct place own[WORKERS], theirs[WORKERS];

	device_open(&s->dev, NULL, 0);
	struct ibv_pd *pd = ibv_alloc_pd(s->dev.ctx);
	need(pd, "ibv_alloc_pd");
	s->buffer = page_alloc(length);
	s->mr = ibv_reg_mr(pd, s->buffer, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	need(s->mr, "ibv_reg_mr");
	for (int i = 0; i < queues; i++) {
		struct queue *q = &s->queues[i];

		q->cq = i && shared_cq ? s->queues[0].cq :
					 ibv_create_cq(s->dev.ctx, 2 * DEPTH, NULL, NULL, 0);
		need(q->cq, "ibv_create_cq");
		struct ibv_qp_init_attr init = {
			.send_cq = q->cq,
			.recv_cq = q->cq,
			.qp_type = IBV_QPT_RC,
			.cap = { DEPTH, 1, 1, 1, 0 },
		};
		q->qp = ibv_create_qp(pd, &init);
		need(q->qp, "ibv_create_qp");
		need0(qp_to_init(q->qp, &params));
		own[i] = (struct place){
			{ q->qp->qp_num, PSN, s->dev.gid },
			(uintptr_t)s->buffer,
			s->mr->rkey,
		};
	}
	oob_send(oob, own, queues * sizeof *own);
	oob_recv(oob, theirs, queues * sizeof *theirs);
	for (int i = 0; i < queues; i++) {
		s->queues[i].peer = theirs[i];
		need0(qp_to_rtr(s->queues[i].qp, &s->dev, &params, &theirs[i].addr));
		need0(qp_to_rts(s->queues[i].qp, &params, PSN));
	}
	oob_barrier(oob, 1);
}

// Runs threads of a process, numbered from `first` on, until all have stopped.
static void run(struct side *s, void *(*const bodies[])(void *), int count, int first)
{
	struct worker workers[WORKERS];

	for (int i = 0; i < count; i++) {
		workers[i] = (struct worker){ .side = s, .number = first + i };
		errno = pthread_create(&workers[i].thread, NULL, bodies[i], &workers[i]);
		need(!errno, "pthread_create");
	}
	for (int i = 0; i < count; i++)
		pthread_join(workers[i].thread, NULL);
}

static void initiate(enum way way, int number, int oob)
{
	static void *(*const each[])(void *) = { post_and_poll, post_and_poll };
	static void *(*const halves[])(void *) = { post_only, poll_only };
	static struct side s;
	int threads = way == THREADS || way == SHARED_CQ ? WORKERS : 1;

	// A process of its own uses the queue pair that has its number.
	side_open(&s, way == PROCESSES ? WORKERS : threads, way == SHARED_CQ, oob);
	for (int i = 0; i < threads; i++)
		warm_up(&s, number + i);
	if (way == SPLIT)
		run(&s, halves, 2, 0);
	else
		run(&s, each, threads, number);
	oob_barrier(oob, 2);
}

static void serve(enum way way, int oob)
{
	static struct side s;
	bool both = way == THREADS || way == SHARED_CQ || way == PROCESSES;

	side_open(&s, both ? WORKERS : 1, false, oob);
	oob_barrier(oob, 2);
}

// A child that ends with this process.
static bool is_child(void)
{
	pid_t child = fork();

	if (child < 0)
		die("fork");
	if (child == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return child == 0;
}

// Starts the processes of a way; returns how many there are.
static int begin(enum way way)
{
	static void *(*const loops[])(void *) = { bare, bare };
	int pairs = way == PROCESSES ? WORKERS : 1, ends[2];

	if (way == BARE_ONE || way == BARE_TWO) {
		if (is_child()) {
			run(NULL, loops, way == BARE_ONE ? 1 : WORKERS, 0);
			_exit(0);
		}
		return 1;
	}
	for (int i = 0; i < pairs; i++) {
		need(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
		if (is_child()) {
			close(ends[0]);
			serve(way, ends[1]);
			_exit(0);
		}
		close(ends[1]);
		if (is_child()) {
			initiate(way, i, ends[0]);
			_exit(0);
		}
		close(ends[0]);
	}
	return 2 * pairs;
}

static uint64_t done_by_all(void)
{
	uint64_t sum = 0;

	for (int i = 0; i < WORKERS; i++)
		sum += get(&board->done[i]);
	return sum;
}

// Millions a second, the median of many short windows.
static double rate(enum way way)
{
	double windows[WINDOWS];
	uint64_t workers = way == BARE_ONE || way == ONE ? 1 : WORKERS;

	memset(board, 0, sizeof *board);
	int processes = begin(way);
	while (get(&board->ready) < workers) {
		// A child that fails has said why.
		if (waitpid(-1, NULL, WNOHANG) > 0)
			exit(1);
		usleep(100);
	}
	set(&board->go, 1);
	usleep(SETTLE_US);
	for (int i = 0; i < WINDOWS; i++) {
		uint64_t begun = now_ns(), before = done_by_all();

		usleep(WINDOW_US);
		windows[i] = (double)(done_by_all() - before) * 1e3 / (double)(now_ns() - begun);
	}
	set(&board->stop, 1);
	while (processes--) {
		int status;

		if (wait(&status) < 0)
			die("wait");
		if (status)
			exit(1);
	}
	return median(windows, WINDOWS);
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: threads CPU CPU SIZE\n");
		return 2;
	}
	cpus[0] = atoi(argv[1]);
	cpus[1] = atoi(argv[2]);
	size = (size_t)number(argv[3]);
	stride = (size + LINE - 1) / LINE * LINE;
	board = shared(sizeof *board);
	printf("%zu", size);
	for (enum way way = 0; way < WAYS; way++)
		printf(" %.3f", rate(way));
	printf("\n");
	return 0;
}
