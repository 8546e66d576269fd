/* Two processes: copies and block transfers, what keeps them from succeeding, and who is told. */
#include "check.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define ID 800
#define SIZE (2 * PAGE)
/* Enough to be caught under way. */
#define HUGE_SIZE (256u << 20)
#define OTHERS 16

static sci_desc_t sd;
static sci_remote_segment_t remote;
static sci_map_t there;
static volatile char *memory;

static void owner(struct peer *parent)
{
	sci_desc_t own = open_library();
	sci_local_segment_t segment;
	sci_map_t map;
	size_t size = hear(parent);
	char *mine = offer(own, &segment, &map, ID, size);

	mine[size - 1] = 'o';
	say(parent, own_node());
	while (hear(parent)) {
		EXPECT(mine[0] == 'x');
		say(parent, 0);
	}
}

static volatile char *map_remote(sci_map_t *map, size_t size, unsigned int flags)
{
	volatile char *address;
	sci_error_t error;

	address = SCIMapRemoteSegment(remote, map, 0, size, NULL, flags, &error);
	if (error != SCI_ERR_OK)
		give_up(__FILE__, __LINE__, "SCIMapRemoteSegment", error);
	return address;
}

static void set_up(struct peer *peer, size_t size)
{
	spawn(peer, owner);
	say(peer, (unsigned int)size);
	sd = open_library();
	connect_to(sd, &remote, hear(peer), ID);
	memory = map_remote(&there, size, NO_FLAGS);
}

static void ranges_and_rights(void)
{
	struct peer peer;
	sci_map_t readable, part;
	sci_block_transfer_t block;
	volatile char *seen;
	char buffer[64] = "x";
	void *taken;

	set_up(&peer, SIZE);
	seen = map_remote(&readable, SIZE, SCI_FLAG_READONLY_MAP);
#define REMOTE_MAP(at, flags) remote, &part, 0, PAGE, at, flags
	taken = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REFUSED(SCI_ERR_ILLEGAL_ADDRESS, SCIMapRemoteSegment,
			REMOTE_MAP(taken, SCI_FLAG_FIXED_MAP_ADDR));
	REFUSED(SCI_ERR_ILLEGAL_ADDRESS, SCIMapRemoteSegment,
			REMOTE_MAP(NULL, SCI_FLAG_FIXED_MAP_ADDR));
	REFUSED(SCI_ERR_FLAG_NOT_IMPLEMENTED, SCIMapRemoteSegment,
			REMOTE_MAP(NULL, SCI_FLAG_UNCONDITIONAL_DATA_INTERRUPT_MAP));
	/* A flag that there is not is more wrong than one that is not implemented. */
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIMapRemoteSegment,
			REMOTE_MAP(NULL, SCI_FLAG_LOCK_OPERATION | 0x40000000));
	munmap(taken, PAGE);
	DO(SCIMapRemoteSegment, REMOTE_MAP(taken, SCI_FLAG_FIXED_MAP_ADDR));
	EXPECT(SCIGetMapPointer(part) == taken);
	DO(SCIUnmapSegment, part, NO_FLAGS);
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCIMemCopy, buffer, there, SIZE, 1, NO_FLAGS);
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCIMemCpy_dual, NULL, buffer, there, SIZE, there, 0, 1,
			NO_FLAGS);
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCITransferBlock, there, SIZE, there, 0, 1, NO_FLAGS);
#define ASYNC(from, from_offset, to, to_offset, size, flags) \
	from, from_offset, to, to_offset, size, &block, NO_CALLBACK, NO_ARG, flags
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCITransferBlockAsync, ASYNC(there, SIZE, there, 0, 1, 0));
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCITransferBlockAsync, ASYNC(there, 0, there, SIZE, 1, 0));
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCITransferBlockAsync,
			ASYNC(there, 0, there, PAGE, 1, SCI_FLAG_USE_CALLBACK));
	REFUSED(SCI_ERR_ACCESS, SCIMemCpy, NULL, buffer, readable, 0, 1, NO_FLAGS);
	REFUSED(SCI_ERR_ACCESS, SCIMemCopy, buffer, readable, 0, 1, NO_FLAGS);
	REFUSED(SCI_ERR_ACCESS, SCIMemWrite, buffer, seen, 1, NO_FLAGS);
	REFUSED(SCI_ERR_ACCESS, SCIMemCpy_dual, NULL, buffer, there, 1, readable, 1, 1, NO_FLAGS);
	REFUSED(SCI_ERR_ACCESS, SCITransferBlock, there, 0, readable, 1, 1, NO_FLAGS);
	REFUSED(SCI_ERR_ACCESS, SCITransferBlockAsync, ASYNC(there, 0, readable, 1, 1, 0));
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIMemWrite, NULL, memory, 1, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIMemCpy_dual, NULL, NULL, there, 0, there, 1, 1,
			NO_FLAGS);
	EXPECT(memory[1] == 0);
	/* To read is what it is for. */
	DO(SCIMemCpy, NULL, buffer, readable, SIZE - 1, 1, SCI_FLAG_BLOCK_READ);
	EXPECT(buffer[0] == 'o' && seen[SIZE - 1] == 'o');
	DO(SCITransferBlock, readable, SIZE - 1, there, 1, 1, SCI_FLAG_ERROR_CHECK);
	EXPECT(memory[1] == 'o');
	buffer[0] = 'x';
	DO(SCIMemWrite, buffer, memory, 1, SCI_FLAG_ERROR_CHECK);
	say(&peer, 1);
	hear(&peer);
	say(&peer, 0);
	join(&peer);
}

