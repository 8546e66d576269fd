/*
 * What the conformance tests share: tests with names, expectations with places, and processes that
 * take turns.
 */
#ifndef CHECK_H
#define CHECK_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include <sisci_api.h>

#define NO_FLAGS 0
#define NO_CALLBACK NULL
#define NO_ARG NULL
#define ADAPTER 0
#define PAGE 4096
#define COUNT(array) (sizeof(array) / sizeof(*(array)))

/* Longer than anything here takes: what lasts so long has failed. A test has more time, so that it
 * says which wait it was. */
#define LONG_MS 45000
/* A wait that is to end by its timeout. */
#define SHORT_MS 20

struct test {
	const char *name;
	void (*run)(void);
};

/* Runs the tests, each in a process of its own; prints the counts. Returns the exit status. */
int run_tests(const struct test *tests, size_t count);

/* Notes that an expectation was not met. */
void fail(const char *file, int line, const char *what);
/* As fail, and ends the process. */
void give_up(const char *file, int line, const char *what, sci_error_t error);
/* How many were not met in this process. */
int failures_so_far(void);
void expect_error(const char *file, int line, const char *what, sci_error_t want,
		sci_error_t got);

#define EXPECT(condition) \
	do { \
		if (!(condition)) \
			fail(__FILE__, __LINE__, #condition); \
	} while (0)

/* A call that must succeed for the test to go on; the error is its last argument. */
#define DO(function, ...) \
	do { \
		sci_error_t do_error = 77; \
		function(__VA_ARGS__, &do_error); \
		if (do_error != SCI_ERR_OK) \
			give_up(__FILE__, __LINE__, #function, do_error); \
	} while (0)

/* A call that must give this error. */
#define REFUSED(want, function, ...) \
	do { \
		sci_error_t refused_error = 77; \
		function(__VA_ARGS__, &refused_error); \
		expect_error(__FILE__, __LINE__, #function, want, refused_error); \
	} while (0)

/* A handle of no meaning. */
#define GARBAGE(type) ((type)(uintptr_t)0x1234567890)

/* An initialized library with an open descriptor. */
sci_desc_t open_library(void);
unsigned int own_node(void);

/* Another process of the test, which runs `role`. What it expects counts too. */
struct peer {
	pid_t pid;
	int in, out;
	int control; /* of one in another machine, else 0 (remote.h) */
	unsigned int node; /* of one on another host, else 0 */
};
void spawn(struct peer *peer, void (*role)(struct peer *));
/* Tells the other side a number, and hears one. A side that has ended gives up the test. */
void say(struct peer *peer, unsigned int number);
unsigned int hear(struct peer *peer);
/* The node that the other side is part of. */
unsigned int node_of(const struct peer *peer);
/* Waits for the peer's end. */
void join(struct peer *peer);
/* Ends it by SIGKILL. */
void kill_peer(struct peer *peer);

/* A thread that calls `function`; returns once it sleeps there. One whose sleep is to be ended: the
   test ends if it has ended by itself. */
struct sleeper {
	pthread_t thread;
	pid_t tid;
	void (*function)(void *, sci_error_t *);
	void *argument;
	sci_error_t error;
};
void start_sleeper(struct sleeper *sleeper, void (*function)(void *, sci_error_t *),
		void *argument);
/* Waits for its end: what the function said. */
sci_error_t end_of(struct sleeper *sleeper);

/* A local segment that others can connect to, and its memory. */
void *offer(sci_desc_t sd, sci_local_segment_t *segment, sci_map_t *map, unsigned int id,
		size_t size);
/* Connects, trying again until it is there. */
void connect_to(sci_desc_t sd, sci_remote_segment_t *segment, unsigned int node, unsigned int id);

#endif
