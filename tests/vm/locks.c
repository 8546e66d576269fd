/*
 * Two processes in different machines use every kind of lock, one after the other:
 *
 *	locks first|second ROUNDS [END]
 *
 * The first makes the block. In the END, the second says "held" and has the mutex:
 *
 *	kill	until it is killed; the first is the next owner, and is told
 *	pause	while it is stopped with its machine: the first waits in vain, says so, and gets it
 *		when it was given up
 *	fence	and stores all the while, also when it goes on after it was taken for dead: the
 *		first, once it has the mutex, says so, finds nothing changed until SIGUSR1
 */
#include <causeway.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POOL "machines"
#define BLOCK "stage"
#define BLOCK_SIZE (64 * 1024)
#define SECOND_NS 1000000000LL
/* Longer than anything takes here. */
#define WAIT_NS (60 * SECOND_NS)
/* Several leases. */
#define IN_VAIN_NS (2 * SECOND_NS)
#define PARTIES 2
#define WORDS 64
#define MINE 0x600d600du

enum {
	MUTEX = 0,
	COND = 64,
	SEMAPHORE = 128, /* one for each */
	BARRIER = 256,
	RWLOCK = 1024,
	SHARED = 2048
};

/* Nothing but the locks keeps these in order. */
struct shared {
	unsigned int counter;
	unsigned int turn;
	unsigned int pair[2];
	unsigned int taken;
	unsigned int asked;
	unsigned int words[WORDS];
};

static int check(const char *what, int result)
{
	if (result < 0) {
		fprintf(stderr, "%s: %s\n", what, cw_strerror(result));
		exit(EXIT_FAILURE);
	}
	return result;
}

#define CHECK(call) check(#call, (call))

static void expect(const char *what, int holds)
{
	if (holds)
		return;
	fprintf(stderr, "not so: %s\n", what);
	exit(EXIT_FAILURE);
}

#define EXPECT(condition) expect(#condition, (condition))

static cw_block *make(cw_lib *lib)
{
	cw_pool *pool;
	cw_block *block;

	CHECK(cw_pool_create(lib, POOL, BLOCK_SIZE, 1, 0, &pool));
	CHECK(cw_block_alloc(pool, 0, 0, &block));
	CHECK(cw_mutex_init(block, MUTEX));
	CHECK(cw_cond_init(block, COND));
	CHECK(cw_sem_init(block, SEMAPHORE, 0));
	CHECK(cw_sem_init(block, SEMAPHORE + CW_SYNC_ALIGN, 0));
	CHECK(cw_barrier_init(block, BARRIER, PARTIES));
	CHECK(cw_rwlock_init(block, RWLOCK));
	CHECK(cw_block_grant(block, CW_EVERYBODY, 0, CW_WRITE));
	CHECK(cw_block_name(block, BLOCK, 0));
	return block;
}

static cw_block *find(cw_lib *lib)
{
	cw_pool *pool;
	cw_block *block;

	while (cw_pool_open(lib, POOL, &pool) < 0)
		usleep(10000);
	CHECK(cw_block_find(pool, BLOCK, CW_WRITE, WAIT_NS, &block));
	return block;
}

static void meet(cw_block *block)
{
	CHECK(cw_barrier_wait(block, BARRIER, WAIT_NS));
}

static void use_mutex(cw_block *block, volatile struct shared *shared, unsigned int rounds)
{
	for (unsigned int i = 0; i < rounds; i++) {
		CHECK(cw_mutex_timedlock(block, MUTEX, WAIT_NS));
		shared->counter++;
		CHECK(cw_mutex_unlock(block, MUTEX));
	}
	meet(block);
	EXPECT(shared->counter == PARTIES * rounds);
}

/* In turn: each waits until the other has had its. */
static void use_condition(cw_block *block, volatile struct shared *shared, unsigned int self,
		unsigned int rounds)
{
	CHECK(cw_mutex_timedlock(block, MUTEX, WAIT_NS));
	for (unsigned int i = 0; i < rounds; i++) {
		while (shared->turn % PARTIES != self)
			CHECK(cw_cond_wait(block, COND, MUTEX, WAIT_NS));
		shared->turn++;
		CHECK(cw_cond_signal(block, COND));
	}
	CHECK(cw_mutex_unlock(block, MUTEX));
	meet(block);
	EXPECT(shared->turn == PARTIES * rounds);
}

static void use_semaphores(cw_block *block, unsigned int self, unsigned int rounds)
{
	uint64_t own = SEMAPHORE + self * CW_SYNC_ALIGN;
	uint64_t other = SEMAPHORE + !self * CW_SYNC_ALIGN;

	for (unsigned int i = 0; i < rounds; i++) {
		if (self)
			CHECK(cw_sem_wait(block, own, WAIT_NS));
		CHECK(cw_sem_post(block, other));
		if (!self)
			CHECK(cw_sem_wait(block, own, WAIT_NS));
	}
	meet(block);
}