static void the_owner_is_killed(void)
{
	struct peer peer;
	sci_block_transfer_t block;
	sci_error_t error, status;
	char buffer[64] = "x";

	set_up(&peer, SIZE);
	kill_peer(&peer);
	EXPECT(SCIWaitForRemoteSegmentEvent(remote, &status, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_LOST);
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemCpy, NULL, buffer, there, 0, 1,
			SCI_FLAG_ERROR_CHECK);
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemCpy, NULL, buffer, there, 0, 1,
			SCI_FLAG_ERROR_CHECK | SCI_FLAG_BLOCK_READ);
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemCopy, buffer, there, 0, 1, SCI_FLAG_ERROR_CHECK);
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemWrite, buffer, memory, 1, SCI_FLAG_ERROR_CHECK);
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemCpy_dual, NULL, buffer, there, 0, there, 1, 1,
			SCI_FLAG_ERROR_CHECK);
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCITransferBlock, there, 0, there, 1, 1,
			SCI_FLAG_ERROR_CHECK);
	DO(SCITransferBlockAsync, ASYNC(there, 0, there, PAGE, 1, NO_FLAGS));
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIWaitForBlockTransfer, block, LONG_MS, NO_FLAGS);
	/* Who does not ask is not told, if there is memory yet. */
	if (SCIGetRemoteSegmentNodeId(remote) == own_node()) {
		DO(SCIMemCpy, NULL, buffer, there, 0, 1, NO_FLAGS);
		DO(SCIMemWrite, buffer, memory, 1, NO_FLAGS);
		DO(SCITransferBlock, there, 0, there, 1, 1, NO_FLAGS);
	} else {
		REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemCpy, NULL, buffer, there, 0, 1, NO_FLAGS);
		REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemWrite, buffer, memory, 1, NO_FLAGS);
	}
	DO(SCIUnmapSegment, there, NO_FLAGS);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	DO(SCIClose, sd, NO_FLAGS);
}

/* --- block transfers under way --- */

struct heard {
	pthread_mutex_t mutex;
	pthread_cond_t more;
	int count;
	sci_error_t status;
	sci_block_transfer_t block;
};

#define HEARD {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, SCI_ERR_OK, NULL}

static int on_end(void *arg, sci_block_transfer_t block, sci_error_t status)
{
	struct heard *heard = arg;

	pthread_mutex_lock(&heard->mutex);
	heard->count++;
	heard->status = status;
	heard->block = block;
	pthread_cond_broadcast(&heard->more);
	pthread_mutex_unlock(&heard->mutex);
	return 0;
}

static void await(struct heard *heard, int count)
{
	pthread_mutex_lock(&heard->mutex);
	while (heard->count < count)
		pthread_cond_wait(&heard->more, &heard->mutex);
	pthread_mutex_unlock(&heard->mutex);
}

