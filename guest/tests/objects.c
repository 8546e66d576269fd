// SPDX-License-Identifier: GPL-2.0
/* Segments and doorbells: what is shown, hidden, mapped, and left when it is given up. */
#include "host.h"

/* Segments, more than the host shows at a time. */
#define MANY 40
#define SHOWN 8
#define PAGES 3

static struct file *segment(unsigned long pages)
{
	struct file *file = cw_segment_file(device, grant(), pages * PAGE_SIZE, true);

	EXPECT(!IS_ERR(file));
	return file;
}

/* Where a process finds the memory of a page, in the window. */
static u64 place(const struct vm_area_struct *vma, unsigned long page)
{
	return ((u64)vma->pages[page] << PAGE_SHIFT) - WINDOW;
}

/* As many as can be are shown, and what is touched is: the host ends the test if a process still
 * has a page of one that is hidden. */
static void few_are_shown(void)
{
	static struct vm_area_struct vma[MANY];
	struct file *files[MANY];

	begin();
	host.mappings = SHOWN;
	for (int i = 0; i < MANY; i++) {
		files[i] = segment(PAGES);
		map(&vma[i], files[i], PAGES);
	}
	EXPECT(host.asked[CW_SHOW] == 0);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < MANY; i++) {
			EXPECT(touch(&vma[i], i % PAGES) == VM_FAULT_NOPAGE);
			EXPECT(vma[i].pages[i % PAGES]);
		}
	}
	EXPECT(host.most_shown == SHOWN && host.shown == SHOWN);
	EXPECT(host.hidden == 3 * MANY - SHOWN);
	/* What is shown needs nothing of the host. */
	host.silent = true;
	EXPECT(touch(&vma[MANY - 1], 0) == VM_FAULT_NOPAGE);
	host.silent = false;
	for (int i = 0; i < MANY; i++) {
		fput(files[i]);
		EXPECT(granted() == (unsigned int)(MANY - i));
		unmap(&vma[i], files[i]);
	}
	end();
}

/* What is in use stays shown, though it was shown before what is not. */
static void idle_ones_are_hidden(void)
{
	static struct vm_area_struct vma[SHOWN + 2];
	struct file *files[SHOWN + 2];
	unsigned int shown;

	begin();
	host.mappings = SHOWN;
	for (int i = 0; i < SHOWN + 2; i++) {
		files[i] = segment(PAGES);
		map(&vma[i], files[i], PAGES);
	}
	/* When the last of these is touched all others were: the first is hidden. */
	for (int i = 0; i <= SHOWN; i++)
		EXPECT(touch(&vma[i], 0) == VM_FAULT_NOPAGE);
	EXPECT(touch(&vma[1], 0) == VM_FAULT_NOPAGE && host.hidden == 1);
	EXPECT(touch(&vma[SHOWN + 1], 0) == VM_FAULT_NOPAGE && host.hidden == 2);
	shown = host.asked[CW_SHOW];
	EXPECT(touch(&vma[1], 0) == VM_FAULT_NOPAGE && host.asked[CW_SHOW] == shown);
	EXPECT(touch(&vma[2], 0) == VM_FAULT_NOPAGE && host.asked[CW_SHOW] > shown);
	for (int i = 0; i < SHOWN + 2; i++) {
		fput(files[i]);
		unmap(&vma[i], files[i]);
	}
	end();
}

/* A segment of which no mapping may reach beyond its end, since what follows is another's. */
static void bounds(void)
{
	static struct vm_area_struct vma;
	struct file *file;

	begin();
	file = segment(PAGES);
	for (unsigned long offset = 0; offset < 6; offset++) {
		for (unsigned long pages = 1; pages < 6; pages++) {
			struct vm_area_struct one = { .vm_start = PAGE_SIZE, .vm_pgoff = offset,
						      .vm_end = (1 + pages) * PAGE_SIZE,
						      .vm_flags = VM_MAYSHARE };
			bool inside = offset + pages <= PAGES;

			EXPECT(file->f_op->mmap(file, &one) == (inside ? 0 : -EINVAL));
			EXPECT(!inside || one.vm_flags & VM_DONTEXPAND);
			one.vm_pgoff = ~0ul - pages + 1;
			EXPECT(file->f_op->mmap(file, &one) == -EINVAL);
			one.vm_pgoff = 0;
			one.vm_flags = 0;
			EXPECT(file->f_op->mmap(file, &one) == -EINVAL);
		}
	}
	map(&vma, file, 1);
	vma.vm_pgoff = 1;
	EXPECT(touch(&vma, 0) == VM_FAULT_NOPAGE && place(&vma, 0) == PAGE_SIZE);
	fput(file);
	unmap(&vma, file);
	end();
}

