/* Registered memory that is unmapped, protected, or whose file is cut short: whoever reaches it
 * learns that by an error, and the process goes on. */
#define _GNU_SOURCE
#include "err.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
/* Not moved into shared memory before it has been used some times; moved at once. */
#define SMALL (16 * PAGE)
#define LARGE (1 << 20)
/* What is left of the memory. */
#define LEFT (2 * PAGE)

enum how { UNMAPPED, PROTECTED, CUT, NO_HOW };

struct memory {
	unsigned char *at;
	size_t len;
	int fd;
	struct ibv_mr *mr;
};

static const enum ibv_wr_opcode ops[] = {
	IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
	IBV_WR_ATOMIC_CMP_AND_SWP,
};
static const char *const op_names[] = { "SEND", "WRITE", "READ", "FETCH_ADD", "CMP_SWAP" };
static const char *const how_names[] = { "unmapped", "protected", "cut short" };
#define OPS (int)(sizeof(ops) / sizeof(*ops))

static struct memory memory_new(struct env *env, enum how how, size_t len)
{
	struct memory m = { .len = len, .fd = -1 };
	int flags = MAP_PRIVATE | MAP_ANONYMOUS;

	if (how == CUT) {
		m.fd = memfd_create("cut", 0);
		need(m.fd >= 0 && ftruncate(m.fd, len) == 0, "memfd_create");
		flags = MAP_SHARED;
	}
	m.at = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, m.fd, 0);
	need(m.at != MAP_FAILED, "mmap");
	memset(m.at, GUARD, len);
	m.mr = ibv_reg_mr(env->pd, m.at, len, ANY_ACCESS);
	need(m.mr, "ibv_reg_mr");
	return m;
}

/* All of it goes but the first pages. */
static void memory_end(const struct memory *m, enum how how)
{
	if (how == UNMAPPED)
		need(munmap(m->at + LEFT, m->len - LEFT) == 0, "munmap");
	else if (how == PROTECTED)
		need(mprotect(m->at + LEFT, m->len - LEFT, PROT_NONE) == 0, "mprotect");
	else
		need(ftruncate(m->fd, LEFT) == 0, "ftruncate");
}

/* What is unmapped already may be somebody else's by now. */
static void memory_free(struct memory *m, enum how how)
{
	need0(ibv_dereg_mr(m->mr));
	munmap(m->at, how == UNMAPPED ? LEFT : m->len);
	if (m->fd >= 0)
		close(m->fd);
}

static bool is_atomic(enum ibv_wr_opcode op)
{
	return op == IBV_WR_ATOMIC_FETCH_AND_ADD || op == IBV_WR_ATOMIC_CMP_AND_SWP;
}

/* Posts from `local` at an address of its own, as `post_send` does from the buffer. */
static void post_from(struct side *s, enum ibv_wr_opcode op, struct ibv_sge sge, uint64_t remote,
		      uint32_t rkey)
{
	struct ibv_send_wr *bad, wr = {
		.wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = op,
		.send_flags = IBV_SEND_SIGNALED,
	};

	if (is_atomic(op)) {
		wr.wr.atomic.remote_addr = remote;
		wr.wr.atomic.rkey = rkey;
	} else {
		wr.wr.rdma.remote_addr = remote;
		wr.wr.rdma.rkey = rkey;
	}
	need0(ibv_post_send(s->qp, &wr, &bad));
}

/* Where an access of `len` bytes begins, so that half of it finds memory. */
static size_t place(enum ibv_wr_opcode op, uint32_t len)
{
	return is_atomic(op) || len < 16 ? LEFT + 8 * PAGE : LEFT - len / 2;
}