static void blocks_under_way(void)
{
	struct heard heard = HEARD;
	struct peer peer;
	sci_block_transfer_t first, second, others[OTHERS];
	const size_t half = HUGE_SIZE / 2;

	set_up(&peer, HUGE_SIZE);
#define BLOCK(out, callback, arg, flags) there, 0, there, half, half, out, callback, arg, flags
	/* They take turns, so that none ends long before the last. */
	for (int i = 0; i < OTHERS; i++)
		DO(SCITransferBlockAsync, BLOCK(&others[i], NO_CALLBACK, NO_ARG, NO_FLAGS));
	DO(SCITransferBlockAsync, BLOCK(&first, NO_CALLBACK, NO_ARG, NO_FLAGS));
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForBlockTransfer, first, 0, NO_FLAGS);
	REFUSED(SCI_ERR_BUSY, SCIUnmapSegment, there, NO_FLAGS);
	DO(SCIAbortBlockTransfer, first, NO_FLAGS);
	REFUSED(SCI_ERR_CANCELLED, SCIWaitForBlockTransfer, first, LONG_MS, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIWaitForBlockTransfer, first, 0, NO_FLAGS);
	DO(SCITransferBlockAsync, BLOCK(&second, on_end, &heard, SCI_FLAG_USE_CALLBACK));
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCIWaitForBlockTransfer, second, 0, NO_FLAGS);
	DO(SCIAbortBlockTransfer, second, NO_FLAGS);
	await(&heard, 1);
	EXPECT(heard.status == SCI_ERR_CANCELLED && heard.block == second);
	for (int i = 0; i < OTHERS; i++) {
		DO(SCIAbortBlockTransfer, others[i], NO_FLAGS);
		REFUSED(SCI_ERR_CANCELLED, SCIWaitForBlockTransfer, others[i], LONG_MS, NO_FLAGS);
	}
	DO(SCITransferBlockAsync, BLOCK(&first, on_end, &heard, SCI_FLAG_USE_CALLBACK));
	await(&heard, 2);
	EXPECT(heard.status == SCI_ERR_OK && memory[HUGE_SIZE - 1] == 0);
	/* One that fails, since the owner of both ends is gone. */
	kill_peer(&peer);
	DO(SCITransferBlockAsync, BLOCK(&first, on_end, &heard, SCI_FLAG_USE_CALLBACK));
	await(&heard, 3);
	EXPECT(heard.status == SCI_ERR_TRANSFER_FAILED);
	/* A callback under way still knows its block; then nothing is left of it. */
	SCITerminate();
}

/* Bytes of `rep movsb`, lowest first. */
#define STRING_COPY 0xa4f3
/* More instructions than a copy of 8 bytes takes, with two calls of raise(3). */
#define FEW 400

/* Has its copies watched, instruction by instruction. */
static void copy_watched(struct peer *parent)
{
	static const size_t sizes[] = {8, 4096, 8192, 65536};
	static char mine[65536];
	sci_local_segment_t segment;
	sci_map_t map;

	offer(open_library(), &segment, &map, ID, sizeof(mine) + PAGE);
	for (size_t i = 0; i < COUNT(sizes); i++)
		DO(SCIMemCpy, NULL, mine, map, 16, sizes[i], NO_FLAGS);
	say(parent, COUNT(sizes));
	EXPECT(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
	for (size_t i = 0; i < COUNT(sizes); i++) {
		raise(SIGSTOP);
		DO(SCIMemCpy, NULL, mine, map, 16, sizes[i], NO_FLAGS);
	}
	raise(SIGSTOP);
}

/* The processor's string instruction is many times slower than vectors where the destination lies
   across cache lines, on several processors: it must not be what copies there. */
static void no_string_instruction_where_it_is_slow(void)
{
	struct user_regs_struct regs;
	struct peer peer;
	unsigned int copies;
	int status;

	spawn(&peer, copy_watched);
	copies = hear(&peer);
	EXPECT(waitpid(peer.pid, &status, 0) == peer.pid && WIFSTOPPED(status));
	for (unsigned int i = 0; i < copies; i++) {
		unsigned long steps = 0, strings = 0;

		do {
			EXPECT(ptrace(PTRACE_SINGLESTEP, peer.pid, NULL, NULL) == 0);
			if (waitpid(peer.pid, &status, 0) != peer.pid || !WIFSTOPPED(status))
				give_up(__FILE__, __LINE__, "PTRACE_SINGLESTEP", 0);
			EXPECT(ptrace(PTRACE_GETREGS, peer.pid, NULL, &regs) == 0);
			if ((ptrace(PTRACE_PEEKTEXT, peer.pid, regs.rip, NULL) & 0xffff) ==
					STRING_COPY)
				strings++;
			steps++;
		} while (WSTOPSIG(status) == SIGTRAP);
		EXPECT(strings == 0 || !__builtin_cpu_supports("avx2"));
		if (i == 0)
			EXPECT(steps < FEW);
	}
	EXPECT(ptrace(PTRACE_DETACH, peer.pid, NULL, NULL) == 0);
	join(&peer);
}

/* What the program unmaps or protects, on either side of a copy. */
static void memory_that_is_gone(void)
{
	struct peer peer;
	sci_block_transfer_t block;
	char *mine[2];

	set_up(&peer, 4 * PAGE);
	for (int i = 0; i < 2; i++) {
		mine[i] = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				-1, 0);
		EXPECT(mine[i] != MAP_FAILED);
		memset(mine[i], 'x', 2 * PAGE);
	}
	EXPECT(munmap(mine[0] + PAGE, PAGE) == 0);
	EXPECT(mprotect(mine[1] + PAGE, PAGE, PROT_NONE) == 0);
	for (int i = 0; i < 2; i++) {
		char *half = mine[i] + PAGE / 2;

		REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemCpy, NULL, half, there, 0, PAGE, NO_FLAGS);
		REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemCpy, NULL, half, there, 3, PAGE,
				SCI_FLAG_ERROR_CHECK);
		REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemCpy, NULL, half, there, 0, PAGE,
				SCI_FLAG_BLOCK_READ);
		REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemCopy, half, there, 0, PAGE, NO_FLAGS);
		REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemWrite, half, (void *)memory, PAGE, NO_FLAGS);
		REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemCpy_dual, NULL, half, there, 0, there, PAGE,
				PAGE, NO_FLAGS);
		DO(SCIMemCpy, NULL, mine[i], there, 0, PAGE, NO_FLAGS);
	}
	/* The map itself; its pages are not the program's to unmap, so they are back at the end. */
	EXPECT(mprotect((void *)(memory + 2 * PAGE), PAGE, PROT_NONE) == 0);
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemCpy, NULL, mine[0], there, 2 * PAGE - 8, 16,
			NO_FLAGS);
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCITransferBlock, there, 0, there, 2 * PAGE, 64, NO_FLAGS);
	DO(SCITransferBlockAsync, ASYNC(there, 2 * PAGE, there, PAGE, 64, NO_FLAGS));
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIWaitForBlockTransfer, block, LONG_MS, NO_FLAGS);
	EXPECT(mprotect((void *)(memory + 2 * PAGE), PAGE, PROT_READ | PROT_WRITE) == 0);
	DO(SCITransferBlock, there, 0, there, 2 * PAGE, 64, NO_FLAGS);
	say(&peer, 0);
	join(&peer);
}

