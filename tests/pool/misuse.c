/*
 * What every function refuses: null pointers, flags, names, sizes and numbers that are none,
 * objects that are not there or not in the caller's hands. The answer is how many calls were
 * answered otherwise; standard error says which. Locks are in mislock.c.
 */
#include "pool.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>

#define PAGE 4096
#define NO_SUCH_FLAG 0x100u
#define NO_SUCH_ACCESS 4
#define SOON_NS 20000000
/* Threads of a process that may wait for names: WAITS_PER_SESSION_MAX of crates/fabric. */
#define WAITS_MAX 1024
#define BEYOND 8
#define SMALL_STACK (128 << 10)
/* A buffer, larger than any that the library uses itself. */
#define LARGE (32ul << 20)

static int wrong;

void want(const char *file, int line, const char *call, int64_t expected, int64_t found)
{
	if (expected == found)
		return;
	wrong++;
	fprintf(stderr, "%s:%d: %s: %" PRId64 ", not %" PRId64 "\n", file, line, call, found,
		expected);
}

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

static int can_be_written(uint64_t handle)
{
	cw_block *block;
	void *address;
	int result;

	WANT(0, cw_block_open(pool, handle, CW_READ, &block));
	result = cw_block_map(block, CW_WRITE, &address);
	WANT(0, cw_block_close(block));
	return result == 0;
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
	/* It may not write any more, as its library hears soon, and so has no locks; nor has one
	 * that does not exist. */
	WANT(0, cw_block_grant(block, CW_SESSION, own, CW_READ));
	while (can_be_written(cw_block_handle(block)))
		usleep(1000);
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

/* What there is no room for in the address space is not kept either. */
static void too_large(cw_dma *node)
{
	struct rlimit before, little;
	cw_buffer *buffer;
	FILE *sizes = fopen("/proc/self/statm", "r");
	unsigned long pages = 0;

	WANT(1, sizes != NULL && fscanf(sizes, "%lu", &pages));
	fclose(sizes);
	WANT(0, getrlimit(RLIMIT_AS, &before));
	little = before;
	little.rlim_cur = pages * PAGE + LARGE / 4;
	WANT(0, setrlimit(RLIMIT_AS, &little));
	WANT(-ENOMEM, cw_dma_alloc(node, LARGE, &buffer));
	WANT(0, setrlimit(RLIMIT_AS, &before));
	WANT(0, cw_dma_buffers(node, NULL, 0));
	WANT(0, cw_dma_alloc(node, LARGE, &buffer));
	WANT(0, cw_dma_free(buffer));
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
	too_large(node);
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

/* --- more that wait than there is room for --- */

static atomic_int found, refused;

static void *search(void *argument)
{
	cw_block *block;
	int result = cw_block_find(pool, "late", CW_READ, -1, &block);

	if (result == -EDQUOT)
		atomic_fetch_add(&refused, 1);
	else if (result == 0 && cw_block_close(block) == 0)
		atomic_fetch_add(&found, 1);
	return argument;
}

static void waiters(void)
{
	static pthread_t threads[WAITS_MAX + BEYOND];
	pthread_attr_t small;
	cw_block *block;

	found = refused = 0;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, SMALL_STACK);
	for (int i = 0; i < WAITS_MAX + BEYOND; i++)
		WANT(0, pthread_create(&threads[i], &small, search, NULL));
	/* Once all have asked, so many have been refused. */
	while (refused < BEYOND)
		usleep(1000);
	WANT(0, cw_block_alloc(pool, 0, 0, &block));
	WANT(0, cw_block_name(block, "late", 0));
	for (int i = 0; i < WAITS_MAX + BEYOND; i++)
		pthread_join(threads[i], NULL);
	WANT(BEYOND, refused);
	WANT(WAITS_MAX, found);
	WANT(0, cw_block_free(block));
	pthread_attr_destroy(&small);
}

static void texts(void)
{
	const int errors[] = { 0, EINVAL, -EINVAL, -ENOTRECOVERABLE, 123456, INT32_MIN };

	for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++)
		WANT(1, cw_strerror(errors[i]) != NULL && *cw_strerror(errors[i]) != 0);
	WANT(0, strcmp(cw_strerror(-EINVAL), strerror(EINVAL)));
}

static void arguments(void)
{
	null_objects();
	pool_arguments();
	block_arguments();
	grant_arguments();
	misuse_locks();
	dma_arguments();
	waiters();
	texts();
}

int misuse(char **w)
{
	static const struct {
		const char *word;
		void (*run)(void);
	} parts[] = { { "misuse", arguments }, { "cancelled", cancelled_threads },
		      { "threads", threads } };

	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		if (strcmp(w[0], parts[i].word))
			continue;
		wrong = 0;
		parts[i].run();
		answer(wrong);
		return 1;
	}
	return 0;
}
