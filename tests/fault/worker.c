/* One of two equal sides that go through everything which shared memory is for, cycle after cycle:
 * they register memory, connect, move data in every way and check it, deregister what the other
 * has written, deregister what the other is writing, and take the connection down.
 *
 * Whatever goes wrong, a side takes back all it has given (within limits that the caller checks),
 * uses the memory for something else, and begins anew with its peer, or ends if that is dead.
 * SIGUSR1 makes a side do so at once; a side whose peer is dead ends upon it.
 *
 * On standard output: "cycle N"; "denied STATUS", how the accessor's queue pair failed; "trouble
 * WHY"; "busy CALL", which is tried again; "revoked dereg MS destroy MS drain MS"; "again", when
 * both have come to begin anew; "fds N" and "ended" at the end. */
#define _GNU_SOURCE
#include "worker.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

struct side me;
struct link_to_peer peer;
/* The program was told to take everything back. */
static volatile sig_atomic_t told;
static unsigned int target = 4;
/* How long the victim is accessed before it is taken back. */
static unsigned int access_ms = 20;

static const struct qp_params params = {
	.access = REMOTE, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 1,
	.rd_atomic = 8,
};

static void on_signal(int number)
{
	(void)number;
	told = 1;
}

void say(const char *what, const char *detail)
{
	printf("%s%s%s\n", what, *detail ? " " : "", detail);
	fflush(stdout);
}

uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ull + t.tv_nsec / 1000000;
}

/* Takes what the peer has said, up to its wish to begin anew. */
static void listen_to_peer(int wait_ms)
{
	struct pollfd ready = { .fd = peer.fd, .events = POLLIN };
	struct message m;
	ssize_t n;

	if (peer.dead || peer.anew || peer.queued == QUEUE_MAX ||
	    poll(&ready, 1, wait_ms) <= 0)
		return;
	n = recv(peer.fd, &m, sizeof(m), MSG_PEEK | MSG_DONTWAIT);
	if (n == 0 || (n < 0 && errno == ECONNRESET))
		peer.dead = true;
	if (n < (ssize_t)sizeof(m))
		return;
	oob_recv(peer.fd, &m, sizeof(m));
	if (m.kind == ANEW) {
		peer.anew = true;
		peer.anew_cycle = m.cycle;
	} else {
		peer.queue[peer.queued++] = m;
	}
}

static void tell_peer(const struct message *m)
{
	if (!peer.dead && send(peer.fd, m, sizeof(*m), MSG_NOSIGNAL) != sizeof(*m))
		peer.dead = true;
}

bool trouble(void)
{
	return told || peer.dead || peer.anew || (me.failed && !me.may_fail);
}

bool step(int wait_ms)
{
	bool worked = poll_completions();

	listen_to_peer(worked ? 0 : wait_ms);
	return !trouble();
}

bool exchange(struct message *own, struct message *theirs)
{
	own->cycle = me.cycle;
	tell_peer(own);
	/* What it has said counts, even if it has ended since. */
	while (peer.queued || step(1)) {
		if (!peer.queued)
			continue;
		*theirs = peer.queue[0];
		memmove(peer.queue, peer.queue + 1, --peer.queued * sizeof(*peer.queue));
		if (theirs->kind != own->kind || theirs->cycle != own->cycle)
			fail("step %u of cycle %u meets step %u of cycle %u", own->kind,
			     own->cycle, theirs->kind, theirs->cycle);
		return true;
	}
	return false;
}

static bool meet(enum kind kind)
{
	struct message own = { .kind = kind }, theirs;

	return exchange(&own, &theirs);
}

static struct ibv_mr *enlist(unsigned char *mem, size_t len, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(me.pd, mem, len, access);

	need(mr, "ibv_reg_mr");
	return mr;
}

/* Ends a registration, and notes how long that took. While the broker is stopped nobody can be
 * asked who else refers to the pages: the region stays valid then, and the call says EBUSY. */
static void discharge(struct ibv_mr **mr)
{
	uint64_t begun = now_ms();
	int status = *mr ? ibv_dereg_mr(*mr) : 0;

	if (!*mr)
		return;
	for (int tries = 0; status == EBUSY && tries < BUSY_MOST; tries++) {
		say("busy", "ibv_dereg_mr");
		status = ibv_dereg_mr(*mr);
	}
	need0(status);
	*mr = NULL;
	if (now_ms() - begun > me.dereg_ms)
		me.dereg_ms = now_ms() - begun;
}

static struct ibv_qp *create_qp(struct qp_addr *addr)
{
	struct ibv_qp_init_attr init = {
		.send_cq = me.cq, .recv_cq = me.cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH,
			 .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(me.pd, &init);

