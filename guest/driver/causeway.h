/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The driver's own structures.
 *
 * A device lives as long as anything of it does: open files, segments and doorbells each hold it.
 * When it is unplugged, or the host ends what it shows, it is dead: whoever waits is woken,
 * mappings of the window fault, and what was opened stays so until it is closed.
 */
#ifndef CAUSEWAY_H
#define CAUSEWAY_H

#include <linux/completion.h>
#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/rwsem.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/virtio.h>
#include <linux/virtio_config.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "causeway_virtio.h"

/* Linux 6.12 lacks it. */
#ifndef kzalloc_obj
#define kzalloc_obj(object, flags) kzalloc(sizeof(object), flags)
#endif

/* Buffers for events; each holds the longest message. */
#define CW_EVENT_BUFFERS 16
#define CW_EVENT_BYTES (sizeof(struct cw_event) + CAUSEWAY_MESSAGE_MAX)
/* Messages that a process has not taken; beyond that it is given up. */
#define CW_MESSAGES_MAX 256
/* How long the host may take for an answer. */
#define CW_ANSWER_TIMEOUT (5 * HZ)
/* What a process is given of a segment when it touches a page: a power of two, aligned. */
#define CW_FAULT_BYTES (512UL << 10)
/* Doorbells that one open file may wait for. */
#define CW_BELLS_MAX 64

struct cw_device {
	struct kref refs;
	struct virtio_device *vdev; /* NULL once it is dead; under queue_lock */
	bool dead;
	bool gone; /* its queues, too; under queue_lock */
	struct virtqueue *control;
	struct virtqueue *events;
	spinlock_t queue_lock; /* of both queues, their buffers and what is taken off them */
	unsigned int awaited; /* answers that somebody waits for; under queue_lock */
	wait_queue_head_t room; /* in the control queue */
	phys_addr_t window;
	u64 window_bytes;
	struct mutex lock; /* of what follows */
	struct xarray sessions; /* struct cw_session by number */
	struct xarray bells; /* struct cw_bell by handle */
	struct list_head sleepers; /* struct cw_sleeper, that nobody uses */
	struct mutex show_lock; /* who shows or hides; before map_lock */
	struct rw_semaphore map_lock; /* faults read, who hides and death write; of what follows */
	struct list_head ranges; /* struct cw_range that are shown, in that order */
	struct xarray chunks; /* struct pages of the window: see pages.c */
	struct list_head lingering; /* segments that nobody has open, with pinned pages */
	struct delayed_work linger;
	struct task_struct *zapper; /* takes pages away from processes, which keep them */
	u32 last_session;
	struct list_head messages; /* taken off the event queue, under queue_lock */
	struct work_struct work;
	struct notifier_block reboot;
};

/* An event, in the buffer that the device wrote it to. */
struct cw_message {
	struct list_head list;
	u32 bytes;
	struct cw_event *event;
};

/* An open file of the device. */
struct cw_session {
	struct cw_device *dev;
	u32 number;
	bool opened; /* the host knows it; under lock */
	bool ended;
	struct mutex lock; /* one message at a time goes out: bells, opened */
	spinlock_t queue_lock; /* of the messages */
	struct list_head messages;
	unsigned int count;
	wait_queue_head_t wait;
	struct list_head bells; /* that it waits for */
	unsigned int bell_count;
};

/* A doorbell of the guest that the host rings. */
struct cw_bell {
	struct list_head list;
	u32 handle;
	struct eventfd_ctx *event; /* of a process; NULL if it is a file of ours */
	wait_queue_head_t wait; /* of a file of ours: who reads it, */
	u64 count; /* and how often it was rung, under the queue's lock */
};

/* What a process has of its private memory in a segment: see inplace.c. */
struct cw_inplace {
	struct mutex lock; /* one request at a time */
	struct mm_struct *mm; /* the process's address space, once there is something */
	struct mmu_notifier notifier;
	struct xarray pages; /* that are in place, by number */
	struct task_struct *mover; /* whose HOME is under way, */
	struct cw_moving *moving; /* which it alone looks at */
	u64 held, held_end; /* who touches this waits; under map_lock */
	wait_queue_head_t wait;
};

/* Memory of the host's, which may be larger than the window. */
struct cw_segment {
	struct cw_device *dev;
	struct address_space *mapping;
	u32 handle;
	u64 length;
	struct list_head ranges; /* struct cw_range that are shown */
	struct list_head list; /* in the device's, once it lingers */
	struct cw_inplace inplace;
};

/* CW_RANGE_BYTES of a segment, or what is left of it, that is shown in the window. */
struct cw_range {
	struct list_head list; /* in the device's */
	struct list_head of_segment;
	struct cw_segment *segment;
	u64 number; /* of it in the segment */
	u64 offset; /* where in the window */
	u64 length;
	unsigned int users; /* it stays shown; under show_lock */
	bool touched; /* since room was last sought for another; cleared under map_lock */
};

