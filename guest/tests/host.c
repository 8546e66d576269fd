// SPDX-License-Identifier: GPL-2.0
/* A host for the driver's tests, and processes of the guest: see host.h. */
#include "host.h"

#include <stdio.h>

struct host host;
struct cw_device *device;
static struct virtio_device virtio;
int passed, failed;

void expect(bool holds, const char *what, const char *file, int line)
{
	if (holds)
		return;
	printf("%s:%d: not so: %s\n", file, line, what);
	failed++;
}

static struct queue *queue_of(struct virtqueue *vq)
{
	return container_of(vq, struct queue, vq);
}

static void give_back(struct queue *queue, unsigned int used)
{
	struct buffer buffer = queue->given[0];

	memmove(queue->given, queue->given + 1, --queue->given_count * sizeof(buffer));
	buffer.used = used;
	assert(queue->done_count < BUFFERS);
	queue->done[queue->done_count++] = buffer;
}

u32 grant(void)
{
	do
		host.last_handle = host.last_handle % (HANDLES - 1) + 1;
	while (host.has[host.last_handle]);
	host.has[host.last_handle] = true;
	return host.last_handle;
}

unsigned int granted(void)
{
	unsigned int count = 0;

	for (unsigned int i = 0; i < HANDLES; i++)
		count += host.has[i];
	return count;
}

static bool is_mapped(const struct vm_area_struct *vma, unsigned long from)
{
	for (unsigned long i = 0; vma && i < vma_pages(vma); i++)
		if (vma->pages[i] >= from && vma->pages[i] < from + PHYS_PFN(ROOM))
			return true;
	return false;
}

/* Hides a range, or all of a segment. */
static void hide(u32 handle, const u64 *from)
{
	for (u64 place = 0; place < BUFFERS; place++) {
		struct place *at = &host.places[place];

		if (at->handle != handle || (from && at->from != *from))
			continue;
		/* What may be shown there next is not this process's. */
		for (unsigned int i = 0; i < BUFFERS; i++)
			assert(!is_mapped(mapped[i], PHYS_PFN(WINDOW + place * ROOM)));
		at->handle = 0;
		host.shown--;
	}
}

static int show(u32 handle, u64 from, struct cw_answer *answer)
{
	u64 place, free = BUFFERS;

	assert(from % CW_RANGE_BYTES == 0);
	if (host.together)
		return 0;
	for (place = 0; place < BUFFERS; place++) {
		if (host.places[place].handle == handle && host.places[place].from == from)
			break;
		if (!host.places[place].handle)
			free = min(free, place);
	}
	if (place == BUFFERS) {
		if (host.shown >= host.mappings)
			return ENOSPC;
		place = free;
		host.places[place] = (struct place){ handle, from };
		host.shown++;
		host.most_shown = max(host.most_shown, host.shown);
	}
	answer->offset = host.offset ? host.offset : place * ROOM;
	return 0;
}

static int carry_out(const struct cw_request_header *header, struct cw_answer *answer)
{
	u32 handle = header->handle;
	u64 from = header->size;

	if (host.status)
		return host.status;
	switch (header->operation) {
	case CW_CREATE:
	case CW_DOORBELL:
		answer->handle = grant();
		return 0;
	case CW_SHOW:
		if (handle >= HANDLES || !host.has[handle])
			return EBADF;
		return show(handle, from, answer);
	case CW_PUNCH:
		host.punched++;
		return 0;
	case CW_BEGIN:
		for (handle = 1; handle < HANDLES; handle++)
			hide(handle, NULL);
		memset(host.has, 0, sizeof(host.has));
		return 0;
	case CW_LEFT:
		return EINVAL;
	case CW_HIDE:
	case CW_RELEASE:
		if (handle >= HANDLES || !host.has[handle])
			return EBADF;
		host.hidden += header->operation == CW_HIDE;
		hide(handle, header->operation == CW_HIDE ? &from : NULL);
		host.has[handle] = header->operation == CW_HIDE;
	}
	return 0;
}

void answer_all(void)
{
	while (host.control.given_count) {
		struct buffer *buffer = &host.control.given[0];
		const struct cw_request_header *header = buffer->out.at;
		struct cw_answer *answer = buffer->in.at;

		assert(buffer->out.bytes == sizeof(*header) + header->length);
		host.asked[header->operation]++;
		if (header->operation != CW_RELEASE)
			host.last = *header;
		answer->status = (u32)carry_out(header, answer);
		give_back(&host.control, sizeof(*answer) - host.short_by);
	}
}

