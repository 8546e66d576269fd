/* The one that attacks: a program that has a queue pair connected by honest calls, and then uses
 * every descriptor and mapping that the library holds for it, and its connection to the broker.
 * Arguments: the complements of the two words by which secret and public contents are known. */
#define _GNU_SOURCE
#include "forge.h"
#include "loot.h"
#include "stage.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* docs/LAYOUT.md: a ring's magic, and where its two sides say which region they access. */
#define RING_MAGIC "CWRING\0"
#define IN_FLIGHT_A (512 + 384)
#define IN_FLIGHT_B (1024 + 384)
/* The table of memory regions: its magic, the first entry, the size of one, and words in it. */
#define TABLE_MAGIC "CWMRTB\0"
#define ENTRY_FIRST PAGE
#define ENTRY_SIZE 64
#define ENTRY_LENGTH 16
#define ENTRY_OFFSET 24
#define ENTRY_SEGMENT 32
#define ENTRY_START 40
#define ENTRY_END 48
#define SEGMENTS_MAX (ARGS_MAX - 1)

static uint32_t not_secret, not_public;

/* "keep ADDR LEN ...": what memory segments are mapped of. */
static void do_keep(char **args, int count)
{
	uint64_t ranges[ARGS_MAX / 2][2];
	int writable = 0, segments = 0, readers = 0;

	for (int i = 0; i + 1 < count; i += 2) {
		ranges[i / 2][0] = number(args[i]);
		ranges[i / 2][1] = number(args[i + 1]);
	}
	loot_keep(ranges, count / 2);
	for (int i = 0; i < loots; i++) {
		bool large = loot[i].size > SMALL_MAX;

		writable += loot[i].writable;
		segments += large;
		readers += large && !loot[i].writable;
	}
	say("ok %d %d %d %d", loots, writable, segments, readers);
}

static void do_search(char **args, int count)
{
	struct found found = loot_search(not_secret, not_public);

	(void)args;
	(void)count;
	say("ok %" PRIu64 " %" PRIu64 " %" PRIu64, found.secret, found.public, found.bytes);
}

static void do_upgrade(char **args, int count)
{
	const char *done = loot_upgrade();

	(void)args;
	(void)count;
	say(done ? "BAD %s" : "ok %s", done ? done : "");
}

static void do_process(char **args, int count)
{
	const char *done = loot_process(number(args[0]));

	(void)count;
	say(done ? "BAD %s" : "ok %s", done ? done : "");
}

static void scribble_extent(const struct loot *l, off_t from, size_t len, void *arg)
{
	static unsigned char bytes[PAGE];

	memset(bytes, *(int *)arg, sizeof(bytes));
	for (size_t at = 0; at < len; at += PAGE)
		need(pwrite(l->fd, bytes, PAGE, from + at) == (ssize_t)PAGE, "pwrite");
}

/* Writes every byte that there is of segments that may be written, and every byte of the views,
 * whether or not there is anything. */
static void do_scribble(char **args, int count)
{
	int byte = number(args[0]);

	(void)count;
	for (int i = 0; i < loots; i++)
		if (loot[i].writable && loot[i].size > SMALL_MAX)
			loot_extents(&loot[i], scribble_extent, &byte);
	for (int i = 0; i < view_count; i++)
		if (views[i].writable && !views[i].small)
			memset(views[i].at, byte, views[i].len);
	say("ok");
}

/* Takes the pages of segments away. */
static void punch_all(void)
{
	int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;

	for (int i = 0; i < loots; i++)
		if (loot[i].writable && loot[i].size > SMALL_MAX)
			need(fallocate(loot[i].fd, mode, 0, loot[i].size) == 0, "fallocate");
}

static void do_punch(char **args, int count)
{
	(void)args;
	(void)count;
	punch_all();
	say("ok");
}

/* Writes random words all over rings, inboxes and what else is small. */
static void do_mangle(char **args, int count)
{
	struct rng rng = rng_for(number(args[0]), 0, 0);

	(void)count;
	for (int i = 0; i < view_count; i++) {
		uint64_t *words = (uint64_t *)views[i].at;
		size_t n = views[i].len / sizeof(*words);

		for (size_t k = 0; views[i].writable && views[i].small && k < n; k++)
			words[k] = rng_one_in(&rng, 4) ? rng_below(&rng, 1 << 16) : rng_next(&rng);
	}
	say("ok");
}

