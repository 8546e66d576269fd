// SPDX-License-Identifier: MIT OR Apache-2.0
//
// waits [HOST]: two sides that wait for each other by completion events, at every distance from the
// end of a look before sleeping. No event may be lost, none may come twice, and signals, O_NONBLOCK
// and other threads mean what they mean to who sleeps. Without HOST the server.

#define _GNU_SOURCE
#include "side.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>

enum {
	TURNS = 10000,
	BRISK_TURNS = 5000,
	ROUNDS = 100,
	TURNS_PER_ROUND = 20,
	// Longer than the longest look (150 us) and the wake of both sides.
	PAUSE_NS_MAX = 300000,
	LOOK_NS = 50000,
	TICK_US = 1000,
	CALLS = 100,
	SHARED_MESSAGES = 5000,
};

static uint64_t now_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// Computes for so long.
static void work_ns(uint64_t ns)
{
	uint64_t until = now_ns(CLOCK_MONOTONIC) + ns;

	while (now_ns(CLOCK_MONOTONIC) < until)
		;
}

// One message there and one back, each with the number of its turn.
static void turn(struct side *s, bool client, uint64_t number, uint64_t pause)
{
	uint64_t got;

	if (!client) {
		await(s, 0, 1);
		memcpy(&got, s->buffer, sizeof got);
		if (got != number)
			fail("message %lu in the place of %lu", got, number);
	}
	work_ns(pause);
	memcpy(s->buffer + MESSAGE, &number, sizeof number);
	post_send(s);
	await(s, 1, client);
	memcpy(&got, s->buffer, sizeof got);
	if (client && got != number)
		fail("answer %lu in the place of %lu", got, number);
}

static void each_once(struct side *s, bool client)
{
	struct rng rng = rng_for(1, client, 0);

	for (uint64_t number = 1; number <= TURNS; number++) {
		// Half of the time at once: so looks are worth it.
		uint64_t pause = rng_one_in(&rng, 2) ? rng_below(&rng, PAUSE_NS_MAX) : 0;

		turn(s, client, number, pause);
	}
}

// Whether this process may look, by its settings and its processors.
static bool may_look(void)
{
	const char *setting = getenv("CAUSEWAY_LOOK");
	cpu_set_t cpus;

	need(sched_getaffinity(0, sizeof cpus, &cpus) == 0, "sched_getaffinity");
	return CPU_COUNT(&cpus) > 1 && !(setting && !strcmp(setting, "off"));
}

// Where answers come at once, waits are won by looking. On a machine whose processors others want
// they need not be, which shows in how often this thread lost its own.
static void brisk(struct side *s, bool client)
{
	struct rusage before, after;
	long slept, preempted;

	getrusage(RUSAGE_THREAD, &before);
	for (uint64_t number = 1; number <= BRISK_TURNS; number++)
		turn(s, client, number, 0);
	getrusage(RUSAGE_THREAD, &after);
	slept = after.ru_nvcsw - before.ru_nvcsw;
	preempted = after.ru_nivcsw - before.ru_nivcsw;
	printf("%d turns: slept %ld times, preempted %ld times\n", BRISK_TURNS, slept, preempted);
	fflush(stdout);
	if (may_look() && preempted == 0 && slept > BRISK_TURNS / 2)
		fail("slept, and did not look");
}

static void on_tick(int signal)
{
	(void)signal;
}

// A wait for what does not come is ended by a signal, also right after waits that looked.
static void interrupted(struct side *s, bool client)
{
	struct itimerval tick = { { 0, TICK_US }, { 0, TICK_US } }, off = { 0 };
	struct sigaction action = { .sa_handler = on_tick };
	int error;

	if (client) {
		need(sigaction(SIGALRM, &action, NULL) == 0, "sigaction");
		need(setitimer(ITIMER_REAL, &tick, NULL) == 0, "setitimer");
	}
	for (int round = 0; round < ROUNDS; round++) {
		for (uint64_t number = 1; number <= TURNS_PER_ROUND; number++)
			turn(s, client, number, 0);
		if (!client)
			continue;
		// Events of completions that have been taken may be left.
		while ((error = take_event(s)) == 0)
			;
		if (error != EINTR)
			fail("not EINTR: %s", strerror(error));
	}
	need(setitimer(ITIMER_REAL, &off, NULL) == 0, "setitimer");
}

