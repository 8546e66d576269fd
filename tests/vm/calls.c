/* The calls that are tried on the guests' driver: see ioctls.c. */
#include "ioctls.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sisci_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../../guest/driver/causeway_ioctl.h"

#define DEVICE_NAME "/dev/causeway"
#define MEBIBYTE (1ul << 20)
/* Where segments are mapped: places of a GiB, where nothing else is. */
#define PLACES 0x100000000000ul
#define PLACE (1ul << 30)
#define PLACE_COUNT 8
/* Where memory is that is moved: low, for segments are small. */
#define HOME 0x1000000ul
#define HOME_SPANS 8
/* Of most segments. */
#define USUAL (64 * MEBIBYTE)
/* Larger than a range, than the window, than anything. */
#define LARGE (513 * MEBIBYTE)
#define TOO_LARGE (1ul << 40)
#define SLEEP_NANOSECONDS 2000000
#define MESSAGE 256
#define CONNECT_MILLISECONDS 1000
/* That a process begins with. */
#define SEGMENTS 3

static _Atomic(void *) mapped;

static void *home_span(void)
{
	return (void *)(HOME + below(HOME_SPANS) * MEBIBYTE);
}

static void *place(void)
{
	return (void *)(PLACES + below(PLACE_COUNT) * PLACE);
}

/* Where a segment was mapped last, or may be, or memory at home, or nothing can be. */
static void *address(void)
{
	size_t inside = below(4) ? below(4) * PAGE : below(USUAL / PAGE) * PAGE;

	switch (below(16)) {
	case 0:
		return (void *)random_number();
	case 1:
		return (void *)(below(2) ? below(PAGE) : -PAGE);
	case 2 ... 6:
		return (char *)home_span() + inside % MEBIBYTE;
	case 7 ... 8:
		return (char *)place() + inside;
	default:
		return (char *)atomic_load(&mapped) + inside % PLACE;
	}
}

static size_t length(void)
{
	return below(8) ? (1 + below(16)) * PAGE : 1 + below(2 * MEBIBYTE);
}

static long open_device(void)
{
	return keep_fd(DEVICE, open(DEVICE_NAME, O_RDWR | O_CLOEXEC));
}

static long create(void)
{
	static const uint64_t lengths[] = { PAGE, 3 * PAGE, MEBIBYTE, 5 * MEBIBYTE + PAGE, LARGE,
					    TOO_LARGE, 0, 1 };
	struct causeway_creation creation = { .length = USUAL };

	if (!below(3))
		creation.length = lengths[below(sizeof(lengths) / sizeof(*lengths))];
	if (ioctl(some_fd(DEVICE), CAUSEWAY_CREATE, below(32) ? &creation : address()))
		return -1;
	return keep_fd(SEGMENT, creation.fd);
}

static long close_device(void)
{
	return drop_fd(DEVICE);
}

static long close_segment(void)
{
	return drop_fd(SEGMENT);
}

static long close_other(void)
{
	return drop_fd(BELL + below(KINDS - BELL));
}

static long duplicate(void)
{
	enum kind kind = below(KINDS);

	return keep_fd(kind, fcntl(some_fd(kind), F_DUPFD_CLOEXEC, 3));
}

static long map(void)
{
	int prot = below(4) ? PROT_READ | PROT_WRITE : (int)below(8);
	int flags = below(16) ? MAP_SHARED : MAP_PRIVATE;
	off_t at = below(4) ? below(32) * PAGE : HOME + below(HOME_SPANS) * MEBIBYTE;
	size_t bytes = below(4) ? length() : below(USUAL);
	void *where = place();

	if (!below(8))
		flags |= MAP_POPULATE;
	if (mmap(where, bytes, prot, flags | MAP_FIXED, some_fd(SEGMENT), at) == MAP_FAILED)
		return -1;
	atomic_store(&mapped, where);
	return 0;
}

static long unmap(void)
{
	void *at = address();

	return (uintptr_t)at < HOME ? -1 : munmap((void *)((uintptr_t)at & -PAGE), length());
}

static long touch_some(void)
{
	return touch((void *)((uintptr_t)address() & -8ul), length(), below(2)) ? 0 : -1;
}

/* Private memory where it can be moved. */
static long own_at(void *at)
{
	if (mmap(at, MEBIBYTE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		 0) == MAP_FAILED)
		return -1;
	return touch(at, MEBIBYTE, true) ? 0 : -1;
}

static long own(void)
{
	return own_at(home_span());
}

static long request(unsigned long number)
{
	struct causeway_span span = { (uintptr_t)home_span(), MEBIBYTE };

	if (!below(4)) {
		span.start += below(16) * PAGE;
		span.length = (1 + below(16)) * PAGE;
	}
	if (!below(16))
		span.start = random_number();
	if (!below(16))
		span.length = random_number();
	return ioctl(some_fd(SEGMENT), number, below(32) ? &span : address());
}