static pthread_t thread;
static atomic_bool ending;
static int thread_byte;
static uint64_t thread_key;

static void *hammer(void *arg)
{
	while (!atomic_load(&ending))
		for (int i = 0; i < view_count; i++)
			if (views[i].writable && !views[i].small)
				memset(views[i].at, thread_byte, views[i].len);
	return arg;
}

/* "hammer BYTE": stores into all segments until told to "rest". */
static void do_hammer(char **args, int count)
{
	(void)count;
	thread_byte = number(args[0]);
	need0(pthread_create(&thread, NULL, hammer, NULL));
	say("ok");
}

static void *churn(void *arg)
{
	while (!atomic_load(&ending)) {
		punch_all();
		for (int i = 0; i < view_count; i++)
			if (views[i].writable && !views[i].small)
				memset(views[i].at, thread_byte, views[i].len);
	}
	return arg;
}

/* "churn BYTE": takes all pages away and puts others there, until told to "rest". */
static void do_churn(char **args, int count)
{
	(void)count;
	thread_byte = number(args[0]);
	need0(pthread_create(&thread, NULL, churn, NULL));
	say("ok");
}

/* Returns in how many rings. */
static int pretend_once(void)
{
	int rings = 0;

	for (int i = 0; i < view_count; i++) {
		_Atomic uint64_t *words = (_Atomic uint64_t *)views[i].at;

		if (memcmp(views[i].at, RING_MAGIC, 8))
			continue;
		atomic_store(&words[IN_FLIGHT_A / 8], thread_key);
		atomic_store(&words[IN_FLIGHT_B / 8], thread_key);
		rings++;
	}
	return rings;
}

static void *pretend(void *arg)
{
	while (!atomic_load(&ending))
		pretend_once();
	return arg;
}

/* "pretend KEY": is forever in the middle of an access to this region, until told to "rest". */
static void do_pretend(char **args, int count)
{
	(void)count;
	thread_key = number(args[0]);
	if (!pretend_once())
		fail("no ring");
	need0(pthread_create(&thread, NULL, pretend, NULL));
	say("ok");
}

static void do_rest(char **args, int count)
{
	(void)args;
	(void)count;
	atomic_store(&ending, true);
	need0(pthread_join(thread, NULL));
	atomic_store(&ending, false);
	say("ok");
}

static struct {
	unsigned int qp;
	struct ibv_mr *mr;
	size_t len;
	uint32_t rkey;
	uint64_t addr;
} flow;

static void *stream(void *arg)
{
	uintptr_t status = 0;

	(void)arg;
	while (!status)
		status = stage_rdma(flow.qp, IBV_WR_RDMA_WRITE, flow.mr, flow.len, flow.rkey,
				    flow.addr);
	return (void *)status;
}

/* "stream N PD RKEY ADDR LEN": WRITEs of a whole region, until one fails. */
static void do_stream(char **args, int count)
{
	(void)count;
	flow.qp = number(args[0]);
	flow.rkey = number(args[2]);
	flow.addr = number(args[3]);
	flow.len = number(args[4]);
	flow.mr = ibv_reg_mr(stage_pd(args[1]), page_alloc(flow.len), flow.len, 0);
	need(flow.mr, "ibv_reg_mr");
	need0(pthread_create(&thread, NULL, stream, NULL));
	say("ok");
}

static void do_join(char **args, int count)
{
	void *status;

	(void)args;
	(void)count;
	need0(pthread_join(thread, &status));
	need0(ibv_dereg_mr(flow.mr));
	say("ok %d", (int)(uintptr_t)status);
}

/* The segments of which the peers' tables speak. */
static int table_segments(uint64_t *segments, int max)
{
	int n = 0;

	for (int i = 0; i < view_count; i++) {
		if (memcmp(views[i].at, TABLE_MAGIC, 8) || views[i].writable)
			continue;
		for (size_t at = ENTRY_FIRST; at < views[i].len; at += ENTRY_SIZE) {
			uint64_t segment = *(uint64_t *)(views[i].at + at + ENTRY_SEGMENT);
			bool known = segment == 0;

			for (int k = 0; k < n; k++)
				known |= segments[k] == segment;
			if (!known && n < max)
				segments[n++] = segment;
		}
	}
	return n;
}

