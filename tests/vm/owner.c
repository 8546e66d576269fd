/*
 * A program whose memory peers reach, while something becomes of that memory:
 *
 *	owner own PEERS FILE	registers memory, lets so many peers in, ends when there is FILE
 *	owner reach HOST PEER [ROUNDS]
 *				one of them: writes and reads a part of it, until it is
 *				ended; or so often, and then stays as it is
 *
 * The owner stores as well, all the time. In the end it compares all of the memory, withdraws it,
 * uses it, and compares it again. It says "served N", "in INODE" when its memory has come to be in
 * a segment of the window, "private" when it was withdrawn and is in none, and "still there".
 */
#define _GNU_SOURCE
#include "../verify/common.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REMOTE (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
#define MIB (1ul << 20)
/* The owner's memory: its own part, and one for each peer, of which the last page is counters'. */
#define PARTS 4
#define PART (2 * MIB)
#define PAGE 4096ul
#define BYTES (PARTS * PART)
#define COUNTER_AT (PART - PAGE)
#define OWN 0
#define FIRST_PORT 18900
#define PAUSE_US 20000

static const struct qp_params params = {
	.access = REMOTE, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 1,
	.rd_atomic = 8,
};

/* What a side tells the other. */
struct card {
	struct qp_addr addr;
	uint64_t at;
	uint32_t rkey, pad;
};

static struct device dev;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static unsigned char *memory;
static bool over;

static void say(const char *what, unsigned long number)
{
	printf("%s %lu\n", what, number);
	fflush(stdout);
}

static struct ibv_qp *create_qp(struct card *card)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	need(qp, "ibv_create_qp");
	need0(qp_to_init(qp, &params));
	*card = (struct card){ .addr = { .qpn = qp->qp_num, .psn = 1, .gid = dev.gid },
			       .at = (uintptr_t)memory, .rkey = mr->rkey };
	return qp;
}

/* Meets the other side at a port of the owner's; the connection by which they talk. */
static int meet(const char *host, unsigned int peer, struct ibv_qp **qp, struct card *theirs)
{
	struct card own;
	char port[16];
	int fd;

	snprintf(port, sizeof(port), "%u", FIRST_PORT + peer);
	fd = oob_connect(host, port);
	*qp = create_qp(&own);
	oob_send(fd, &own, sizeof(own));
	oob_recv(fd, theirs, sizeof(*theirs));
	need0(qp_to_rtr(*qp, &dev, &params, &theirs->addr));
	need0(qp_to_rts(*qp, &params, 1));
	oob_barrier(fd, 1);
	return fd;
}

static void begin(size_t bytes)
{
	memory = page_alloc(bytes);
	device_open(&dev, NULL, 0);
	need(pd = ibv_alloc_pd(dev.ctx), "ibv_alloc_pd");
	need(cq = ibv_create_cq(dev.ctx, 16, NULL, NULL, 0), "ibv_create_cq");
	need(mr = ibv_reg_mr(pd, memory, bytes, REMOTE), "ibv_reg_mr");
}

/* The segment that all of the memory is in; 0: none, and not any of it; -1: parts of it are. */
static long segment_of(const unsigned char *at, size_t bytes)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long start, end, inode, covered = 0, first = (unsigned long)at;
	long found = 0;
	char line[512];

	need(maps, "/proc/self/maps");
	while (fgets(line, sizeof(line), maps)) {
		if (!strstr(line, "causeway-segment") ||
		    sscanf(line, "%lx-%lx %*s %*s %*s %lu", &start, &end, &inode) != 3 ||
		    end <= first || start >= first + bytes)
			continue;
		found = !covered || found == (long)inode ? (long)inode : -1;
		covered += end - start;
	}
	fclose(maps);
	return !covered || covered == bytes ? found : -1;
}

/* Stores all the time, each time one more. */
static void *store_on(void *argument)
{
	uint64_t *counters = (uint64_t *)(memory + OWN * PART + COUNTER_AT), *count = argument;

	while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
		for (size_t i = 0; i < PAGE / sizeof(*counters); i++)
			counters[i]++;
		++*count;
	}
	return NULL;
}

/* Every part has its own contents, and the owner's counters have counted. */
static void check_all(unsigned int peers, uint64_t count)
{
	const uint64_t *counters = (const uint64_t *)(memory + OWN * PART + COUNTER_AT);

	for (unsigned int part = 0; part < PARTS; part++) {
		const unsigned char *at = memory + part * PART;
		size_t bytes = part <= peers ? COUNTER_AT : PART;
		ssize_t wrong = content_check(at, part + 1, 0, bytes);

		if (wrong >= 0)
			fail("byte %zd of part %u is not what it was", wrong, part);
	}
	for (size_t i = 0; i < PAGE / sizeof(*counters); i++)
		if (counters[i] != count)
			fail("%lu stores of %lu are lost", count - counters[i], count);
}

