/* Threads that are cancelled in calls leave nothing locked, and nothing half done. */
#include "pool.h"
#include <pthread.h>

/* Objects in a block of their own. */
#define MUTEX 0
#define SEM 64
#define COND 128
#define BARRIER 1024
#define PAGE 4096
#define SOON_NS 20000000
#define ROUNDS 100

static cw_block *block;
static cw_dma *node;
static cw_buffer *buffer;

static int opens(void)
{
	cw_lib *other;
	int result = cw_open(&other);

	return result ? result : cw_close(other);
}

static int makes_pools(void)
{
	cw_pool *other;
	int result = cw_pool_create(lib, "cancelled", PAGE, 1, 0, &other);

	return result ? result : cw_pool_close(other);
}

static int destroys_pools(void)
{
	return cw_pool_destroy(lib, "nobody's");
}

static int lists(void)
{
	struct cw_pool_info info;
	int members = cw_pool_members(pool, NULL, 0), blocks = cw_pool_blocks(pool, NULL, 0);

	return members < 1 ? members : blocks < 1 ? blocks : cw_pool_info(pool, &info);
}

static int makes_blocks(void)
{
	cw_block *other;
	int result = cw_block_alloc(pool, 0, 0, &other);

	return result ? result : cw_block_free(other);
}

static int opens_blocks(void)
{
	cw_block *other;
	int result = cw_block_open(pool, cw_block_handle(block), CW_READ, &other);

	return result ? result : cw_block_close(other);
}

static int finds_blocks(void)
{
	cw_block *other;

	return cw_block_find(pool, "nobody", CW_READ, SOON_NS, &other);
}

static int grants(void)
{
	int result = cw_block_grant(block, CW_EVERYBODY, 0, CW_READ);

	return result ? result : cw_block_revoke(block, CW_EVERYBODY, 0, CW_MOVE);
}

static int moves_blocks(void)
{
	return cw_block_move(block);
}

static int maps_blocks(void)
{
	struct cw_block_info info;
	void *address;
	int result = cw_block_map(block, CW_WRITE, &address);

	return result ? result : cw_block_info(block, &info);
}

static int names_blocks(void)
{
	int result = cw_block_name(block, "cancelled", 0);

	return result ? result : cw_block_name(block, "", 0);
}

static int makes_locks(void)
{
	return cw_mutex_init(block, 192);
}

static int waits_for_locks(void)
{
	int result = cw_mutex_lock(block, MUTEX);

	result = result ? result : cw_cond_wait(block, COND, MUTEX, SOON_NS);
	result = result != -ETIMEDOUT ? result : cw_mutex_unlock(block, MUTEX);
	result = result ? result : cw_sem_wait(block, SEM, SOON_NS);
	return result != -ETIMEDOUT ? result : cw_barrier_wait(block, BARRIER, SOON_NS);
}

static int joins_clusters(void)
{
	cw_dma *other;
	int result = cw_dma_open(lib, "cancelled cluster", 0, &other);

	return result ? result : cw_dma_close(other);
}

static int makes_buffers(void)
{
	cw_buffer *other;
	int result = cw_dma_alloc(node, PAGE, &other);

	return result ? result : cw_dma_free(other);
}

static int transfers_bytes(void)
{
	uint64_t id;
	int result = cw_dma_transfer(node, buffer, 0, buffer, PAGE, PAGE, NULL, NULL, &id);

	return result ? result : cw_dma_wait(node, id, -1);
}

/* What a thread is cancelled in, and what the call returns. */
static const struct {
	int (*call)(void);
	int result;
} calls[] = {
	{ opens, 0 }, { makes_pools, 0 }, { destroys_pools, -ENOENT }, { lists, 0 },
	{ makes_blocks, 0 }, { opens_blocks, 0 }, { finds_blocks, -ENOENT }, { grants, 0 },
	{ moves_blocks, 0 }, { maps_blocks, 0 }, { names_blocks, 0 }, { makes_locks, 0 },
	{ waits_for_locks, -ETIMEDOUT }, { joins_clusters, 0 }, { makes_buffers, 0 },
	{ transfers_bytes, CW_DONE },
};

#define CALLS (sizeof(calls) / sizeof(*calls))

static int returned;

/* Makes a call with a request pending, and ends at the first cancellation point after it. */
static void *call_when_cancelled(void *argument)
{
	size_t i = (size_t)argument;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cancel(pthread_self());
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	returned = calls[i].call();
	pthread_testcancel();
	return NULL;
}

/* Makes calls without end, and can be cancelled anywhere. Waits for locks must not be. */
static void *call_until_cancelled(void *argument)
{
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	for (;;) {
		destroys_pools();
		lists();
		finds_blocks();
		grants();
		maps_blocks();
		names_blocks();
	}
	return argument;
}

static void end(pthread_t thread)
{
	void *result;

	WANT(0, pthread_join(thread, &result));
	WANT((intptr_t)PTHREAD_CANCELED, (intptr_t)result);
}

void cancelled_threads(void)
{
	pthread_t thread;

	WANT(0, cw_block_alloc(pool, 0, 0, &block));
	WANT(0, cw_mutex_init(block, MUTEX));
	WANT(0, cw_sem_init(block, SEM, 0));
	WANT(0, cw_cond_init(block, COND));
	WANT(0, cw_barrier_init(block, BARRIER, 2));
	WANT(0, cw_dma_open(lib, "cancelled node", 0, &node));
	WANT(0, cw_dma_alloc(node, 2 * PAGE, &buffer));
	for (size_t i = 0; i < CALLS; i++) {
		returned = 1;
		WANT(0, pthread_create(&thread, NULL, call_when_cancelled, (void *)i));
		end(thread);
		WANT(calls[i].result, returned);
		/* The same again finds nothing locked. */
		WANT(calls[i].result, calls[i].call());
	}
	for (unsigned i = 0; i < ROUNDS; i++) {
		WANT(0, pthread_create(&thread, NULL, call_until_cancelled, NULL));
		/* In any of the calls. */
		usleep(i * 37 % 1000);
		WANT(0, pthread_cancel(thread));
		end(thread);
	}
	for (size_t i = 0; i < CALLS; i++)
		WANT(calls[i].result, calls[i].call());
	WANT(0, cw_dma_free(buffer));
	WANT(0, cw_dma_close(node));
	WANT(0, cw_block_free(block));
}
