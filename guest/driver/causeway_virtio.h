/* SPDX-License-Identifier: GPL-2.0 */
/* What travels over the virtqueues; docs/VM.md says the same in words. All little-endian. */
#ifndef CAUSEWAY_VIRTIO_H
#define CAUSEWAY_VIRTIO_H

#include <linux/types.h>

#include "causeway_ioctl.h"

#define CW_VIRTIO_ID 36
#define CW_CONFIG_MAGIC 0x4d565743
#define CW_CONFIG_VERSION 3
#define CW_WINDOW_ID 0
/* What is shown of a segment at a time: this much from a multiple of it on, or what is left. */
#define CW_RANGE_BYTES (512ULL << 20)
/* Longest segment. */
#define CW_SEGMENT_MAX (128ULL << 40)

enum cw_operation {
	CW_OPEN = 1,
	CW_CLOSE = 2,
	CW_SEND = 3,
	CW_CREATE = 4,
	CW_DOORBELL = 5,
	CW_RELEASE = 6,
	CW_RING = 7,
	CW_BEGIN = 8,
	CW_SHOW = 9,
	CW_HIDE = 10,
	CW_WATCH = 11,
	CW_WAKE = 12,
	CW_SLEEP = 13,
	CW_RISE = 14,
	CW_PUNCH = 15,
	CW_LEFT = 16,
};

enum cw_event_kind {
	CW_MESSAGE = 1,
	CW_RUNG = 2,
	CW_ENDED = 3,
	CW_ENDING = 4, /* what is shown; CW_LEFT is waited for, not for long */
};

enum cw_grant_kind {
	CW_GRANT_SEGMENT = 1,
	CW_GRANT_BELL = 2,
};

#define CW_GRANT_WRITABLE 1

struct cw_config {
	__le32 magic;
	__le32 version;
	__le32 fds_max;
};

struct cw_request_header {
	__le16 operation;
	__le16 zero;
	__le32 session; /* of CW_WAKE: how many */
	__le32 handle; /* of CW_OPEN: the user */
	__le32 length; /* of the message behind the header */
	__le64 size; /* of CW_WAKE: where the word is; of CW_SHOW and CW_HIDE: the range */
	__le32 count;
	__le32 handles[CAUSEWAY_FDS_MAX];
	__le32 zero2;
};

/* Of CW_SLEEP: the message, a word for each handle. */
struct cw_sleep_word {
	__le64 offset;
	__le32 expected;
	__le32 zero;
};

struct cw_answer {
	__le32 status;
	__le32 handle;
	__le64 offset;
	__le64 length;
};

struct cw_grant {
	__le16 kind;
	__le16 flags;
	__le32 handle;
	__le64 length;
	__le64 zero;
};

struct cw_event {
	__le16 kind;
	__le16 count;
	__le32 session;
	__le32 handle;
	__le32 length;
	struct cw_grant grants[CAUSEWAY_FDS_MAX];
	__u8 message[];
};

#endif
