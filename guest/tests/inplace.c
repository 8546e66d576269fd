// SPDX-License-Identifier: GPL-2.0
/* Private memory that is moved into segments: what is kept, refused, waited for, and left. */
#include "host.h"

/* Of the process's own memory, and where it is. */
#define PAGES 16
#define ADDRESS (3 * (u64)CW_RANGE_BYTES + CAUSEWAY_SPAN_MAX)

static struct vm_area_struct own;
static struct file *file;

static u32 here(void)
{
	return file ? host.last_handle : 0;
}

/* A process with memory, and a segment as large as an address space. */
static void process_begins(void)
{
	begin();
	memset(&process, 0, sizeof(process));
	own = (struct vm_area_struct){ .vm_start = ADDRESS, .vm_mm = &process,
				       .vm_end = ADDRESS + VMA_PAGES * PAGE_SIZE,
				       .vm_flags = VM_READ | VM_WRITE };
	process.vma = &own;
	for (unsigned int i = 0; i < VMA_PAGES; i++) {
		process.own[i].anon = true;
		process.own[i].refs = 1;
		memset(page_bytes(&process.own[i]), (int)i + 1, PAGE_SIZE);
	}
	file = cw_segment_file(device, grant(), CW_SEGMENT_MAX, true);
	EXPECT(!IS_ERR(file));
}

/* The process is gone, and nothing of its memory is held. */
static void process_ends(void)
{
	for (unsigned int i = 0; i < VMA_PAGES; i++) {
		EXPECT(process.own[i].refs == 1);
		free(process.own[i].bytes);
	}
	EXPECT(!(process.write_protect_seq & 1) && !process.locked);
	if (process.vma == &placed)
		unmap(&placed, file);
	process.vma = NULL;
	fput(file);
	EXPECT(!process.notifier);
	end();
}

static long request(unsigned int number, u64 start, u64 length)
{
	struct causeway_span span = { start, length };

	return file->f_op->unlocked_ioctl(file, number, (uintptr_t)&span);
}

static long move(void)
{
	return request(CAUSEWAY_HOME, ADDRESS, PAGES * PAGE_SIZE);
}

/* What the process finds in a page. */
static int found(unsigned long page)
{
	EXPECT(touch(&placed, page) == VM_FAULT_NOPAGE);
	return placed.pages[page] ? page_bytes(pfn_to_page(placed.pages[page]))[7] : -1;
}

/* The process gives pages up, or something else happens to them. */
static void happens(int event, unsigned long page, unsigned long count)
{
	struct mmu_notifier_range range = { ADDRESS + page * PAGE_SIZE,
					    ADDRESS + (page + count) * PAGE_SIZE, event };

	process.notifier->ops->invalidate_range_start(process.notifier, &range);
}

static void moved(void)
{
	unsigned char bytes[PAGE_SIZE + 2];
	loff_t at = (loff_t)(ADDRESS + PAGE_SIZE - 1);
	static struct mm_struct child;

	process_begins();
	EXPECT(move() == 0 && process.vma == &placed && placed.vm_flags & VM_DONTCOPY);
	EXPECT(host.last.operation == CW_SHOW && host.last.handle == here());
	for (unsigned long i = 0; i < PAGES; i++)
		EXPECT(found(i) == (int)i + 1);
	EXPECT(file->f_op->read(file, (char *)bytes, sizeof(bytes), &at) == sizeof(bytes));
	EXPECT(bytes[0] == 1 && bytes[1] == 2 && bytes[PAGE_SIZE + 1] == 3);
	/* The kernel moves it first, then asks, and takes away what it has made. */
	own = placed;
	own.vm_start += VMA_PAGES * PAGE_SIZE;
	own.vm_end += VMA_PAGES * PAGE_SIZE;
	EXPECT(placed.vm_ops->mremap(&own) == -EINVAL);
	placed.vm_ops->close(&own);
	/* Nor is it the process's memory that a child has. */
	own = placed;
	own.vm_mm = &child;
	placed.vm_ops->close(&own);
	happens(MMU_NOTIFY_CLEAR, 0, PAGES);
	EXPECT(host.punched == 1);
	EXPECT(move() == -EINVAL);
	process_ends();
}

