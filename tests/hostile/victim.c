/* The one that is attacked. It holds *areas*: pages in a row, of which the middle can be
 * registered, from EDGE bytes into the second page to EDGE bytes before the end of the last but
 * one. All around is secret, always; what is inside is what it was filled with last. Arguments:
 * the complements of the two words by which secret and public contents are known. */
#define _GNU_SOURCE
#include "hold.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define AREAS 16
#define EDGE 100ul
/* Small regions, and the distance between two. */
#define FLOOD_MAX 512
#define FLOOD_STEP (8 * PAGE)

struct area {
	unsigned char *base;
	/* All of it; what can be registered. */
	size_t len, from, to;
	uint32_t inside;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
};

static struct area areas[AREAS];
/* What an area has grown by. */
static struct area grown;
static uint32_t secret, public;

static struct area *area_of(const char *index)
{
	uint64_t i = number(index);

	if (i >= AREAS)
		fail("no area %s", index);
	return &areas[i];
}

/* Byte `at` of what is filled with `tag`: words of the tag and their number. */
static unsigned char byte_of(uint32_t tag, size_t at)
{
	uint64_t word = (uint64_t)tag << 32 | (uint32_t)(at / 8);

	return word >> 8 * (at % 8);
}

static void fill(struct area *a, uint32_t tag, size_t from, size_t to)
{
	for (size_t at = from; at < to; at++)
		a->base[at] = byte_of(tag, at);
}

/* The first byte that is wrong, or -1. */
static ssize_t wrong(const struct area *a, uint32_t tag, size_t from, size_t to)
{
	for (size_t at = from; at < to; at++)
		if (a->base[at] != byte_of(tag, at))
			return at;
	return -1;
}

/* "area I PAGES" */
static void do_area(char **args, int count)
{
	struct area *a = area_of(args[0]);
	size_t pages = number(args[1]);

	(void)count;
	a->len = (pages + 2) * PAGE;
	a->base = mmap(NULL, a->len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(a->base != MAP_FAILED, "mmap");
	a->from = PAGE + EDGE;
	a->to = a->len - PAGE - EDGE;
	a->inside = secret;
	fill(a, secret, 0, a->len);
	say("ok %p %zu", a->base, a->len);
}

static void do_fill(char **args, int count)
{
	struct area *a = area_of(args[0]);

	(void)count;
	a->inside = strcmp(args[1], "secret") ? public : secret;
	fill(a, a->inside, a->from, a->to);
	say("ok");
}

/* "check I edges|all" */
static void do_check(char **args, int count)
{
	const struct area *a = area_of(args[0]);
	ssize_t bad = wrong(a, secret, 0, a->from);

	(void)count;
	if (bad < 0)
		bad = wrong(a, secret, a->to, a->len);
	if (bad < 0 && !strcmp(args[1], "all"))
		bad = wrong(a, a->inside, a->from, a->to);
	if (bad >= 0)
		say("BAD byte %zd of area %s (%zu to %zu registered) is %02x", bad, args[0],
		    a->from, a->to, a->base[bad]);
	else
		say("ok");
}

/* "reg I PD ACCESS" */
static void do_reg(char **args, int count)
{
	struct area *a = area_of(args[0]);

	(void)count;
	a->mr = ibv_reg_mr(stage_pd(args[1]), a->base + a->from, a->to - a->from,
			   number(args[2]));
	need(a->mr, "ibv_reg_mr");
	say("ok %u %p %zu", a->mr->rkey, a->base + a->from, a->to - a->from);
}

/* "rereg I PD ACCESS" */
static void do_rereg(char **args, int count)
{
	struct area *a = area_of(args[0]);
	int what = IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;

	(void)count;
	need0(ibv_rereg_mr(a->mr, what, stage_pd(args[1]), NULL, 0, number(args[2])));
	say("ok %u", a->mr->rkey);
}

static void do_dereg(char **args, int count)
{
	struct area *a = area_of(args[0]);

	(void)count;
	need0(ibv_dereg_mr(a->mr));
	a->mr = NULL;
	say("ok");
}

/* "bind I QP PD ACCESS": a window onto the middle of an area, for the peer of a queue pair. */
static void do_bind(char **args, int count)
{
	struct area *a = area_of(args[0]);
	uintptr_t at = (uintptr_t)a->base + 4 * PAGE;
	size_t len = a->len - 8 * PAGE;
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW };

	(void)count;
	if (!a->mw)
		a->mw = ibv_alloc_mw(stage_pd(args[2]), IBV_MW_TYPE_2);
	need(a->mw, "ibv_alloc_mw");
	a->mw->rkey = ibv_inc_rkey(a->mw->rkey);
	wr.bind_mw.mw = a->mw;
	wr.bind_mw.rkey = a->mw->rkey;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ a->mr, at, len, number(args[3]) };
	if (stage_post(number(args[1]), &wr))
		fail("the window is not bound");
	say("ok %u %p %zu", a->mw->rkey, (void *)at, len);
}

