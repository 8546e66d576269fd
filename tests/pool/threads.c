/* The library's threads. A process that can have no more: what needs one is refused, transfers do
 * without. And signals, which are the program's. */
#define _GNU_SOURCE
#include "pool.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#define PAGE 4096
/* More than who starts a transfer copies itself where there is an engine's thread. */
#define SIZE (8ul << 20)

typedef int create_t(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

static atomic_int no_threads, told;

/* In the place of the C library's, also for libcauseway.so. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
		   void *(*function)(void *), void *argument)
{
	create_t *create = (create_t *)dlsym(RTLD_NEXT, "pthread_create");

	return no_threads ? EAGAIN : create(thread, attributes, function, argument);
}

static void on_end(uint64_t transfer, enum cw_transfer_state state, void *argument)
{
	(void)transfer, (void)argument;
	WANT(CW_DONE, state);
	told++;
}

/* A transfer within a buffer, whose end shows by looks alone. */
static void transfer(cw_dma *node, cw_buffer *buffer, char value)
{
	char *memory = cw_buffer_address(buffer);
	uint64_t id;
	int state;

	memory[0] = memory[SIZE - 1] = value;
	WANT(0, cw_dma_transfer(node, buffer, SIZE, buffer, 0, SIZE, NULL, NULL, &id));
	while ((state = cw_dma_poll(node, id)) == CW_POSTED)
		usleep(1000);
	WANT(CW_DONE, state);
	WANT(value, memory[SIZE]);
	WANT(value, memory[2 * SIZE - 1]);
}

/* A signal that the program blocks and waits for comes to none of the library's threads. */
static void signals(void)
{
	sigset_t set, before;
	int got = 0;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	WANT(0, pthread_sigmask(SIG_BLOCK, &set, &before));
	for (int i = 0; i < 100; i++) {
		WANT(0, kill(getpid(), SIGUSR2));
		WANT(0, sigwait(&set, &got));
		WANT(SIGUSR2, got);
	}
	WANT(0, pthread_sigmask(SIG_SETMASK, &before, NULL));
}

void threads(void)
{
	cw_dma *node;
	cw_buffer *buffer;
	cw_lib *other;
	uint64_t id;

	WANT(0, cw_dma_open(lib, "threads", 0, &node));
	WANT(0, cw_dma_alloc(node, 2 * SIZE, &buffer));
	no_threads = 1;
	WANT(-EAGAIN, cw_open(&other));
	WANT(-EAGAIN, cw_dma_transfer(node, buffer, 0, buffer, PAGE, 8, on_end, NULL, &id));
	/* The first is also the first that misses a thread. */
	transfer(node, buffer, 1);
	transfer(node, buffer, 2);
	no_threads = 0;
	transfer(node, buffer, 3);
	transfer(node, buffer, 4);
	signals();
	WANT(0, cw_dma_transfer(node, buffer, 0, buffer, PAGE, 8, on_end, NULL, &id));
	while (told == 0)
		usleep(1000);
	WANT(0, cw_open(&other));
	WANT(0, cw_close(other));
	WANT(0, cw_dma_free(buffer));
	WANT(0, cw_dma_close(node));
}