/* The target's memory is gone. */
static void target_gone(struct env *env, enum how how, enum ibv_wr_opcode op, uint32_t len)
{
	struct memory m = memory_new(env, how, SMALL);
	struct ibv_sge theirs = { (uintptr_t)m.at + place(op, len), len, m.mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = 6, .sg_list = &theirs, .num_sge = 1 };
	struct pair p;

	pair_open(env, &p, NULL, true);
	need0(ibv_post_recv(p.b.qp, &wr, &bad));
	memory_end(&m, how);
	post_from(&p.a, op, (struct ibv_sge){ (uintptr_t)p.a.buf, len, p.a.mr->lkey }, theirs.addr,
		  m.mr->rkey);
	if (op == IBV_WR_SEND) {
		expect_wc(p.b.cq, 6, IBV_WC_LOC_PROT_ERR);
		expect_wc(p.a.cq, 5, IBV_WC_REM_OP_ERR);
	} else {
		expect_wc(p.a.cq, 5, IBV_WC_REM_ACCESS_ERR);
		expect_wc(p.b.cq, 6, IBV_WC_WR_FLUSH_ERR);
		check(expect_event(env, IBV_EVENT_QP_ACCESS_ERR).qp == p.b.qp, "another QP's");
	}
	expect_state(p.a.qp, IBV_QPS_ERR);
	expect_state(p.b.qp, IBV_QPS_ERR);
	memory_free(&m, how);
}

/* The initiator's own memory is gone. */
static void initiator_gone(struct env *env, enum how how, enum ibv_wr_opcode op, uint32_t len)
{
	struct memory m = memory_new(env, how, SMALL);
	struct ibv_sge ours = { (uintptr_t)m.at + place(op, len), len, m.mr->lkey };
	struct pair p;

	pair_open(env, &p, NULL, true);
	need0(post_recv(&p.b, 6, BUF_BYTES));
	memory_end(&m, how);
	post_from(&p.a, op, ours, (uintptr_t)p.b.buf, p.b.mr->rkey);
	expect_wc(p.a.cq, 5, IBV_WC_LOC_PROT_ERR);
	expect_state(p.a.qp, IBV_QPS_ERR);
	expect_quiet(p.b.cq);
	memory_free(&m, how);
}

static void each(struct env *env, void (*run)(struct env *, enum how, enum ibv_wr_opcode, uint32_t))
{
	static const uint32_t lengths[] = { 8, 6000, 15000 };

	for (enum how how = 0; how < NO_HOW; how++)
		for (int i = 0; i < OPS; i++)
			for (int l = 0; l < (is_atomic(ops[i]) ? 1 : 3); l++) {
				printf("     %s, %u bytes, %s\n", op_names[i], lengths[l],
				       how_names[how]);
				run(env, how, ops[i], lengths[l]);
				bystander_check(env);
			}
}

static void targets(struct env *env)
{
	each(env, target_gone);
}

static void initiators(struct env *env)
{
	each(env, initiator_gone);
}

/* Whether an address is in a file, as what was moved to where peers reach it is. */
static bool in_file(const void *at)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long from, to, inode;
	char line[512];

	need(maps, "/proc/self/maps");
	while (fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %*s %*s %*s %lu", &from, &to, &inode) == 3 &&
		    (unsigned long)at >= from && (unsigned long)at < to) {
			fclose(maps);
			return inode != 0;
		}
	fclose(maps);
	return false;
}

/* Memory that peers reach themselves, where there is such a way: it is in a segment, which they
 * reach as a NIC reaches pages that it has pinned, or not at all. */