static void fill_own(unsigned int peers)
{
	content_fill(memory, 1, 0, COUNTER_AT);
	memset(memory + COUNTER_AT, 0, PAGE);
	for (unsigned int part = peers + 1; part < PARTS; part++)
		content_fill(memory + part * PART, part + 1, 0, PART);
}

static int own(unsigned int peers, const char *file)
{
	struct ibv_qp *qps[PARTS];
	pthread_t thread;
	struct card theirs;
	uint64_t count = 0;
	long segment, last = 0;

	need(peers < PARTS, "PEERS");
	begin(BYTES);
	fill_own(peers);
	need(pthread_create(&thread, NULL, store_on, &count) == 0, "pthread_create");
	for (unsigned int peer = 1; peer <= peers; peer++) {
		int fd = meet(NULL, peer, &qps[peer], &theirs);

		/* It has written its part. */
		oob_barrier(fd, 2);
		say("served", peer);
	}
	while (access(file, F_OK)) {
		segment = segment_of(memory, BYTES);
		if (segment > 0 && segment != last)
			say("in", last = segment);
		usleep(PAUSE_US);
	}
	__atomic_store_n(&over, true, __ATOMIC_RELAXED);
	need(pthread_join(thread, NULL) == 0, "pthread_join");
	check_all(peers, count);
	/* What was registered may be withdrawn whatever has become of the device. */
	need0(ibv_dereg_mr(mr));
	check_all(peers, count);
	segment = segment_of(memory, BYTES);
	if (segment)
		fail("it is in a segment yet: %ld", segment);
	say("private", 0);
	for (unsigned int part = 0; part < PARTS; part++)
		content_fill(memory + part * PART, part + 1, 0, PART);
	memset(memory + COUNTER_AT, 0, PAGE);
	check_all(peers, 0);
	say("still there", 0);
	for (unsigned int peer = 1; peer <= peers; peer++)
		need0(ibv_destroy_qp(qps[peer]));
	return EXIT_SUCCESS;
}

/* Moves bytes between the same places here and there. False if the queue pair has failed. */
static bool move(struct ibv_qp *qp, const struct card *there, enum ibv_wr_opcode how, size_t part,
		 size_t at, size_t bytes)
{
	struct ibv_sge sge = { (uintptr_t)memory + at, bytes, mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = how,
					.send_flags = IBV_SEND_SIGNALED };
	struct ibv_wc wc;
	int found;

	wr.wr.rdma.remote_addr = there->at + part + at;
	wr.wr.rdma.rkey = there->rkey;
	need0(ibv_post_send(qp, &wr, &bad));
	while (!(found = ibv_poll_cq(cq, 1, &wc)))
		;
	need(found == 1, "ibv_poll_cq");
	return wc.status == IBV_WC_SUCCESS;
}

static int reach(const char *host, unsigned int peer, uint64_t rounds)
{
	size_t part = peer * PART;
	struct card there;
	struct ibv_qp *qp;
	uint64_t round;
	int fd;

	begin(PART);
	fd = meet(host, peer, &qp, &there);
	content_fill(memory, peer + 1, 0, COUNTER_AT);
	need(move(qp, &there, IBV_WR_RDMA_WRITE, part, 0, COUNTER_AT), "WRITE");
	memset(memory, 0, COUNTER_AT);
	need(move(qp, &there, IBV_WR_RDMA_READ, part, 0, COUNTER_AT), "READ");
	if (content_check(memory, peer + 1, 0, COUNTER_AT) >= 0)
		fail("it reads what it has not written");
	oob_barrier(fd, 2);
	for (round = 1; round <= rounds; round++) {
		uint64_t *counter = (uint64_t *)(memory + COUNTER_AT);

		*counter = round;
		if (!move(qp, &there, IBV_WR_RDMA_WRITE, part, COUNTER_AT, PAGE))
			break;
		*counter = 0;
		if (!move(qp, &there, IBV_WR_RDMA_READ, part, COUNTER_AT, PAGE))
			break;
		if (*counter != round)
			fail("it reads %lu for %lu", *counter, round);
		say("round", round);
		usleep(PAUSE_US);
	}
	if (round <= rounds) {
		say("failed", round);
		return EXIT_FAILURE;
	}
	say("rests", round);
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "own"))
		return own(strtoul(argv[2], NULL, 10), argv[3]);
	if ((argc == 4 || argc == 5) && !strcmp(argv[1], "reach"))
		return reach(argv[2], strtoul(argv[3], NULL, 10),
			     argc == 5 ? strtoul(argv[4], NULL, 10) : UINT64_MAX);
	return EXIT_FAILURE;
}