/* Nothing has happened to what is refused. */
static void refused(void)
{
	static const unsigned long wrong[] = {
		VM_READ, VM_READ | VM_WRITE | VM_LOCKED, VM_READ | VM_WRITE | VM_SHARED,
		VM_READ | VM_WRITE | VM_EXEC, VM_READ | VM_WRITE | VM_GROWSDOWN,
	};

	process_begins();
	for (unsigned int i = 0; i < ARRAY_SIZE(wrong); i++) {
		own.vm_flags = wrong[i];
		EXPECT(move() == -EINVAL);
	}
	own.vm_flags = VM_READ | VM_WRITE;
	own.key = 1;
	EXPECT(move() == -EINVAL);
	own.key = 0;
	EXPECT(request(CAUSEWAY_HOME, ADDRESS + 1, PAGE_SIZE) == -EINVAL);
	EXPECT(request(CAUSEWAY_HOME, ADDRESS, 0) == -EINVAL);
	EXPECT(request(CAUSEWAY_HOME, ADDRESS, 2 * CAUSEWAY_SPAN_MAX) == -EINVAL);
	EXPECT(request(CAUSEWAY_HOME, ADDRESS - PAGE_SIZE, 2 * PAGE_SIZE) == -EINVAL);
	EXPECT(request(CAUSEWAY_HOME, CW_SEGMENT_MAX, PAGE_SIZE) == -EINVAL);
	EXPECT(request(CAUSEWAY_HOME, ~0ull << PAGE_SHIFT, PAGE_SIZE) == -EINVAL);
	EXPECT(request(CAUSEWAY_PUNCH, CW_SEGMENT_MAX - PAGE_SIZE, 2 * PAGE_SIZE) == -EINVAL);
	EXPECT(request(CAUSEWAY_SEND, 0, 0) == -ENOTTY);
	process.def_flags = VM_LOCKED;
	EXPECT(move() == -EINVAL);
	process.def_flags = 0;
	process.own[3].pins = 1;
	EXPECT(move() == -EBUSY);
	process.own[3].pins = 0;
	own.vm_end = ADDRESS + (PAGES - 1) * PAGE_SIZE;
	EXPECT(move() == -EINVAL && process.vma == &own);
	process_ends();
}

/* A host that shows nothing, a window without struct pages, no memory at any step. */
static void fails(void)
{
	long error = -1;

	process_begins();
	host.status = ENOSPC;
	EXPECT(move() == -ENOSPC && process.vma == &own);
	host.status = 0;
	for (long allocations = 0; error; allocations++) {
		kernel.allocations = allocations;
		error = move();
		EXPECT(!error || error == -ENOMEM);
		EXPECT(!(process.write_protect_seq & 1) && (!error || process.vma == &own));
	}
	kernel.allocations = -1;
	EXPECT(found(3) == 4);
	process_ends();
	/* What was there is gone already when there is no memory to map it anew. */
	process_begins();
	kernel.mappings_fail = 3;
	EXPECT(move() == 0 && process.vma == &placed && !kernel.mappings_fail);
	for (unsigned long i = 0; i < PAGES; i++)
		EXPECT(found(i) == (int)i + 1);
	process_ends();
	process_begins();
	kernel.mappings_fail = 3;
	kernel.killed = true;
	EXPECT(move() == -ENOMEM && !process.vma && kernel.mappings_fail == 2);
	process_ends();
	no_pages = true;
	process_begins();
	EXPECT(move() == -EOPNOTSUPP && process.vma == &own);
	process_ends();
	no_pages = false;
}

/* What is given up is emptied, as far as it is there; nothing else is. */
static void given_up(void)
{
	process_begins();
	EXPECT(move() == 0);
	happens(MMU_NOTIFY_UNMAP, 0, PAGES);
	EXPECT(host.punched == 0);
	happens(MMU_NOTIFY_CLEAR, 2, 3);
	EXPECT(host.punched == 1 && host.last.operation == CW_PUNCH);
	EXPECT(host.last.size == ADDRESS + 2 * PAGE_SIZE && host.last.handle == here());
	happens(MMU_NOTIFY_CLEAR, PAGES, 3);
	EXPECT(host.punched == 1);
	/* Also if the host does so no more. */
	EXPECT(found(5) == 6 && found(6) == 7);
	host.status = ENODEV;
	happens(MMU_NOTIFY_CLEAR, 5, 1);
	host.status = 0;
	EXPECT(host.punched == 1 && found(5) == 0 && found(6) == 7);
	/* A hole where something was unmapped. */
	own = placed;
	own.vm_start += 4 * PAGE_SIZE;
	own.vm_pgoff += 4;
	own.vm_end = own.vm_start + PAGE_SIZE;
	placed.vm_ops->close(&own);
	happens(MMU_NOTIFY_CLEAR, 0, PAGES);
	EXPECT(host.punched == 3);
	process_ends();
}

static vm_fault_t outcome;

