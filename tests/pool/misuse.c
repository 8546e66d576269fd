/*
 * What every function refuses: null pointers, flags, names, sizes and numbers that are none, objects
 * that are not there or not in the caller's hands, times that are over. Each family answers with how
 * many calls were answered otherwise; standard error says which.
 */
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
#define PAGE 4096
#define NO_SUCH_FLAG 0x100u
#define NO_SUCH_ACCESS 4
#define SOON_NS 20000000

static int wrong;

static void want(int line, const char *call, int64_t expected, int64_t found)
{
	if (expected == found)
		return;
	wrong++;
	fprintf(stderr, "%s:%d: %s: %" PRId64 ", not %" PRId64 "\n", __FILE__, line, call, found,
		expected);
}

#define WANT(expected, call) want(__LINE__, #call, expected, (int64_t)(call))

/* --- null pointers --- */

static void null_objects(void)
{
	cw_block *block;
	cw_buffer *buffer;
	cw_pool *other;
	cw_dma *node;
	struct cw_pool_info pool_info;
	struct cw_block_info block_info;
	struct cw_piece piece = { NULL, 0, NULL, 0, 0 };
	void *address;
	uint64_t id;

	WANT(-EINVAL, cw_open(NULL));
	WANT(-EINVAL, cw_close(NULL));
	WANT(0, cw_id(NULL));
	WANT(-EINVAL, cw_pool_create(NULL, "x", PAGE, 1, 0, &other));
	WANT(-EINVAL, cw_pool_open(NULL, "x", &other));
	WANT(-EINVAL, cw_pool_close(NULL));
	WANT(-EINVAL, cw_pool_destroy(NULL, "x"));
	WANT(-EINVAL, cw_pool_info(NULL, &pool_info));
	WANT(-EINVAL, cw_pool_members(NULL, NULL, 0));
	WANT(-EINVAL, cw_pool_blocks(NULL, NULL, 0));
	WANT(-EINVAL, cw_block_alloc(NULL, 0, 0, &block));
	WANT(-EINVAL, cw_block_open(NULL, 1, CW_READ, &block));
	WANT(-EINVAL, cw_block_find(NULL, "x", CW_READ, 0, &block));
	WANT(-EINVAL, cw_block_adopt(NULL, 1, &block));
	WANT(-EINVAL, cw_block_free(NULL));
	WANT(-EINVAL, cw_block_close(NULL));
	WANT(0, cw_block_handle(NULL));
	WANT(0, cw_block_size(NULL));
	WANT(-EINVAL, cw_block_info(NULL, &block_info));
	WANT(-EINVAL, cw_block_known(NULL));
	WANT(-EINVAL, cw_block_name(NULL, "x", 0));
	WANT(-EINVAL, cw_block_grant(NULL, CW_EVERYBODY, 0, CW_READ));
	WANT(-EINVAL, cw_block_revoke(NULL, CW_EVERYBODY, 0, 0));
	WANT(-EINVAL, cw_block_move(NULL));
	WANT(-EINVAL, cw_block_map(NULL, CW_READ, &address));
	WANT(-EINVAL, cw_dma_open(NULL, "x", 0, &node));
	WANT(-EINVAL, cw_dma_close(NULL));
	WANT(0, cw_dma_node(NULL));
	WANT(-EINVAL, cw_dma_nodes(NULL, NULL, 0));
	WANT(-EINVAL, cw_dma_buffers(NULL, NULL, 0));
	WANT(-EINVAL, cw_dma_alloc(NULL, PAGE, &buffer));
	WANT(-EINVAL, cw_dma_free(NULL));
	WANT(-EINVAL, cw_dma_find(NULL, 1, &buffer));
	WANT(-EINVAL, cw_buffer_close(NULL));
	WANT(0, cw_buffer_id(NULL));
	WANT(0, cw_buffer_node(NULL));
	WANT(0, cw_buffer_size(NULL));
	WANT(0, (intptr_t)cw_buffer_address(NULL));
	WANT(-EINVAL, cw_buffer_pages(NULL));
	WANT(-EINVAL, cw_dma_transfer(NULL, NULL, 0, NULL, 0, 0, NULL, NULL, &id));
	WANT(-EINVAL, cw_dma_transferv(NULL, &piece, 1, NULL, NULL, &id));
	WANT(-EINVAL, cw_dma_outstanding(NULL));
	WANT(-EINVAL, cw_dma_poll(NULL, 1));
	WANT(-EINVAL, cw_dma_wait(NULL, 1, 0));
	WANT(-EINVAL, cw_dma_abort(NULL, 1));
}

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

