/* As misuse.c, of locks: places and objects that are none, who has not what it gives up, times that
 * are over. */
#include "pool.h"
#include <pthread.h>

/* Objects in a block of their own; the rest of it is zeroes. */
#define MUTEX 0
#define COND 64
#define SEM 128
#define SECOND_MUTEX 192
#define RWLOCK 1024
#define BARRIER 2048
#define EMPTY 4096
#define SOON_NS 20000000

static void null_locks(void)
{
	WANT(-EINVAL, cw_mutex_init(NULL, 0));
	WANT(-EINVAL, cw_mutex_lock(NULL, 0));
	WANT(-EINVAL, cw_mutex_trylock(NULL, 0));
	WANT(-EINVAL, cw_mutex_timedlock(NULL, 0, 0));
	WANT(-EINVAL, cw_mutex_unlock(NULL, 0));
	WANT(-EINVAL, cw_mutex_consistent(NULL, 0));
	WANT(-EINVAL, cw_rwlock_init(NULL, 0));
	WANT(-EINVAL, cw_rwlock_rdlock(NULL, 0, 0));
	WANT(-EINVAL, cw_rwlock_tryrdlock(NULL, 0));
	WANT(-EINVAL, cw_rwlock_wrlock(NULL, 0, 0));
	WANT(-EINVAL, cw_rwlock_trywrlock(NULL, 0));
	WANT(-EINVAL, cw_rwlock_unlock(NULL, 0));
	WANT(-EINVAL, cw_rwlock_consistent(NULL, 0));
	WANT(-EINVAL, cw_cond_init(NULL, 0));
	WANT(-EINVAL, cw_cond_wait(NULL, 0, 64, 0));
	WANT(-EINVAL, cw_cond_signal(NULL, 0));
	WANT(-EINVAL, cw_cond_broadcast(NULL, 0));
	WANT(-EINVAL, cw_sem_init(NULL, 0, 1));
	WANT(-EINVAL, cw_sem_wait(NULL, 0, 0));
	WANT(-EINVAL, cw_sem_trywait(NULL, 0));
	WANT(-EINVAL, cw_sem_post(NULL, 0));
	WANT(-EINVAL, cw_sem_value(NULL, 0));
	WANT(-EINVAL, cw_barrier_init(NULL, 0, 1));
	WANT(-EINVAL, cw_barrier_wait(NULL, 0, 0));
	WANT(-EINVAL, cw_barrier_join(NULL, 0));
	WANT(-EINVAL, cw_barrier_leave(NULL, 0));
	WANT(-EINVAL, cw_barrier_mend(NULL, 0));
}

struct try {
	cw_block *block;
	int (*call)(cw_block *, uint64_t);
	uint64_t at;
	int result;
};

static void *try_it(void *argument)
{
	struct try *try = argument;

	try->result = try->call(try->block, try->at);
	return NULL;
}

/* The same by another thread. */
static int elsewhere(int (*call)(cw_block *, uint64_t), cw_block *block, uint64_t at)
{
	struct try try = { block, call, at, 0 };
	pthread_t thread;

	pthread_create(&thread, NULL, try_it, &try);
	pthread_join(thread, NULL);
	return try.result;
}

static void lock_places(cw_block *block)
{
	const uint64_t size = cw_block_size(block);
	const uint64_t places[] = { 1, 32, 63, size, size + 64, size - 63, UINT64_MAX,
				    UINT64_MAX - 63, (uint64_t)1 << 63 };

	for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
		WANT(-EINVAL, cw_mutex_init(block, places[i]));
		WANT(-EINVAL, cw_mutex_lock(block, places[i]));
		WANT(-EINVAL, cw_rwlock_init(block, places[i]));
		WANT(-EINVAL, cw_cond_init(block, places[i]));
		WANT(-EINVAL, cw_sem_init(block, places[i], 0));
		WANT(-EINVAL, cw_barrier_init(block, places[i], 1));
		WANT(-EINVAL, cw_cond_wait(block, COND, places[i], 0));
	}
	/* The larger ones do not fit in the last 64 bytes. */
	WANT(-EINVAL, cw_rwlock_init(block, size - 64));
	WANT(-EINVAL, cw_barrier_init(block, size - 64, 1));
	WANT(-EINVAL, cw_rwlock_init(block, size - CW_RWLOCK_SIZE + 64));
	/* Nothing is there, or something else. */
	WANT(-EINVAL, cw_mutex_lock(block, EMPTY));
	WANT(-EINVAL, cw_rwlock_rdlock(block, EMPTY, -1));
	WANT(-EINVAL, cw_cond_signal(block, EMPTY));
	WANT(-EINVAL, cw_sem_post(block, EMPTY));
	WANT(-EINVAL, cw_barrier_wait(block, EMPTY, -1));
	WANT(-EINVAL, cw_mutex_lock(block, SEM));
	WANT(-EINVAL, cw_sem_value(block, MUTEX));
	WANT(-EINVAL, cw_rwlock_unlock(block, BARRIER));
	WANT(-EINVAL, cw_barrier_join(block, RWLOCK));
	WANT(-EINVAL, cw_cond_wait(block, MUTEX, COND, 0));
}

