/*
 * What processes in different machines do with SISCI segments:
 *
 *	segments receive FILE BYTES	makes a segment, and a file of what somebody puts there
 *	segments register FILE BYTES	the same, of memory of its own
 *	segments send FILE		puts a file there
 *	segments serve COUNT		makes many segments, and checks what becomes of them
 *	segments use COUNT		connects to all of them, and changes them
 *	segments hold WORD		has a segment whose pages begin with the word
 *	segments release		has it removed
 *	segments absent			finds no such segment
 *	segments scan START PAGES WORD	counts pages of physical memory that begin with the word
 *	segments scribble START PAGES	writes to each of them
 *
 * Nobody configured nodes: all are one.
 */
#define _GNU_SOURCE
#include "../sisci/check.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

#define FILE_ID 7000
#define FIRST_ID 8000
#define READY 9000
#define DONE 9001
#define MANY_MAX 4096
/* Segments are of 1 to so many pages. */
#define SIZES 8
/* Of many, every so many is looked at before all are used, and after. */
#define STRIDE 4

static void die(const char *what)
{
	perror(what);
	exit(EXIT_FAILURE);
}

static sci_local_interrupt_t interrupt(sci_desc_t sd, unsigned int number)
{
	sci_local_interrupt_t made;

	DO(SCICreateInterrupt, sd, &made, ADAPTER, &number, NO_CALLBACK, NO_ARG,
			SCI_FLAG_FIXED_INTNO);
	return made;
}

static void await(sci_local_interrupt_t interrupt)
{
	DO(SCIWaitForInterrupt, interrupt, SCI_INFINITE_TIMEOUT, NO_FLAGS);
}

/* An interrupt may be triggered before whoever waits for it has made it. */
static sci_remote_interrupt_t trigger(sci_desc_t sd, unsigned int number)
{
	sci_remote_interrupt_t to;
	sci_error_t error;

	do
		SCIConnectInterrupt(sd, &to, own_node(), ADAPTER, number, SCI_INFINITE_TIMEOUT,
				NO_FLAGS, &error);
	while (error == SCI_ERR_NO_SUCH_INTNO);
	if (error != SCI_ERR_OK)
		give_up(__FILE__, __LINE__, "SCIConnectInterrupt", error);
	DO(SCITriggerInterrupt, to, NO_FLAGS);
	return to;
}

/* Says that something is done, and hears that this was heard. A process must not end before: what
 * it has triggered by a connection that the other side has not taken in yet ends with it. */
static void tell(sci_desc_t sd, sci_local_interrupt_t own)
{
	sci_remote_interrupt_t other = trigger(sd, DONE);

	await(own);
	DO(SCITriggerInterrupt, other, NO_FLAGS);
}

/* The other side of it. */
static void confirm(sci_desc_t sd, sci_local_interrupt_t own)
{
	trigger(sd, READY);
	await(own);
}

static volatile void *map_remote(sci_remote_segment_t segment, size_t size)
{
	sci_error_t error;
	sci_map_t map;
	volatile void *memory = SCIMapRemoteSegment(segment, &map, 0, size, NULL, NO_FLAGS, &error);

	if (error != SCI_ERR_OK)
		give_up(__FILE__, __LINE__, "SCIMapRemoteSegment", error);
	return memory;
}

/* A segment of memory that the process has. */
static char *offer_own(sci_desc_t sd, sci_local_segment_t *segment, size_t bytes)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			    0);

	if (memory == MAP_FAILED)
		die("mmap");
	DO(SCICreateSegment, sd, segment, FILE_ID, bytes, NO_CALLBACK, NO_ARG, SCI_FLAG_EMPTY);
	DO(SCIRegisterSegmentMemory, memory, bytes, *segment, NO_FLAGS);
	DO(SCIPrepareSegment, *segment, ADAPTER, NO_FLAGS);
	DO(SCISetSegmentAvailable, *segment, ADAPTER, NO_FLAGS);
	return memory;
}

