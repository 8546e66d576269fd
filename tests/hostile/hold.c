/* Ways to hold a page of an area: a read into it that does not end before the file's server answers
 * (tests/hostile/slow.py), or a pipe. */
#define _GNU_SOURCE
#include "hold.h"

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the server answers with. */
#define READ_BYTE 0xee

enum way { PREAD, AIO, IO_URING, WRITEV, VMSPLICE, WAYS };

static const char *const names[WAYS] = { "pread", "aio", "io_uring", "process_vm_writev",
					 "vmsplice" };
/* What holds a page now. */
static struct {
	enum way way;
	unsigned char *page;
	int file;
	off_t at;
	pthread_t thread;
	aio_context_t aio;
	int uring;
	int pipe[2];
	/* What the pipe was given. */
	unsigned char before[PAGE];
} hold = { .way = WAYS };

static void *read_slowly(void *arg)
{
	(void)arg;
	need(pread(hold.file, hold.page, PAGE, hold.at) == (ssize_t)PAGE, "pread");
	return NULL;
}

/* From a page of the file that is not there yet. */
static void *write_slowly(void *arg)
{
	void *from = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, hold.file, hold.at);
	struct iovec local = { from, PAGE }, remote = { hold.page, PAGE };

	(void)arg;
	need(from != MAP_FAILED, "mmap");
	need(process_vm_writev(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)PAGE,
	     "process_vm_writev");
	munmap(from, PAGE);
	return NULL;
}

static void begin_aio(void)
{
	static struct iocb block;
	struct iocb *blocks = &block;

	block = (struct iocb){ .aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = hold.file,
			       .aio_buf = (uintptr_t)hold.page, .aio_nbytes = PAGE,
			       .aio_offset = hold.at };
	hold.aio = 0;
	need(syscall(SYS_io_setup, 4, &hold.aio) == 0, "io_setup");
	need(syscall(SYS_io_submit, hold.aio, 1, &blocks) == 1, "io_submit");
}

static void end_aio(void)
{
	struct io_event event;

	need(syscall(SYS_io_getevents, hold.aio, 1, 1, &event, NULL) == 1, "io_getevents");
	if (event.res != (long long)PAGE)
		fail("the asynchronous read gives %lld", (long long)event.res);
	syscall(SYS_io_destroy, hold.aio);
}

/* Without fixed buffers. */
static void begin_io_uring(void)
{
	struct io_uring_params params = { 0 };
	int rw = PROT_READ | PROT_WRITE;
	unsigned char *ring;
	struct io_uring_sqe *entry;

	hold.uring = syscall(SYS_io_uring_setup, 1, &params);
	need(hold.uring >= 0, "io_uring_setup");
	ring = mmap(NULL, PAGE, rw, MAP_SHARED, hold.uring, IORING_OFF_SQ_RING);
	entry = mmap(NULL, PAGE, rw, MAP_SHARED, hold.uring, IORING_OFF_SQES);
	need(ring != MAP_FAILED && entry != MAP_FAILED, "mmap");
	*entry = (struct io_uring_sqe){ .opcode = IORING_OP_READ, .fd = hold.file,
					.addr = (uintptr_t)hold.page, .len = PAGE, .off = hold.at };
	*(volatile unsigned int *)(ring + params.sq_off.array) = 0;
	*(volatile unsigned int *)(ring + params.sq_off.tail) = 1;
	need(syscall(SYS_io_uring_enter, hold.uring, 1, 0, 0, NULL, 0) == 1, "io_uring_enter");
	munmap(ring, PAGE);
	munmap(entry, PAGE);
}

static void end_io_uring(void)
{
	syscall(SYS_io_uring_enter, hold.uring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
	close(hold.uring);
}

static void begin_pipe(void)
{
	struct iovec page = { hold.page, PAGE };

	need(pipe(hold.pipe) == 0, "pipe");
	memcpy(hold.before, hold.page, PAGE);
	need(vmsplice(hold.pipe[1], &page, 1, 0) == (ssize_t)PAGE, "vmsplice");
}

static void end_pipe(void)
{
	unsigned char got[PAGE];

	need(read(hold.pipe[0], got, PAGE) == (ssize_t)PAGE, "read");
	if (memcmp(got, hold.before, PAGE))
		fail("the pipe has other bytes than the page had");
	close(hold.pipe[0]);
	close(hold.pipe[1]);
}

/* "hold WAY FILE OFFSET" */
void hold_begin(unsigned char *page, char **args)
{
	struct stat stat;

	if (hold.way != WAYS)
		fail("one at a time");
	for (hold.way = 0; hold.way < WAYS && strcmp(names[hold.way], args[0]); hold.way++)
		;
	hold.page = page;
	hold.file = open(args[1], O_RDONLY | O_DIRECT | O_CLOEXEC);
	hold.at = number(args[2]);
	/* Asynchronous direct reads stop at the size that is known. */
	need(hold.file >= 0 && fstat(hold.file, &stat) == 0, args[1]);
	switch (hold.way) {
	case PREAD: need0(pthread_create(&hold.thread, NULL, read_slowly, NULL)); break;
	case WRITEV: need0(pthread_create(&hold.thread, NULL, write_slowly, NULL)); break;
	case AIO: begin_aio(); break;
	case IO_URING: begin_io_uring(); break;
	case VMSPLICE: begin_pipe(); break;
	default: fail("no such way: %s", args[0]);
	}
	say("ok");
}

/* Waits for its end: what was read is there. */
void hold_end(char **args, int count)
{
	(void)args;
	(void)count;
	switch (hold.way) {
	case PREAD: case WRITEV: need0(pthread_join(hold.thread, NULL)); break;
	case AIO: end_aio(); break;
	case IO_URING: end_io_uring(); break;
	case VMSPLICE: end_pipe(); break;
	default: fail("nothing is held");
	}
	close(hold.file);
	for (size_t at = 0; hold.way != VMSPLICE && at < PAGE; at++)
		if (hold.page[at] != READ_BYTE)
			fail("%s: byte %zu of what was read is lost: %02x", names[hold.way], at,
			     hold.page[at]);
	hold.way = WAYS;
	say("ok");
}

/* Runs a program in each way there is. */
void hold_run(char **args, int count)
{
	static char program[] = "/bin/true";
	char *argv[] = { program, NULL };
	int status;
	pid_t pid;

	(void)args;
	(void)count;
	need0(posix_spawn(&pid, program, NULL, NULL, argv, environ));
	need(waitpid(pid, &status, 0) == pid && status == 0, "posix_spawn");
	pid = fork();
	need(pid >= 0, "fork");
	if (pid == 0) {
		execv(program, argv);
		_exit(1);
	}
	need(waitpid(pid, &status, 0) == pid && status == 0, "execv");
	need(system(program) == 0, "system");
	say("ok");
}