/* --- pools and blocks --- */

static void pool_arguments(void)
{
	static char longest[CW_NAME_MAX + 2];
	struct cw_member members[1];
	struct cw_pool_info info;
	cw_pool *other = NULL;

	memset(longest, 'n', CW_NAME_MAX + 1);
	WANT(-EINVAL, cw_pool_create(lib, NULL, PAGE, 1, 0, &other));
	WANT(-EINVAL, cw_pool_create(lib, "", PAGE, 1, 0, &other));
	WANT(-EINVAL, cw_pool_create(lib, longest, PAGE, 1, 0, &other));
	WANT(-EINVAL, cw_pool_create(lib, "\xff\xfe", PAGE, 1, 0, &other));
	WANT(-EINVAL, cw_pool_create(lib, "q", PAGE, 1, NO_SUCH_FLAG, &other));
	WANT(-EINVAL, cw_pool_create(lib, "q", PAGE, 1, CW_BLOCK_HUGE, &other));
	WANT(-EINVAL, cw_pool_create(lib, "q", PAGE, 1, 0, NULL));
	WANT(-EINVAL, cw_pool_create(lib, "q", PAGE, 0, 0, &other));
	WANT(-EINVAL, cw_pool_create(lib, "q", UINT64_MAX, 1, 0, &other));
	WANT(-EINVAL, cw_pool_create(lib, "q", PAGE, UINT32_MAX, 0, &other));
	WANT(-ENOENT, cw_pool_open(lib, "q", &other));
	WANT(-ENOENT, cw_pool_open(lib, "", &other));
	WANT(-EINVAL, cw_pool_open(lib, NULL, &other));
	WANT(-EINVAL, cw_pool_open(lib, "p", NULL));
	WANT(-ENOENT, cw_pool_destroy(lib, "q"));
	WANT(-EINVAL, cw_pool_destroy(lib, NULL));
	/* Nothing was made, and the place is as it was. */
	WANT(1, other == NULL);
	longest[CW_NAME_MAX] = 0;
	WANT(0, cw_pool_create(lib, longest, 1, 1, 0, &other));
	WANT(-EINVAL, cw_pool_info(other, NULL));
	WANT(0, cw_pool_info(other, &info));
	WANT(1, info.capacity);
	WANT(0, info.is_private);
	WANT(1, info.block_size);
	WANT(1, cw_pool_members(other, members, 1));
	WANT(cw_id(lib), members[0].id);
	WANT(0, cw_pool_close(other));
	WANT(-ENOENT, cw_pool_open(lib, longest, &other));
	/* One that exists is opened as it is. */
	WANT(-EEXIST, cw_pool_create(lib, "p", PAGE, 1, 0, &other));
	WANT(0, cw_pool_create(lib, "p", PAGE, 1, CW_POOL_EXISTING, &other));
	WANT(0, cw_pool_info(other, &info));
	WANT(80, info.capacity);
	WANT(0, cw_pool_close(other));
}