static long home(void)
{
	void *at = home_span();
	struct causeway_span span = { (uintptr_t)at, MEBIBYTE };

	if (!below(4))
		return request(CAUSEWAY_HOME);
	return own_at(at) ? -1 : ioctl(some_fd(SEGMENT), CAUSEWAY_HOME, &span);
}

static long hold(void)
{
	return request(CAUSEWAY_HOLD);
}

static long let_go(void)
{
	return ioctl(some_fd(SEGMENT), CAUSEWAY_LET_GO);
}

static long punch(void)
{
	return request(CAUSEWAY_PUNCH);
}

/* Back to private memory, as the library does it. */
static long take_back(void)
{
	void *at = home_span(), *copy;
	struct causeway_span span = { (uintptr_t)at, MEBIBYTE };
	int segment = some_fd(SEGMENT);
	long done = -1;

	if (ioctl(segment, CAUSEWAY_HOLD, &span))
		return -1;
	copy = mmap(NULL, MEBIBYTE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (copy != MAP_FAILED && pread(segment, copy, MEBIBYTE, (uintptr_t)at) == (long)MEBIBYTE &&
	    mremap(copy, MEBIBYTE, MEBIBYTE, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at)
		done = 0;
	ioctl(segment, CAUSEWAY_LET_GO);
	return done;
}

static long read_some(void)
{
	void *to = below(2) ? address() : home_span();

	return pread(some_fd(SEGMENT), to, length(), below(USUAL));
}

static long advise(void)
{
	static const int advices[] = { MADV_DONTNEED, MADV_DONTNEED, MADV_FREE, MADV_DOFORK,
				       MADV_DONTFORK, MADV_COLD, MADV_PAGEOUT, MADV_REMOVE,
				       MADV_POPULATE_WRITE, MADV_HUGEPAGE, MADV_WIPEONFORK };

	return madvise((void *)((uintptr_t)address() & -PAGE), length(),
		       advices[below(sizeof(advices) / sizeof(*advices))]);
}

static long protect(void)
{
	void *at = (void *)((uintptr_t)address() & -PAGE);

	return (uintptr_t)at < HOME ? -1 :
				      mprotect(at, length(), below(4) ? PROT_READ | PROT_WRITE :
									(int)below(8));
}

static long remap(void)
{
	void *at = (void *)((uintptr_t)address() & -PAGE);

	return mremap(at, below(2) ? PAGE : length(), length(), MREMAP_MAYMOVE | MREMAP_FIXED,
		      below(2) ? place() : home_span()) == MAP_FAILED ? -1 : 0;
}

static long lock(void)
{
	void *at = (void *)((uintptr_t)address() & -PAGE);

	return below(2) ? mlock(at, length()) : munlock(at, length());
}

static long wake(void)
{
	struct causeway_waking waking = { (uintptr_t)address(), below(4), 0 };

	return ioctl(some_fd(DEVICE), CAUSEWAY_WAKE, &waking);
}

static long sleep_on(void)
{
	struct causeway_sleep sleep = {
		.addresses = { (uintptr_t)address(), (uintptr_t)address() },
		.expected = { below(2), below(2) },
		.count = below(16) ? 1 : below(4),
		.nanoseconds = below(SLEEP_NANOSECONDS),
	};

	return ioctl(some_fd(DEVICE), CAUSEWAY_SLEEP, &sleep);
}

static long send_some(void)
{
	uint8_t message[MESSAGE];
	struct causeway_transfer transfer = {
		.message = (uintptr_t)(below(16) ? message : address()),
		.length = below(16) ? below(MESSAGE) : random_number(),
		.count = below(16) ? below(CAUSEWAY_FDS_MAX + 1) : random_number(),
	};

	for (size_t i = 0; i < sizeof(message); i++)
		message[i] = below(2) ? 0 : below(256);
	for (size_t i = 0; i < CAUSEWAY_FDS_MAX; i++)
		transfer.fds[i] = some_fd(below(4) ? EVENT : below(KINDS));
	/* The broker takes none of it; what was sent beside it was given a handle before. */
	return ioctl(some_fd(DEVICE), CAUSEWAY_SEND, &transfer) && errno != EBADMSG ? -1 : 0;
}

static long receive(void)
{
	static _Thread_local uint8_t message[CAUSEWAY_MESSAGE_MAX];
	struct causeway_transfer transfer = {
		.message = (uintptr_t)(below(16) ? message : address()),
		.length = below(16) ? sizeof(message) : below(64),
		.count = below(16) ? CAUSEWAY_FDS_MAX : below(CAUSEWAY_FDS_MAX),
	};

	if (ioctl(some_fd(DEVICE), CAUSEWAY_RECEIVE, &transfer))
		return errno == EAGAIN || errno == EPIPE ? 0 : -1;
	for (size_t i = 0; i < transfer.count; i++)
		keep_fd(below(2) ? SEGMENT : BELL, transfer.fds[i]);
	return 0;
}

static long settle(void)
{
	return ioctl(some_fd(DEVICE), CAUSEWAY_SETTLE);
}

static long poll_some(void)
{
	struct pollfd set[4];

	for (size_t i = 0; i < 4; i++)
		set[i] = (struct pollfd){ some_fd(below(KINDS)), POLLIN | POLLOUT, 0 };
	return poll(set, 4, below(3));
}

static long event(void)
{
	return keep_fd(EVENT, eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
}

static long watch(void)
{
	return ioctl(some_fd(BELL), CAUSEWAY_WATCH);
}

static long ring(void)
{
	uint64_t one = 1;

	return write(some_fd(BELL), below(16) ? &one : address(), below(16) ? sizeof(one) : 4);
}

static long hear(void)
{
	uint64_t count;

	if (read(some_fd(below(2) ? BELL : EVENT), below(16) ? &count : address(),
		 sizeof(count)) < 0)
		return errno == EAGAIN ? 0 : -1;
	return 0;
}

static long any(void)
{
	unsigned long number = below(4) ? _IOC(below(4), 0xca, 0x10 + below(12), below(64)) :
					  random_number();

	/* Refused, mostly. */
	ioctl(some_fd(below(KINDS)), number, address());
	return 0;
}

static long open_pipe(void)
{
	int ends[2];

	if (pipe2(ends, O_NONBLOCK | O_CLOEXEC))
		return -1;
	keep_fd(PIPE, ends[0]);
	return keep_fd(PIPE, ends[1]);
}

/* Pages that are in a pipe are held by it. */
static long splice_some(void)
{
	struct iovec iov = { (void *)((uintptr_t)address() & -PAGE), length() };

	return vmsplice(some_fd(PIPE), &iov, 1, SPLICE_F_NONBLOCK);
}

static long drain(void)
{
	return read(some_fd(PIPE), address(), length());
}

/* By way of the kernel's own access to a process's memory. */
static long peek(void)
{
	struct iovec to = { home_span(), length() }, from = { address(), to.iov_len };

	return below(2) ? process_vm_readv(getpid(), &to, 1, &from, 1, 0) :
			  process_vm_writev(getpid(), &to, 1, &from, 1, 0);
}

/* Takes a descriptor of the library's for one of ours: both use it. */
static void adopt(const char *name)
{
	char path[64], what[64] = "";
	int fd = atoi(name);

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (readlink(path, what, sizeof(what) - 1) < 0)
		return;
	if (!strcmp(what, DEVICE_NAME))
		keep_fd(DEVICE, fcntl(fd, F_DUPFD_CLOEXEC, 3));
	else if (strstr(what, "causeway-segment"))
		keep_fd(SEGMENT, fcntl(fd, F_DUPFD_CLOEXEC, 3));
	else if (strstr(what, "causeway-doorbell"))
		keep_fd(BELL, fcntl(fd, F_DUPFD_CLOEXEC, 3));
}

/* A segment, and an interrupt, each with this process as its own peer. */
void join_broker(void)
{
	sci_remote_interrupt_t to;
	sci_local_interrupt_t made;
	struct dirent *entry;
	unsigned int number, node;
	sci_error_t error;
	sci_desc_t sd;
	DIR *all;

	SCIInitialize(0, &error);
	SCIOpen(&sd, 0, &error);
	if (error != SCI_ERR_OK)
		return;
	SCIGetLocalNodeId(0, &node, 0, &error);
	SCICreateInterrupt(sd, &made, 0, &number, NULL, NULL, 0, &error);
	if (error == SCI_ERR_OK)
		SCIConnectInterrupt(sd, &to, node, 0, number, CONNECT_MILLISECONDS, 0, &error);
	all = opendir("/proc/self/fd");
	while (all && (entry = readdir(all)))
		adopt(entry->d_name);
	if (all)
		closedir(all);
}

void begin_with_some(void)
{
	open_device();
	for (int i = 0; i < SEGMENTS; i++)
		create();
	for (int i = 0; i < SEGMENTS; i++)
		map();
	event();
}

#define CALL(function) { #function, function }

const struct call calls[] = {
	CALL(open_device), CALL(create), CALL(close_device), CALL(close_segment),
	CALL(close_other), CALL(duplicate), CALL(map), CALL(unmap), CALL(touch_some), CALL(own),
	CALL(home), CALL(hold), CALL(let_go), CALL(punch), CALL(take_back),
	CALL(read_some), CALL(advise), CALL(protect), CALL(remap), CALL(lock), CALL(wake),
	CALL(sleep_on), CALL(send_some), CALL(receive), CALL(settle), CALL(poll_some), CALL(event),
	CALL(watch), CALL(ring), CALL(hear), CALL(any), CALL(open_pipe), CALL(splice_some),
	CALL(drain), CALL(peek), { "fork", begin_child },
};

const size_t call_count = sizeof(calls) / sizeof(*calls);
