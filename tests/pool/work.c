/* DMA, forks, and the everyday work that is interrupted by kills. */
#include "pool.h"
#include <stdatomic.h>
#include <sys/wait.h>

#define HANDLED 64

static atomic_int told[4];

static void on_end(uint64_t transfer, enum cw_transfer_state state, void *argument)
{
	(void)transfer;
	(void)argument;
	atomic_fetch_add(&told[state], 1);
}

static void answer_buffer(int result, int slot)
{
	if (result < 0) {
		answer(result);
		return;
	}
	slots[slot].address = cw_buffer_address(slots[slot].buffer);
	printf("ok %d %" PRIu64 "\n", slot, cw_buffer_id(slots[slot].buffer));
}

/* copy TO FROM SIZE COUNT CALLBACK: as many transfers, then how many of each end there were. */
static void copy(char **w)
{
	cw_buffer *to = slot_of(w[1])->buffer, *from = slot_of(w[2])->buffer;
	uint64_t size = strtoull(w[3], NULL, 0), ids[HANDLED] = { 0 };
	int count = atoi(w[4]), callback = atoi(w[5]), ends[4] = { 0 }, started = 0;
	int before = told[0] + told[1] + told[2] + told[3];
	memset(told, 0, sizeof(told));
	(void)before;
	for (int i = 0; i < count && i < HANDLED; i++) {
		int result = cw_dma_transfer(dma, to, 0, from, 0, size,
					     callback ? on_end : NULL, NULL, &ids[i]);
		if (result < 0) {
			answer(result);
			return;
		}
		started++;
	}
	for (int i = 0; i < started; i++) {
		int state = callback ? 0 : cw_dma_wait(dma, ids[i], -1);
		if (state < 0) {
			answer(state);
			return;
		}
		ends[state]++;
	}
	while (callback && told[1] + told[2] + told[3] < started)
		usleep(100);
	for (int i = 0; callback && i < 4; i++)
		ends[i] = told[i];
	printf("ok %d %d %d\n", ends[CW_DONE], ends[CW_ABORTED], ends[CW_FAILED]);
}

int transfers(char **w)
{
	int slot = free_slot();
	if (!strcmp(w[0], "join")) {
		answer(cw_dma_open(lib, w[1], strtoul(w[2], NULL, 0), &dma));
	} else if (!strcmp(w[0], "nodes")) {
		answer(cw_dma_nodes(dma, NULL, 0));
	} else if (!strcmp(w[0], "buffer")) {
		answer_buffer(cw_dma_alloc(dma, strtoull(w[1], NULL, 0), &slots[slot].buffer),
			      slot);
	} else if (!strcmp(w[0], "remote")) {
		answer_buffer(cw_dma_find(dma, strtoull(w[1], NULL, 0), &slots[slot].buffer),
			      slot);
	} else if (!strcmp(w[0], "pages")) {
		answer(cw_buffer_pages(slot_of(w[1])->buffer));
	} else if (!strcmp(w[0], "freebuffer")) {
		struct slot *which = slot_of(w[1]);
		int result = cw_dma_free(which->buffer);
		if (result == 0)
			which->buffer = NULL;
		answer(result);
	} else if (!strcmp(w[0], "copy")) {
		copy(w);
	} else {
		return 0;
	}
	return 1;
}

static void peek(void *address)
{
	(void)*(volatile char *)address;
}

int in_child(struct slot *slot)
{
	pid_t pid = fork();
	if (pid == 0) {
		cw_lib *own;
		int wrong = 0;
		wrong |= guard(peek, slot->address) != SIGSEGV ? 1 : 0;
		wrong |= cw_block_grant(slot->block, CW_EVERYBODY, 0, CW_READ) != -EPERM ? 2 : 0;
		wrong |= cw_mutex_lock(slot->block, 0) != -EPERM ? 4 : 0;
		wrong |= cw_id(lib) != 0 ? 8 : 0;
		wrong |= cw_block_close(slot->block) != 0 ? 16 : 0;
		wrong |= cw_open(&own) != 0 || cw_id(own) == 0 || cw_close(own) ? 32 : 0;
		_exit(wrong);
	}
	int status;
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int orphans(void)
{
	static struct cw_block_info found[SLOTS];
	int freed = 0, count = cw_pool_blocks(pool, found, SLOTS);
	for (int i = 0; i < count && i < SLOTS; i++) {
		cw_block *block;
		if (found[i].owner || !found[i].handle || found[i].uid != getuid())
			continue;
		int result = cw_block_adopt(pool, found[i].handle, &block);
		if (result == 0)
			result = cw_block_free(block);
		if (result < 0)
			return result;
		freed++;
	}
	return freed;
}

/* One round: two blocks, all that can be done with them. */
static int round_of(uint64_t number)
{
	cw_block *a, *b;
	void *address;
	int result;
	if ((result = cw_block_alloc(pool, 0, 0, &a)) < 0)
		return result;
	if ((result = cw_block_alloc(pool, 0, 0, &b)) < 0)
		return result;
	if ((result = cw_block_map(a, CW_WRITE, &address)) < 0)
		return result;
	*(volatile uint64_t *)((char *)address + 128) = number;
	cw_mutex_init(a, 0);
	if ((result = cw_mutex_lock(a, 0)) < 0)
		return result;
	if ((result = cw_block_grant(a, CW_EVERYBODY, 0, CW_WRITE)) < 0)
		return result;
	/* Another may have the name: that is no failure. */
	result = cw_block_name(a, "churn", number % 2 ? CW_BLOCK_PERSISTENT : 0);
	if (result < 0 && result != -EEXIST)
		return result;
	if ((result = cw_mutex_unlock(a, 0)) < 0)
		return result;
	if ((result = cw_block_revoke(a, CW_EVERYBODY, 0, CW_MOVE)) < 0)
		return result;
	if (*(volatile uint64_t *)((char *)address + 128) != number)
		return -EBADMSG;
	if ((result = cw_block_free(a)) < 0)
		return result;
	return cw_block_free(b);
}

int churn(uint64_t rounds)
{
	for (uint64_t number = 0; number < rounds; number++) {
		int result = round_of(number);
		if (result < 0)
			return result;
	}
	return 0;
}