static void block_arguments(void)
{
	cw_block *block = NULL, *other = NULL, *odd;
	cw_pool *small;
	struct cw_block_info info;
	static char longest[CW_NAME_MAX + 2];
	uint64_t handle;

	WANT(-EINVAL, cw_block_alloc(pool, 0, 0, NULL));
	WANT(-EINVAL, cw_block_alloc(pool, 0, NO_SUCH_FLAG, &block));
	WANT(-EINVAL, cw_block_alloc(pool, 0, CW_BLOCK_PERSISTENT, &block));
	WANT(1, block == NULL);
	WANT(0, cw_block_alloc(pool, 0, 0, &block));
	handle = cw_block_handle(block);
	WANT(-ENOENT, cw_block_open(pool, handle ^ 1, CW_READ, &other));
	WANT(-ENOENT, cw_block_open(pool, 0, CW_READ, &other));
	WANT(-EINVAL, cw_block_open(pool, handle, CW_NONE, &other));
	WANT(-EACCES, cw_block_open(pool, handle, CW_EXCLUSIVE, &other));
	WANT(-EINVAL, cw_block_open(pool, handle, NO_SUCH_ACCESS, &other));
	WANT(-EINVAL, cw_block_open(pool, handle, CW_READ, NULL));
	WANT(-EINVAL, cw_block_find(pool, NULL, CW_READ, 0, &other));
	WANT(-EINVAL, cw_block_find(pool, "x", NO_SUCH_ACCESS, 0, &other));
	WANT(-ENOENT, cw_block_find(pool, "x", CW_READ, 0, &other));
	WANT(-ENOENT, cw_block_find(pool, "x", CW_READ, SOON_NS, &other));
	WANT(-EPERM, cw_block_adopt(pool, handle, &other));
	WANT(-ENOENT, cw_block_adopt(pool, handle ^ 1, &other));
	WANT(1, other == NULL);
	memset(longest, 'n', CW_NAME_MAX + 1);
	WANT(-EINVAL, cw_block_name(block, longest, 0));
	WANT(-EINVAL, cw_block_name(block, NULL, 0));
	WANT(-EINVAL, cw_block_name(block, "x", NO_SUCH_FLAG));
	WANT(-EINVAL, cw_block_name(block, "", CW_BLOCK_PERSISTENT));
	longest[CW_NAME_MAX] = 0;
	WANT(0, cw_block_name(block, longest, 0));
	WANT(0, cw_block_info(block, &info));
	WANT(0, strcmp(info.name, longest));
	WANT(-EINVAL, cw_block_info(block, NULL));
	WANT(0, cw_block_name(block, "", 0));
	WANT(-ENOENT, cw_block_find(pool, longest, CW_READ, 0, &other));
	/* A full pool, and one where each block has a size of its own. */
	WANT(0, cw_pool_create(lib, "small", PAGE, 1, 0, &small));
	WANT(0, cw_block_alloc(small, 0, 0, &other));
	WANT(-ENOSPC, cw_block_alloc(small, 0, 0, &odd));
	/* A block of one pool is none of another's. */
	WANT(-ENOENT, cw_block_open(small, handle, CW_READ, &odd));
	WANT(-ENOENT, cw_block_adopt(small, handle, &odd));
	WANT(0, cw_block_free(other));
	WANT(0, cw_block_alloc(small, 0, 0, &other));
	WANT(0, cw_block_close(other));
	WANT(0, cw_pool_close(small));
	WANT(0, cw_pool_create(lib, "sizes", 0, 4, 0, &small));
	WANT(-EINVAL, cw_block_alloc(small, 0, 0, &other));
	WANT(1, cw_block_alloc(small, UINT64_MAX, 0, &other) < 0);
	WANT(0, cw_block_alloc(small, 1, 0, &other));
	WANT(PAGE, cw_block_size(other));
	WANT(0, cw_block_free(other));
	WANT(0, cw_pool_close(small));
	WANT(0, cw_block_free(block));
}

