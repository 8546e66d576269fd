/*
 * A process of a guest without rights, next to one of the guest's root:
 *
 *	intruder keep		root has a private pool, and says so
 *	intruder try USER	a process of this user tries to reach what was not granted to it
 *	intruder outside ERROR	opens the pool from another machine, which must fail so (negative)
 */
#define _GNU_SOURCE
#include <causeway.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../guest/driver/causeway_ioctl.h"

#define POOL "of-root"
#define PAGE 4096UL
#define SEGMENT (2 * PAGE)
#define DEVICE "/dev/causeway"
/* More than a guest may make at a time. */
#define TOO_MUCH (1UL << 40)

static int passed, failed;

static void expect(const char *what, int holds)
{
	holds ? passed++ : failed++;
	if (!holds)
		printf("not so: %s (errno %d)\n", what, errno);
}

#define EXPECT(condition) (errno = 0, expect(#condition, (condition)))

/* The call fails so. */
#define REFUSED(number, call) \
	(errno = 0, expect(#call " is " #number, (call) == -1 && errno == (number)))

static void keep(void)
{
	cw_pool *pool;
	cw_lib *lib;

	if (cw_open(&lib) || cw_pool_create(lib, POOL, PAGE, 1, CW_POOL_PRIVATE, &pool))
		exit(EXIT_FAILURE);
	printf("kept\n");
	pause();
}

/* Neither physical memory nor the device behind the driver's back. */
static void try_machine(void)
{
	glob_t found;

	REFUSED(EACCES, open("/dev/mem", O_RDONLY));
	if (glob("/sys/bus/pci/devices/*/resource[0-9]*", 0, NULL, &found))
		exit(EXIT_FAILURE);
	for (size_t i = 0; i < found.gl_pathc; i++)
		REFUSED(EACCES, open(found.gl_pathv[i], O_RDONLY));
	globfree(&found);
}

/* What is asked of the driver wrongly. */
static void try_driver(void)
{
	struct causeway_transfer transfer = { .message = (uintptr_t)POOL, .length = sizeof(POOL) };
	struct causeway_waking waking = { .address = (uintptr_t)&transfer, .count = 1 };
	int fd = open(DEVICE, O_RDWR | O_CLOEXEC), other = open("/dev/null", O_RDWR);

	EXPECT(fd >= 0 && other >= 0);
	REFUSED(ENODEV, (long)mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0));
	REFUSED(ENOTTY, ioctl(fd, _IO(0xca, 0x7f), 0));
	REFUSED(EFAULT, ioctl(fd, CAUSEWAY_SEND, 0));
	REFUSED(EFAULT, ioctl(fd, CAUSEWAY_WAKE, &waking));
	REFUSED(EAGAIN, ioctl(fd, CAUSEWAY_RECEIVE, &transfer));
	/* No message of the protocol. */
	REFUSED(EBADMSG, ioctl(fd, CAUSEWAY_SEND, &transfer));
	transfer.count = 1;
	transfer.fds[0] = other;
	REFUSED(EINVAL, ioctl(fd, CAUSEWAY_SEND, &transfer));
	transfer.fds[0] = -1;
	REFUSED(EBADF, ioctl(fd, CAUSEWAY_SEND, &transfer));
	transfer.count = CAUSEWAY_FDS_MAX + 1;
	REFUSED(EINVAL, ioctl(fd, CAUSEWAY_SEND, &transfer));
	transfer.count = 0;
	transfer.length = CAUSEWAY_MESSAGE_MAX + 1;
	REFUSED(EINVAL, ioctl(fd, CAUSEWAY_SEND, &transfer));
	transfer.length = 8;
	transfer.message = 8;
	REFUSED(EFAULT, ioctl(fd, CAUSEWAY_SEND, &transfer));
	close(other);
	close(fd);
}

static int create(int fd, uint64_t length)
{
	struct causeway_creation creation = { .length = length };

	return ioctl(fd, CAUSEWAY_CREATE, &creation) ? -1 : creation.fd;
}

static char *map(int fd, size_t length, int flags, off_t at)
{
	return mmap(NULL, length, PROT_READ | PROT_WRITE, flags, fd, at);
}

/* Beyond the ends of a segment of its own, which other segments may follow in the window. */
static void try_segment(void)
{
	int fd = open(DEVICE, O_RDWR | O_CLOEXEC), segment = create(fd, SEGMENT);
	char *memory = map(segment, SEGMENT, MAP_SHARED, 0);
	size_t i, used = 0;

	REFUSED(EINVAL, create(fd, 0));
	REFUSED(EINVAL, create(fd, PAGE + 1));
	EXPECT(create(fd, TOO_MUCH) == -1);
	EXPECT(memory != MAP_FAILED);
	if (memory == MAP_FAILED)
		return;
	for (i = 0; i < SEGMENT; i++)
		used += memory[i] != 0;
	EXPECT(used == 0);
	memory[SEGMENT - 1] = 1;
	REFUSED(EINVAL, (long)map(segment, SEGMENT + PAGE, MAP_SHARED, 0));
	REFUSED(EINVAL, (long)map(segment, PAGE, MAP_SHARED, SEGMENT));
	REFUSED(EINVAL, (long)map(segment, PAGE, MAP_PRIVATE, 0));
	EXPECT(mremap(memory, SEGMENT, SEGMENT + PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
	EXPECT(ftruncate(segment, SEGMENT + PAGE) == -1);
	EXPECT(write(segment, memory, 1) == -1);
	/* Mapped, it outlives its descriptors. */
	close(segment);
	close(fd);
	EXPECT(memory[SEGMENT - 1] == 1);
	munmap(memory, SEGMENT);
}

static void try_pool(int want)
{
	cw_pool *pool;
	cw_lib *lib;

	EXPECT(cw_open(&lib) == 0);
	EXPECT(cw_pool_open(lib, POOL, &pool) == want);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 2 && !strcmp(argv[1], "keep")) {
		keep();
	} else if (argc == 3 && !strcmp(argv[1], "try")) {
		unsigned int user = (unsigned int)atoi(argv[2]);

		if (setgroups(0, NULL) || setgid(user) || setuid(user))
			return EXIT_FAILURE;
		try_machine();
		try_driver();
		try_segment();
		try_pool(-EACCES);
	} else if (argc == 3 && !strcmp(argv[1], "outside")) {
		try_pool(atoi(argv[2]));
	} else {
		return 2;
	}
	printf("%d passed, %d failed\n", passed, failed);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
