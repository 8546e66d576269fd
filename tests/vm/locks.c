/*
 * Two processes in different machines use every kind of lock, one after the other:
 *
 *	locks first|second ROUNDS [KILL]
 *
 * The first makes the block. With KILL, the second says "held" and keeps the mutex until it is
 * killed; the first is the next owner, and is told.
 */
#include <causeway.h>
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
#define PARTIES 2

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

int main(int argc, char **argv)
{
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
	if (argc > 3)
		(self ? die_with_mutex : inherit_mutex)(block, shared);
	else
		meet(block);
	printf("%u rounds of each\n", rounds);
	return EXIT_SUCCESS;
}