static void peers_own_reach(struct env *env)
{
	for (enum how how = UNMAPPED; how <= PROTECTED; how++)
		for (int i = 1; i < OPS; i++) {
			struct memory m = memory_new(env, how, LARGE);
			uint64_t remote = (uintptr_t)m.at + LEFT + 8 * PAGE;
			uint32_t len = is_atomic(ops[i]) ? 8 : 30000;
			struct ibv_wc wc = { 0 };
			struct pair p;

			pair_open(env, &p, NULL, true);
			need0(post_recv(&p.b, 6, 64));
			/* It is moved to where they do while they use it; it goes before that,
			 * at the same time, or after. */
			for (int round = 0; round < 20; round++) {
				need0(post_send(&p.a, 4, ops[i], len, remote, m.mr->rkey));
				expect_wc(p.a.cq, 4, IBV_WC_SUCCESS);
			}
			memory_end(&m, how);
			need0(post_send(&p.a, 5, ops[i], len, remote, m.mr->rkey));
			while (ibv_poll_cq(p.a.cq, 1, &wc) == 0)
				;
			check(wc.wr_id == 5 && (wc.status == IBV_WC_REM_ACCESS_ERR ||
						wc.status == IBV_WC_SUCCESS),
			      "%s, %s: %s", op_names[i], how_names[how],
			      ibv_wc_status_str(wc.status));
			memory_free(&m, how);
			bystander_check(env);
		}
}

/* Whether a peer has mapped the file that an address is in, of which it maps far more. */
static bool is_reached(const void *at)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long from, to, inode, wanted = 0, far = 0;
	char line[512];

	need(maps, "/proc/self/maps");
	for (int pass = 0; pass < 2; pass++, rewind(maps))
		while (fgets(line, sizeof(line), maps)) {
			if (sscanf(line, "%lx-%lx %*s %*s %*s %lu", &from, &to, &inode) != 3)
				continue;
			if ((unsigned long)at >= from && (unsigned long)at < to)
				wanted = inode;
			if (pass && inode == wanted && to - from > (1ul << 30))
				far = inode;
		}
	fclose(maps);
	return far;
}

/* Memory that peers have used until it was moved to where they reach it themselves. False where
 * there is no such way. Pages are moved before the library says where they are: what is registered
 * where all has been moved is in place when ibv_reg_mr returns. */
static bool moved_new(struct env *env, struct pair *p, struct memory *m)
{
	*m = memory_new(env, PROTECTED, LARGE);
	pair_open(env, p, NULL, true);
	for (int round = 0; round < 400 && !is_reached(m->at + LARGE - 1); round++) {
		need0(post_send(&p->a, 4, IBV_WR_RDMA_READ, 30000, (uintptr_t)m->at, m->mr->rkey));
		expect_wc(p->a.cq, 4, IBV_WC_SUCCESS);
	}
	need0(ibv_dereg_mr(m->mr));
	m->mr = ibv_reg_mr(env->pd, m->at, LARGE, ANY_ACCESS);
	need(m->mr, "ibv_reg_mr");
	return is_reached(m->at + LARGE - 1);
}

/* Other memory in the place of what was registered: nobody reaches it by the old key. Peers that
 * reach the registered memory themselves are refused once the library has noticed. */
static void other_in_its_place(struct env *env)
{
	for (int i = 1; i < OPS; i++) {
		size_t left = LARGE - LEFT;
		struct ibv_wc wc = { 0 };
		struct ibv_sge gone;
		struct memory m;
		struct pair p, q;

		if (!moved_new(env, &p, &m)) {
			memory_free(&m, PROTECTED);
			return;
		}
		gone = (struct ibv_sge){ (uintptr_t)m.at + LEFT + 8 * PAGE,
					 is_atomic(ops[i]) ? 8 : 6000, m.mr->lkey };
		need(munmap(m.at + LEFT, left) == 0, "munmap");
		need(mmap(m.at + LEFT, left, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
			  0) == m.at + LEFT, "mmap");
		memset(m.at + LEFT, GUARD, left);
		do {
			need0(post_send(&p.a, 5, ops[i], gone.length, gone.addr, m.mr->rkey));
			while (ibv_poll_cq(p.a.cq, 1, &wc) == 0)
				;
			check(guard_check(m.at + LEFT, left) < 0, "other memory was written to");
		} while (wc.status == IBV_WC_SUCCESS);
		check(wc.status == IBV_WC_REM_ACCESS_ERR, "%s", ibv_wc_status_str(wc.status));
		expect_event(env, IBV_EVENT_QP_ACCESS_ERR);
		/* The owner's own use. */
		pair_open(env, &q, NULL, true);
		post_from(&q.a, IBV_WR_SEND, gone, 0, 0);
		expect_wc(q.a.cq, 5, IBV_WC_LOC_PROT_ERR);
		check(guard_check(m.at + LEFT, left) < 0, "other memory was written to");
		memory_free(&m, PROTECTED);
		bystander_check(env);
	}
}

