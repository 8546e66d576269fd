// SPDX-License-Identifier: MIT OR Apache-2.0
//
//   counts OPERATION [FILE]
//
// Prints the median of the instructions that libibverbs executes in an operation. The processor's
// trap flag has the kernel send SIGTRAP after each instruction. An instruction counts if it lies in
// the library's own text: the program's do not, neither do those of the C library (copying) and of
// the kernel. FILE gets "address number" for all that counted, addresses as in the library's file.

#define _GNU_SOURCE
#include "counts.h"

#include "../verify/common.h"

#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define LIBRARY "libibverbs.so.1"
#define TEXT_MAX (64u << 20)
/* Operations before the first that is counted. */
#define WARM_UP 2000
/* Calls without a pause after which the endpoint's lock is biased to one that makes no others, at
 * most. A bias that the helper has withdrawn is earned again before each so many samples. */
#define CALLS_BIASED 100000
#define SAMPLES_BIASED 4
#define PAUSE_US 500
/* The trap flag in the processor's flags. */
#define TRAP_FLAG 0x100
/* The instruction `syscall`. */
static const unsigned char SYSCALL[] = { 0x0f, 0x05 };

/* The library's text in memory, and where the file's address 0 lies. */
static uint64_t from, to, bias;
static uint32_t *seen;
/* Of the operation under way. */
static volatile uint64_t counted;
static volatile uint64_t last;
static volatile bool sent;
static bool counting, until_sent;

/* Writes the flags back with the trap flag set: SIGTRAP follows the next instruction. */
__attribute__((noinline)) void counts_begin(void)
{
	if (counting && !sent)
		__asm__ volatile("pushfq; orq %0, (%%rsp); popfq" : : "i"(TRAP_FLAG) : "memory",
				 "cc");
}

/* The handler takes the trap flag away when it sees this function. */
__attribute__((noinline)) void counts_end(void)
{
	__asm__ volatile("" ::: "memory");
}

static bool sends(const greg_t *registers)
{
	return memcmp((const void *)registers[REG_RIP], SYSCALL, sizeof(SYSCALL)) == 0 &&
	       (registers[REG_RAX] == SYS_sendto || registers[REG_RAX] == SYS_sendmsg ||
		registers[REG_RAX] == SYS_sendmmsg);
}

static void stepped(int signal, siginfo_t *info, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	uint64_t at = (uint64_t)registers[REG_RIP];

	(void)signal;
	(void)info;
	if (until_sent && sends(registers))
		sent = true;
	if (sent || at == (uintptr_t)counts_end) {
		registers[REG_EFL] &= ~TRAP_FLAG;
		return;
	}
	/* A repeated string instruction traps at each of its turns, and counts once. */
	if (at >= from && at < to && at != last) {
		seen[at - from]++;
		counted++;
	}
	last = at;
}

static void find_library(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long first, end;
	char line[4096], flags[5];

	need(maps, "/proc/self/maps");
	while (fgets(line, sizeof(line), maps)) {
		if (!strstr(line, "/" LIBRARY) ||
		    sscanf(line, "%lx-%lx %4s", &first, &end, flags) != 3)
			continue;
		if (!bias)
			bias = first;
		if (flags[2] == 'x') {
			from = first;
			to = end;
		}
	}
	fclose(maps);
	if (!from || to - from > TEXT_MAX)
		fail("the text of " LIBRARY " was not found");
	seen = calloc(to - from, sizeof(*seen));
	need(seen, "memory");
}

/* The library's helper thread looks at what the program does every other millisecond; a stepped
 * operation takes ten. On one processor with this thread, and behind it, the helper sees as little
 * of an operation as it does of one that is not stepped. */
static void pin(void)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	need(sched_setaffinity(0, sizeof(one), &one) == 0, "sched_setaffinity");
}

static void run_first(void)
{
	struct sched_param first = { .sched_priority = 1 };

	if (sched_setscheduler(0, SCHED_FIFO, &first) != 0)
		fail("SCHED_FIFO, which takes CAP_SYS_NICE: %m");
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Runs it without counting until the endpoint's lock is biased to this thread. */
static void earn_bias(const struct operation *operation)
{
	counting = false;
	sent = false;
	for (int i = 0; i < CALLS_BIASED / operation->calls; i++)
		operation->run();
}

/* Carries the operation out; returns the median of what counted. */
static uint64_t count(const struct operation *operation)
{
	static uint64_t counts[SAMPLES_MAX];
	struct sigaction action = { .sa_sigaction = stepped, .sa_flags = SA_SIGINFO };

	need(sigaction(SIGTRAP, &action, NULL) == 0, "sigaction");
	/* First with pauses: the helper has memory to move. Then without them: a thread that takes
	 * the endpoint's lock often is biased to it. */
	for (int i = 0; i < WARM_UP; i++) {
		operation->run();
		usleep(PAUSE_US);
	}
	run_first();
	until_sent = operation->until_sent;
	need(operation->samples <= SAMPLES_MAX, "so many samples");
	for (int i = 0; i < operation->samples; i++) {
		if (i % SAMPLES_BIASED == 0)
			earn_bias(operation);
		counting = true;
		counted = 0;
		sent = false;
		operation->run();
		if (until_sent && !sent)
			fail("the operation sent nothing while it was stepped");
		counts[i] = counted;
	}
	qsort(counts, operation->samples, sizeof(*counts), by_size);
	return counts[operation->samples / 2];
}

static void write_seen(const char *path)
{
	FILE *out = fopen(path, "w");

	need(out, path);
	for (uint64_t i = 0; i < to - from; i++)
		if (seen[i])
			fprintf(out, "%#lx %u\n", (unsigned long)(from - bias + i), seen[i]);
	need(fclose(out) == 0, path);
}

int main(int argc, char **argv)
{
	const struct operation *operation = NULL;

	for (int i = 0; argc > 1 && i < operations_number; i++)
		if (strcmp(operations[i].name, argv[1]) == 0)
			operation = &operations[i];
	if (!operation || argc > 3) {
		fprintf(stderr, "usage: counts OPERATION [FILE]\noperations:");
		for (int i = 0; i < operations_number; i++)
			fprintf(stderr, " %s", operations[i].name);
		fputc('\n', stderr);
		return 2;
	}
	find_library();
	pin();
	operations_open();
	printf("%lu\n", (unsigned long)count(operation));
	if (argc == 3)
		write_seen(argv[2]);
	return 0;
}
