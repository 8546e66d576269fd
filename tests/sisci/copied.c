/*
 * The C library's copy functions on a software window, the map of a group of reflective memory: the
 * library has them in front of the C library's, and no access faults. That is seen by blocking
 * SIGSEGV, with which a fault ends the process: "copied fault" shows that it does.
 */
#include "check.h"

#include <signal.h>
#include <unistd.h>

#define GROUP 11
#define SIZE (48 * PAGE)
#define NOBODY NO_CALLBACK, NO_ARG
#define ROUNDS 400

/* As a program that was compiled with _FORTIFY_SOURCE calls them. */
void *__memcpy_chk(void *to, const void *from, size_t len, size_t room);
void *__memmove_chk(void *to, const void *from, size_t len, size_t room);
void *__memset_chk(void *to, int value, size_t len, size_t room);

static unsigned char *own, *all;
static unsigned char model[SIZE], source[SIZE], back[SIZE];

static void map_group(void)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_remote_segment_t remote;
	sci_map_t map;
	sci_error_t error;

	DO(SCICreateSegment, sd, &segment, GROUP, SIZE, NOBODY, SCI_FLAG_BROADCAST);
	DO(SCIPrepareSegment, segment, ADAPTER, SCI_FLAG_BROADCAST);
	own = (unsigned char *)SCIMapLocalSegment(segment, &map, 0, SIZE, NULL, NO_FLAGS, &error);
	EXPECT(error == SCI_ERR_OK);
	DO(SCISetSegmentAvailable, segment, ADAPTER, NO_FLAGS);
	DO(SCIConnectSegment, sd, &remote, DIS_BROADCAST_NODEID_GROUP_ALL, GROUP, ADAPTER, NOBODY,
			LONG_MS, SCI_FLAG_BROADCAST);
	all = (unsigned char *)SCIMapRemoteSegment(remote, &map, 0, SIZE, NULL,
			SCI_FLAG_BROADCAST, &error);
	EXPECT(error == SCI_ERR_OK);
	for (size_t i = 0; i < SIZE; i++)
		source[i] = (unsigned char)(i * 7 + i / PAGE);
}

/* Through pointers that the compiler does not know, so that each call is one. */
static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static void *(*volatile move)(void *, const void *, size_t) = memmove;
static void *(*volatile fill)(void *, int, size_t) = memset;

static void block_faults(void)
{
	sigset_t faults;

	sigemptyset(&faults);
	sigaddset(&faults, SIGSEGV);
	EXPECT(sigprocmask(SIG_BLOCK, &faults, NULL) == 0);
}

static void same_as_memory(void)
{
	map_group();
	block_faults();
	for (unsigned int i = 0; i < ROUNDS; i++) {
		size_t len = i < 300 ? i : i * 331, to = i * 1013 % PAGE, from = i * 577 % PAGE;

		for (int which = 0; which < 2; which++) {
			unsigned char *base = which ? model : all, *at = base + to;
			void *end;

			switch (i % 8) {
			case 0: end = copy(at, source + from, len); break;
			case 1: end = move(at, source + from, len); break;
			case 2: end = fill(at, (int)i, len); break;
			case 3: end = __memcpy_chk(at, source + from, len, SIZE); break;
			case 4: end = __memmove_chk(at, source + from, len, SIZE); break;
			case 5: end = __memset_chk(at, (int)i, len, SIZE); break;
			/* Both ends in the window, overlapping, both ways. */
			case 6: end = move(at + 3, at, len); at += 3; break;
			default: end = move(at, at + 5, len); break;
			}
			EXPECT(end == at);
		}
		EXPECT(copy(back, all + from, len) == back);
		EXPECT(memcmp(back, model + from, len) == 0);
	}
	SCIFlush(NULL, NO_FLAGS);
	EXPECT(memcmp(own, model, SIZE) == 0);
}

/* Memory that is no window's is copied as ever, also while there is one. */
static void other_memory(void)
{
	map_group();
	for (unsigned int i = 0; i < ROUNDS; i++) {
		size_t len = i * 331 % (SIZE / 2);

		EXPECT(copy(model + i, source, len) == model + i);
		EXPECT(memcmp(model + i, source, len) == 0);
		EXPECT(move(model + i + 9, model + i, len) == model + i + 9);
		EXPECT(memcmp(model + i + 9, source, len) == 0);
		EXPECT(fill(model, (int)i, len) == model);
		EXPECT(len == 0 || (model[0] == (unsigned char)i && model[len - 1] == model[0]));
	}
}

static void partly(void)
{
	map_group();
	EXPECT(copy(all + SIZE - 100, source, 100) == all + SIZE - 100);
	EXPECT(memcmp(own + SIZE - 100, source, 100) == 0);
	EXPECT(fill(all, 9, 0) == all && own[0] == 0);
	EXPECT(copy(all + 1, source, 1) == all + 1 && own[1] == source[0] && own[2] == 0);
}

int main(int argc, char *argv[])
{
	static const struct test tests[] = {
		{"copied: as in memory, without a fault", same_as_memory},
		{"copied: other memory", other_memory},
		{"copied: at the edges", partly},
	};

	if (argc > 1 && !strcmp(argv[1], "fault")) {
		map_group();
		block_faults();
		copy(all, source, PAGE);
		return failures_so_far() != 0;
	}
	return run_tests(tests, COUNT(tests));
}
