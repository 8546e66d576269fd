/* What the files of the actor share. */
#ifndef POOL_H
#define POOL_H

#include <causeway.h>
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLOTS 256
#define WORDS 12

struct slot {
	cw_block *block;
	cw_buffer *buffer;
	void *address;
};

struct touch {
	volatile uint64_t *at;
	uint64_t value;
};

extern cw_lib *lib;
extern cw_pool *pool;
extern cw_dma *dma;
extern struct slot slots[SLOTS];

struct slot *slot_of(const char *word);
int free_slot(void);
void answer(int result);
void answer_slot(int result, int slot);
int guard(void (*function)(void *), void *argument);

/* Families of commands: whether the first word is one of theirs. */
int locks(char **words);
int transfers(char **words);
int dma_calls(char **words);
int evil(char **words);
int misuse(char **words);

/* Counts an answer that is not the expected one, and says so on standard error. */
void want(const char *file, int line, const char *call, int64_t expected, int64_t found);
#define WANT(expected, call) want(__FILE__, __LINE__, #call, expected, (int64_t)(call))

/* What functions of locks refuse. */
void misuse_locks(void);

/* What threads do that are cancelled. */
void cancelled_threads(void);

/* What the library's threads do, and what becomes of them where there can be no more; before there
   are any but the session's. */
void threads(void);

/* A forked child must find nothing of its parent's, and can open the library for itself. */
int in_child(struct slot *slot);

/* Ends the library's connections to the broker behind its back: how many there were. */
int cut(void);

/* Adopts and frees the blocks of this user that nobody owns: how many, or what failed. */
int orphans(void);

/* Everything an honest program does with blocks, so many times: 0, or what failed. */
int churn(uint64_t rounds);

#endif
