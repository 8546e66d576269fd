/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * What a process of a guest asks of /dev/causeway. Each open file is one client of the broker on
 * the host; poll(2) says when a message has come.
 */
#ifndef CAUSEWAY_IOCTL_H
#define CAUSEWAY_IOCTL_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define CAUSEWAY_FDS_MAX 4
#define CAUSEWAY_MESSAGE_MAX 32768

/* A message, with the descriptors beside it. */
struct causeway_transfer {
	__u64 message;
	__u32 length;
	__u32 count;
	__s32 fds[CAUSEWAY_FDS_MAX];
};

/* A segment to be made in the window. */
struct causeway_creation {
	__u64 length;
	__s32 fd;
	__u32 zero;
};

/* A word in a segment of the window, on which processes outside of this machine may sleep. */
struct causeway_waking {
	__u64 address;
	__u32 count; /* how many are woken at most */
	__u32 zero;
};

/*
 * Of a segment's descriptor: whole pages. For HOME they begin at an address of the caller's, which
 * is where they come to lie in the segment as well; else at an offset of the segment.
 */
struct causeway_span {
	__u64 start;
	__u64 length;
};

/* HOME and HOLD name no more, between two multiples of it: others wait meanwhile. */
#define CAUSEWAY_SPAN_MAX (1024 << 10)

#define CAUSEWAY_WORDS_MAX 2

/* Words in segments of the window: the host lets the caller sleep while all are as expected. */
struct causeway_sleep {
	__u64 addresses[CAUSEWAY_WORDS_MAX];
	__u32 expected[CAUSEWAY_WORDS_MAX];
	__u32 count;
	__u32 zero;
	__u64 nanoseconds; /* at most */
};

/* Numbers 1 and 2 are FIBMAP and FIGETBSZ of every file. */
#define CAUSEWAY_SEND _IOWR(0xca, 0x10, struct causeway_transfer)
#define CAUSEWAY_RECEIVE _IOWR(0xca, 0x11, struct causeway_transfer)
#define CAUSEWAY_CREATE _IOWR(0xca, 0x12, struct causeway_creation)
#define CAUSEWAY_WAKE _IOWR(0xca, 0x14, struct causeway_waking)

/* Returns when a word has changed or somebody is woken who sleeps on it, or earlier. */
#define CAUSEWAY_SLEEP _IOWR(0xca, 0x16, struct causeway_sleep)

/* Waits until the host has done what was asked of it before: one kick, one interrupt. */
#define CAUSEWAY_SETTLE _IO(0xca, 0x15)

/*
 * Of a segment's descriptor. HOME replaces private memory of the caller by the segment's, contents
 * kept; who touches it meanwhile waits. Nothing has happened if it fails: EBUSY for pages that a
 * device or another's reading or writing has, EINVAL for other memory than private, anonymous,
 * readable and writable, in one mapping.
 */
#define CAUSEWAY_HOME _IOW(0xca, 0x17, struct causeway_span)

/* Empties pages of the segment: they are zeros for everybody. */
#define CAUSEWAY_PUNCH _IOW(0xca, 0x18, struct causeway_span)

/*
 * Has whoever touches memory that is in place in these pages wait, until LET_GO. One at a time for
 * each segment. EBUSY as above. pread(2) reads the pages meanwhile.
 */
#define CAUSEWAY_HOLD _IOW(0xca, 0x19, struct causeway_span)
#define CAUSEWAY_LET_GO _IO(0xca, 0x1a)

/* Of a doorbell that was granted: it becomes readable when somebody rings it, as an eventfd. */
#define CAUSEWAY_WATCH _IO(0xca, 0x13)

#endif