#define LARGE (128 * PAGE)
#define MOVED (LARGE - PAGE - 8)

/* Blocks within one map are copied as memmove does. */
static void blocks_that_overlap(void)
{
	struct peer peer;
	sci_block_transfer_t block;
	static unsigned char model[LARGE];
	const unsigned int ways[][2] = {{8, PAGE}, {PAGE, 8}};

	set_up(&peer, LARGE);
	for (unsigned int i = 0; i < LARGE; i++)
		model[i] = (unsigned char)(i * 7 + i / 251);
	DO(SCIMemCpy, NULL, model, there, 0, LARGE, NO_FLAGS);
	for (int i = 0; i < 2; i++) {
		unsigned int from = ways[i][0], to = ways[i][1];

		DO(SCITransferBlock, there, from, there, to, MOVED, NO_FLAGS);
		memmove(model + to, model + from, MOVED);
		EXPECT(memcmp((void *)memory, model, LARGE) == 0);
		DO(SCITransferBlockAsync, ASYNC(there, from, there, to, MOVED, NO_FLAGS));
		DO(SCIWaitForBlockTransfer, block, LONG_MS, NO_FLAGS);
		memmove(model + to, model + from, MOVED);
		EXPECT(memcmp((void *)memory, model, LARGE) == 0);
	}
	say(&peer, 0);
	join(&peer);
}

#define CANCELLATIONS 400

/* Copies without end, and can be cancelled anywhere. */
static void *copy_until_cancelled(void *unused)
{
	static char mine[4 * PAGE];
	sci_error_t error;

	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	for (size_t i = 0;; i++) {
		SCIMemCpy(NULL, mine, there, i % 64, i % (2 * PAGE - 64), NO_FLAGS, &error);
		SCIMemWrite(mine, memory + i % 64, i % PAGE, NO_FLAGS, &error);
		SCITransferBlock(there, 0, there, PAGE, i % PAGE, NO_FLAGS, &error);
	}
	return unused;
}

/* Threads that are cancelled in a copy leave nothing locked. */
static void threads_are_cancelled(void)
{
	struct peer peer;
	sci_map_t map;

	set_up(&peer, SIZE);
	for (int i = 0; i < CANCELLATIONS; i++) {
		pthread_t thread;

		EXPECT(pthread_create(&thread, NULL, copy_until_cancelled, NULL) == 0);
		/* Not always at the same place. */
		usleep((unsigned int)(i * 7 % 200));
		EXPECT(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
		map_remote(&map, PAGE, NO_FLAGS);
		DO(SCIUnmapSegment, map, NO_FLAGS);
	}
	DO(SCIUnmapSegment, there, NO_FLAGS);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	say(&peer, 0);
	join(&peer);
	SCITerminate();
}

int main(void)
{
	static const struct test tests[] = {
		{"copies: ranges and rights", ranges_and_rights},
		{"copies: the owner is killed", the_owner_is_killed},
		{"copies: blocks under way", blocks_under_way},
		{"copies: no string instruction where it is slow",
				no_string_instruction_where_it_is_slow},
		{"copies: threads are cancelled", threads_are_cancelled},
		{"copies: memory that is gone", memory_that_is_gone},
		{"copies: blocks that overlap", blocks_that_overlap},
	};

	return run_tests(tests, COUNT(tests));
}