/* Who writes changes both words; who reads finds them equal. */
static void use_rwlock(cw_block *block, volatile struct shared *shared, unsigned int self,
		unsigned int rounds)
{
	for (unsigned int i = 0; i < rounds; i++) {
		if ((i + self) % 2) {
			CHECK(cw_rwlock_wrlock(block, RWLOCK, WAIT_NS));
			shared->pair[0]++;
			shared->pair[1]++;
		} else {
			CHECK(cw_rwlock_rdlock(block, RWLOCK, WAIT_NS));
			EXPECT(shared->pair[0] == shared->pair[1]);
		}
		CHECK(cw_rwlock_unlock(block, RWLOCK));
	}
	meet(block);
	EXPECT(shared->pair[0] == shared->pair[1]);
	EXPECT(shared->pair[0] == PARTIES * (rounds / 2));
}

static void die_with_mutex(cw_block *block, volatile struct shared *shared)
{
	CHECK(cw_mutex_timedlock(block, MUTEX, WAIT_NS));
	shared->taken = 1;
	printf("held\n");
	pause();
}

static void inherit_mutex(cw_block *block, volatile struct shared *shared)
{
	int result;

	/* Whether the owner had it before is looked at while the lock is held. */
	while (result = CHECK(cw_mutex_timedlock(block, MUTEX, WAIT_NS)), !shared->taken)
		CHECK(cw_mutex_unlock(block, MUTEX));
	EXPECT(result == CW_OWNER_DEAD);
	CHECK(cw_mutex_consistent(block, MUTEX));
	CHECK(cw_mutex_unlock(block, MUTEX));
	printf("the owner was dead\n");
}

static void keep_mutex(cw_block *block, volatile struct shared *shared)
{
	CHECK(cw_mutex_timedlock(block, MUTEX, WAIT_NS));
	shared->taken = 1;
	printf("held\n");
	while (!shared->asked)
		shared->words[0]++;
	CHECK(cw_mutex_unlock(block, MUTEX));
}

static void await_mutex(cw_block *block, volatile struct shared *shared)
{
	while (!shared->taken)
		usleep(1000);
	EXPECT(cw_mutex_timedlock(block, MUTEX, IN_VAIN_NS) == -ETIMEDOUT);
	printf("in vain\n");
	shared->asked = 1;
	EXPECT(CHECK(cw_mutex_timedlock(block, MUTEX, WAIT_NS)) == 0);
	CHECK(cw_mutex_unlock(block, MUTEX));
}

static void store_on(cw_block *block, volatile struct shared *shared)
{
	CHECK(cw_mutex_timedlock(block, MUTEX, WAIT_NS));
	shared->taken = 1;
	printf("held\n");
	for (unsigned int i = 0;; i++)
		shared->words[i % WORDS] = i;
}

static volatile sig_atomic_t told;

static void be_told(int number)
{
	told = number;
}

static void take_over(cw_block *block, volatile struct shared *shared)
{
	unsigned int i;

	signal(SIGUSR1, be_told);
	while (!shared->taken)
		usleep(1000);
	EXPECT(CHECK(cw_mutex_timedlock(block, MUTEX, WAIT_NS)) == CW_OWNER_DEAD);
	CHECK(cw_mutex_consistent(block, MUTEX));
	for (i = 0; i < WORDS; i++)
		shared->words[i] = MINE;
	printf("taken over\n");
	for (i = 0; !told || i % WORDS; i++)
		EXPECT(shared->words[i % WORDS] == MINE);
	CHECK(cw_mutex_unlock(block, MUTEX));
}

static const struct end {
	const char *name;
	void (*play[PARTIES])(cw_block *block, volatile struct shared *shared);
} ends[] = {
	{ "kill", { inherit_mutex, die_with_mutex } },
	{ "pause", { await_mutex, keep_mutex } },
	{ "fence", { take_over, store_on } },
};

static const struct end *end_of(const char *name)
{
	for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++)
		if (!strcmp(ends[i].name, name))
			return &ends[i];
	exit(2);
}

int main(int argc, char **argv)
{
	const struct end *end = argc > 3 ? end_of(argv[3]) : NULL;
	unsigned int self = argc > 1 && !strcmp(argv[1], "second");
	unsigned int rounds = argc > 2 ? (unsigned int)atoi(argv[2]) : 100;
	volatile struct shared *shared;
	cw_block *block;
	void *memory;
	cw_lib *lib;

	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(cw_open(&lib));
	block = self ? find(lib) : make(lib);
	CHECK(cw_block_map(block, CW_WRITE, &memory));
	shared = (volatile struct shared *)((char *)memory + SHARED);
	meet(block);
	use_mutex(block, shared, rounds);
	use_condition(block, shared, self, rounds);
	use_semaphores(block, self, rounds);
	use_rwlock(block, shared, self, rounds);
	if (end)
		end->play[self](block, shared);
	else
		meet(block);
	printf("%u rounds of each\n", rounds);
	return EXIT_SUCCESS;
}