/* All threads on one processor: those of the library run when this one is stopped. */
static void share_a_processor(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	cpu_set_t one;

	need(tasks, "/proc/self/task");
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	while ((task = readdir(tasks)))
		if (atoi(task->d_name))
			need(sched_setaffinity(atoi(task->d_name), sizeof(one), &one) == 0,
			     "sched_setaffinity");
	closedir(tasks);
}

/* What was moved, and is given up while it is not registered, as malloc does with what is free,
 * takes WRITEs as soon as it is registered again. */
static void given_up_meanwhile(struct env *env)
{
	struct memory m;
	struct pair p;
	bool moved = moved_new(env, &p, &m);

	share_a_processor();
	for (int i = 0; i < 200 && moved; i++) {
		need0(ibv_dereg_mr(m.mr));
		need(madvise(m.at, LARGE, MADV_DONTNEED) == 0, "madvise");
		content_fill(p.a.buf, i, 0, BUF_BYTES);
		m.mr = ibv_reg_mr(env->pd, m.at, LARGE, ANY_ACCESS);
		need(m.mr, "ibv_reg_mr");
		need0(post_send(&p.a, 4, IBV_WR_RDMA_WRITE, BUF_BYTES, (uintptr_t)m.at,
				m.mr->rkey));
		expect_wc(p.a.cq, 4, IBV_WC_SUCCESS);
		check(content_check(m.at, i, 0, BUF_BYTES) < 0, "WRITE %d is lost", i);
	}
	memory_free(&m, PROTECTED);
	bystander_check(env);
}

/* What was moved and then protected is where it was moved: the owner's own requests reach it, as
 * those of peers do. */
static void protected_where_moved(struct env *env)
{
	static const int protections[] = { PROT_NONE, PROT_READ };
	struct memory m;
	struct pair p;
	bool moved = moved_new(env, &p, &m);

	for (int i = 0; i < 2 && moved; i++) {
		unsigned char *mine = m.at + LEFT + 100;
		struct ibv_sge sge = { (uintptr_t)mine, 6000, m.mr->lkey };
		struct ibv_recv_wr *bad, wr = { .wr_id = 6, .sg_list = &sge, .num_sge = 1 };

		content_fill(mine, 9, 0, 6000);
		need(mprotect(m.at, LARGE, protections[i]) == 0, "mprotect");
		need0(post_recv(&p.b, 7, 6000));
		post_from(&p.a, IBV_WR_SEND, sge, 0, 0);
		expect_wc(p.a.cq, 5, IBV_WC_SUCCESS);
		expect_wc(p.b.cq, 7, IBV_WC_SUCCESS);
		check(content_check(p.b.buf, 9, 0, 6000) < 0, "a SEND is damaged");
		need0(ibv_post_recv(p.a.qp, &wr, &bad));
		content_fill(p.b.buf, 10, 0, 6000);
		need0(post_send(&p.b, 8, IBV_WR_SEND, 6000, 0, 0));
		expect_wc(p.b.cq, 8, IBV_WC_SUCCESS);
		expect_wc(p.a.cq, 6, IBV_WC_SUCCESS);
		need0(post_send(&p.b, 9, IBV_WR_RDMA_READ, 64, (uintptr_t)mine, m.mr->rkey));
		expect_wc(p.b.cq, 9, IBV_WC_SUCCESS);
		sge.length = 8;
		sge.addr += 8000;
		post_from(&p.a, IBV_WR_ATOMIC_FETCH_AND_ADD, sge, (uintptr_t)p.b.buf,
			  p.b.mr->rkey);
		expect_wc(p.a.cq, 5, IBV_WC_SUCCESS);
		need(mprotect(m.at, LARGE, PROT_READ | PROT_WRITE) == 0, "mprotect");
		check(!memcmp(mine + 8000, p.b.buf, 8), "an atomic's answer is damaged");
		check(content_check(mine, 10, 0, 6000) < 0, "a receive is damaged");
	}
	memory_free(&m, PROTECTED);
}