/* control.c: requests of the host */
int cw_call(struct cw_device *dev, struct cw_request_header *header, const void *message,
	    struct cw_answer *answer);
int cw_post(struct cw_device *dev, struct cw_request_header *header);
void cw_control_done(struct virtqueue *vq);
void cw_control_drain(struct cw_device *dev);

/* events.c: what the host tells */
int cw_events_begin(struct cw_device *dev);
void cw_events_done(struct virtqueue *vq);
void cw_events_end(struct cw_device *dev);
void cw_message_free(struct cw_message *message);

/* segment.c: descriptors for segments */
struct file *cw_segment_file(struct cw_device *dev, u32 handle, u64 length, bool writable);
struct cw_segment *cw_file_segment(struct file *file);
bool cw_is_inplace(const struct vm_area_struct *vma);
int cw_find_word(struct cw_device *dev, u64 address, __le32 *handle, __le64 *offset);
struct cw_range *cw_find_range(struct cw_segment *segment, u64 number);
struct cw_range *cw_range_get(struct cw_segment *segment, u64 number);
void cw_range_put(struct cw_range *range);
void cw_unmap(struct cw_segment *segment, u64 from, u64 bytes);
void cw_unmap_twins(struct cw_range *range, u64 from, u64 bytes);
void cw_linger(struct work_struct *work);
void cw_objects_kill(struct cw_device *dev);

/* objects.c: descriptors for peers' doorbells, and handles */
struct file *cw_ring_file(struct cw_device *dev, u32 handle);
void cw_bell_rung(struct cw_bell *bell);
long cw_wake(struct cw_device *dev, u64 address, u32 count);
bool cw_file_handle(struct cw_device *dev, struct file *file, u32 *handle);
void cw_release_handle(struct cw_device *dev, u32 handle);

/* inplace.c: private memory of processes in segments */
void cw_inplace_init(struct cw_segment *segment);
void cw_inplace_end(struct cw_segment *segment);
long cw_inplace_ioctl(struct file *file, unsigned int number, unsigned long argument);
ssize_t cw_inplace_read(struct file *file, char __user *to, size_t bytes, loff_t *at);
unsigned long cw_inplace_area(struct file *file, unsigned long address, unsigned long length,
			      unsigned long page, unsigned long flags);
bool cw_inplace_mapped(struct cw_segment *segment, struct vm_area_struct *vma);
bool cw_inplace_held(struct cw_segment *segment, struct vm_fault *vmf);
vm_fault_t cw_inplace_wait(struct cw_segment *segment, struct vm_fault *vmf);
void cw_inplace_gone(struct cw_segment *segment, struct vm_area_struct *vma);
u64 cw_in_window(const struct cw_range *range, u64 offset);

/* keep.c: what is left of it when the device goes */
void cw_leave(struct cw_device *dev);
int cw_withdraw(struct cw_device *dev);
void cw_keep_taken(struct cw_segment *segment, unsigned long number, struct page *from);
struct page *cw_kept(struct cw_segment *segment, unsigned long number);
vm_fault_t cw_kept_insert(struct cw_segment *segment, struct vm_fault *vmf, unsigned long number);
void cw_inplace_clear(struct cw_segment *segment, unsigned long first, unsigned long end);
bool cw_kept_quiet(struct cw_segment *segment, unsigned long first, unsigned long end);
void cw_kept_forget(struct cw_segment *segment, unsigned long first, unsigned long end);

/* pages.c: struct pages for the window */
int cw_pages_make(struct cw_device *dev, u64 offset);
bool cw_pages_made(struct cw_device *dev, u64 offset);
struct page *cw_page(struct cw_device *dev, u64 offset);
vm_fault_t cw_page_insert(struct cw_device *dev, struct vm_area_struct *vma, unsigned long address,
			  u64 offset, pgoff_t index);
bool cw_pages_quiet(struct cw_device *dev, u64 offset, u64 bytes);
void cw_pages_pass(struct cw_range *range, const struct cw_range *twin);
void cw_pages_free(struct cw_device *dev);

/* sleep.c: sleeping by the host */
long cw_sleep(struct cw_device *dev, const struct causeway_sleep *sleep);
void cw_sleepers_free(struct cw_device *dev);

/* session.c: open files */
extern const struct file_operations cw_device_fops;
void cw_session_take(struct cw_session *session, struct cw_message *message);
void cw_session_end(struct cw_session *session);

/* main.c: the device */
struct cw_device *cw_device_get(void);
void cw_device_put(struct cw_device *dev);

#endif
