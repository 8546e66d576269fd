/* Faults that are the program's own, beside those that the library recovers from. */
#define _GNU_SOURCE
#include "err.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define PAGE 4096
#define LEN (16 * PAGE)
#define RUNNERS 2
/* Of each runner's faults, and of accesses to memory that is gone. */
#define FAULTS_MIN 2000
#define ROUNDS 40
#define STACK (64 << 10)
/* What a runner has in a register while it faults. */
#define MARK 0x5eed5eed5eed5eedul

/* The faulting instruction, where the handler has it go on, and what is found out. */
extern const char null_load[], null_load_end[];
static _Thread_local char *stack;
static _Thread_local uintptr_t wanted;
static atomic_bool stop;
static atomic_ulong faults, foreign;

/* Reads a byte at an address where nothing is: -1, as the handler has it return. */
__attribute__((noinline)) static long load(uintptr_t at)
{
	register unsigned long mark asm("r12") = MARK;
	long value;

	wanted = at;
	asm volatile(".globl null_load, null_load_end\n"
		     "null_load: movzbl (%2), %k0\n"
		     "null_load_end:"
		     : "=&a"(value), "+r"(mark)
		     : "r"(at)
		     : "memory");
	return value;
}

/* As a virtual machine's null checks: the thread goes on elsewhere, with another value. */
static void on_fault(int signal, siginfo_t *info, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	char here;

	if (registers[REG_RIP] != (greg_t)null_load || signal != SIGSEGV ||
	    (uintptr_t)info->si_addr != wanted || registers[REG_R12] != (greg_t)MARK ||
	    &here < stack || &here >= stack + STACK) {
		atomic_fetch_add(&foreign, 1);
		_exit(3);
	}
	atomic_fetch_add(&faults, 1);
	registers[REG_RAX] = -1;
	registers[REG_RIP] = (greg_t)null_load_end;
}

static void *run(void *nothing)
{
	stack_t own = { .ss_sp = stack = page_alloc(STACK), .ss_size = STACK };

	need(sigaltstack(&own, NULL) == 0, "sigaltstack");
	for (uintptr_t at = 1; !atomic_load(&stop); at = at % PAGE + 1)
		check(load(at) == -1, "a null check returns a value");
	own.ss_flags = SS_DISABLE;
	need(sigaltstack(&own, NULL) == 0, "sigaltstack");
	return nothing;
}

/* One WRITE to memory that the target has protected, and one from such memory. */
static void gone(struct env *env)
{
	unsigned char *at = page_alloc(LEN);
	struct ibv_mr *mr = ibv_reg_mr(env->pd, at, LEN, ANY_ACCESS);
	struct ibv_sge sge;
	struct ibv_send_wr *bad, wr = {
		.wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
	};
	struct pair p, q;

	need(mr, "ibv_reg_mr");
	pair_open(env, &p, NULL, true);
	pair_open(env, &q, NULL, true);
	need(mprotect(at, LEN, PROT_NONE) == 0, "mprotect");
	need0(post_send(&p.a, 4, IBV_WR_RDMA_WRITE, 6000, (uintptr_t)at, mr->rkey));
	expect_wc(p.a.cq, 4, IBV_WC_REM_ACCESS_ERR);
	sge = (struct ibv_sge){ (uintptr_t)at, 6000, mr->lkey };
	wr.wr.rdma.remote_addr = (uintptr_t)q.b.buf;
	wr.wr.rdma.rkey = q.b.mr->rkey;
	need0(ibv_post_send(q.a.qp, &wr, &bad));
	expect_wc(q.a.cq, 5, IBV_WC_LOC_PROT_ERR);
	need0(ibv_dereg_mr(mr));
	munmap(at, LEN);
}

/* Virtual machines check for null by the fault that it makes, on a stack of their own. Their
 * handler is there before ours, or comes after it; either way each gets what is its own. */
static void null_checks(struct env *env)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	pthread_t runners[RUNNERS];

	need(sigaction(SIGSEGV, &action, NULL) == 0, "sigaction");
	gone(env);
	for (int i = 0; i < RUNNERS; i++)
		need(pthread_create(&runners[i], NULL, run, NULL) == 0, "pthread_create");
	for (int i = 0; i < ROUNDS || atomic_load(&faults) < FAULTS_MIN; i++)
		gone(env);
	atomic_store(&stop, true);
	for (int i = 0; i < RUNNERS; i++)
		need(pthread_join(runners[i], NULL) == 0, "pthread_join");
	printf("     %lu null checks\n", atomic_load(&faults));
}

const struct error_case signal_cases[] = {
	{ "signals: null checks of the program's", null_checks },
	{ 0 },
};