/* What was posted is sent before its registration ends, though the program should have waited. */
static void posted_before(struct env *env)
{
	for (int round = 0; round < 3; round++) {
		unsigned char *buf = page_alloc(PAGE);
		struct ibv_mr *mr = ibv_reg_mr(env->pd, buf, PAGE, IBV_ACCESS_LOCAL_WRITE);
		struct pair p;

		need(mr, "ibv_reg_mr");
		content_fill(buf, 7 + round, 0, PAGE);
		pair_open(env, &p, NULL, true);
		/* Where peers greet each other first, that is over. */
		need0(post_recv(&p.b, 2, 64));
		need0(post_send(&p.a, 3, IBV_WR_SEND, 64, 0, 0));
		expect_wc(p.a.cq, 3, IBV_WC_SUCCESS);
		expect_wc(p.b.cq, 2, IBV_WC_SUCCESS);
		for (int i = 0; i < DEPTH; i++)
			need0(post_recv(&p.b, 20 + i, 512));
		for (int i = 0; i < DEPTH; i++)
			post_from(&p.a, IBV_WR_SEND,
				  (struct ibv_sge){ (uintptr_t)buf + 512 * i, 512, mr->lkey }, 0,
				  0);
		if (round == 0)
			need0(ibv_dereg_mr(mr));
		else if (round == 1)
			need0(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, p.a.buf, PAGE,
					   0));
		else
			need0(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, ibv_alloc_pd(env->dev.ctx),
					   NULL, 0, 0));
		for (int i = 0; i < DEPTH; i++)
			expect_wc(p.a.cq, 5, IBV_WC_SUCCESS);
		for (int i = 0; i < DEPTH; i++)
			expect_wc(p.b.cq, 20 + i, IBV_WC_SUCCESS);
		/* Each message went into the buffer's beginning; the last one is there. */
		check(content_check(p.b.buf, 7 + round, 512 * (DEPTH - 1), 512) < 0, "damaged");
	}
}

/* Memory that is registered for one transfer is not moved for it: that costs several times what
 * copying it costs. */
static void one_transfer(struct env *env)
{
	for (int i = 0; i < 6; i++) {
		struct memory theirs = memory_new(env, PROTECTED, LARGE << i / 2);
		struct memory ours = memory_new(env, PROTECTED, theirs.len);
		struct pair p;

		pair_open(env, &p, NULL, true);
		content_fill(i % 2 ? theirs.at : ours.at, i, 0, ours.len);
		post_from(&p.a, i % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
			  (struct ibv_sge){ (uintptr_t)ours.at, ours.len, ours.mr->lkey },
			  (uintptr_t)theirs.at, theirs.mr->rkey);
		expect_wc(p.a.cq, 5, IBV_WC_SUCCESS);
		check(!in_file(ours.at + LEFT), "the initiator's memory was moved");
		check(!in_file(theirs.at + LEFT), "the target's memory was moved");
		check(content_check(i % 2 ? ours.at : theirs.at, i, 0, ours.len) < 0, "damaged");
		memory_free(&ours, PROTECTED);
		memory_free(&theirs, PROTECTED);
	}
}