static void interrupts(void)
{
	if (!host.silent)
		answer_all();
	if (host.control.done_count && !host.control.quiet)
		host.control.callback(&host.control.vq);
	if (host.events.done_count)
		host.events.callback(&host.events.vq);
}

int virtqueue_add_sgs(struct virtqueue *vq, struct scatterlist *sgs[], unsigned int out,
		      unsigned int in, void *data, gfp_t flags)
{
	struct queue *queue = queue_of(vq);

	assert(kernel.spins == 1 && flags == GFP_ATOMIC && out == 1 && in == 1);
	if (queue->given_count == host.room)
		return -ENOSPC;
	queue->given[queue->given_count++] = (struct buffer){ data, *sgs[0], *sgs[1], 0 };
	return 0;
}

int virtqueue_add_inbuf(struct virtqueue *vq, struct scatterlist *sg, unsigned int count,
			void *data, gfp_t flags)
{
	struct queue *queue = queue_of(vq);

	assert(kernel.spins == 1 && flags == GFP_ATOMIC && count == 1);
	if (queue->given_count == BUFFERS)
		return -ENOSPC;
	queue->given[queue->given_count++] = (struct buffer){ .token = data, .in = *sg };
	return 0;
}

bool virtqueue_kick(struct virtqueue *vq)
{
	assert(kernel.spins == 1);
	return vq != NULL;
}

bool virtqueue_enable_cb(struct virtqueue *vq)
{
	assert(kernel.spins == 1);
	queue_of(vq)->quiet = false;
	return !queue_of(vq)->done_count;
}

void virtqueue_disable_cb(struct virtqueue *vq)
{
	assert(kernel.spins == 1);
	queue_of(vq)->quiet = true;
}

void *virtqueue_get_buf(struct virtqueue *vq, unsigned int *length)
{
	struct queue *queue = queue_of(vq);
	struct buffer buffer = queue->done[0];

	assert(kernel.spins == 1);
	if (!queue->done_count)
		return NULL;
	memmove(queue->done, queue->done + 1, --queue->done_count * sizeof(buffer));
	*length = buffer.used;
	return buffer.token;
}

void *virtqueue_detach_unused_buf(struct virtqueue *vq)
{
	struct queue *queue = queue_of(vq);

	/* What is done and was not taken is the driver's as well. */
	if (queue->done_count)
		return queue->done[--queue->done_count].token;
	return queue->given_count ? queue->given[--queue->given_count].token : NULL;
}

/* Has interrupts served that are due. */
static void interrupt(void)
{
	spinlock_t lock = { false };

	spin_lock(&lock);
	spin_unlock(&lock);
}

void tell_bytes(const void *bytes, unsigned int count)
{
	assert(host.events.given_count && count <= host.events.given[0].in.bytes);
	memcpy(host.events.given[0].in.at, bytes, count);
	give_back(&host.events, count + host.long_by);
	interrupt();
	work_on(&device->work);
}

void tell(const struct cw_event *event, const void *message)
{
	char bytes[CW_EVENT_BYTES];

	memcpy(bytes, event, sizeof(*event));
	if (event->length)
		memcpy(bytes + sizeof(*event), message, event->length);
	tell_bytes(bytes, (unsigned int)sizeof(*event) + event->length);
}

/* What main.c does. */
struct cw_device *cw_device_get(void)
{
	kref_get(&device->refs);
	return device;
}

static void device_free(struct kref *refs)
{
	cw_sleepers_free(container_of(refs, struct cw_device, refs));
	free(container_of(refs, struct cw_device, refs));
	device = NULL;
}

void cw_device_put(struct cw_device *dev)
{
	kref_put(&dev->refs, device_free);
}

void begin(void)
{
	kernel = (struct kernel){ .allocations = -1, .descriptors = -1, .interrupts = interrupts };
	host = (struct host){ .room = BUFFERS, .mappings = BUFFERS };
	device = calloc(1, sizeof(*device));
	assert(device);
	virtio.priv = device;
	host.control = (struct queue){ .vq.vdev = &virtio, .callback = cw_control_done };
	host.events = (struct queue){ .vq.vdev = &virtio, .callback = cw_events_done };
	kref_init(&device->refs);
	init_waitqueue_head(&device->room);
	xa_init_flags(&device->sessions, XA_FLAGS_ALLOC1);
	xa_init_flags(&device->bells, XA_FLAGS_LOCK_IRQ);
	INIT_LIST_HEAD(&device->ranges);
	xa_init(&device->chunks);
	INIT_LIST_HEAD(&device->lingering);
	INIT_DELAYED_WORK(&device->linger, cw_linger);
	INIT_LIST_HEAD(&device->sleepers);
	device->vdev = &virtio;
	device->control = &host.control.vq;
	device->events = &host.events.vq;
	device->window = WINDOW;
	device->window_bytes = WINDOW_BYTES;
	EXPECT(cw_events_begin(device) == 0);
}