static void grant_arguments(void)
{
	const uint64_t own = cw_id(lib), nobody = 12345;
	cw_block *block, *again;
	void *address = NULL, *other = NULL;

	WANT(0, cw_block_alloc(pool, 0, 0, &block));
	WANT(-EINVAL, cw_block_grant(block, (enum cw_party)3, 0, CW_READ));
	WANT(-EINVAL, cw_block_grant(block, CW_USER, (uint64_t)1 << 32, CW_READ));
	WANT(-EINVAL, cw_block_grant(block, CW_EVERYBODY, 1, CW_READ));
	WANT(-EINVAL, cw_block_grant(block, CW_SESSION, own, (enum cw_access)NO_SUCH_ACCESS));
	WANT(-EINVAL, cw_block_grant(block, CW_EVERYBODY, 0, CW_EXCLUSIVE));
	WANT(-ESRCH, cw_block_grant(block, CW_SESSION, nobody, CW_READ));
	WANT(-EINVAL, cw_block_revoke(block, CW_EVERYBODY, 0, NO_SUCH_FLAG));
	WANT(-EINVAL, cw_block_revoke(block, CW_EVERYBODY, 7, 0));
	/* What nobody was granted can be taken back. */
	WANT(0, cw_block_revoke(block, CW_EVERYBODY, 0, 0));
	WANT(0, cw_block_revoke(block, CW_EVERYBODY, 0, CW_MOVE));
	WANT(-EINVAL, cw_block_map(block, CW_READ, NULL));
	WANT(-EINVAL, cw_block_map(block, CW_NONE, &address));
	WANT(-EINVAL, cw_block_map(block, (enum cw_access)NO_SUCH_ACCESS, &address));
	WANT(1, address == NULL);
	WANT(0, cw_block_map(block, CW_READ, &address));
	/* Who opens it again, for reading only, gets the same address. */
	WANT(0, cw_block_open(pool, cw_block_handle(block), CW_READ, &again));
	WANT(0, cw_block_map(again, CW_READ, &other));
	WANT(1, address != NULL && address == other);
	WANT(0, cw_block_close(again));
	/* It may not write any more, and so has no locks; nor when it does not exist. */
	WANT(0, cw_block_grant(block, CW_SESSION, own, CW_READ));
	WANT(-EACCES, cw_mutex_init(block, 0));
	WANT(-EACCES, cw_block_map(block, CW_WRITE, &address));
	WANT(0, cw_block_open(pool, cw_block_handle(block), CW_READ, &again));
	WANT(0, cw_block_free(block));
	WANT(0, cw_block_known(again));
	WANT(-ENOENT, cw_block_grant(again, CW_EVERYBODY, 0, CW_READ));
	WANT(-ENOENT, cw_block_name(again, "x", 0));
	WANT(-ENOENT, cw_block_move(again));
	WANT(-ENOENT, cw_block_free(again));
	WANT(1, cw_block_map(again, CW_READ, &address) < 0);
	WANT(1, cw_mutex_lock(again, 0) < 0);
	WANT(0, cw_block_close(again));
}

/* --- locks --- */

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

