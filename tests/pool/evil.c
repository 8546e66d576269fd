/* What a hostile process does with all it holds. */
#define _GNU_SOURCE
#include "pool.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#define PAGE 4096

static uint64_t state = 88172645463325252ull;

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

/* Whether a descriptor leads to memory of the broker's. */
static int is_block(const char *fd)
{
	char path[64], target[256];
	snprintf(path, sizeof(path), "/proc/self/fd/%s", fd);
	ssize_t length = readlink(path, target, sizeof(target) - 1);
	if (length < 0)
		return 0;
	target[length] = 0;
	return strstr(target, "causeway-block") != NULL;
}

/* Everything that would make a descriptor for reading one for writing: how much of it works. */
static int widen_one(const char *name)
{
	char path[64];
	int got = 0, fd = atoi(name);
	if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY)
		return 0;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	int again = open(path, O_RDWR);
	got += again >= 0;
	got += open(path, O_WRONLY | O_TRUNC) >= 0;
	got += write(fd, "x", 1) == 1;
	got += pwrite(fd, "x", 1, 0) == 1;
	got += ftruncate(fd, 0) == 0 || ftruncate(fd, 1 << 30) == 0;
	got += fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE) == 0;
	got += fchmod(fd, 0666) == 0;
	got += fchown(fd, getuid(), getgid()) == 0;
	void *mapped = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	got += mapped != MAP_FAILED;
	mapped = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
	if (mapped != MAP_FAILED) {
		got += mprotect(mapped, PAGE, PROT_READ | PROT_WRITE) == 0;
		got += madvise(mapped, PAGE, MADV_REMOVE) == 0;
	}
	return got;
}

static int widen(void)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	int got = 0, seen = 0;
	while ((entry = readdir(folder)))
		if (is_block(entry->d_name)) {
			seen++;
			got += widen_one(entry->d_name);
		}
	closedir(folder);
	/* None to try it on is no success. */
	return seen ? got : -ENOENT;
}

/* Handles at random, and those near one that is known: how many can be opened. */
static int guess(uint64_t near, int count)
{
	int found = 0;
	cw_block *block;
	for (int i = 0; i < count; i++) {
		uint64_t handle = i % 2 ? near + (int64_t)(i - count / 2) : next();
		if (handle == near)
			handle = next();
		for (int access = CW_READ; access <= CW_EXCLUSIVE; access++)
			found += cw_block_open(pool, handle, access, &block) == 0;
		found += cw_block_adopt(pool, handle, &block) == 0;
	}
	return found;
}

/* A right that it does not have: how much of what it asks for it gets. */
static int steal(uint64_t handle)
{
	cw_block *block;
	int got = 0;
	for (int access = CW_READ; access <= CW_EXCLUSIVE; access++)
		got += cw_block_open(pool, handle, access, &block) == 0;
	got += cw_block_adopt(pool, handle, &block) == 0;
	return got;
}

/* With a block that it may read or write, but that is another's. */
static int usurp(cw_block *block)
{
	int got = 0;
	got += cw_block_grant(block, CW_SESSION, cw_id(lib), CW_EXCLUSIVE) == 0;
	got += cw_block_grant(block, CW_EVERYBODY, 0, CW_WRITE) == 0;
	got += cw_block_revoke(block, CW_EVERYBODY, 0, 0) == 0;
	got += cw_block_name(block, "mine", 0) == 0;
	got += cw_block_move(block) == 0;
	got += cw_block_free(block) == 0;
	return got;
}

/* A record like the broker's on memory of its own making and on the broker's: how much works. */
static int forge(void)
{
	static const char *const names[] = { "user.causeway.block", "trusted.causeway.block" };
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	int got = 0, seen = 0;
	while ((entry = readdir(folder))) {
		if (!is_block(entry->d_name))
			continue;
		seen++;
		for (int i = 0; i < 2; i++) {
			char held[4096];
			int fd = atoi(entry->d_name);
			got += fgetxattr(fd, names[i], held, sizeof(held)) >= 0;
			got += fsetxattr(fd, names[i], "x", 1, 0) == 0;
			got += fremovexattr(fd, names[i]) == 0;
		}
	}
	closedir(folder);
	return seen ? got : -ENOENT;
}

static void scribble(void *argument)
{
	struct slot *slot = argument;
	volatile uint64_t *words = slot->address;
	for (uint64_t at = 0; at < cw_block_size(slot->block) / 8; at++)
		words[at] = next();
}

/* As many blocks as it is given: how many that were. */
static int flood(int most)
{
	cw_block *block;
	int count = 0, result = 0;
	while (count < most && (result = cw_block_alloc(pool, 0, 0, &block)) == 0)
		count++;
	printf("ok %d %d\n", count, result);
	return count;
}

int evil(char **w)
{
	if (!strcmp(w[0], "widen"))
		answer(widen());
	else if (!strcmp(w[0], "forge"))
		answer(forge());
	else if (!strcmp(w[0], "guess"))
		answer(guess(strtoull(w[1], NULL, 0), atoi(w[2])));
	else if (!strcmp(w[0], "steal"))
		answer(steal(strtoull(w[1], NULL, 0)));
	else if (!strcmp(w[0], "usurp"))
		answer(usurp(slot_of(w[1])->block));
	else if (!strcmp(w[0], "scribble"))
		answer(guard(scribble, slot_of(w[1])));
	else if (!strcmp(w[0], "keep")) {
		/* Past the library: what it has mapped it keeps, at another address. */
		void *kept = mremap(slot_of(w[1])->address, 0,
				    cw_block_size(slot_of(w[1])->block), MREMAP_MAYMOVE);
		if (kept == MAP_FAILED) {
			answer(-errno);
		} else {
			slot_of(w[1])->address = kept;
			answer(0);
		}
	} else if (!strcmp(w[0], "flood"))
		flood(atoi(w[1]));
	else
		return 0;
	return 1;
}