void unplug(void)
{
	kernel.asleep = NULL;
	EXPECT(!cw_withdraw(device) || host.silent || host.status || host.short_by);
	cw_leave(device);
	spin_lock_irq(&device->queue_lock);
	device->gone = true;
	spin_unlock_irq(&device->queue_lock);
	/* QEMU 11.1 ends itself if a driver begins after this. */
	EXPECT(!host.shown || host.silent || host.status);
	cw_control_drain(device);
	cw_events_end(device);
}

/* The last of the device must go with it: nothing is open. */
void end(void)
{
	kernel.allocations = kernel.descriptors = -1;
	EXPECT(device->sessions.count == 0 && device->bells.count == 0);
	EXPECT(list_empty(&device->ranges) && granted() == 0 && host.shown == 0);
	if (!device->gone)
		unplug();
	EXPECT(device->refs.count == 1);
	cw_device_put(device);
	passed++;
}

struct file *open_device(void)
{
	struct file *file = calloc(1, sizeof(*file));

	assert(file);
	*file = (struct file){ .f_op = &cw_device_fops, .refs = 1 };
	if (!cw_device_fops.open(&file->inode, file))
		return file;
	free(file);
	return NULL;
}

void close_file(struct file *file)
{
	fput(file);
}

long send(struct file *file, const char *text, int fd)
{
	struct causeway_transfer transfer = {
		.message = (uintptr_t)text,
		.length = (u32)strlen(text),
		.count = fd >= 0,
		.fds = { fd },
	};

	return file->f_op->unlocked_ioctl(file, CAUSEWAY_SEND, (uintptr_t)&transfer);
}

long receive(struct file *file, struct causeway_transfer *transfer, void *text, u32 bytes)
{
	*transfer = (struct causeway_transfer){ .message = (uintptr_t)text, .length = bytes,
						.count = CAUSEWAY_FDS_MAX };
	return file->f_op->unlocked_ioctl(file, CAUSEWAY_RECEIVE, (uintptr_t)transfer);
}

struct file *file_of(int fd)
{
	struct file *file = fget(fd);

	assert(file && file->refs > 1);
	file->refs--;
	return file;
}

struct vm_area_struct *mapped[BUFFERS];

/* The mapping keeps the file, as in the kernel. */
void map(struct vm_area_struct *vma, struct file *file, unsigned long pages)
{
	map_at(vma, file, 0, pages);
}

void map_at(struct vm_area_struct *vma, struct file *file, unsigned long first,
	    unsigned long pages)
{
	static unsigned long address = 1ul << 40;

	*vma = (struct vm_area_struct){ .vm_start = address, .vm_flags = VM_MAYSHARE,
					.vm_end = address + pages * PAGE_SIZE,
					.vm_pgoff = first, .vm_mm = &process,
					.vm_file = file };
	address += 1ul << 30;
	EXPECT(file->f_op->mmap(file, vma) == 0);
	vma->next = file->space.mapped;
	file->space.mapped = vma;
	file->refs++;
	for (unsigned int i = 0; i < BUFFERS; i++) {
		if (mapped[i])
			continue;
		mapped[i] = vma;
		return;
	}
	assert(!"too many mappings");
}

void unmap(struct vm_area_struct *vma, struct file *file)
{
	struct vm_area_struct **at = &file->space.mapped;

	while (*at != vma)
		at = &(*at)->next;
	*at = vma->next;
	zap(vma, vma->vm_pgoff, vma_pages(vma));
	if (vma->vm_ops && vma->vm_ops->close)
		vma->vm_ops->close(vma);
	for (unsigned int i = 0; i < BUFFERS; i++)
		if (mapped[i] == vma)
			mapped[i] = NULL;
	fput(file);
}

vm_fault_t touch(struct vm_area_struct *vma, unsigned long page)
{
	struct vm_fault fault = { vma, vma->vm_start + page * PAGE_SIZE, FAULT_FLAG_ALLOW_RETRY };

	return vma->vm_ops->fault(&fault);
}