/* "unbind I QP": invalidates it. */
static void do_unbind(char **args, int count)
{
	struct area *a = area_of(args[0]);
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = a->mw->rkey,
	};

	(void)count;
	say("ok %d", stage_post(number(args[1]), &wr));
}

/* "receive QP": posts a receive of no bytes. */
static void do_receive(char **args, int count)
{
	struct ibv_recv_wr wr = { 0 }, *bad;

	(void)count;
	need0(ibv_post_recv(stage_qp(args[0]), &wr, &bad));
	say("ok");
}

static uint64_t milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ull + now.tv_nsec / 1000000;
}

/* "reads QP RKEY ADDR MS [I QP2]": reads from a peer, again and again, for MS milliseconds, and in
 * how many of them a READ completed: other work on the machine leaves many out, but not all in a
 * row. Begins with the invalidation of the window onto area I, if one is named; its status, and how
 * many milliseconds it took. */
static void do_reads(char **args, int count)
{
	uint64_t begun = milliseconds(), now = begun, ms = number(args[3]);
	uint64_t last = 0, busy = 0, took = 0;
	struct ibv_send_wr wr = { .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_qp *qp = count > 5 ? stage_qp(args[5]) : NULL;
	static unsigned char here[64];
	struct ibv_mr *mr = ibv_reg_mr(stage_qp(args[0])->pd, here, sizeof(here),
				       IBV_ACCESS_LOCAL_WRITE);
	struct ibv_send_wr *bad;
	struct ibv_wc wc = { 0 };
	bool done = false;

	need(mr, "ibv_reg_mr");
	if (qp) {
		wr.invalidate_rkey = area_of(args[4])->mw->rkey;
		need0(ibv_post_send(qp, &wr, &bad));
	}
	while (now - begun < ms || (qp && !done)) {
		if (stage_rdma(number(args[0]), IBV_WR_RDMA_READ, mr, sizeof(here),
			       number(args[1]), number(args[2])))
			fail("a READ from a friend has failed");
		if (qp && !done && ibv_poll_cq(qp->send_cq, 1, &wc) == 1) {
			done = true;
			took = milliseconds() - begun;
		}
		now = milliseconds();
		busy += now != last && now - begun < ms;
		last = now;
	}
	need0(ibv_dereg_mr(mr));
	say("ok %" PRIu64 " %d %" PRIu64, busy, done ? (int)wc.status : -1, took);
}

/* The io_urings that have areas pinned. */
static int urings[AREAS];
static int uring_count;

/* "pin I": an area becomes a fixed buffer of an io_uring. */
static void do_pin(char **args, int count)
{
	const struct area *a = area_of(args[0]);
	struct iovec buffer = { a->base, a->len };
	struct io_uring_params params = { 0 };

	(void)count;
	if (uring_count == AREAS)
		fail("too many");
	int uring = syscall(SYS_io_uring_setup, 1, &params);
	need(uring >= 0, "io_uring_setup");
	need(syscall(SYS_io_uring_register, uring, IORING_REGISTER_BUFFERS, &buffer, 1) == 0,
	     "io_uring_register");
	urings[uring_count++] = uring;
	say("ok");
}

/* Closes the io_urings, and says how many KiB are pinned yet. */
static void do_unpin(char **args, int count)
{
	char line[128];
	unsigned long kib = 0;
	FILE *status = fopen("/proc/self/status", "r");

	(void)args;
	(void)count;
	while (uring_count)
		close(urings[--uring_count]);
	need(status, "/proc/self/status");
	while (fgets(line, sizeof(line), status))
		if (sscanf(line, "VmPin: %lu", &kib) == 1)
			break;
	fclose(status);
	say("ok %lu", kib);
}

/* The pipes that hold a page of an area each. */
static int pipes[AREAS][2];
static int pipe_count;

/* "splice I": a pipe takes hold of the first page that is registered as a whole. */
static void do_splice(char **args, int count)
{
	const struct area *a = area_of(args[0]);
	struct iovec page = { a->base + 2 * PAGE, PAGE };

	(void)count;
	if (pipe_count == AREAS)
		fail("too many");
	need(pipe(pipes[pipe_count]) == 0, "pipe");
	need(vmsplice(pipes[pipe_count][1], &page, 1, 0) == (ssize_t)PAGE, "vmsplice");
	pipe_count++;
	say("ok");
}

static void do_unsplice(char **args, int count)
{
	(void)args;
	(void)count;
	while (pipe_count) {
		close(pipes[--pipe_count][0]);
		close(pipes[pipe_count][1]);
	}
	say("ok 0");
}

/* "dereg? I": what ibv_dereg_mr says. */
static void do_try_dereg(char **args, int count)
{
	struct area *a = area_of(args[0]);
	int said = ibv_dereg_mr(a->mr);

	(void)count;
	if (!said)
		a->mr = NULL;
	say("ok %d", said);
}

/* "rereg? I PD ACCESS": the error by which ibv_rereg_mr fails. */
static void do_try_rereg(char **args, int count)
{
	struct area *a = area_of(args[0]);
	int what = IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
	int said = ibv_rereg_mr(a->mr, what, stage_pd(args[1]), NULL, 0, number(args[2]));

	(void)count;
	say("ok %d", said ? errno : 0);
}

/* "hold I WAY FILE OFFSET": a page in the midst of an area. */
static void do_hold(char **args, int count)
{
	(void)count;
	hold_begin(area_of(args[0])->base + 4 * PAGE, args + 1);
}

/* The number of the file that is mapped in the middle of an area, 0 for private memory. */
static void do_where(char **args, int count)
{
	const struct area *a = area_of(args[0]);
	uintptr_t middle = (uintptr_t)a->base + a->len / 2 / PAGE * PAGE, from, to;
	unsigned long inode, found = 0;
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");

	(void)count;
	need(maps, "/proc/self/maps");
	while (fgets(line, sizeof(line), maps))
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %lu", &from, &to,
			   &inode) == 3 && middle >= from && middle < to)
			found = inode;
	fclose(maps);
	say("ok %lu", found);
}

