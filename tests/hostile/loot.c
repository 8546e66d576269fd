#define _GNU_SOURCE
#include "loot.h"
#include "stage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Bytes looked at in one go. */
#define GULP (1ul << 20)

struct loot loot[LOOT_MAX];
int loots;
struct view views[VIEWS_MAX];
int view_count;

static bool is_shared_memory(int fd, struct stat *st)
{
	struct statfs fs;

	/* The library keeps an empty file, by which it knows its own descriptors. */
	return fstat(fd, st) == 0 && S_ISREG(st->st_mode) && st->st_size > 0 &&
	       fstatfs(fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC;
}

static bool is_viewed(ino_t inode, bool writable, uint64_t from)
{
	for (int i = 0; i < view_count; i++)
		if (views[i].inode == inode && views[i].writable == writable &&
		    views[i].from == from)
			return true;
	return false;
}

static void view_add(struct view view)
{
	if (view_count == VIEWS_MAX)
		fail("too many views");
	views[view_count++] = view;
}

static void map(const struct loot *l, uint64_t from, uint64_t to)
{
	int prot = l->writable ? PROT_READ | PROT_WRITE : PROT_READ;
	void *p;

	from -= from % PAGE;
	if (to > l->size)
		to = l->size;
	if (from >= to || is_viewed(l->inode, l->writable, from))
		return;
	p = mmap(NULL, to - from, prot, MAP_SHARED | MAP_NORESERVE, l->fd, from);
	need(p != MAP_FAILED, "mmap of what was granted");
	view_add((struct view){ p, to - from, l->inode, from, l->writable,
				l->size <= SMALL_MAX });
}

static void keep(int fd)
{
	int mode = fcntl(fd, F_GETFL) & O_ACCMODE;
	bool writable = mode == O_RDWR;
	struct loot *l = &loot[loots];
	struct stat st;

	if (!is_shared_memory(fd, &st) || mode == O_WRONLY)
		return;
	for (int i = 0; i < loots; i++)
		if (loot[i].fd == fd ||
		    (loot[i].inode == st.st_ino && loot[i].writable == writable))
			return;
	if (loots == LOOT_MAX)
		fail("too many descriptors");
	*l = (struct loot){ fcntl(fd, F_DUPFD, 500), writable, st.st_ino, st.st_size };
	need(l->fd >= 0, "dup");
	loots++;
}

/* Mappings of the library's whose descriptor it has closed: mapped once more, to have them when it
 * takes them away. */
static void keep_mapping(uintptr_t from, size_t len, bool writable, ino_t inode)
{
	void *p;

	if (is_viewed(inode, writable, 0))
		return;
	p = mremap((void *)from, 0, len, MREMAP_MAYMOVE);
	need(p != MAP_FAILED, "mremap of a shared mapping");
	need(madvise(p, len, MADV_DOFORK) == 0, "madvise");
	view_add((struct view){ p, len, inode, 0, writable, true });
}

static void keep_mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	uintptr_t from, to;
	char line[512], prot[5];
	unsigned long inode;

	need(maps, "/proc/self/maps");
	while (fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s %*s %*s %lu", &from, &to, prot,
			   &inode) != 4)
			fail("a line of maps: %s", line);
		if (prot[0] == 'r' && prot[3] == 's' && strstr(line, "memfd") &&
		    to - from <= SMALL_MAX)
			keep_mapping(from, to - from, prot[1] == 'w', inode);
	}
	fclose(maps);
}

void loot_keep(const uint64_t (*ranges)[2], int count)
{
	int fds[4096], n = 0;
	struct dirent *entry;
	DIR *dir = opendir("/proc/self/fd");

	need(dir, "/proc/self/fd");
	while ((entry = readdir(dir)) && n < 4096)
		if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(dir))
			fds[n++] = atoi(entry->d_name);
	closedir(dir);
	for (int i = 0; i < n; i++)
		keep(fds[i]);
	for (int i = 0; i < loots; i++) {
		if (loot[i].size <= SMALL_MAX)
			map(&loot[i], 0, loot[i].size);
		for (int k = 0; loot[i].size > SMALL_MAX && k < count; k++)
			map(&loot[i], ranges[k][0], ranges[k][0] + ranges[k][1]);
	}
	keep_mappings();
}

void loot_extents(const struct loot *l, void (*each)(const struct loot *, off_t, size_t, void *),
		  void *arg)
{
	off_t from = 0, to;

	while ((from = lseek(l->fd, from, SEEK_DATA)) >= 0) {
		to = lseek(l->fd, from, SEEK_HOLE);
		if (to < 0)
			return;
		each(l, from, to - from, arg);
		from = to;
	}
}

struct search {
	uint32_t secret, public;
	/* A ring, and the like: it may hold what was read by it. */
	bool small;
	struct found found;
};

static void search(struct search *s, const unsigned char *mem, size_t len)
{
	uint32_t word;

	for (size_t i = 0; i + sizeof(word) <= len; i++) {
		memcpy(&word, mem + i, sizeof(word));
		s->found.secret += word == ~s->secret;
		s->found.public += word == ~s->public && !s->small;
	}
	s->found.bytes += len;
}

/* From a copy: others write there. */
static void search_memory(struct search *s, const unsigned char *mem, size_t len)
{
	static unsigned char copy[GULP];

	for (size_t at = 0; at < len; at += GULP) {
		size_t n = len - at < GULP ? len - at : GULP;

		memcpy(copy, mem + at, n);
		search(s, copy, n);
	}
}

static void search_extent(const struct loot *l, off_t from, size_t len, void *arg)
{
	static unsigned char copy[GULP];

	for (size_t at = 0; at < len; at += GULP) {
		ssize_t n = pread(l->fd, copy, len - at < GULP ? len - at : GULP, from + at);

		need(n >= 0, "pread of what was granted");
		search(arg, copy, n);
	}
}

struct found loot_search(uint32_t not_secret, uint32_t not_public)
{
	struct search s = { .secret = not_secret, .public = not_public };

	for (int i = 0; i < loots; i++) {
		s.small = loot[i].size <= SMALL_MAX;
		loot_extents(&loot[i], search_extent, &s);
	}
	for (int i = 0; i < view_count; i++) {
		s.small = views[i].small;
		search_memory(&s, views[i].at, views[i].len);
	}
	return s.found;
}
