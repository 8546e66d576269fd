/*
 * What a guest's kernel does with memory of the window, and what the driver does with private
 * memory that is moved to it. Each case is a process of its own, and prints a line:
 *
 *	home BLOCKDEVICE	all cases
 *	home --outlive FILE	moves memory, and looks at it again when there is a file
 *
 * A segment of CAUSEWAY_CREATE is small: memory that is at home in it lies at low addresses.
 */
#define _GNU_SOURCE
#include "../../guest/driver/causeway_ioctl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define SEGMENT (64ul << 20)
/* Where memory is that is moved, and how much: a request's most. */
#define HOME 0x1000000ul
#define BYTES (1ul << 20)
#define WRITERS 2
#define ROUNDS 40

static int device, segment;
static const char *disk;

#define CHECK(condition) check(condition, #condition, __LINE__)

static void check(bool holds, const char *what, int line)
{
	if (holds)
		return;
	printf("line %d: %s: %s\n", line, what, strerror(errno));
	exit(EXIT_FAILURE);
}

static void open_segment(void)
{
	struct causeway_creation creation = { .length = SEGMENT };

	device = open("/dev/causeway", O_RDWR | O_CLOEXEC);
	CHECK(device >= 0);
	CHECK(ioctl(device, CAUSEWAY_CREATE, &creation) == 0);
	segment = creation.fd;
}

static int request(unsigned long number, uint64_t start, uint64_t length)
{
	struct causeway_span span = { start, length };

	return ioctl(segment, number, &span);
}

static uint64_t *private_memory(void)
{
	uint64_t *at = mmap((void *)HOME, BYTES, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	CHECK(at == (void *)HOME);
	for (size_t i = 0; i < BYTES / sizeof(*at); i++)
		at[i] = i * 3 + 1;
	return at;
}

static bool is_whole(const uint64_t *at)
{
	for (size_t i = 0; i < BYTES / sizeof(*at); i++)
		if (at[i] != i * 3 + 1)
			return false;
	return true;
}

static uint64_t *view(off_t offset, size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment, offset);

	CHECK(at != MAP_FAILED);
	return at;
}

/* Direct writing from and reading into a segment. */
static void direct(void)
{
	uint64_t *from = view(0, BYTES), *to = view(BYTES, BYTES);
	int fd = open(disk, O_RDWR | O_DIRECT);

	CHECK(fd >= 0);
	for (size_t i = 0; i < BYTES / sizeof(*from); i++)
		from[i] = i * 3 + 1;
	CHECK(pwrite(fd, from, BYTES, 0) == BYTES);
	CHECK(pread(fd, to, BYTES, 0) == BYTES);
	CHECK(is_whole(to));
}

static void splice_pages(void)
{
	uint64_t *from = view(0, PAGE), to[8];
	struct iovec iov = { from, PAGE };
	int ends[2];

	from[3] = 77;
	CHECK(pipe(ends) == 0);
	CHECK(vmsplice(ends[1], &iov, 1, 0) == PAGE);
	/* The page itself is in the pipe. */
	from[4] = 78;
	CHECK(read(ends[0], to, sizeof(to)) == sizeof(to) && to[3] == 77 && to[4] == 78);
}

/* Two processes that share a word of a segment. */
static void futexes(void)
{
	uint32_t *word = (uint32_t *)view(0, PAGE);
	struct timespec limit = { .tv_sec = 20 };
	pid_t child = fork();
	int status;

	if (!child) {
		/* Not inherited words: the child's own mapping of the file. */
		uint32_t *mine = (uint32_t *)view(0, PAGE);

		while (!__atomic_load_n(mine, __ATOMIC_ACQUIRE))
			;
		usleep(100000);
		__atomic_store_n(mine, 2, __ATOMIC_RELEASE);
		_exit(syscall(SYS_futex, mine, FUTEX_WAKE, 1, NULL, NULL, 0) == 1 ? 0 : 1);
	}
	__atomic_store_n(word, 1, __ATOMIC_RELEASE);
	while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == 1)
		CHECK(syscall(SYS_futex, word, FUTEX_WAIT, 1, &limit, NULL, 0) == 0 ||
		      errno == EAGAIN);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Contents stay, and what is stored is in the segment. */
static void moved(void)
{
	uint64_t *at = private_memory(), *seen, back[2];

	CHECK(request(CAUSEWAY_HOME, HOME, BYTES) == 0);
	CHECK(is_whole(at));
	seen = view(HOME, BYTES);
	CHECK(is_whole(seen));
	at[5] = 99;
	CHECK(seen[5] == 99);
	seen[6] = 98;
	CHECK(at[6] == 98);
	CHECK(pread(segment, back, sizeof(back), HOME + 5 * sizeof(*at)) == sizeof(back));
	CHECK(back[0] == 99 && back[1] == 98);
	CHECK(request(CAUSEWAY_HOME, HOME, BYTES) == -1 && errno == EINVAL);
}