/* How many bytes two ranges have in common. */
static size_t common(uintptr_t from, uintptr_t to, uintptr_t first, uintptr_t last)
{
	if (from < first)
		from = first;
	if (to > last)
		to = last;
	return from < to ? to - from : 0;
}

/* "left I INODE": how many bytes of an area are in that file, or have not gone to another one,
 * which all pages do that a region covers whole. What is in no file may be on its way, and come
 * back: pages that the kernel refers to are put where they were. */
static void do_left(char **args, int count)
{
	const struct area *a = area_of(args[0]);
	uintptr_t base = (uintptr_t)a->base, from, to;
	uintptr_t first = base + 2 * PAGE, last = base + a->len - 2 * PAGE;
	unsigned long inode, asked = number(args[1]), left = last - first;
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");

	(void)count;
	need(maps, "/proc/self/maps");
	while (fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %lu", &from, &to,
			   &inode) != 3 || !inode)
			continue;
		if (inode == asked)
			left += common(from, to, base, base + a->len);
		else
			left -= common(from, to, first, last);
	}
	fclose(maps);
	say("ok %lu", left);
}

/* Lets the pages of an area that peers can map grow, and puts secrets where it grew. */
static void do_grow(char **args, int count)
{
	struct area *a = area_of(args[0]);
	size_t len = a->len - 4 * PAGE;
	unsigned char *p = mremap(a->base + 2 * PAGE, len, 2 * len, MREMAP_MAYMOVE);

	(void)count;
	need(p != MAP_FAILED, "mremap");
	grown = (struct area){ .base = p + len, .len = len };
	fill(&grown, secret, 0, len);
	say("ok");
}

static void do_grown(char **args, int count)
{
	ssize_t bad = wrong(&grown, secret, 0, grown.len);

	(void)args;
	(void)count;
	if (bad >= 0)
		say("BAD byte %zd of what has grown is %02x", bad, grown.base[bad]);
	else
		say("ok");
}