static void mutexes(cw_block *block)
{
	WANT(-EPERM, cw_mutex_unlock(block, MUTEX));
	WANT(-EINVAL, cw_mutex_consistent(block, MUTEX));
	WANT(0, cw_mutex_timedlock(block, MUTEX, INT64_MAX));
	WANT(-EDEADLK, cw_mutex_lock(block, MUTEX));
	WANT(-EDEADLK, cw_mutex_trylock(block, MUTEX));
	WANT(-EDEADLK, cw_mutex_timedlock(block, MUTEX, 0));
	/* There was no owner that died. */
	WANT(-EINVAL, cw_mutex_consistent(block, MUTEX));
	WANT(-EBUSY, elsewhere(cw_mutex_trylock, block, MUTEX));
	WANT(-EPERM, elsewhere(cw_mutex_unlock, block, MUTEX));
	WANT(0, cw_mutex_unlock(block, MUTEX));
	WANT(-EPERM, cw_mutex_unlock(block, MUTEX));
	/* A time that is over is no matter if nobody has it. */
	WANT(0, cw_mutex_timedlock(block, MUTEX, 0));
	WANT(0, cw_mutex_unlock(block, MUTEX));
	WANT(0, cw_mutex_timedlock(block, MUTEX, INT64_MIN));
	WANT(0, cw_mutex_unlock(block, MUTEX));
}

static int wait_no_time(cw_block *block, uint64_t at)
{
	return cw_mutex_timedlock(block, at, 0);
}

static int wait_a_little(cw_block *block, uint64_t at)
{
	return cw_mutex_timedlock(block, at, SOON_NS);
}

static int read_a_little(cw_block *block, uint64_t at)
{
	return cw_rwlock_rdlock(block, at, SOON_NS);
}

static int write_a_little(cw_block *block, uint64_t at)
{
	return cw_rwlock_wrlock(block, at, SOON_NS);
}

static void times(cw_block *block)
{
	WANT(0, cw_mutex_lock(block, MUTEX));
	WANT(-ETIMEDOUT, elsewhere(wait_no_time, block, MUTEX));
	WANT(-ETIMEDOUT, elsewhere(wait_a_little, block, MUTEX));
	WANT(-ETIMEDOUT, cw_cond_wait(block, COND, MUTEX, 0));
	WANT(-ETIMEDOUT, cw_cond_wait(block, COND, MUTEX, SOON_NS));
	/* It has the mutex again. */
	WANT(-EDEADLK, cw_mutex_lock(block, MUTEX));
	/* One that it has not is another matter, and so is one that nobody has. */
	WANT(-EPERM, cw_cond_wait(block, COND, SECOND_MUTEX, 0));
	WANT(0, cw_mutex_unlock(block, MUTEX));
	WANT(-EPERM, cw_cond_wait(block, COND, MUTEX, -1));
	WANT(0, cw_cond_signal(block, COND));
	WANT(0, cw_cond_broadcast(block, COND));
	WANT(-ETIMEDOUT, cw_sem_wait(block, SEM, 0));
	WANT(-ETIMEDOUT, cw_sem_wait(block, SEM, SOON_NS));
	WANT(-EBUSY, cw_sem_trywait(block, SEM));
	WANT(-ETIMEDOUT, cw_barrier_wait(block, BARRIER, 0));
	WANT(-ETIMEDOUT, cw_barrier_wait(block, BARRIER, SOON_NS));
}