/* A host that says it showed something where there is nothing, or half of it. */
static void false_places(void)
{
	static const u64 places[] = {
		WINDOW_BYTES, WINDOW_BYTES - PAGE_SIZE, 1, ~0ull, ~0ull << PAGE_SHIFT, PAGE_SIZE,
	};
	static struct vm_area_struct vma;
	struct file *file;

	for (unsigned int i = 0; i < ARRAY_SIZE(places); i++) {
		begin();
		host.offset = places[i];
		file = segment(PAGES);
		map(&vma, file, PAGES);
		EXPECT(touch(&vma, 0) == VM_FAULT_SIGBUS && !vma.pages[0]);
		fput(file);
		unmap(&vma, file);
		end();
	}
}

/* A host that has no room though nothing is shown, that does not answer, that is gone. */
static void nothing_is_shown(void)
{
	static struct vm_area_struct vma;
	struct file *file;

	begin();
	file = segment(PAGES);
	map(&vma, file, PAGES);
	host.mappings = 0;
	EXPECT(touch(&vma, 0) == VM_FAULT_SIGBUS && host.asked[CW_HIDE] == 0);
	host.silent = true;
	EXPECT(touch(&vma, 0) == VM_FAULT_SIGBUS);
	host.silent = false;
	host.mappings = 1;
	EXPECT(touch(&vma, 0) == VM_FAULT_NOPAGE);
	unplug();
	EXPECT(!vma.pages[0]);
	/* What there was is nobody's; the process finds new memory, which stays. */
	kernel.allocations = 0;
	EXPECT(touch(&vma, 0) == VM_FAULT_OOM);
	kernel.allocations = -1;
	EXPECT(touch(&vma, 0) == VM_FAULT_NOPAGE && touch(&vma, 0) == VM_FAULT_NOPAGE);
	EXPECT(pfn_to_page(vma.pages[0])->lone && !page_bytes(pfn_to_page(vma.pages[0]))[5]);
	fput(file);
	unmap(&vma, file);
	memset(host.has, 0, sizeof(host.has));
	host.shown = 0;
	end();
}

/* The machine starts again while a process has something mapped, and goes on for a while. */
static void reboots(void)
{
	static struct vm_area_struct vma;
	struct file *file;

	begin();
	file = segment(PAGES);
	map(&vma, file, PAGES);
	EXPECT(touch(&vma, 0) == VM_FAULT_NOPAGE && host.shown == 1);
	EXPECT(cw_withdraw(device) == 0 && host.shown == 0 && granted() == 0 && !vma.pages[0]);
	/* Nothing comes back, and nothing is asked of the host any more. */
	EXPECT(touch(&vma, 0) == VM_FAULT_NOPAGE && pfn_to_page(vma.pages[0])->lone);
	EXPECT(host.last.operation == CW_BEGIN && host.shown == 0);
	fput(file);
	unmap(&vma, file);
	end();
}

/* So it does where the host does not answer, refuses, or has given it up. */
static void reboots_alone(void)
{
	static const struct {
		bool silent;
		int status, error;
	} hosts[] = { { true, 0, -ETIMEDOUT }, { false, EBADMSG, -EBADMSG }, { false, ENODEV, 0 } };

	for (unsigned int i = 0; i < ARRAY_SIZE(hosts); i++) {
		begin();
		host.silent = hosts[i].silent;
		host.status = hosts[i].status;
		EXPECT(cw_withdraw(device) == hosts[i].error && device->dead);
		end();
	}
}

static void leaves(void)
{
	kernel.asleep = NULL;
	cw_leave(device);
}

/* The host ends what it shows while a process waits for something of it. */
static void ends_meanwhile(void)
{
	static struct vm_area_struct vma;
	struct file *file;

	begin();
	file = segment(PAGES);
	map(&vma, file, PAGES);
	host.silent = true;
	kernel.asleep = leaves;
	EXPECT(touch(&vma, 0) == VM_FAULT_NOPAGE && device->dead);
	EXPECT(vma.pages[0] && pfn_to_page(vma.pages[0])->lone);
	memset(host.has, 0, sizeof(host.has));
	host.silent = false;
	fput(file);
	unmap(&vma, file);
	end();
}

/* Who has a page pinned when the device goes keeps it, as no file's; and where a new device shows
 * something there nobody gets it. */
