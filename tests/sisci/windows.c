/* Maps of another host's segment: what is stored to them and loaded from them. */
#include "far.h"

#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

/* Where nobody maps anything unasked. */
#define FIXED ((void *)0x200000000000)

/* Stores and loads of a map, of each width, beside the same in memory of our own. */
static void stores(void)
{
	static unsigned char model[SIZE] __attribute__((aligned(PAGE)));
	static unsigned char back[SIZE];
	sci_remote_segment_t remote;
	sci_sequence_t sequence;
	sci_error_t error;
	struct peer peer;
	unsigned char *there;
	sci_map_t map;

	begin(&peer, &remote);
	map = map_all(remote, &there);
	DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	for (unsigned int i = 0; i < ROUNDS; i++) {
		unsigned int at = i * 331 % (SIZE - 16);

		for (int which = 0; which < 2; which++) {
			unsigned char *to = (which ? model : there) + at;

			switch (i % 6) {
			case 0: *(volatile unsigned char *)to = (unsigned char)i; break;
			case 1: *(volatile unsigned short *)to = (unsigned short)(i * 3); break;
			case 2: *(volatile unsigned int *)to = i * 5; break;
			case 3: *(volatile unsigned long long *)to = i * 7ull << 20; break;
			case 4: *(volatile unsigned int *)to += i; break;
			default: memset(to, (int)i, 11); break;
			}
		}
	}
	SCIFlush(sequence, NO_FLAGS);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	say(&peer, SUM);
	EXPECT(hear(&peer) == sum(model, SIZE));
	/* Dense: pages are opened. */
	for (unsigned int i = 0; i < SIZE; i += 4)
		*(volatile unsigned int *)(there + i) = *(unsigned int *)(model + i) = i ^ 0x55aa;
	for (unsigned int i = 0; i < SIZE; i += 8 * PAGE)
		memcpy(there + i + 3, model + i + 1, 2 * PAGE);
	for (unsigned int i = 0; i < SIZE; i += 8 * PAGE)
		memmove(model + i + 3, model + i + 1, 2 * PAGE);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	say(&peer, SUM);
	EXPECT(hear(&peer) == sum(model, SIZE));
	/* What the owner stores is loaded after a sync point, by single loads and by a copy. */
	say(&peer, FILL);
	hear(&peer);
	SCIFlush(sequence, NO_FLAGS);
	for (unsigned int i = 0; i < SIZE; i += 997)
		EXPECT(*(volatile unsigned char *)(there + i) == pattern(i, 3));
	memcpy(back, there, SIZE);
	for (unsigned int i = 0; i < SIZE; i++)
		if (back[i] != pattern(i, 3)) {
			EXPECT(back[i] == pattern(i, 3));
			break;
		}
	DO(SCIRemoveSequence, sequence, NO_FLAGS);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	end(&peer);
}

/* What is stored before a map goes has arrived when the segment is disconnected. */
static void last_stores(void)
{
	static unsigned char model[SIZE];
	sci_remote_segment_t remote;
	struct peer peer;
	unsigned char *there;
	sci_map_t map;

	begin(&peer, &remote);
	map = map_all(remote, &there);
	for (unsigned int i = 0; i < 3 * PAGE; i++)
		*(volatile unsigned char *)(there + i) = model[i] = (unsigned char)(i * 13);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	say(&peer, SUM);
	EXPECT(hear(&peer) == sum(model, SIZE));
	end(&peer);
}

/* The writer stores the same flag again and again, which its reader resets; it never flushes. */
static void mailbox(void)
{
	const char *given = getenv("CHECK_LETTERS");
	unsigned int letters = given ? (unsigned int)atoi(given) : LETTERS;
	sci_remote_segment_t remote;
	volatile unsigned int *box;
	struct peer peer;
	unsigned char *there;

	begin(&peer, &remote);
	map_all(remote, &there);
	box = (volatile unsigned int *)there;
	say(&peer, MAILBOX);
	say(&peer, letters);
	for (unsigned int i = 0; i < letters; i++) {
		box[1] = i;
		box[0] = 1;
		while (box[2] != i + 1)
			;
	}
	EXPECT(hear(&peer) == letters);
	end(&peer);
}

static sigjmp_buf refused_store;

static void refuse_store(int number)
{
	(void)number;
	siglongjmp(refused_store, 1);
}

/* A map for reading refuses stores as memory does, and the program's own handler sees that; a part
 * begins where it was asked for. */
static void parts(void)
{
	sci_remote_segment_t remote;
	volatile int refusals = 0;
	sci_error_t error;
	struct peer peer;
	unsigned char *there;
	sci_map_t part;

	begin(&peer, &remote);
	EXPECT(signal(SIGSEGV, refuse_store) != SIG_ERR);
	say(&peer, FILL);
	hear(&peer);
	there = (unsigned char *)SCIMapRemoteSegment(remote, &part, 2 * PAGE, PAGE, NULL,
			SCI_FLAG_READONLY_MAP, &error);
	EXPECT(error == SCI_ERR_OK);
	EXPECT(there[5] == pattern(2 * PAGE + 5, 3));
	if (sigsetjmp(refused_store, 1) == 0)
		*(volatile unsigned char *)there = 1;
	else
		refusals++;
	EXPECT(refusals == 1);
	EXPECT(there[0] == pattern(2 * PAGE, 3));
	end(&peer);
}