/* A thread that touches what is held, without waiting; then who holds it lets go. */
static void let_go(void)
{
	struct vm_fault fault = { &placed, placed.vm_start, 0 };

	kernel.asleep = NULL;
	EXPECT(placed.vm_ops->fault(&fault) == VM_FAULT_SIGBUS);
	fault.flags = FAULT_FLAG_ALLOW_RETRY | FAULT_FLAG_RETRY_NOWAIT;
	EXPECT(placed.vm_ops->fault(&fault) == VM_FAULT_RETRY && !placed.pages[0]);
	EXPECT(file->f_op->unlocked_ioctl(file, CAUSEWAY_LET_GO, 0) == 0);
}

static void held(void)
{
	struct page *page;

	process_begins();
	EXPECT(move() == 0 && found(0) == 1 && found(PAGES - 1) == PAGES);
	EXPECT(request(CAUSEWAY_HOLD, ADDRESS, 2 * PAGE_SIZE) == 0);
	/* Taken away, and not taken for given up. */
	EXPECT(!placed.pages[0] && host.punched == 0);
	EXPECT(request(CAUSEWAY_HOLD, ADDRESS, PAGE_SIZE) == -EBUSY && move() == -EBUSY);
	EXPECT(found(5) == 6 && !placed.pages[1]);
	kernel.asleep = let_go;
	outcome = touch(&placed, 0);
	EXPECT(outcome == VM_FAULT_RETRY && found(0) == 1);
	/* Somebody has it pinned. */
	page = pfn_to_page(placed.pages[0]);
	page->refs++;
	EXPECT(request(CAUSEWAY_HOLD, ADDRESS, PAGE_SIZE) == -EBUSY && found(0) == 1);
	put_page(page);
	EXPECT(request(CAUSEWAY_HOLD, ADDRESS, PAGE_SIZE) == 0);
	kernel.asleep = NULL;
	process_ends();
}

/* While a page is pinned nothing else is shown in its place: it is not hidden, and the host is not
 * told when its segment is closed. */
static void pinned(void)
{
	static struct vm_area_struct vma;
	struct file *other;
	struct page *page;

	process_begins();
	host.mappings = 1;
	EXPECT(move() == 0 && found(0) == 1);
	page = pfn_to_page(placed.pages[0]);
	page->refs++;
	other = cw_segment_file(device, grant(), PAGE_SIZE, true);
	map(&vma, other, 1);
	EXPECT(touch(&vma, 0) == VM_FAULT_SIGBUS && found(0) == 1);
	put_page(page);
	EXPECT(touch(&vma, 0) == VM_FAULT_NOPAGE && !placed.pages[0]);
	page = pfn_to_page(vma.pages[0]);
	page->refs++;
	fput(other);
	unmap(&vma, other);
	EXPECT(granted() == 2 && device->linger.work.due);
	device->linger.work.due = false;
	cw_linger(&device->linger.work);
	EXPECT(granted() == 2 && device->linger.work.due);
	device->linger.work.due = false;
	put_page(page);
	cw_linger(&device->linger.work);
	EXPECT(granted() == 1 && !device->linger.work.due);
	process_ends();
}

/* What is left of the device's handles, which a host that is gone has no use for. */
static void host_gone(void)
{
	memset(host.has, 0, sizeof(host.has));
	memset(host.places, 0, sizeof(host.places));
	host.shown = 0;
}

/* When the device goes, the process keeps what it had; peers have what was. */
static void kept(void)
{
	unsigned char bytes[2];
	loff_t at = (loff_t)(ADDRESS + 2 * PAGE_SIZE - 1);
	struct page *page;

	process_begins();
	EXPECT(move() == 0 && found(0) == 1);
	page_bytes(pfn_to_page(placed.pages[0]))[7] = 99;
	unplug();
	EXPECT(!placed.pages[0] && found(0) == 99 && found(PAGES - 1) == PAGES);
	EXPECT(move() == -ENODEV && request(CAUSEWAY_PUNCH, ADDRESS, PAGE_SIZE) == -ENODEV);
	happens(MMU_NOTIFY_CLEAR, 3, 1);
	EXPECT(found(3) == 0 && found(4) == 5);
	EXPECT(file->f_op->read(file, (char *)bytes, sizeof(bytes), &at) == sizeof(bytes));
	EXPECT(bytes[0] == 2 && bytes[1] == 3);
	/* The way back is as before. */
	page = pfn_to_page(placed.pages[0]);
	page->refs++;
	EXPECT(request(CAUSEWAY_HOLD, ADDRESS, PAGE_SIZE) == -EBUSY && found(0) == 99);
	put_page(page);
	EXPECT(request(CAUSEWAY_HOLD, ADDRESS, PAGE_SIZE) == 0 && !placed.pages[0]);
	EXPECT(file->f_op->unlocked_ioctl(file, CAUSEWAY_LET_GO, 0) == 0);
	host_gone();
	process_ends();
}