struct writer {
	pthread_t thread;
	uint64_t *at;
	uint64_t count;
};

static bool stop;

/* Adds to words all over the memory, whatever happens to it. */
static void *write_on(void *argument)
{
	struct writer *writer = argument;

	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		for (size_t page = 0; page < BYTES / PAGE; page += 7)
			writer->at[page * (PAGE / sizeof(*writer->at))]++;
		writer->count++;
	}
	return NULL;
}

/* Back to private memory, as the library does it. */
static void take_back(void)
{
	void *copy = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(copy != MAP_FAILED);
	CHECK(request(CAUSEWAY_HOLD, HOME, BYTES) == 0);
	CHECK(pread(segment, copy, BYTES, HOME) == BYTES);
	CHECK(mremap(copy, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)HOME) ==
	      (void *)HOME);
	CHECK(ioctl(segment, CAUSEWAY_LET_GO) == 0);
}

/* Threads write while memory is moved to and fro: nothing of it is lost. */
static void written(void)
{
	uint64_t *at = private_memory();
	struct writer writers[WRITERS];

	for (int i = 0; i < WRITERS; i++) {
		/* Each its own words. */
		writers[i] = (struct writer){ .at = at + i };
		for (size_t page = 0; page < BYTES / PAGE; page += 7)
			writers[i].at[page * (PAGE / sizeof(*at))] = 0;
		CHECK(pthread_create(&writers[i].thread, NULL, write_on, &writers[i]) == 0);
	}
	for (int round = 0; round < ROUNDS; round++) {
		usleep(1000);
		CHECK(request(CAUSEWAY_HOME, HOME, BYTES) == 0);
		usleep(1000);
		take_back();
		CHECK(request(CAUSEWAY_PUNCH, HOME, BYTES) == 0);
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	for (int i = 0; i < WRITERS; i++) {
		CHECK(pthread_join(writers[i].thread, NULL) == 0 && writers[i].count > ROUNDS);
		for (size_t page = 0; page < BYTES / PAGE; page += 7)
			CHECK(writers[i].at[page * (PAGE / sizeof(*at))] == writers[i].count);
	}
}

/* What an io_uring has registered is pinned. */
static void pinned(void)
{
	struct io_uring_params parameters = { 0 };
	uint64_t *at = private_memory();
	struct iovec iov = { (char *)at + 5 * PAGE, PAGE };
	int ring = syscall(SYS_io_uring_setup, 4, &parameters);

	CHECK(ring >= 0);
	CHECK(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &iov, 1) == 0);
	CHECK(request(CAUSEWAY_HOME, HOME, BYTES) == -1 && errno == EBUSY);
	CHECK(is_whole(at));
	CHECK(syscall(SYS_io_uring_register, ring, IORING_UNREGISTER_BUFFERS, NULL, 0) == 0);
	CHECK(request(CAUSEWAY_HOME, HOME, BYTES) == 0 && is_whole(at));
	CHECK(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &iov, 1) == 0);
	CHECK(request(CAUSEWAY_HOLD, HOME, BYTES) == -1 && errno == EBUSY);
	CHECK(is_whole(at));
	/* Its end is not waited for by who closes the segment: the host is told later. */
}

/* Given up, it is zeros, here and in the segment; unmapped, it stays in the segment. */
static void given_up(void)
{
	uint64_t *at = private_memory(), *seen;
	size_t page = PAGE / sizeof(*at);

	CHECK(request(CAUSEWAY_HOME, HOME, BYTES) == 0);
	seen = view(HOME, BYTES);
	CHECK(madvise(at + page, 2 * PAGE, MADV_DONTNEED) == 0);
	CHECK(at[0] == 1 && at[page] == 0 && at[3 * page - 1] == 0 && at[3 * page] != 0);
	CHECK(seen[page] == 0 && seen[3 * page] == at[3 * page]);
	/* Of another mapping of the file nothing is. */
	CHECK(madvise(seen, PAGE, MADV_DONTNEED) == 0 && seen[0] == 1);
	CHECK(munmap(at, PAGE) == 0);
	CHECK(seen[0] == 1);
	CHECK(mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		   0) == at && at[0] == 0);
	CHECK(madvise(at, PAGE, MADV_DONTNEED) == 0 && seen[0] == 1);
	CHECK(mprotect(at + 4 * page, PAGE, PROT_READ) == 0 && at[4 * page] != 0);
	CHECK(mremap(at + 8 * page, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
		     (void *)(HOME + 2 * BYTES)) == MAP_FAILED);
	CHECK(at[8 * page] == 8 * page * 3 + 1);
	CHECK(madvise(at + 8 * page, PAGE, MADV_DONTNEED) == 0 && at[8 * page] == 0);
}

static sigjmp_buf fault;

static void faulted(int signal)
{
	siglongjmp(fault, signal);
}

