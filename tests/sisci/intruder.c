/*
 * A hostile process of another user, which connects honestly and then attacks by all it has:
 *
 *	intruder ID PRIVATE_ID
 *
 * ID is the segment and the interrupts of a victim's, to which anybody may connect; PRIVATE_ID a
 * segment to which nobody may. It takes commands, a word a line, and says "did WORD COUNT": how
 * much of what must not work did.
 */
#define _GNU_SOURCE
#include "check.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define GUESSES 2000
/* Beyond every limit. */
#define FLOOD 20000
#define SCRIBBLES 20
#define FLOOD_BYTES 4000

static sci_desc_t sd;
static unsigned int id, private_id, node;
static sci_remote_interrupt_t interrupt;
static sci_remote_data_interrupt_t data_interrupt;
static uint64_t state = 88172645463325252ull;

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

/* What a name of node, id or number gives: a connection to a segment or an interrupt. */
static int reaches(unsigned int at, unsigned int number)
{
	sci_remote_segment_t segment;
	sci_local_segment_t attached;
	sci_remote_interrupt_t plain;
	sci_remote_data_interrupt_t data;
	sci_error_t error;
	int got;

	SCIConnectSegment(sd, &segment, at, number, ADAPTER, NO_CALLBACK, NO_ARG, 0, NO_FLAGS,
			&error);
	got = error == SCI_ERR_OK;
	SCIAttachLocalSegment(sd, &attached, number, NULL, NO_CALLBACK, NO_ARG, NO_FLAGS, &error);
	got += error == SCI_ERR_OK;
	SCIConnectInterrupt(sd, &plain, at, ADAPTER, number, 0, NO_FLAGS, &error);
	got += error == SCI_ERR_OK;
	SCIConnectDataInterrupt(sd, &data, at, ADAPTER, number, 0, NO_FLAGS, &error);
	return got + (error == SCI_ERR_OK);
}

static int guess(void)
{
	int got = reaches(node, private_id);
	sci_local_segment_t attached;
	sci_error_t error;

	SCIAttachLocalSegment(sd, &attached, id, NULL, NO_CALLBACK, NO_ARG, NO_FLAGS, &error);
	got += error == SCI_ERR_OK;
	for (int i = 0; i < GUESSES; i++)
		got += reaches(i % 2 ? node : (unsigned int)next() | 0x100, (unsigned int)next());
	return got;
}

/* Calls `act` with each descriptor whose name holds `what`. Returns the sum. */
static int each(const char *what, int (*act)(int fd, size_t size))
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	int sum = 0, seen = 0;

	while ((entry = readdir(folder))) {
		char path[300], target[256];
		struct stat about;
		ssize_t length;

		snprintf(path, sizeof(path), "/proc/self/fd/%s", entry->d_name);
		length = readlink(path, target, sizeof(target) - 1);
		if (length < 0 || fstat(atoi(entry->d_name), &about))
			continue;
		target[length] = 0;
		if (strstr(target, what)) {
			seen++;
			sum += act(atoi(entry->d_name), (size_t)about.st_size);
		}
	}
	closedir(folder);
	/* None to try it on is no success. */
	return seen ? sum : -1;
}

/* Rubbish into what may be written; ways to write what may be read only. */
static int scribble_one(int fd, size_t size)
{
	uint64_t *words;
	int got = 0;

	if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) {
		char path[64];

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		got += open(path, O_RDWR) >= 0;
		got += fchmod(fd, 0666) == 0;
		got += mmap(NULL, size, PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED;
		return got;
	}
	got += ftruncate(fd, 0) == 0;
	words = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (words == MAP_FAILED)
		return got;
	for (size_t i = 0; i < size / sizeof(*words); i++)
		__atomic_store_n(&words[i], next(), __ATOMIC_RELAXED);
	munmap(words, size);
	return got;
}