/* Maps fresh memory where an area's pages were, and puts secrets there. */
static void do_renew(char **args, int count)
{
	struct area *a = area_of(args[0]);
	size_t len = a->len - 4 * PAGE;
	void *p = a->base + 2 * PAGE;

	(void)count;
	need(munmap(p, len) == 0, "munmap");
	p = mmap(p, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	need(p != MAP_FAILED, "mmap");
	a->inside = secret;
	fill(a, secret, a->from, a->to);
	say("ok");
}

/* A child puts secrets in its copy of an area, and stays. */
static void do_fork(char **args, int count)
{
	struct area *a = area_of(args[0]);
	int ready[2];
	char byte = 0;
	pid_t pid;

	(void)count;
	need(pipe(ready) == 0, "pipe");
	pid = fork();
	need(pid >= 0, "fork");
	if (pid == 0) {
		fill(a, secret, a->from, a->to);
		need(write(ready[1], &byte, 1) == 1, "write");
		/* Until it is reaped, or the parent has died. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pause();
		_exit(0);
	}
	close(ready[1]);
	need(read(ready[0], &byte, 1) == 1, "the child has died");
	close(ready[0]);
	say("ok %d", pid);
}

static void do_reap(char **args, int count)
{
	pid_t pid = number(args[0]);

	(void)count;
	need(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid, "the child");
	say("ok");
}

/* Many small regions, registered one after the other by a thread while other things go on. */
static struct {
	pthread_t thread;
	unsigned char *base;
	int count;
	struct ibv_mr *mrs[FLOOD_MAX];
} flood;

static void *flood_run(void *arg)
{
	for (int i = 0; i < flood.count; i++) {
		flood.mrs[i] = ibv_reg_mr(arg, flood.base + i * FLOOD_STEP + EDGE,
					  FLOOD_STEP / 2, IBV_ACCESS_LOCAL_WRITE |
					  IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
		need(flood.mrs[i], "ibv_reg_mr");
	}
	return NULL;
}

/* "flood COUNT PD": begins it. */
static void do_flood(char **args, int count)
{
	size_t len;

	(void)count;
	flood.count = number(args[0]);
	if (flood.count > FLOOD_MAX)
		fail("too many");
	len = flood.count * FLOOD_STEP;
	if (!flood.base)
		flood.base = mmap(NULL, FLOOD_MAX * FLOOD_STEP, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(flood.base != MAP_FAILED, "mmap");
	need0(pthread_create(&flood.thread, NULL, flood_run, stage_pd(args[1])));
	say("ok %p %zu", flood.base, len);
}

/* Waits until all are registered, and fills them with secrets. */
static void do_flooded(char **args, int count)
{
	struct area a = { .base = flood.base };

	(void)args;
	(void)count;
	need0(pthread_join(flood.thread, NULL));
	fill(&a, secret, 0, flood.count * FLOOD_STEP);
	say("ok");
}

/* Checks them, and ends it. */
static void do_ebb(char **args, int count)
{
	struct area a = { .base = flood.base };
	ssize_t bad;

	(void)args;
	(void)count;
	for (int i = 0; i < flood.count; i++)
		need0(ibv_dereg_mr(flood.mrs[i]));
	bad = wrong(&a, secret, 0, flood.count * FLOOD_STEP);
	if (bad >= 0)
		say("BAD byte %zd of the small regions is %02x", bad, flood.base[bad]);
	else
		say("ok");
}

static const struct command commands[] = {
	{ "area", 2, do_area }, { "fill", 2, do_fill }, { "check", 2, do_check },
	{ "reg", 3, do_reg }, { "rereg", 3, do_rereg }, { "dereg", 1, do_dereg },
	{ "bind", 4, do_bind }, { "unbind", 2, do_unbind }, { "receive", 1, do_receive },
	{ "reads", 4, do_reads },
	{ "where", 1, do_where }, { "left", 2, do_left },
	{ "grow", 1, do_grow }, { "grown", 0, do_grown },
	{ "renew", 1, do_renew }, { "fork", 1, do_fork }, { "reap", 1, do_reap },
	{ "pin", 1, do_pin }, { "unpin", 0, do_unpin }, { "dereg?", 1, do_try_dereg },
	{ "rereg?", 3, do_try_rereg }, { "hold", 4, do_hold }, { "letgo", 0, hold_end },
	{ "run", 0, hold_run },
	{ "splice", 1, do_splice }, { "unsplice", 0, do_unsplice },
	{ "flood", 2, do_flood }, { "flooded", 0, do_flooded }, { "ebb", 0, do_ebb }, { 0 },
};

int main(int argc, char **argv)
{
	if (argc != 3)
		fail("two words");
	secret = ~number(argv[1]);
	public = ~number(argv[2]);
	stage_run(commands);
	return 0;
}