static void rwlocks(cw_block *block)
{
	WANT(-EPERM, cw_rwlock_unlock(block, RWLOCK));
	WANT(-EINVAL, cw_rwlock_consistent(block, RWLOCK));
	WANT(0, cw_rwlock_rdlock(block, RWLOCK, -1));
	WANT(-EBUSY, elsewhere(cw_rwlock_trywrlock, block, RWLOCK));
	WANT(-ETIMEDOUT, elsewhere(write_a_little, block, RWLOCK));
	WANT(0, elsewhere(cw_rwlock_tryrdlock, block, RWLOCK));
	/* Shares are the process's: two were taken. */
	WANT(0, cw_rwlock_unlock(block, RWLOCK));
	WANT(0, cw_rwlock_unlock(block, RWLOCK));
	WANT(-EPERM, cw_rwlock_unlock(block, RWLOCK));
	WANT(0, cw_rwlock_wrlock(block, RWLOCK, 0));
	WANT(-EDEADLK, cw_rwlock_wrlock(block, RWLOCK, -1));
	WANT(-EDEADLK, cw_rwlock_rdlock(block, RWLOCK, -1));
	WANT(-EDEADLK, cw_rwlock_trywrlock(block, RWLOCK));
	WANT(-EINVAL, cw_rwlock_consistent(block, RWLOCK));
	WANT(-EBUSY, elsewhere(cw_rwlock_tryrdlock, block, RWLOCK));
	WANT(-ETIMEDOUT, elsewhere(read_a_little, block, RWLOCK));
	WANT(-EPERM, elsewhere(cw_rwlock_unlock, block, RWLOCK));
	WANT(0, cw_rwlock_unlock(block, RWLOCK));
	WANT(-EPERM, cw_rwlock_unlock(block, RWLOCK));
}

static void semaphores_and_barriers(cw_block *block)
{
	WANT(-EINVAL, cw_sem_init(block, SEM, (uint32_t)INT32_MAX + 1));
	WANT(-EINVAL, cw_sem_init(block, SEM, UINT32_MAX));
	WANT(0, cw_sem_init(block, SEM, INT32_MAX));
	WANT(INT32_MAX, cw_sem_value(block, SEM));
	WANT(-EOVERFLOW, cw_sem_post(block, SEM));
	WANT(0, cw_sem_trywait(block, SEM));
	WANT(0, cw_sem_post(block, SEM));
	WANT(0, cw_sem_init(block, SEM, 0));
	WANT(-EINVAL, cw_barrier_init(block, BARRIER, 0));
	WANT(-EINVAL, cw_barrier_init(block, BARRIER, UINT32_MAX));
	WANT(0, cw_barrier_init(block, BARRIER, 1));
	WANT(CW_SERIAL, cw_barrier_wait(block, BARRIER, -1));
	WANT(CW_SERIAL, cw_barrier_wait(block, BARRIER, 0));
	WANT(-EPERM, cw_barrier_leave(block, BARRIER));
	WANT(0, cw_barrier_join(block, BARRIER));
	WANT(0, cw_barrier_leave(block, BARRIER));
	WANT(-EPERM, cw_barrier_leave(block, BARRIER));
	/* There is nothing to mend. */
	WANT(0, cw_barrier_mend(block, BARRIER));
	WANT(0, cw_barrier_init(block, BARRIER, 2));
}

void misuse_locks(void)
{
	cw_block *block;

	null_locks();
	WANT(0, cw_block_alloc(pool, 0, 0, &block));
	WANT(0, cw_mutex_init(block, MUTEX));
	WANT(0, cw_mutex_init(block, SECOND_MUTEX));
	WANT(0, cw_cond_init(block, COND));
	WANT(0, cw_sem_init(block, SEM, 0));
	WANT(0, cw_rwlock_init(block, RWLOCK));
	WANT(0, cw_barrier_init(block, BARRIER, 2));
	lock_places(block);
	mutexes(block);
	times(block);
	rwlocks(block);
	semaphores_and_barriers(block);
	WANT(0, cw_block_free(block));
}