/* The names of segments that this process has read of. */
static void do_segments(char **args, int count)
{
	uint64_t segments[SEGMENTS_MAX];
	int n = table_segments(segments, SEGMENTS_MAX);

	(void)args;
	(void)count;
	printf("ok");
	for (int i = 0; i < n; i++)
		printf(" %" PRIu64, segments[i]);
	say("%s", "");
}

/* "forge QPN SEGMENT ...": asks the broker for these segments by every QP around that one. */
static void do_forge(char **args, int count)
{
	uint64_t segments[SEGMENTS_MAX];
	struct forged forged = { 0 };

	for (int i = 1; i < count && i <= SEGMENTS_MAX; i++)
		segments[i - 1] = number(args[i]);
	forge(number(args[0]), segments, count - 1, &forged);
	say("ok %d %d %d", forged.writers, forged.readers, forged.refused);
}

static void do_hangup(char **args, int count)
{
	(void)args;
	(void)count;
	forge_hang_up();
	say("ok");
}

/* "giveup QP RKEY": a SEND that has the victim invalidate a window's key. */
static void do_giveup(char **args, int count)
{
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_SEND_WITH_INV, .invalidate_rkey = number(args[1]),
	};
	struct ibv_send_wr *bad;

	(void)count;
	need0(ibv_post_send(stage_qp(args[0]), &wr, &bad));
	say("ok");
}

static struct ibv_mr *offered;

/* "offer PD LEN": registers memory for the victim to access. */
static void do_offer(char **args, int count)
{
	size_t len = number(args[1]);

	(void)count;
	offered = ibv_reg_mr(stage_pd(args[0]), page_alloc(len), len, IBV_ACCESS_LOCAL_WRITE |
			     IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	need(offered, "ibv_reg_mr");
	say("ok %u %p", offered->rkey, offered->addr);
}

/* "lie OFFSET": the entry of the region offered says that it is all memory, and begins at OFFSET
 * of the segment. */
static void do_lie(char **args, int count)
{
	bool done = false;

	(void)count;
	for (int i = 0; i < view_count; i++) {
		_Atomic uint64_t *entry;

		if (memcmp(views[i].at, TABLE_MAGIC, 8) || !views[i].writable)
			continue;
		entry = (void *)(views[i].at + ENTRY_FIRST + (offered->rkey >> 8) * ENTRY_SIZE);
		if ((uint32_t)entry[0] != offered->rkey)
			fail("the region offered is not in the table");
		atomic_store(&entry[ENTRY_LENGTH / 8], UINT64_MAX);
		atomic_store(&entry[ENTRY_OFFSET / 8], number(args[0]));
		atomic_store(&entry[ENTRY_START / 8], 0);
		atomic_store(&entry[ENTRY_END / 8], UINT64_MAX);
		done = true;
	}
	say(done ? "ok" : "BAD no table");
}

/* "accomplice IN OUT": a child that holds all this one does takes commands from one FIFO and
 * answers on the other; it lives on when this one has died. */
static void do_accomplice(char **args, int count)
{
	pid_t pid;

	(void)count;
	pid = fork();
	need(pid >= 0, "fork");
	if (pid) {
		say("ok %d", pid);
		return;
	}
	need(freopen(args[0], "r", stdin), args[0]);
	need(freopen(args[1], "w", stdout), args[1]);
}

static const struct command commands[] = {
	{ "keep", 0, do_keep }, { "search", 0, do_search }, { "upgrade", 0, do_upgrade },
	{ "process", 1, do_process }, { "scribble", 1, do_scribble }, { "punch", 0, do_punch },
	{ "mangle", 1, do_mangle }, { "hammer", 1, do_hammer }, { "churn", 1, do_churn },
	{ "pretend", 1, do_pretend }, { "giveup", 2, do_giveup },
	{ "rest", 0, do_rest }, { "stream", 5, do_stream }, { "join", 0, do_join },
	{ "segments", 0, do_segments }, { "forge", 1, do_forge }, { "hangup", 0, do_hangup },
	{ "offer", 2, do_offer }, { "lie", 1, do_lie }, { "accomplice", 2, do_accomplice }, { 0 },
};

int main(int argc, char **argv)
{
	if (argc != 3)
		fail("two words");
	not_secret = number(argv[1]);
	not_public = number(argv[2]);
	stage_run(commands);
	return 0;
}