static void receive_file(const char *name, size_t bytes, int own)
{
	sci_desc_t sd = open_library();
	sci_local_interrupt_t done = interrupt(sd, DONE);
	sci_local_segment_t segment;
	sci_map_t map;
	char *memory = own ? offer_own(sd, &segment, bytes) :
			     offer(sd, &segment, &map, FILE_ID, bytes);
	int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	await(done);
	if (fd < 0 || write(fd, memory, bytes) != (ssize_t)bytes || close(fd))
		die(name);
	confirm(sd, done);
	if (!own)
		DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIRemoveSegment, segment, SCI_FLAG_FORCE_REMOVE);
}

static void send_file(const char *name)
{
	sci_desc_t sd = open_library();
	sci_local_interrupt_t taken = interrupt(sd, READY);
	sci_remote_segment_t segment;
	ssize_t got;
	size_t size, at = 0;
	char *memory;
	int fd = open(name, O_RDONLY);

	connect_to(sd, &segment, own_node(), FILE_ID);
	size = SCIGetRemoteSegmentSize(segment);
	memory = (char *)map_remote(segment, size);
	/* The kernel writes to the window. */
	while (fd >= 0 && at < size && (got = read(fd, memory + at, size - at)) > 0)
		at += (size_t)got;
	if (at != size)
		die(name);
	SCIStoreBarrier(NULL, NO_FLAGS);
	tell(sd, taken);
	printf("%zu bytes\n", at);
}

static size_t size_of(unsigned int i)
{
	return (i % SIZES + 1) * PAGE;
}

/* What a segment holds before and after it was used: the last word, too. */
static uint64_t word_of(unsigned int i, int used)
{
	return (used ? 0xcafe000000000000u : 0xbeef000000000000u) + i;
}

static uint64_t *last_word(void *memory, unsigned int i)
{
	return (uint64_t *)((char *)memory + size_of(i)) - 1;
}

static void serve(unsigned int count)
{
	static sci_local_segment_t segments[MANY_MAX];
	static sci_map_t maps[MANY_MAX];
	static void *memory[MANY_MAX];
	sci_desc_t sd = open_library();
	sci_local_interrupt_t done = interrupt(sd, DONE);

	for (unsigned int i = 0; i < count; i++) {
		memory[i] = offer(sd, &segments[i], &maps[i], FIRST_ID + i, size_of(i));
		*(volatile uint64_t *)memory[i] = word_of(i, 0);
		*(volatile uint64_t *)last_word(memory[i], i) = word_of(i, 0);
	}
	trigger(sd, READY);
	await(done);
	for (unsigned int i = 0; i < count; i += STRIDE) {
		EXPECT(*(volatile uint64_t *)memory[i] == word_of(i, 1));
		EXPECT(*(volatile uint64_t *)last_word(memory[i], i) == word_of(i, 1));
	}
	confirm(sd, done);
	for (unsigned int i = 0; i < count; i++) {
		DO(SCIUnmapSegment, maps[i], NO_FLAGS);
		DO(SCIRemoveSegment, segments[i], SCI_FLAG_FORCE_REMOVE);
	}
}

static void use(unsigned int count)
{
	static sci_remote_segment_t segments[MANY_MAX];
	static volatile uint64_t *memory[MANY_MAX];
	sci_desc_t sd = open_library();
	sci_local_interrupt_t ready = interrupt(sd, READY);

	await(ready);
	for (unsigned int i = 0; i < count; i++) {
		connect_to(sd, &segments[i], own_node(), FIRST_ID + i);
		memory[i] = (volatile uint64_t *)map_remote(segments[i], size_of(i));
		if (i % STRIDE == 0)
			EXPECT(*memory[i] == word_of(i, 0));
	}
	/* By now the first ones are not shown any more. */
	for (unsigned int i = 0; i < count; i++) {
		EXPECT(*memory[i] == word_of(i, 0));
		EXPECT(*(volatile uint64_t *)last_word((void *)memory[i], i) == word_of(i, 0));
		*memory[i] = word_of(i, 1);
		*(volatile uint64_t *)last_word((void *)memory[i], i) = word_of(i, 1);
	}
	tell(sd, ready);
	printf("%u segments\n", count);
}