static void go_once(void)
{
	kernel.asleep = NULL;
	unplug();
	kernel.allocations = 0;
}

/* The device goes while memory is on its way: when it is not there yet, and not here any more. */
static void gone_meanwhile(void)
{
	process_begins();
	kernel.asleep = go_once;
	/* Nor is there memory. */
	EXPECT(move() == 0 && device->dead);
	kernel.allocations = -1;
	for (unsigned long i = 0; i < PAGES; i++)
		EXPECT(found(i) == (int)i + 1);
	host_gone();
	process_ends();
}

/* What the host does when the driver says that it may. */
static void rubbish_is_shown(void)
{
	for (unsigned long i = 0; i < PAGES; i++)
		memset(page_bytes(cw_page(device, CAUSEWAY_SPAN_MAX + i * PAGE_SIZE)), 0xee,
		       PAGE_SIZE);
}

/* The host detaches the machine: before it shows nothing any more, the process gets what it has. */
static void ending(void)
{
	static const struct cw_event event = { .kind = CW_ENDING };
	struct file *session;

	process_begins();
	session = open_device();
	EXPECT(send(session, "x", -1) == 0);
	EXPECT(move() == 0 && found(0) == 1 && host.places[0].handle == here());
	page_bytes(pfn_to_page(placed.pages[0]))[7] = 99;
	tell(&event, NULL);
	answer_all();
	EXPECT(host.asked[CW_LEFT] == 1 && device->dead && !placed.pages[0]);
	rubbish_is_shown();
	EXPECT(found(0) == 99 && found(PAGES - 1) == PAGES);
	/* The process is told, and all is as without a device. */
	EXPECT(session->f_op->poll(session, NULL) & EPOLLHUP);
	EXPECT(send(session, "x", -1) == -ENODEV && move() == -ENODEV);
	EXPECT(request(CAUSEWAY_HOLD, ADDRESS, PAGE_SIZE) == 0 && !placed.pages[0]);
	EXPECT(file->f_op->unlocked_ioctl(file, CAUSEWAY_LET_GO, 0) == 0 && found(0) == 99);
	/* Taken out afterwards, it is not copied once more. */
	unplug();
	EXPECT(found(1) == 2 && host.asked[CW_BEGIN] == 1);
	close_file(session);
	host_gone();
	process_ends();
}

/* A peer in the same machine has the memory by a segment of its own, at the same place. */
static void shared_here(void)
{
	static struct vm_area_struct vma;
	struct file *other;
	struct page *page;

	process_begins();
	EXPECT(move() == 0 && found(0) == 1);
	host.together = true;
	other = cw_segment_file(device, grant(), CW_SEGMENT_MAX, true);
	map_at(&vma, other, ADDRESS >> PAGE_SHIFT, PAGES);
	EXPECT(touch(&vma, 0) == VM_FAULT_NOPAGE && vma.pages[0] == placed.pages[0]);
	EXPECT(request(CAUSEWAY_HOLD, ADDRESS, PAGE_SIZE) == 0);
	EXPECT(!vma.pages[0] && !placed.pages[0] && host.punched == 0);
	EXPECT(file->f_op->unlocked_ioctl(file, CAUSEWAY_LET_GO, 0) == 0);
	/* It ends, whatever the process still has; what it had last is the process's. */
	page = pfn_to_page(placed.pages[1]);
	EXPECT(touch(&vma, 1) == VM_FAULT_NOPAGE && page->mapping == &other->space);
	unmap(&vma, other);
	fput(other);
	EXPECT(granted() == 1 && page->mapping == &file->space && page->refs == 2);
	process_ends();
}

/* One process has its memory in a segment, whoever has the descriptor. */
static void of_one_process(void)
{
	struct mm_struct *mm = current->mm, other = { 0 };

	process_begins();
	EXPECT(move() == 0);
	current->mm = &other;
	EXPECT(move() == -EPERM);
	current->mm = mm;
	file->f_mode = 0;
	EXPECT(request(CAUSEWAY_PUNCH, ADDRESS, PAGE_SIZE) == -EBADF && host.punched == 0);
	process_ends();
}

void test_inplace(void)
{
	moved();
	refused();
	fails();
	given_up();
	held();
	pinned();
	kept();
	gone_meanwhile();
	ending();
	shared_here();
	of_one_process();
}