	need(qp, "ibv_create_qp");
	need0(qp_to_init(qp, &params));
	*addr = (struct qp_addr){ .qpn = qp->qp_num, .psn = me.cycle + 1, .gid = me.dev.gid };
	return qp;
}

static void connect_one(struct ibv_qp *qp, const struct qp_addr *theirs)
{
	need0(qp_to_rtr(qp, &me.dev, &params, theirs));
	need0(qp_to_rts(qp, &params, me.cycle + 1));
}

static void destroy_idle(void)
{
	for (unsigned int i = 0; i < me.idles; i++)
		if (me.idle[i])
			need0(ibv_destroy_qp(me.idle[i]));
	memset(me.idle, 0, sizeof(me.idle));
}

static bool connect_qp(void)
{
	struct message own = { .kind = MEET_QP }, theirs;

	me.failed = me.may_fail = me.connected = false;
	me.sends = me.recvs = 0;
	me.received = 0;
	content_fill(me.local + SOURCE, KEY_SOURCE, 0, VICTIM_OP);
	me.local_mr = enlist(me.local, LOCAL_LEN, IBV_ACCESS_LOCAL_WRITE);
	memset(me.window, GUARD, WINDOW_LEN);
	memset(me.window + CELL, 0, 8);
	content_fill(me.window + READ_AT, KEY_READ ^ me.cycle, 0, READ_LEN);
	me.filled = true;
	me.window_mr = enlist(me.window, WINDOW_LEN, REMOTE);
	if (!me.kept_mr)
		me.kept_mr = enlist(me.kept, PAGE, REMOTE);
	/* The same once more, under another key; under the old one if that cannot be. */
	if (ibv_rereg_mr(me.window_mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, me.window, WINDOW_LEN,
			 0))
		say("rereg", "refused");
	me.qp = create_qp(&own.addr);
	for (unsigned int i = 0; i < me.idles; i++)
		me.idle[i] = create_qp(&own.idle[i]);
	while (me.recvs < DEPTH)
		post_recv();
	own.at = (uintptr_t)me.window;
	own.rkey = me.window_mr->rkey;
	if (!exchange(&own, &theirs))
		return false;
	peer.window = theirs.at;
	peer.window_key = theirs.rkey;
	connect_one(me.qp, &theirs.addr);
	/* The ring that became hot first is the first to be left to the inbox. */
	for (unsigned int i = 0; i < me.idles; i++)
		connect_one(me.idle[i], &theirs.idle[i]);
	me.connected = meet(MEET_CONNECTED);
	return me.connected;
}

/* The owner takes back memory that the peer is writing and reading, and uses it anew. */
static bool own_victim(void)
{
	struct message own = { .kind = MEET_VICTIM }, theirs;
	uint64_t begun;

	memset(me.victim, GUARD, VICTIM_LEN);
	me.victim_mr = enlist(me.victim, VICTIM_LEN, REMOTE);
	own.at = (uintptr_t)me.victim;
	own.rkey = me.victim_mr->rkey;
	if (!exchange(&own, &theirs))
		return false;
	begun = now_ms();
	while (now_ms() - begun < access_ms)
		if (!step(1))
			return false;
	me.may_fail = true;
	discharge(&me.victim_mr);
	memset(me.victim, GUARD, VICTIM_LEN);
	return meet(MEET_DENIED);
}

static bool access_victim(void)
{
	struct message own = { .kind = MEET_VICTIM }, theirs;
	unsigned int serial = 0;

	if (!exchange(&own, &theirs))
		return false;
	me.may_fail = true;
	while (!me.failed) {
		while (!me.failed && me.sends < VICTIM_DEPTH)
			post_victim(&theirs, serial++);
		if (!step(0))
			return false;
	}
	say("denied", ibv_wc_status_str(me.status));
	return meet(MEET_DENIED);
}

/* Waits for what was posted on a queue pair that has failed. */
static void drain(bool by_itself)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	uint64_t begun = now_ms();

	if (!by_itself)
		need0(ibv_modify_qp(me.qp, &attr, IBV_QP_STATE));
	me.may_fail = true;
	while (me.sends || me.recvs) {
		step(1);
		if (now_ms() - begun > DRAIN_MS)
			fail("%u sends and %u receives never complete%s", me.sends, me.recvs,
			     by_itself ? " after the peer's death" : "");
	}
	me.drain_ms = now_ms() - begun;
}