static int handled;
/* An address where nothing is mapped. The compiler is not to know it. */
static volatile uintptr_t wild = 0x58;

static void note_wild(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	if ((uintptr_t)info->si_addr == wild)
		handled++;
	siglongjmp(refused_store, 1);
}

/* A store to nowhere, which is the program's own fault. */
static void go_wild(void)
{
	if (sigsetjmp(refused_store, 1) == 0)
		*(volatile unsigned char *)wild = 1;
}

/* Handlers that the program installs while it has a map: they have its own faults, and no others;
 * and what it is told of them is what it asked for. */
static void handlers(void)
{
	struct sigaction action = { .sa_sigaction = note_wild, .sa_flags = SA_SIGINFO }, old;
	sci_remote_segment_t remote;
	struct peer peer;
	unsigned char *there;
	sci_map_t map;
	int status;

	EXPECT(signal(SIGSEGV, SIG_DFL) != SIG_ERR);
	begin(&peer, &remote);
	map = map_all(remote, &there);
	EXPECT(sigaction(SIGSEGV, NULL, &old) == 0 && old.sa_handler == SIG_DFL);
	EXPECT(sigaction(SIGSEGV, &action, &old) == 0 && old.sa_handler == SIG_DFL);
	EXPECT(sigaction(SIGSEGV, NULL, &old) == 0 && old.sa_sigaction == note_wild);
	*(volatile unsigned char *)there = 17;
	EXPECT(*(volatile unsigned char *)there == 17);
	go_wild();
	EXPECT(handled == 1);
	EXPECT((void *)signal(SIGSEGV, refuse_store) == (void *)note_wild);
	*(volatile unsigned int *)(there + 64) = 18;
	go_wild();
	EXPECT(handled == 1);
	EXPECT(*(volatile unsigned int *)(there + 64) == 18);
	EXPECT(signal(SIGSEGV, SIG_DFL) == refuse_store);
	*(volatile unsigned short *)(there + 128) = 19;
	EXPECT(*(volatile unsigned short *)(there + 128) == 19);
	/* By default it ends a process, and a child is one of its own. */
	if (fork() == 0) {
		signal(SIGSEGV, SIG_DFL);
		*(volatile unsigned char *)wild = 1;
		_exit(0);
	}
	EXPECT(wait(&status) > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	end(&peer);
}

/* Each function after which loads are fetched anew; and the map lies where it was asked for. */
static void synchronize(int which, sci_sequence_t sequence, sci_map_t map, unsigned char *there)
{
	if (which == 0)
		SCIFlush(sequence, NO_FLAGS);
	else if (which == 1)
		SCIStoreBarrier(sequence, NO_FLAGS);
	else
		DO(SCICacheSync, map, there, SIZE, SCI_FLAG_CACHE_INVALIDATE);
}

static void barriers(void)
{
	static unsigned char zeros[SIZE];
	sci_remote_segment_t remote;
	sci_sequence_t sequence;
	sci_error_t error;
	unsigned char *there;
	struct peer peer;
	sci_map_t map;

	begin(&peer, &remote);
	there = (unsigned char *)SCIMapRemoteSegment(remote, &map, 0, SIZE, FIXED,
			SCI_FLAG_FIXED_MAP_ADDR, &error);
	EXPECT(error == SCI_ERR_OK && there == FIXED);
	DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	for (int which = 0; which < 3; which++) {
		for (unsigned int i = 0; i < SIZE; i += 8)
			*(volatile unsigned long long *)(there + i) = 0;
		EXPECT(SCICheckSequence(sequence, SCI_FLAG_NO_FLUSH, &error) == SCI_SEQ_OK);
		synchronize(which, sequence, map, there);
		EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
		say(&peer, SUM);
		EXPECT(hear(&peer) == sum(zeros, SIZE));
		for (unsigned int i = 0; i < SIZE; i += 64)
			EXPECT(*(volatile unsigned char *)(there + i) == 0);
		say(&peer, FILL);
		hear(&peer);
		synchronize(which, sequence, map, there);
		for (unsigned int i = 0; i < SIZE; i += 997)
			EXPECT(*(volatile unsigned char *)(there + i) == pattern(i, 3));
	}
	end(&peer);
}

int main(void)
{
	static const struct test tests[] = {
		{"stores to another host's segment, and loads", stores},
		{"stores before a map of another host's segment goes", last_stores},
		{"a mailbox on another host", mailbox},
		{"a map for reading, of a part", parts},
		{"handlers that are installed after a map was made", handlers},
		{"a map at a fixed address, and barriers", barriers},
	};

	return run_tests(tests, COUNT(tests));
}