static void pinned_for_good(void)
{
	static struct vm_area_struct vma;
	struct file *file;
	struct page *page;

	begin();
	file = segment(PAGES);
	map(&vma, file, PAGES);
	EXPECT(touch(&vma, 0) == VM_FAULT_NOPAGE);
	page = pfn_to_page(vma.pages[0]);
	page->refs++;
	EXPECT(page->mapping == &file->space);
	unplug();
	EXPECT(page->refs == 2 && !page->mapping);
	memset(host.has, 0, sizeof(host.has));
	host.shown = 0;
	fput(file);
	unmap(&vma, file);
	end();
	begin();
	file = segment(PAGES);
	map(&vma, file, PAGES);
	EXPECT(touch(&vma, 0) == VM_FAULT_SIGBUS && !vma.pages[0]);
	fput(file);
	unmap(&vma, file);
	end();
	put_page(page);
	forget_pages();
}

/* Pages around what is touched come with it, and none of before or after the mapping. */
static void around(void)
{
	static struct vm_area_struct vma;
	struct file *file;

	begin();
	file = segment(VMA_PAGES);
	map(&vma, file, VMA_PAGES);
	EXPECT(touch(&vma, VMA_PAGES - 1) == VM_FAULT_NOPAGE);
	for (unsigned long i = 0; i < VMA_PAGES; i++)
		EXPECT(place(&vma, i) == i * PAGE_SIZE);
	fput(file);
	unmap(&vma, file);
	end();
}

/* A segment that is larger than the window, of which what is touched is shown by ranges. */
static void ranges(void)
{
	const unsigned long range = PHYS_PFN(CW_RANGE_BYTES);
	static struct vm_area_struct near, far;
	struct file *file;
	unsigned int asked;

	begin();
	host.mappings = 2;
	file = segment(PHYS_PFN(CW_SEGMENT_MAX));
	/* Pages on both sides of where a range ends. */
	map_at(&near, file, range - 2, 4);
	map_at(&far, file, PHYS_PFN(CW_SEGMENT_MAX) - 1, 1);
	EXPECT(touch(&near, 1) == VM_FAULT_NOPAGE && host.last.size == 0);
	EXPECT(place(&near, 0) == CW_RANGE_BYTES - 2 * PAGE_SIZE);
	EXPECT(place(&near, 1) == CW_RANGE_BYTES - PAGE_SIZE);
	EXPECT(!near.pages[2] && !near.pages[3]);
	EXPECT(touch(&near, 3) == VM_FAULT_NOPAGE && host.last.size == CW_RANGE_BYTES);
	EXPECT(place(&near, 2) == ROOM && place(&near, 3) == ROOM + PAGE_SIZE);
	EXPECT(host.shown == 2 && host.asked[CW_SHOW] == 2);
	/* The first range goes, and the second stays. */
	EXPECT(touch(&far, 0) == VM_FAULT_NOPAGE);
	EXPECT(host.last.size == CW_SEGMENT_MAX - CW_RANGE_BYTES && host.hidden == 1);
	EXPECT(place(&far, 0) == CW_RANGE_BYTES - PAGE_SIZE);
	EXPECT(!near.pages[0] && !near.pages[1]);
	asked = host.asked[CW_SHOW];
	EXPECT(touch(&near, 2) == VM_FAULT_NOPAGE && host.asked[CW_SHOW] == asked);
	EXPECT(place(&near, 2) == ROOM && place(&near, 3) == ROOM + PAGE_SIZE);
	fput(file);
	unmap(&near, file);
	unmap(&far, file);
	EXPECT(IS_ERR(cw_segment_file(device, grant(), CW_SEGMENT_MAX + PAGE_SIZE, true)));
	end();
}

static void created(void)
{
	struct causeway_creation creation = { .length = PAGE_SIZE };
	struct file *file;
	long (*ioctl)(struct file *file, unsigned int number, unsigned long argument);

	begin();
	file = open_device();
	ioctl = file->f_op->unlocked_ioctl;
	EXPECT(ioctl(file, CAUSEWAY_CREATE, (uintptr_t)&creation) == 0 && granted() == 1);
	EXPECT(file_of(creation.fd)->inode.size == PAGE_SIZE);
	put_unused_fd(creation.fd);
	kernel.descriptors = 0;
	EXPECT(ioctl(file, CAUSEWAY_CREATE, (uintptr_t)&creation) == -EMFILE && !granted());
	creation.length = 0;
	EXPECT(ioctl(file, CAUSEWAY_CREATE, (uintptr_t)&creation) == -EINVAL);
	creation.length = PAGE_SIZE + 1;
	EXPECT(ioctl(file, CAUSEWAY_CREATE, (uintptr_t)&creation) == -EINVAL);
	host.status = EDQUOT;
	creation.length = PAGE_SIZE;
	EXPECT(ioctl(file, CAUSEWAY_CREATE, (uintptr_t)&creation) == -EDQUOT);
	close_file(file);
	end();
}

