/* What is shared by who calls and what is called: see ioctls.c. */
#ifndef IOCTLS_H
#define IOCTLS_H

#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAGE 4096ul
/* Descriptors of each kind that a process has. */
#define SLOTS 6
#define CALLS_MAX 64

enum kind {
	DEVICE,
	SEGMENT,
	BELL, /* of the driver's */
	EVENT, /* eventfd */
	PIPE,
	KINDS
};

struct call {
	const char *name;
	/* Negative if it failed. */
	long (*function)(void);
};

/* calls.c: what is called */
extern const struct call calls[];
extern const size_t call_count;
/* What most calls need: an open device, segments. */
void begin_with_some(void);
/* Makes this process a client of the broker, by SISCI; its descriptors are called as well. */
void join_broker(void);

/* ioctls.c */
uint64_t random_number(void);
uint64_t below(uint64_t limit);
/* One that there may be; now and then of another kind. */
int some_fd(enum kind kind);
/* Keeps a descriptor in the place of another, which is closed. */
long keep_fd(enum kind kind, int fd);
long drop_fd(enum kind kind);
/* Touches each page; false if that is a fault. */
bool touch(void *at, size_t bytes, bool writing);
long begin_child(void);

#endif
