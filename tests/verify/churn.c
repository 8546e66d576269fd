/* Registers, deregisters and reallocates memory while a run goes on: memory that the run is using,
 * whose bytes the run itself compares, and memory of its own. */
#define _GNU_SOURCE
#include "verify.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Largest buffer of its own. */
#define OWN_MAX (256u << 10)

#define REMOTE (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

struct churner {
	struct run *run;
	pthread_t thread;
	struct rng rng;
	atomic_bool stop;
	uint64_t shared, own;
};

/* Registers a part of what requests are just being sent from and answered to. */
static void churn_used(struct churner *ch)
{
	struct run *run = ch->run;
	struct conn *c = &run->conns[rng_below(&ch->rng, run->params.qps)];
	size_t all = c->arena_mr[0]->length;
	size_t from = rng_below(&ch->rng, all);
	size_t len = 1 + rng_below(&ch->rng, all - from);

	need0(ibv_dereg_mr(reg(run, c->arena_memory + from, len, REMOTE)));
	ch->shared++;
}

static void own_check(const struct churner *ch, const unsigned char *at, uint64_t key, size_t len,
		      const char *when)
{
	ssize_t bad = content_check(at, key, 0, len);

	if (bad >= 0)
		fail("side %d: byte %zd of %zu is wrong %s", ch->run->side, bad, len, when);
}

/* A buffer's life: allocated, registered twice, changed, moved by realloc, freed. */
static void churn_own(struct churner *ch)
{
	size_t len = 1 + rng_below(&ch->rng, OWN_MAX), more = 1 + rng_below(&ch->rng, OWN_MAX);
	uint64_t key = rng_next(&ch->rng);
	unsigned char *at = malloc(len);
	struct ibv_mr *one, *part;

	need(at, "memory");
	content_fill(at, key, 0, len);
	one = reg(ch->run, at, len, REMOTE);
	own_check(ch, at, key, len, "after it was registered");
	part = reg(ch->run, at + len / 3, len - len / 3, REMOTE);
	content_fill(at, ++key, 0, len);
	if (rng_one_in(&ch->rng, 2)) {
		struct ibv_mr *swap = one;

		one = part;
		part = swap;
	}
	need0(ibv_dereg_mr(one));
	own_check(ch, at, key, len, "after one of two registrations ended");
	need0(ibv_dereg_mr(part));
	own_check(ch, at, key, len, "after the last registration ended");
	at = realloc(at, more);
	need(at, "memory");
	own_check(ch, at, key, more < len ? more : len, "after realloc");
	free(at);
	at = calloc(1, more);
	need(at, "memory");
	for (size_t i = 0; i < more; i++)
		if (at[i])
			fail("byte %zu of %zu from calloc is %#x", i, more, at[i]);
	free(at);
	ch->own++;
}

static void *churn(void *arg)
{
	struct churner *ch = arg;

	while (!atomic_load(&ch->stop)) {
		churn_used(ch);
		churn_own(ch);
	}
	return NULL;
}

struct churner *churn_start(struct run *run)
{
	struct churner *ch = calloc(1, sizeof(*ch));

	need(ch, "memory");
	ch->run = run;
	ch->rng = rng_for(run->params.seed, 0xc4a2, run->side);
	need(pthread_create(&ch->thread, NULL, churn, ch) == 0, "pthread_create");
	return ch;
}

void churn_end(struct churner *ch)
{
	if (!ch)
		return;
	atomic_store(&ch->stop, true);
	need(pthread_join(ch->thread, NULL) == 0, "pthread_join");
	printf("%-22s %10lu of the run's, %lu of its own\n", "registrations", ch->shared, ch->own);
	if (!ch->shared || !ch->own)
		fail("nothing was registered during the run");
	free(ch);
}