/* Takes back all that was given to the peer. What the memory holds then is of now. */
static void revoke_all(void)
{
	char line[80];
	uint64_t begun;

	discharge(&me.window_mr);
	discharge(&me.victim_mr);
	discharge(&me.kept_mr);
	if (me.qp) {
		drain(peer.dead && me.connected);
		begun = now_ms();
		need0(ibv_destroy_qp(me.qp));
		me.destroy_ms = now_ms() - begun;
		me.qp = NULL;
	}
	destroy_idle();
	discharge(&me.local_mr);
	if (me.filled)
		check_window(true);
	me.filled = false;
	memset(me.window, GUARD, WINDOW_LEN);
	memset(me.victim, GUARD, VICTIM_LEN);
	memset(me.local, GUARD, LOCAL_LEN);
	snprintf(line, sizeof(line), "dereg %u destroy %u drain %u", me.dereg_ms, me.destroy_ms,
		 me.drain_ms);
	say("revoked", line);
	me.dereg_ms = me.destroy_ms = me.drain_ms = 0;
}

static void check_guards(void)
{
	if (guard_check(me.window, WINDOW_LEN) >= 0 || guard_check(me.victim, VICTIM_LEN) >= 0 ||
	    guard_check(me.local, LOCAL_LEN) >= 0)
		fail("a late store hit memory that was taken back");
}

static bool run_cycle(void)
{
	bool owner = me.cycle % 2 == me.server;

	if (!connect_qp() || !move_data() || !meet(MEET_MOVED))
		return false;
	discharge(&me.window_mr);
	check_window(false);
	if (!(owner ? own_victim() : access_victim()) || !meet(MEET_TAKEN))
		return false;
	if (guard_check(me.victim, VICTIM_LEN) >= 0)
		fail("a store came after ibv_dereg_mr");
	drain(false);
	need0(ibv_destroy_qp(me.qp));
	me.qp = NULL;
	destroy_idle();
	discharge(&me.local_mr);
	return meet(MEET_END);
}

/* Begins anew with the peer. False if it is dead. */
static bool begin_anew(void)
{
	struct message own = { .kind = ANEW, .cycle = me.cycle };

	tell_peer(&own);
	while (!peer.anew && !peer.dead)
		listen_to_peer(1);
	check_guards();
	if (peer.dead)
		return false;
	me.cycle = (me.cycle > peer.anew_cycle ? me.cycle : peer.anew_cycle) + 1;
	target = me.cycle + 2;
	peer.anew = false;
	peer.queued = 0;
	told = 0;
	say("again", "");
	return true;
}

static void open_all(const char *host, const char *port)
{
	signal(SIGUSR1, on_signal);
	me.server = !host;
	me.local = page_alloc(LOCAL_LEN);
	/* Edges that only the ring reaches. */
	me.window = (unsigned char *)page_alloc(WINDOW_LEN + 2 * PAGE) + EDGE;
	me.victim = page_alloc(VICTIM_LEN);
	me.kept = page_alloc(PAGE);
	device_open(&me.dev, NULL, 0);
	need(me.pd = ibv_alloc_pd(me.dev.ctx), "ibv_alloc_pd");
	need(me.cq = ibv_create_cq(me.dev.ctx, 4 * DEPTH, NULL, NULL, 0), "ibv_create_cq");
	peer.fd = oob_connect(host, port);
}

static void close_all(void)
{
	char line[32];
	unsigned int fds = 0;
	DIR *dir = opendir("/proc/self/fd");

	need(dir, "/proc/self/fd");
	while (readdir(dir))
		fds++;
	closedir(dir);
	snprintf(line, sizeof(line), "%u", fds);
	say("fds", line);
	discharge(&me.kept_mr);
	need0(ibv_destroy_cq(me.cq));
	need0(ibv_dealloc_pd(me.pd));
	need0(ibv_close_device(me.dev.ctx));
	say("ended", "");
}

int main(int argc, char **argv)
{
	const char *port = "18800";
	char line[16];
	int c;

	while ((c = getopt(argc, argv, "p:n:q:a:")) != -1)
		switch (c) {
		case 'p': port = optarg; break;
		case 'n': target = strtoul(optarg, NULL, 10); break;
		case 'a': access_ms = strtoul(optarg, NULL, 10); break;
		case 'q': me.idles = strtoul(optarg, NULL, 10); break;
		default: fail("unknown option");
		}
	need(me.idles <= IDLE_MAX, "-q");
	open_all(argv[optind], port);
	while (me.cycle < target) {
		if (run_cycle()) {
			snprintf(line, sizeof(line), "%u", me.cycle++);
			say("cycle", line);
			me.filled = false;
			continue;
		}
		say("trouble", told ? "told" : peer.dead ? "dead peer" :
		    peer.anew ? "told by peer" : ibv_wc_status_str(me.status));
		revoke_all();
		if (!begin_anew())
			break;
	}
	/* The caller looks at the tables first. */
	while (peer.dead && me.cycle < target && !told)
		usleep(1000);
	close_all();
	return 0;
}