// A channel that is not to block is not looked at for long.
static void nonblocking(struct side *s, bool client)
{
	uint64_t least = UINT64_MAX;
	int flags = fcntl(s->channel->fd, F_GETFL), error;

	for (uint64_t number = 1; number <= TURNS_PER_ROUND; number++)
		turn(s, client, number, 0);
	need(flags >= 0 && fcntl(s->channel->fd, F_SETFL, flags | O_NONBLOCK) == 0, "F_SETFL");
	while ((error = take_event(s)) == 0)
		;
	for (int call = 0; call < CALLS && error == EAGAIN; call++) {
		uint64_t begun = now_ns(CLOCK_MONOTONIC), took;

		error = take_event(s);
		took = now_ns(CLOCK_MONOTONIC) - begun;
		least = took < least ? took : least;
	}
	if (error != EAGAIN || least >= LOOK_NS)
		fail("O_NONBLOCK: %s, after %lu ns at least", strerror(error), least);
	need(fcntl(s->channel->fd, F_SETFL, flags) == 0, "F_SETFL");
}

static pthread_mutex_t taking = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t all_taken = PTHREAD_COND_INITIALIZER;

static void unlock(void *mutex)
{
	pthread_mutex_unlock(mutex);
}

// Takes what comes, beside another thread that does.
static void *take_for_ever(void *arg)
{
	struct side *s = arg;
	struct ibv_cq *cq;
	void *context;

	for (;;) {
		need(ibv_get_cq_event(s->channel, &cq, &context) == 0, "ibv_get_cq_event");
		pthread_mutex_lock(&taking);
		pthread_cleanup_push(unlock, &taking);
		ibv_ack_cq_events(cq, 1);
		need0(ibv_req_notify_cq(cq, 0));
		take_completions(s);
		if (s->received >= SHARED_MESSAGES)
			pthread_cond_signal(&all_taken);
		pthread_cleanup_pop(1);
	}
	return NULL;
}

// Two threads of the server wait at one channel, and are cancelled there when all has come.
static void shared(struct side *s, bool client)
{
	struct rng rng = rng_for(2, client, 0);
	pthread_t threads[2];

	if (client) {
		for (int i = 0; i < SHARED_MESSAGES; i++) {
			work_ns(rng_one_in(&rng, 2) ? rng_below(&rng, PAUSE_NS_MAX) : 0);
			post_send(s);
			await(s, 1, 0);
		}
		return;
	}
	take_completions(s);
	for (int i = 0; i < 2; i++)
		need(pthread_create(&threads[i], NULL, take_for_ever, s) == 0, "pthread_create");
	pthread_mutex_lock(&taking);
	while (s->received < SHARED_MESSAGES)
		pthread_cond_wait(&all_taken, &taking);
	pthread_mutex_unlock(&taking);
	for (int i = 0; i < 2; i++) {
		void *result;

		need(pthread_cancel(threads[i]) == 0, "pthread_cancel");
		need(pthread_join(threads[i], &result) == 0, "pthread_join");
		if (result != PTHREAD_CANCELED)
			fail("a thread was not cancelled");
	}
	s->received -= SHARED_MESSAGES;
}

int main(int argc, char **argv)
{
	static void (*const PARTS[])(struct side *, bool) = { brisk, each_once, interrupted,
							      nonblocking, shared };
	struct side s = { 0 };
	bool client = argc > 1;
	uint32_t step = 2;

	open_side(&s, client ? argv[1] : NULL);
	for (size_t part = 0; part < sizeof PARTS / sizeof *PARTS; part++) {
		PARTS[part](&s, client);
		oob_barrier(s.oob, step++);
	}
	printf("each event came once\n");
	return 0;
}