static ssize_t read_ring(struct file *ring, void *to, size_t bytes)
{
	struct kiocb call = { .ki_filp = ring };
	struct iov_iter iter = { .to = to, .count = bytes };

	return ring->f_op->read_iter(&call, &iter);
}

/* A doorbell that was granted: rung by writing, heard of once it is watched. */
static void rings(void)
{
	struct file *ring;
	u64 count = 1;
	u32 handle;

	begin();
	handle = grant();
	ring = cw_ring_file(device, handle);
	EXPECT(ring->f_op->write(ring, (char *)&count, sizeof(count), NULL) == sizeof(count));
	EXPECT(host.asked[CW_RING] == 1 && host.last.handle == handle);
	EXPECT(ring->f_op->write(ring, (char *)&count, 4, NULL) == -EINVAL);
	EXPECT(read_ring(ring, &count, 4) == -EINVAL);
	EXPECT(ring->f_mode & FMODE_NOWAIT);
	tell(&(struct cw_event){ .kind = CW_RUNG, .handle = handle }, NULL);
	EXPECT(read_ring(ring, &count, sizeof(count)) == -EAGAIN);
	EXPECT(ring->f_op->unlocked_ioctl(ring, CAUSEWAY_SEND, 0) == -ENOTTY);
	/* What the host has refused once is asked for again. */
	host.status = EMFILE;
	EXPECT(ring->f_op->unlocked_ioctl(ring, CAUSEWAY_WATCH, 0) == -EMFILE);
	host.status = 0;
	EXPECT(ring->f_op->unlocked_ioctl(ring, CAUSEWAY_WATCH, 0) == 0);
	EXPECT(ring->f_op->unlocked_ioctl(ring, CAUSEWAY_WATCH, 0) == 0);
	EXPECT(host.asked[CW_WATCH] == 2 && ring->f_op->poll(ring, NULL) == EPOLLOUT);
	tell(&(struct cw_event){ .kind = CW_RUNG, .handle = handle }, NULL);
	tell(&(struct cw_event){ .kind = CW_RUNG, .handle = handle }, NULL);
	EXPECT(ring->f_op->poll(ring, NULL) == (EPOLLOUT | EPOLLIN));
	EXPECT(read_ring(ring, &count, sizeof(count)) == sizeof(count));
	EXPECT(count == 2 && ring->f_op->poll(ring, NULL) == EPOLLOUT);
	tell(&(struct cw_event){ .kind = CW_RUNG, .handle = handle }, NULL);
	EXPECT(read_ring(ring, NULL, sizeof(count)) == -EFAULT);
	fput(ring);
	tell(&(struct cw_event){ .kind = CW_RUNG, .handle = handle }, NULL);
	end();
}

/* Who wakes sleepers outside names an address of its own in a segment of this device. */
static void wakes(void)
{
	struct causeway_waking waking = { .count = 5 };
	static struct vm_area_struct vma;
	struct file *file, *memory;
	struct cw_device *dev;

	begin();
	file = open_device();
	memory = segment(PAGES);
	map(&vma, memory, PAGES - 1);
	vma.vm_pgoff = 1;
	process.vma = &vma;
	waking.address = vma.vm_start + 8;
	EXPECT(file->f_op->unlocked_ioctl(file, CAUSEWAY_WAKE, (uintptr_t)&waking) == 0);
	EXPECT(host.last.operation == CW_WAKE && host.last.handle == host.last_handle);
	EXPECT(host.last.size == PAGE_SIZE + 8 && host.last.session == 5);
	waking.address = vma.vm_end;
	EXPECT(file->f_op->unlocked_ioctl(file, CAUSEWAY_WAKE, (uintptr_t)&waking) == -EFAULT);
	waking.address = vma.vm_start;
	dev = calloc(1, sizeof(*dev));
	EXPECT(cw_wake(dev, waking.address, 1) == -EXDEV);
	free(dev);
	vma.vm_ops = NULL;
	EXPECT(file->f_op->unlocked_ioctl(file, CAUSEWAY_WAKE, (uintptr_t)&waking) == -EFAULT);
	process.vma = NULL;
	fput(memory);
	unmap(&vma, memory);
	close_file(file);
	end();
}

void test_objects(void)
{
	few_are_shown();
	idle_ones_are_hidden();
	bounds();
	false_places();
	nothing_is_shown();
	reboots();
	reboots_alone();
	ends_meanwhile();
	pinned_for_good();
	around();
	ranges();
	created();
	rings();
	wakes();
}
