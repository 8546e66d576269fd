/*
 * Random calls on the guests' driver, by processes and threads that share descriptors and mappings:
 * in any order, misuse included, and ended anywhere. What a call returns does not matter, nor how a
 * process ends; who starts this looks at what the kernel says of it (tests/vm/kasan).
 *
 *	ioctls SECONDS SEED
 *
 * Prints how often each call succeeded and failed, and fails if one that was tried often never
 * succeeded: then it was not tested. The seed says what each thread does, not when.
 */
#include "ioctls.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Processes at a time, with so many threads each. */
#define WORKERS 3
#define THREADS 3
/* What a thread calls at most, and how long a process lives at most: it is killed then. */
#define STEPS 600
#define LIFE_MICROSECONDS 4000000
/* What a child calls. */
#define CHILD_STEPS 10
/* One in so many processes has the library's descriptors, too. */
#define JOINED 3
/* How often a call fails if it never succeeds: of those that depend on others one in ten does. */
#define ENOUGH 150

struct report {
	atomic_ulong good[CALLS_MAX], bad[CALLS_MAX];
	atomic_ulong processes;
};

static struct report *report;
static _Thread_local uint64_t random_state;
static _Thread_local sigjmp_buf fault;
static _Thread_local volatile sig_atomic_t guarded;
static atomic_int fds[KINDS][SLOTS];

/* splitmix64 */
uint64_t random_number(void)
{
	uint64_t z = (random_state += 0x9e3779b97f4a7c15ull);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

uint64_t below(uint64_t limit)
{
	return random_number() % limit;
}

int some_fd(enum kind kind)
{
	size_t slot = below(SLOTS);
	int fd = -1;

	if (!below(32))
		kind = below(KINDS);
	for (size_t i = 0; i < SLOTS && fd < 0; i++)
		fd = atomic_load(&fds[kind][(slot + i) % SLOTS]);
	return fd;
}

long keep_fd(enum kind kind, int fd)
{
	int old;

	if (fd < 0)
		return -1;
	old = atomic_exchange(&fds[kind][below(SLOTS)], fd);
	if (old >= 0)
		close(old);
	return 0;
}

long drop_fd(enum kind kind)
{
	int old = atomic_exchange(&fds[kind][below(SLOTS)], -1);

	return old < 0 ? -1 : close(old);
}

static void faulted(int number)
{
	if (guarded)
		siglongjmp(fault, 1);
	_exit(128 + number);
}

bool touch(void *at, size_t bytes, bool writing)
{
	volatile uint64_t *words = at;

	if (sigsetjmp(fault, 1)) {
		guarded = 0;
		return false;
	}
	guarded = 1;
	for (size_t i = 0; i < bytes / sizeof(*words); i += PAGE / sizeof(*words))
		words[i] = writing ? words[i] + 1 : (words[i], i);
	guarded = 0;
	return true;
}

static void step(void)
{
	size_t which = below(call_count);
	bool good;

	good = calls[which].function() >= 0;
	atomic_fetch_add(good ? &report->good[which] : &report->bad[which], 1);
}

/* Ends this process within this time, wherever it is. */
static void die_within(uint64_t microseconds)
{
	uint64_t life = 1 + below(microseconds);
	struct itimerval timer = { .it_value = { life / 1000000, life % 1000000 } };

	setitimer(ITIMER_REAL, &timer, NULL);
}

/* A process that has all that its parent has. */
long begin_child(void)
{
	pid_t child = fork();

	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	random_state ^= 0xc0ffee;
	die_within(LIFE_MICROSECONDS / 4);
	for (int i = 0; i < CHILD_STEPS; i++)
		step();
	_exit(0);
}

static void *run_thread(void *seed)
{
	random_state = (uintptr_t)seed;
	for (int i = 0; i < STEPS; i++)
		step();
	/* The others are somewhere. */
	_exit(0);
}

static void handle_faults(void)
{
	struct sigaction action = { .sa_handler = faulted, .sa_flags = SA_NODEFER };

	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
	signal(SIGCHLD, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
}

static void run_process(uint64_t seed)
{
	pthread_t thread;
	int nowhere;

	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	random_state = seed;
	/* What the library says of what is done to it. */
	nowhere = open("/dev/null", O_RDWR);
	dup2(nowhere, STDOUT_FILENO);
	dup2(nowhere, STDERR_FILENO);
	handle_faults();
	die_within(LIFE_MICROSECONDS);
	for (int kind = 0; kind < KINDS; kind++)
		for (int i = 0; i < SLOTS; i++)
			atomic_store(&fds[kind][i], -1);
	begin_with_some();
	if (!below(JOINED))
		join_broker();
	for (int i = 1; i < THREADS; i++)
		if (pthread_create(&thread, NULL, run_thread, (void *)(uintptr_t)random_number()))
			_exit(EXIT_FAILURE);
	run_thread((void *)(uintptr_t)random_number());
}

static pid_t begin_process(uint64_t seed)
{
	pid_t process = fork();

	if (!process)
		run_process(seed);
	if (process < 0) {
		perror("fork");
		exit(EXIT_FAILURE);
	}
	setpgid(process, process);
	atomic_fetch_add(&report->processes, 1);
	return process;
}

static void end_process(pid_t process)
{
	kill(-process, SIGKILL);
	waitpid(process, NULL, 0);
}

static void run_all(time_t seconds, uint64_t seed)
{
	time_t end = time(NULL) + seconds;
	pid_t processes[WORKERS];

	random_state = seed;
	for (int i = 0; i < WORKERS; i++)
		processes[i] = begin_process(random_number());
	while (time(NULL) < end) {
		pid_t ended = waitpid(-1, NULL, 0);

		for (int i = 0; i < WORKERS; i++) {
			if (processes[i] != ended)
				continue;
			kill(-ended, SIGKILL);
			processes[i] = begin_process(random_number());
		}
	}
	for (int i = 0; i < WORKERS; i++)
		end_process(processes[i]);
}

int main(int argc, char **argv)
{
	unsigned long total = 0, never = 0;

	if (argc != 3)
		return 2;
	report = mmap(NULL, sizeof(*report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (report == MAP_FAILED)
		return EXIT_FAILURE;
	printf("seed %s\n", argv[2]);
	fflush(stdout);
	run_all(atoi(argv[1]), strtoull(argv[2], NULL, 0));
	for (size_t i = 0; i < call_count; i++) {
		printf("%-12s %8lu good %8lu bad\n", calls[i].name, report->good[i],
		       report->bad[i]);
		total += report->good[i] + report->bad[i];
		if (!report->good[i] && report->bad[i] >= ENOUGH) {
			printf("%s never succeeded\n", calls[i].name);
			never++;
		}
	}
	printf("%lu calls, %lu processes\n", total, report->processes);
	return never ? EXIT_FAILURE : EXIT_SUCCESS;
}