/* Cells are mapped, and their descriptors closed. Returns how many there are. */
static int scribble_cells(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	int seen = 0;

	while (fgets(line, sizeof(line), maps)) {
		unsigned long from, to;

		if (!strstr(line, "memfd:causeway-cell") ||
				sscanf(line, "%lx-%lx rw", &from, &to) != 2)
			continue;
		for (uint64_t *word = (uint64_t *)from; word < (uint64_t *)to; word++)
			__atomic_store_n(word, next(), __ATOMIC_RELAXED);
		seen++;
	}
	fclose(maps);
	return seen;
}

/* Segments are left alone: a third party is connected to this one, and was granted it too. */
static int scribble(void)
{
	for (int i = 0; i < SCRIBBLES; i++)
		if (scribble_cells() < 2)
			return -1;
	return each("memfd:causeway-life", scribble_one);
}

static int fill_one(int fd, size_t size)
{
	uint64_t most = UINT64_MAX - 1;

	(void)size;
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	(void)!write(fd, &most, sizeof(most));
	return 0;
}

static int trigger(void)
{
	static char data[FLOOD_BYTES];
	sci_error_t error;

	for (int i = 0; i < FLOOD; i++) {
		SCITriggerInterrupt(interrupt, NO_FLAGS, &error);
		SCITriggerDataInterrupt(data_interrupt, data, sizeof(data), NO_FLAGS, &error);
	}
	return 0;
}

/* As many connections as it is given: whether there is no end to them. */
static int flood(void)
{
	sci_remote_segment_t segment;
	sci_remote_interrupt_t plain;
	sci_error_t first = SCI_ERR_OK, second = SCI_ERR_OK;
	int i;

	for (i = 0; i < FLOOD && (first == SCI_ERR_OK || second == SCI_ERR_OK); i++) {
		if (first == SCI_ERR_OK)
			SCIConnectSegment(sd, &segment, node, id, ADAPTER, NO_CALLBACK, NO_ARG, 0,
					NO_FLAGS, &first);
		if (second == SCI_ERR_OK)
			SCIConnectInterrupt(sd, &plain, node, ADAPTER, id, 0, NO_FLAGS, &second);
	}
	return i == FLOOD;
}

/* After a restart of the broker: another's segment and interrupt as one's own. */
static int claim(void)
{
	sci_local_segment_t segment;
	sci_local_interrupt_t taken;
	unsigned int number = id;
	sci_error_t error;
	int got;

	SCICreateSegment(sd, &segment, id, PAGE, NO_CALLBACK, NO_ARG, NO_FLAGS, &error);
	got = error == SCI_ERR_OK;
	SCICreateInterrupt(sd, &taken, ADAPTER, &number, NO_CALLBACK, NO_ARG, SCI_FLAG_FIXED_INTNO,
			&error);
	return got + (error == SCI_ERR_OK) + reaches(node, private_id);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *word;
		int (*run)(void);
	} attacks[] = {{"guess", guess}, {"scribble", scribble}, {"trigger", trigger},
			{"flood", flood}, {"claim", claim}};
	sci_remote_segment_t segment;
	char line[64];

	if (argc != 3)
		return 2;
	id = (unsigned int)strtoul(argv[1], NULL, 0);
	private_id = (unsigned int)strtoul(argv[2], NULL, 0);
	sd = open_library();
	node = own_node();
	connect_to(sd, &segment, node, id);
	DO(SCIConnectInterrupt, sd, &interrupt, node, ADAPTER, id, LONG_MS, NO_FLAGS);
	DO(SCIConnectDataInterrupt, sd, &data_interrupt, node, ADAPTER, id, LONG_MS, NO_FLAGS);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("ready\n");
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "fill"))
			printf("did fill %d\n", each("eventfd", fill_one));
		for (size_t i = 0; i < COUNT(attacks); i++)
			if (!strcmp(line, attacks[i].word))
				printf("did %s %d\n", line, attacks[i].run());
	}
	return 0;
}