/* A child has none of it, and does nothing to its parent's. */
static void forked(void)
{
	volatile uint64_t *at = private_memory();
	int status;
	pid_t child;

	CHECK(request(CAUSEWAY_HOME, HOME, BYTES) == 0);
	child = fork();
	if (!child) {
		signal(SIGSEGV, faulted);
		if (sigsetjmp(fault, 1) == SIGSEGV)
			_exit(request(CAUSEWAY_HOME, HOME, BYTES) == -1 ? 0 : 2);
		(void)at[0];
		_exit(1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(is_whole((uint64_t *)at));
	/* What the parent gives up is emptied, also after a child has gone that had it as well.
	 * Newer kernels than 6.12 refuse to give a driver's memory to children. */
	if (madvise((void *)at, BYTES, MADV_DOFORK)) {
		CHECK(errno == EINVAL);
		return;
	}
	child = fork();
	if (!child)
		_exit(is_whole((uint64_t *)at) ? 0 : 1);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(madvise((void *)at, PAGE, MADV_DONTNEED) == 0 && at[0] == 0);
}

/* What is no private memory is refused, and stays as it is. */
static void refused(void)
{
	uint64_t *at = private_memory();
	int key;

	CHECK(mprotect(at, PAGE, PROT_READ) == 0);
	CHECK(request(CAUSEWAY_HOME, HOME, BYTES) == -1 && errno == EINVAL);
	CHECK(mprotect(at, PAGE, PROT_READ | PROT_WRITE) == 0);
	CHECK(request(CAUSEWAY_HOME, HOME, 2 * BYTES) == -1 && errno == EINVAL);
	CHECK(request(CAUSEWAY_HOME, HOME + PAGE, BYTES) == -1 && errno == EINVAL);
	CHECK(request(CAUSEWAY_HOME, HOME + 1, PAGE) == -1 && errno == EINVAL);
	CHECK(request(CAUSEWAY_HOME, SEGMENT, PAGE) == -1 && errno == EINVAL);
	CHECK(mlock(at, PAGE) == 0);
	CHECK(request(CAUSEWAY_HOME, HOME, PAGE) == -1 && errno == EINVAL);
	CHECK(munlock(at, PAGE) == 0);
	/* In the segment it would be under no key. */
	key = pkey_alloc(0, 0);
	CHECK(key > 0 || errno == ENOSPC);
	if (key > 0) {
		CHECK(pkey_mprotect(at, PAGE, PROT_READ | PROT_WRITE, key) == 0);
		CHECK(request(CAUSEWAY_HOME, HOME, PAGE) == -1 && errno == EINVAL);
		CHECK(pkey_mprotect(at, PAGE, PROT_READ | PROT_WRITE, 0) == 0);
	}
	CHECK(munmap(at + BYTES / 16, PAGE) == 0);
	CHECK(request(CAUSEWAY_HOME, HOME, BYTES) == -1 && errno == EINVAL);
	CHECK(request(CAUSEWAY_PUNCH, SEGMENT - PAGE, 2 * PAGE) == -1 && errno == EINVAL);
	CHECK(request(CAUSEWAY_HOME, HOME, PAGE) == 0 && at[1] == 4);
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{ "direct", direct },
	{ "vmsplice", splice_pages },
	{ "futexes", futexes },
	{ "moved", moved },
	{ "written", written },
	{ "pinned", pinned },
	{ "given up", given_up },
	{ "forked", forked },
	{ "refused", refused },
};

/* Memory that was moved stays, whatever becomes of the device; and becomes private again. */
static int outlive(const char *file)
{
	uint64_t *at;

	open_segment();
	at = private_memory();
	CHECK(request(CAUSEWAY_HOME, HOME, BYTES) == 0 && is_whole(at));
	printf("moved\n");
	fflush(stdout);
	while (access(file, F_OK))
		usleep(100000);
	CHECK(is_whole(at));
	CHECK(madvise((char *)at + PAGE, PAGE, MADV_DONTNEED) == 0 && !at[PAGE / sizeof(*at)]);
	CHECK(request(CAUSEWAY_HOME, HOME + 2 * BYTES, BYTES) == -1 && errno == ENODEV);
	take_back();
	CHECK(at[0] == 1 && !at[PAGE / sizeof(*at)] && close(segment) == 0 && at[1] == 4);
	printf("still there\n");
	return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	int failed = 0;

	if (argc == 3 && !strcmp(argv[1], "--outlive"))
		return outlive(argv[2]);
	if (argc != 2)
		return EXIT_FAILURE;
	disk = argv[1];
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		int status;
		pid_t child;

		fflush(stdout);
		child = fork();
		if (!child) {
			alarm(60);
			open_segment();
			cases[i].run();
			exit(EXIT_SUCCESS);
		}
		waitpid(child, &status, 0);
		printf("%s %s\n", status ? "FAIL" : "PASS", cases[i].name);
		failed += !!status;
	}
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