static void all_locks(void)
{
	cw_block *block;

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

/* --- DMA --- */

static void transfer_arguments(cw_dma *node, cw_buffer *a, cw_buffer *b)
{
	const uint64_t size = cw_buffer_size(a);
	uint64_t id = 0;
	struct cw_piece pieces[] = { { b, 0, a, 0, 64 }, { NULL, 0, a, 0, 64 } };

#define TRANSFER(to, to_at, from, from_at, bytes) \
	cw_dma_transfer(node, to, to_at, from, from_at, bytes, NULL, NULL, &id)
	WANT(-EINVAL, TRANSFER(NULL, 0, a, 0, 1));
	WANT(-EINVAL, TRANSFER(b, 0, NULL, 0, 1));
	WANT(-EINVAL, TRANSFER(b, 0, a, 0, size + 1));
	WANT(-EINVAL, TRANSFER(b, size, a, 0, 1));
	WANT(-EINVAL, TRANSFER(b, 0, a, size, 1));
	WANT(-EINVAL, TRANSFER(b, UINT64_MAX, a, 0, 2));
	WANT(-EINVAL, TRANSFER(b, 0, a, UINT64_MAX, 2));
	WANT(-EINVAL, TRANSFER(b, 0, a, 0, UINT64_MAX));
	WANT(-EINVAL, TRANSFER(b, 64, a, 0, UINT64_MAX - 63));
	WANT(-EINVAL, cw_dma_transferv(node, pieces, 2, NULL, NULL, &id));
	WANT(-EINVAL, cw_dma_transferv(node, pieces, SIZE_MAX, NULL, NULL, &id));
	WANT(0, id);
	WANT(-ENOENT, cw_dma_poll(node, 0));
	WANT(-ENOENT, cw_dma_poll(node, UINT64_MAX));
	WANT(-ENOENT, cw_dma_wait(node, 77, -1));
	WANT(-ENOENT, cw_dma_abort(node, 77));
	/* Nothing is a transfer too; who does not want its number is told nothing. */
	WANT(0, TRANSFER(b, size, a, size, 0));
	WANT(CW_DONE, cw_dma_wait(node, id, -1));
	WANT(-ENOENT, cw_dma_wait(node, id, -1));
	WANT(-ENOENT, cw_dma_abort(node, id));
	WANT(0, cw_dma_transfer(node, b, 0, a, 0, 64, NULL, NULL, NULL));
}

static void dma_arguments(void)
{
	cw_dma *node = NULL;
	cw_buffer *a = NULL, *b, *again;
	cw_block *block;
	struct cw_block_info found[2];
	uint64_t id;

	WANT(-EINVAL, cw_dma_open(lib, NULL, 0, &node));
	WANT(-EINVAL, cw_dma_open(lib, "", 0, &node));
	WANT(-EINVAL, cw_dma_open(lib, "c", NO_SUCH_FLAG, &node));
	WANT(-EINVAL, cw_dma_open(lib, "c", 0, NULL));
	/* A pool that is no cluster. */
	WANT(-EEXIST, cw_dma_open(lib, "p", 0, &node));
	WANT(1, node == NULL);
	WANT(0, cw_dma_open(lib, "c", 0, &node));
	WANT(cw_id(lib), cw_dma_node(node));
	WANT(-EINVAL, cw_dma_alloc(node, 0, &a));
	WANT(-EINVAL, cw_dma_alloc(node, PAGE, NULL));
	WANT(1, cw_dma_alloc(node, UINT64_MAX, &a) < 0);
	WANT(-ENOENT, cw_dma_find(node, 0, &a));
	WANT(-ENOENT, cw_dma_find(node, 12345, &a));
	WANT(1, a == NULL);
	/* A block that is no buffer of the cluster's. */
	WANT(0, cw_block_alloc(pool, 0, 0, &block));
	WANT(-ENOENT, cw_dma_find(node, cw_block_handle(block), &a));
	WANT(0, cw_block_free(block));
	WANT(0, cw_dma_alloc(node, PAGE, &a));
	WANT(0, cw_dma_alloc(node, PAGE, &b));
	WANT(-EINVAL, cw_dma_find(node, cw_buffer_id(a), NULL));
	transfer_arguments(node, a, b);
	WANT(2, cw_dma_buffers(node, found, 2));
	/* A second hold of a buffer that is freed. */
	WANT(0, cw_dma_find(node, cw_buffer_id(a), &again));
	WANT(0, cw_dma_free(a));
	WANT(-ENOENT, cw_dma_transfer(node, b, 0, again, 0, 8, NULL, NULL, &id));
	WANT(-ENOENT, cw_dma_find(node, cw_buffer_id(again), &a));
	WANT(-ENOENT, cw_dma_free(again));
	WANT(0, cw_buffer_close(again));
	WANT(0, cw_dma_free(b));
	WANT(0, cw_dma_outstanding(node));
	WANT(0, cw_dma_close(node));
}

static void texts(void)
{
	const int errors[] = { 0, EINVAL, -EINVAL, -ENOTRECOVERABLE, 123456, INT32_MIN };

	for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++)
		WANT(1, cw_strerror(errors[i]) != NULL && *cw_strerror(errors[i]) != 0);
	WANT(0, strcmp(cw_strerror(-EINVAL), strerror(EINVAL)));
}

int misuse(char **w)
{
	if (strcmp(w[0], "misuse"))
		return 0;
	wrong = 0;
	null_objects();
	null_locks();
	pool_arguments();
	block_arguments();
	grant_arguments();
	all_locks();
	dma_arguments();
	texts();
	answer(wrong);
	return 1;
}
