/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The host's side of the queues, and a device as a probe makes it. The host does what the tests
 * say, by default what it should: it answers at once, shows segments side by side, as many as
 * `mappings`, and ends the test if it is told to hide one that a process has still mapped.
 */
#ifndef HOST_H
#define HOST_H

#include "kernel.h"

#include "../driver/causeway.h"

#define BUFFERS 128
#define HANDLES 1024
#define WINDOW (1ull << 36)
#define WINDOW_BYTES (1ull << 36)
/* Room of each range in the window. */
#define ROOM CW_RANGE_BYTES

struct buffer {
	void *token;
	struct scatterlist out, in;
	unsigned int used; /* bytes written */
};

struct queue {
	struct virtqueue vq;
	struct buffer given[BUFFERS]; /* to the device */
	struct buffer done[BUFFERS]; /* by it */
	unsigned int given_count, done_count;
	bool quiet; /* wants no interrupts */
	void (*callback)(struct virtqueue *vq);
};

struct host {
	struct queue control, events;
	unsigned int room; /* of the control queue */
	bool silent; /* answers nothing */
	int status; /* of every answer, if it is not 0 */
	unsigned int short_by; /* bytes that answers lack */
	unsigned int long_by; /* bytes that events have too many, as it says */
	u64 offset; /* of what is shown, if it is not 0 */
	bool together; /* what is shown is what is shown first already */
	unsigned int mappings; /* that there may be */
	u32 last_handle;
	bool has[HANDLES]; /* handles that the guest has */
	struct place {
		u32 handle; /* 0: nothing is shown there */
		u64 from; /* where the range begins in the segment */
	} places[BUFFERS];
	unsigned int shown, most_shown, hidden, punched;
	unsigned int asked[CW_LEFT + 1]; /* requests, by operation */
	struct cw_request_header last; /* request but CW_RELEASE */
};

extern struct host host;
extern struct cw_device *device;
/* Mappings of processes, by place of the window. */
extern struct vm_area_struct *mapped[];

/* A device, and nothing of it left behind. */
void begin(void);
void end(void);
/* The host answers what it was asked. */
void answer_all(void);
/* Tells the guest something; what it has to do at once is done. */
void tell(const struct cw_event *event, const void *message);
/* As if `bytes` were written to a buffer, whatever they are. */
void tell_bytes(const void *bytes, unsigned int count);
/* A handle that the guest has from now on. */
u32 grant(void);
/* How many it has. */
unsigned int granted(void);
/* The device is dead: reset, all buffers taken back. */
void unplug(void);

/* A process opens the device, closes it, and sends and receives. */
struct file *open_device(void);
void close_file(struct file *file);
long send(struct file *file, const char *text, int fd);
long receive(struct file *file, struct causeway_transfer *transfer, void *text, u32 bytes);
/* Maps a segment's descriptor; touches an address. */
void map(struct vm_area_struct *vma, struct file *file, unsigned long pages);
void map_at(struct vm_area_struct *vma, struct file *file, unsigned long first,
	    unsigned long pages);
void unmap(struct vm_area_struct *vma, struct file *file);
vm_fault_t touch(struct vm_area_struct *vma, unsigned long page);
/* A descriptor's file; closed. */
struct file *file_of(int fd);

extern int passed, failed;
void expect(bool holds, const char *what, const char *file, int line);
#define EXPECT(condition) expect(condition, #condition, __FILE__, __LINE__)

/* The tests. */
void test_control(void);
void test_events(void);
void test_sessions(void);
void test_objects(void);
void test_sleep(void);
void test_inplace(void);
void test_rubbish(void);

#endif