/* How often the library has said on standard error, in a file here, what forks copy. */
static int told(int log)
{
	static const char words[] = "ibv_fork_init";
	char text[65536];
	ssize_t len = pread(log, text, sizeof(text) - 1, 0);
	int count = 0;

	need(len >= 0, "pread");
	text[len] = 0;
	for (const char *at = text; (at = strstr(at, words)); at += sizeof(words) - 1)
		count++;
	return count;
}

static void wait_for(pid_t pid, int result)
{
	int status;

	need(pid > 0 && waitpid(pid, &status, 0) == pid, "a child");
	check(WIFEXITED(status) && WEXITSTATUS(status) == result, "a child's status is %x", status);
}

/* A child made to execute something costs nothing; one that is a copy is given its own registered
 * memory, and the program is told once that this can be avoided. */
static void children(struct env *env)
{
	/* This program again, which says that there is no such case. */
	static const char self[] = "/proc/self/exe";
	static char *const argv[] = { "errors", "?", NULL };
	struct memory m = memory_new(env, PROTECTED, 32 * LARGE);
	int log = memfd_create("log", 0), shown = dup(2), moved;
	struct pair p;
	pid_t pid;

	need(log >= 0 && shown >= 0 && dup2(log, 2) == 2, "dup2");
	pair_open(env, &p, NULL, true);
	for (int i = 0; i < 5000 && !(in_file(m.at) && in_file(m.at + m.len - 1)); i++) {
		need0(post_send(&p.a, 4, IBV_WR_RDMA_READ, BUF_BYTES, (uintptr_t)m.at,
				m.mr->rkey));
		expect_wc(p.a.cq, 4, IBV_WC_SUCCESS);
	}
	/* Not on every wire, nor where the kernel has no way. */
	moved = in_file(m.at) && in_file(m.at + m.len - 1);
	need0(posix_spawn(&pid, self, NULL, NULL, argv, environ));
	wait_for(pid, 2);
	check(system("exit 0") >= 0, "system");
	pid = vfork();
	if (pid == 0) {
		execve(self, argv, environ);
		_exit(1);
	}
	wait_for(pid, 2);
	check(told(log) == 0, "a child that only executes was given copies");
	for (int i = 0; i < 2; i++) {
		pid = fork();
		if (pid == 0)
			_exit(guard_check(m.at, m.len) >= 0);
		wait_for(pid, 0);
		check(told(log) <= 1 && told(log) >= moved, "told %d times", told(log));
	}
	need0(ibv_fork_init());
	dup2(shown, 2);
	memory_free(&m, PROTECTED);
}

static struct memory handled;

static void on_fault(int signal)
{
	(void)signal;
	mprotect(handled.at, handled.len, PROT_READ | PROT_WRITE);
}

/* A program's own handler, installed when memory was registered already, hears of its own faults
 * and of no other. */
static void handlers(struct env *env)
{
	struct sigaction action = { .sa_handler = on_fault };

	handled = memory_new(env, PROTECTED, SMALL);
	need(sigaction(SIGSEGV, &action, NULL) == 0, "sigaction");
	target_gone(env, PROTECTED, IBV_WR_RDMA_WRITE, 6000);
	need(mprotect(handled.at, handled.len, PROT_NONE) == 0, "mprotect");
	*(volatile unsigned char *)handled.at = 1;
	initiator_gone(env, PROTECTED, IBV_WR_SEND, 6000);
	memory_free(&handled, PROTECTED);
}

const struct error_case memory_cases[] = {
	{ "memory: gone at the target", targets },
	{ "memory: gone at the initiator", initiators },
	{ "memory: gone where peers reach it themselves", peers_own_reach },
	{ "memory: other memory in its place", other_in_its_place },
	{ "memory: given up while it was not registered", given_up_meanwhile },
	{ "memory: protected where it was moved", protected_where_moved },
	{ "memory: gone, with a handler of the program's", handlers },
	{ "memory: deregistered right after posting", posted_before },
	{ "memory: registered for one transfer", one_transfer },
	{ "memory: children", children },
	{ 0 },
};