static void hold(uint64_t word)
{
	sci_desc_t sd = open_library();
	sci_local_interrupt_t done = interrupt(sd, DONE);
	sci_local_segment_t segment;
	sci_map_t map;
	volatile uint64_t *memory = offer(sd, &segment, &map, FILE_ID, SIZES * PAGE);

	for (size_t i = 0; i < SIZES; i++)
		memory[i * (PAGE / sizeof(word))] = word;
	printf("held\n");
	await(done);
	for (size_t i = 0; i < SIZES; i++)
		EXPECT(memory[i * (PAGE / sizeof(word))] == word);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
	confirm(sd, done);
}

static void release(void)
{
	sci_desc_t sd = open_library();

	tell(sd, interrupt(sd, READY));
}

/* Who is of another tenant has no such segment. */
static void absent(void)
{
	sci_desc_t sd = open_library();
	sci_remote_segment_t segment;

	REFUSED(SCI_ERR_NO_SUCH_SEGMENT, SCIConnectSegment, sd, &segment, own_node(), FILE_ID,
			ADAPTER, NO_CALLBACK, NO_ARG, SCI_INFINITE_TIMEOUT, NO_FLAGS);
}

/* The window as a machine's own root has it: no device is asked, and no driver. */
static volatile uint64_t *physical(uint64_t start, size_t pages)
{
	int fd = open("/dev/mem", O_RDWR | O_SYNC);
	volatile uint64_t *memory;

	if (fd < 0)
		die("/dev/mem");
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)start);
	if (memory == MAP_FAILED)
		die("mmap");
	return memory;
}

static void scan(uint64_t start, size_t pages, uint64_t word)
{
	volatile uint64_t *memory = physical(start, pages);
	size_t found = 0;

	for (size_t i = 0; i < pages; i++)
		found += memory[i * (PAGE / sizeof(word))] == word;
	printf("%zu pages\n", found);
}

static void scribble(uint64_t start, size_t pages)
{
	volatile uint64_t *memory = physical(start, pages);

	for (size_t i = 0; i < pages; i++)
		memory[i * (PAGE / sizeof(*memory))] = ~(uint64_t)i;
}

int main(int argc, char **argv)
{
	unsigned long number = argc > 2 ? strtoul(argv[2], NULL, 0) : 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 4 && !strcmp(argv[1], "receive"))
		receive_file(argv[2], strtoul(argv[3], NULL, 0), 0);
	else if (argc == 4 && !strcmp(argv[1], "register"))
		receive_file(argv[2], strtoul(argv[3], NULL, 0), 1);
	else if (argc == 3 && !strcmp(argv[1], "send"))
		send_file(argv[2]);
	else if (argc == 3 && number <= MANY_MAX && !strcmp(argv[1], "serve"))
		serve((unsigned int)number);
	else if (argc == 3 && number <= MANY_MAX && !strcmp(argv[1], "use"))
		use((unsigned int)number);
	else if (argc == 3 && !strcmp(argv[1], "hold"))
		hold(strtoull(argv[2], NULL, 0));
	else if (argc == 2 && !strcmp(argv[1], "release"))
		release();
	else if (argc == 2 && !strcmp(argv[1], "absent"))
		absent();
	else if (argc == 4 && !strcmp(argv[1], "scribble"))
		scribble(strtoull(argv[2], NULL, 0), strtoul(argv[3], NULL, 0));
	else if (argc == 5 && !strcmp(argv[1], "scan"))
		scan(strtoull(argv[2], NULL, 0), strtoul(argv[3], NULL, 0),
				strtoull(argv[4], NULL, 0));
	else
		return 2;
	return failures_so_far() ? EXIT_FAILURE : EXIT_SUCCESS;
}
