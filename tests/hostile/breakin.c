/* Attempts that the kernel must refuse, whatever the descriptor. Each that succeeds is a defect. */
#define _GNU_SOURCE
#include "loot.h"
#include "stage.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRY(what) do { if (what) return #what; } while (0)

/* Whatever it may be used for, its size and what is set about it are not the attacker's. */
static const char *reshape(const struct loot *l)
{
	unsigned long flags = FS_IMMUTABLE_FL;

	TRY(ftruncate(l->fd, 0) == 0);
	TRY(ftruncate(l->fd, l->size + PAGE) == 0);
	TRY(fallocate(l->fd, 0, l->size, PAGE) == 0);
	TRY(fallocate(l->fd, FALLOC_FL_COLLAPSE_RANGE, 0, PAGE) == 0);
	TRY(fallocate(l->fd, FALLOC_FL_INSERT_RANGE, 0, PAGE) == 0);
	TRY(fcntl(l->fd, F_ADD_SEALS, F_SEAL_WRITE) == 0);
	TRY(fcntl(l->fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0);
	TRY(pwrite(l->fd, "", 1, l->size) > 0);
	if (!l->writable) {
		TRY(fchmod(l->fd, 0666) == 0);
		TRY(fchown(l->fd, getuid(), getgid()) == 0);
		TRY(ioctl(l->fd, FS_IOC_SETFLAGS, &flags) == 0);
	}
	return NULL;
}

static const char *write_to_reader(const struct loot *l)
{
	char path[64];
	char byte = 1;
	struct iovec iov = { &byte, 1 };
	off_t at = 0;
	void *p;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", l->fd);
	TRY(open(path, O_RDWR) >= 0);
	TRY(open(path, O_WRONLY) >= 0);
	TRY(open(path, O_RDONLY | O_TRUNC) >= 0);
	TRY(truncate(path, 0) == 0);
	TRY(chmod(path, 0666) == 0);
	TRY(fcntl(l->fd, F_SETFL, O_RDWR) == 0 &&
	    (fcntl(l->fd, F_GETFL) & O_ACCMODE) != O_RDONLY);
	TRY(write(l->fd, &byte, 1) > 0);
	TRY(pwrite(l->fd, &byte, 1, 0) > 0);
	TRY(pwritev2(l->fd, &iov, 1, 0, 0) > 0);
	TRY(copy_file_range(loot[0].fd, &at, l->fd, &at, 1, 0) > 0);
	TRY(fallocate(l->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE) == 0);
	TRY(fallocate(l->fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 0, PAGE) == 0);
	TRY(mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, l->fd, 0) != MAP_FAILED);
	TRY(linkat(l->fd, "", AT_FDCWD, "hostile-link", AT_EMPTY_PATH) == 0);
	p = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, l->fd, 0);
	need(p != MAP_FAILED, "mmap of what was granted");
	TRY(mprotect(p, PAGE, PROT_READ | PROT_WRITE) == 0);
	TRY(madvise(p, PAGE, MADV_REMOVE) == 0);
	TRY(madvise(p, PAGE, MADV_POPULATE_WRITE) == 0);
	munmap(p, PAGE);
	return NULL;
}

static const char *protect_views(void)
{
	for (int i = 0; i < view_count; i++) {
		if (views[i].writable)
			continue;
		TRY(mprotect(views[i].at, views[i].len, PROT_READ | PROT_WRITE) == 0);
		TRY(madvise(views[i].at, views[i].len, MADV_REMOVE) == 0);
	}
	return NULL;
}

const char *loot_upgrade(void)
{
	const char *done = NULL;

	for (int i = 0; i < loots && !done; i++) {
		done = reshape(&loot[i]);
		if (!done && !loot[i].writable)
			done = write_to_reader(&loot[i]);
	}
	return done ? done : protect_views();
}

const char *loot_process(pid_t pid)
{
	char path[64], byte;
	struct iovec here = { &byte, 1 }, there = { (void *)0x400000, 1 };
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	TRY(open(path, O_RDONLY) >= 0);
	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	TRY(open(path, O_RDONLY) >= 0);
	snprintf(path, sizeof(path), "/proc/%d/fd/0", pid);
	TRY(open(path, O_RDONLY) >= 0);
	TRY(process_vm_readv(pid, &here, 1, &there, 1, 0) > 0 || errno != EPERM);
	TRY(ptrace(PTRACE_SEIZE, pid, 0, 0) == 0);
	fd = syscall(SYS_pidfd_open, pid, 0);
	need(fd >= 0, "pidfd_open");
	TRY(syscall(SYS_pidfd_getfd, fd, 0, 0) >= 0);
	close(fd);
	return NULL;
}
