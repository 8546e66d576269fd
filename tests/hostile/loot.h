/* What an attacker can lay its hands on: every descriptor of shared memory that it has, kept open,
 * and every byte behind one. */
#ifndef CAUSEWAY_HOSTILE_LOOT_H
#define CAUSEWAY_HOSTILE_LOOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define LOOT_MAX 256
#define VIEWS_MAX 2048
/* What is larger is a memory segment; the rest are rings, inboxes and tables. */
#define SMALL_MAX (256ul << 20)

/* A descriptor of shared memory. */
struct loot {
	int fd;
	bool writable;
	ino_t inode;
	size_t size;
};

/* A mapping of a part of one, for as much as the descriptor allows. */
struct view {
	unsigned char *at;
	size_t len;
	ino_t inode;
	/* Offset of its first byte. */
	uint64_t from;
	bool writable, small;
};

extern struct loot loot[LOOT_MAX];
extern int loots;
extern struct view views[VIEWS_MAX];
extern int view_count;

/* Duplicates every descriptor and mapping of shared memory that is not kept yet; maps memory
 * segments, which are large, at these offsets. */
void loot_keep(const uint64_t (*ranges)[2], int count);
/* Calls for every stretch of a loot's bytes that there are. */
void loot_extents(const struct loot *l, void (*each)(const struct loot *, off_t, size_t, void *),
		  void *arg);

/* What was found: words of secret and public contents. */
struct found {
	uint64_t secret, public, bytes;
};
/* Looks through every byte of all loot and all views, for public words in memory segments only. The
 * tags are given as complements, so as not to be found themselves. */
struct found loot_search(uint32_t not_secret, uint32_t not_public);

/* Tries to get more out of every descriptor than it was given for. What worked, or NULL. */
const char *loot_upgrade(void);
/* Tries to get at another process. What worked, or NULL. */
const char *loot_process(pid_t pid);

#endif
