// SPDX-License-Identifier: GPL-2.0
/*
 * A process's private memory in a segment, at the addresses that it had, so that others can be
 * given it. A page's offset in the segment is its address.
 *
 * HOME does in one piece what no process can: with the process's mappings locked it takes hold of
 * the pages, unless somebody has them pinned, and has the kernel map the segment over them. Whoever
 * touches them from then on faults, and waits until they are copied. Which pages are in place is
 * known: where the process says that it needs some no more (MADV_DONTNEED), they are emptied, as
 * private memory would be. What it unmaps stays in the segment as it is. The kernel tells of that
 * as of other things that take pages out of page tables, but of those only huge pages' could meet
 * such memory (splitting mappings): none of its mappings has room for one.
 *
 * HOLD lets touching threads wait again, for the way back: the library reads the pages and maps
 * private memory over them.
 */
#include <linux/file.h>
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/mman.h>
#include <linux/pkeys.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/userfaultfd_k.h>

#include "causeway.h"

/* Most pages of one request. */
#define CW_INPLACE_PAGES (CAUSEWAY_SPAN_MAX / PAGE_SIZE)
/* What memory that is moved has of these: it can be read and written. */
#define CW_INPLACE_FLAGS (VM_READ | VM_WRITE)
#define CW_OTHER_FLAGS (VM_EXEC | VM_SHARED | VM_MAYSHARE | VM_GROWSDOWN | VM_LOCKED | \
			VM_HUGETLB | VM_SPECIAL | VM_WIPEONFORK)

/* Linux 6.18 has it of an address space, later ones of the caller's: see Kbuild. */
#ifdef CW_AREA_OF_MM
#define cw_free_area(...) mm_get_unmapped_area(current->mm, __VA_ARGS__)
#else
#define cw_free_area(...) mm_get_unmapped_area(__VA_ARGS__)
#endif

/* A HOME that is under way, in the thread that asked for it. */
struct cw_moving {
	unsigned long address;
	unsigned long count;
	int error;
	bool began; /* no page can be pinned */
	bool whole; /* all are taken */
	struct page *pages[CW_INPLACE_PAGES];
	unsigned long taken; /* of them */
};

static int cw_punch(struct cw_segment *segment, u64 start, u64 bytes)
{
	struct cw_request_header header = {
		.operation = cpu_to_le16(CW_PUNCH),
		.handle = cpu_to_le32(segment->handle),
		.length = cpu_to_le32(sizeof(__le64)),
		.size = cpu_to_le64(start),
	};
	__le64 length = cpu_to_le64(bytes);
	struct cw_answer answer;

	return cw_call(segment->dev, &header, &length, &answer);
}

/* The first pages from `first` on that are in place, side by side: how many, and where. */
static unsigned long cw_inplace_next(struct cw_segment *segment, unsigned long *first,
				     unsigned long end)
{
	unsigned long at, count = 0;
	void *entry;

	xa_for_each_range(&segment->inplace.pages, at, entry, *first, end - 1) {
		if (!count)
			*first = at;
		else if (at != *first + count)
			break;
		count++;
	}
	return count;
}

/* Empties those of these pages that are in place. */
static void cw_inplace_discard(struct cw_segment *segment, unsigned long first, unsigned long end)
{
	struct cw_device *dev = segment->dev;
	unsigned long count;
	int error;

	for (; first < end; first += count) {
		count = cw_inplace_next(segment, &first, end);
		if (!count)
			break;
		error = cw_punch(segment, (u64)first << PAGE_SHIFT, (u64)count << PAGE_SHIFT);
		if (error || READ_ONCE(dev->dead))
			cw_inplace_clear(segment, first, first + count);
	}
}

/* The process gives up pages; or we take them away, or something else happens to them. */
static int cw_inplace_invalidate(struct mmu_notifier *notifier,
				 const struct mmu_notifier_range *range)
{
	struct cw_segment *segment = container_of(notifier, struct cw_segment, inplace.notifier);
	unsigned int flags;

	BUILD_BUG_ON(CAUSEWAY_SPAN_MAX >= PMD_SIZE);
	if (range->event != MMU_NOTIFY_CLEAR || !mmu_notifier_range_blockable(range) ||
	    READ_ONCE(segment->dev->zapper) == current)
		return 0;
	/* Where memory is reclaimed nobody waits for memory. */
	flags = memalloc_noreclaim_save();
	cw_inplace_discard(segment, PHYS_PFN(range->start), PHYS_PFN(range->end));
	memalloc_noreclaim_restore(flags);
	return 0;
}

static const struct mmu_notifier_ops cw_inplace_notifier_ops = {
	.invalidate_range_start = cw_inplace_invalidate,
};

void cw_inplace_init(struct cw_segment *segment)
{
	mutex_init(&segment->inplace.lock);
	xa_init(&segment->inplace.pages);
	init_waitqueue_head(&segment->inplace.wait);
}

/* Nobody has the segment open or mapped any more. */
void cw_inplace_end(struct cw_segment *segment)
{
	if (segment->inplace.mm)
		mmu_notifier_unregister(&segment->inplace.notifier, segment->inplace.mm);
	cw_kept_forget(segment, 0, ULONG_MAX);
	xa_destroy(&segment->inplace.pages);
}

/* What is unmapped there is in place no more. Under the process's mmap lock. */
void cw_inplace_gone(struct cw_segment *segment, struct vm_area_struct *vma)
{
	if (!cw_is_inplace(vma))
		return;
	/* Whoever reads what was kept does so under it. */
	down_write(&segment->dev->map_lock);
	cw_kept_forget(segment, vma->vm_pgoff, vma->vm_pgoff + vma_pages(vma));
	up_write(&segment->dev->map_lock);
}

static bool cw_held_at(struct cw_segment *segment, u64 offset)
{
	return offset >= READ_ONCE(segment->inplace.held) &&
	       offset < READ_ONCE(segment->inplace.held_end);
}

/* Whether who touches this must wait. Under map_lock. */
bool cw_inplace_held(struct cw_segment *segment, struct vm_fault *vmf)
{
	return cw_is_inplace(vmf->vma) && cw_held_at(segment, vmf->address & PAGE_MASK);
}

/* Waits, without the locks that who is waited for needs; then the kernel looks again. */
vm_fault_t cw_inplace_wait(struct cw_segment *segment, struct vm_fault *vmf)
{
	u64 offset = vmf->address & PAGE_MASK;
	struct file *file;

	if (!(vmf->flags & FAULT_FLAG_ALLOW_RETRY))
		return VM_FAULT_SIGBUS;
	if (vmf->flags & FAULT_FLAG_RETRY_NOWAIT)
		return VM_FAULT_RETRY;
	file = get_file(vmf->vma->vm_file);
	release_fault_lock(vmf);
	/* Whether it was killed the kernel sees itself. */
	(void)wait_event_killable(segment->inplace.wait, !cw_held_at(segment, offset));
	fput(file);
	return VM_FAULT_RETRY;
}

static void cw_hold(struct cw_segment *segment, u64 start, u64 end)
{
	struct cw_device *dev = segment->dev;

	down_write(&dev->map_lock);
	WRITE_ONCE(segment->inplace.held, start);
	WRITE_ONCE(segment->inplace.held_end, end);
	up_write(&dev->map_lock);
	if (!end)
		wake_up_all(&segment->inplace.wait);
}

static bool cw_can_move(struct mm_struct *mm, const struct cw_moving *moving)
{
	struct vm_area_struct *vma = vma_lookup(mm, moving->address);

	return vma && vma_is_anonymous(vma) && !userfaultfd_armed(vma) && !vma_pkey(vma) &&
	       vma->vm_end - moving->address >= moving->count << PAGE_SHIFT &&
	       (vma->vm_flags & (CW_INPLACE_FLAGS | CW_OTHER_FLAGS)) == CW_INPLACE_FLAGS &&
	       !(mm->def_flags & VM_LOCKED);
}

/*
 * Takes hold of the pages that the segment is about to be mapped over. Nothing of them changes
 * before that: the mmap lock is held for writing. From `began` on not even the fast way of pinning
 * pages, which takes no lock, gets any.
 */
static int cw_inplace_take(struct mm_struct *mm, struct cw_moving *moving)
{
	unsigned long end = moving->address + (moving->count << PAGE_SHIFT), i;
	long taken;

	if (moving->whole) {
		/* Again, unless the process has it yet. */
		moving->whole = !find_vma_intersection(mm, moving->address, end);
		return moving->whole ? 0 : -ENOMEM;
	}
	if (!cw_can_move(mm, moving))
		return -EINVAL;
	taken = get_user_pages(moving->address, moving->count, FOLL_WRITE, moving->pages);
	if (taken < 0)
		return taken;
	moving->taken = taken;
	if (taken < moving->count)
		return -EFAULT;
	raw_write_seqcount_begin(&mm->write_protect_seq);
	moving->began = true;
	for (i = 0; i < moving->count; i++) {
		struct folio *folio = page_folio(moving->pages[i]);

		if (!folio_test_anon(folio))
			return -EINVAL;
		if (folio_maybe_dma_pinned(folio))
			return -EBUSY;
	}
	moving->whole = true;
	return 0;
}

/* Pages may be pinned again. Under the mmap lock, for writing. */
static void cw_inplace_unlock_pins(struct mm_struct *mm, struct cw_moving *moving)
{
	if (moving->began)
		raw_write_seqcount_end(&mm->write_protect_seq);
	moving->began = false;
}

/* What the caller's HOME is at. Others', who map the segment meanwhile, may have ended already. */
static struct cw_moving *cw_moving_of(struct cw_segment *segment)
{
	return READ_ONCE(segment->inplace.mover) == current ? segment->inplace.moving : NULL;
}

/* Called by mmap(2) before anything else, and for HOME with something to do: it can still fail. */
unsigned long cw_inplace_area(struct file *file, unsigned long address, unsigned long length,
			      unsigned long page, unsigned long flags)
{
	struct cw_segment *segment = file->private_data;
	struct cw_moving *moving = cw_moving_of(segment);

	if (!moving)
		return cw_free_area(file, address, length, page, flags);
	moving->error = cw_inplace_take(current->mm, moving);
	if (!moving->error)
		return address;
	cw_inplace_unlock_pins(current->mm, moving);
	return moving->error;
}

/* The segment is mapped, and nothing else any more: whether that is HOME's doing. */
bool cw_inplace_mapped(struct cw_segment *segment, struct vm_area_struct *vma)
{
	struct cw_moving *moving = cw_moving_of(segment);
	unsigned long i;

	if (!moving)
		return false;
	cw_inplace_unlock_pins(vma->vm_mm, moving);
	/* There is room: see cw_inplace_reserve. */
	for (i = 0; i < moving->count; i++)
		xa_store(&segment->inplace.pages, vma->vm_pgoff + i, xa_mk_value(0), GFP_KERNEL);
	return true;
}

/* Where a page of a segment is in the window. */
u64 cw_in_window(const struct cw_range *range, u64 offset)
{
	return range->offset + offset - range->number * CW_RANGE_BYTES;
}

/* Copies what was taken to where it is in place; if the device has died, to where it is kept. */
static void cw_inplace_copy(struct cw_range *range, struct cw_moving *moving)
{
	u64 offset = cw_in_window(range, moving->address);
	struct cw_device *dev = range->segment->dev;
	unsigned long i;

	down_read(&dev->map_lock);
	for (i = 0; i < moving->count; i++, offset += PAGE_SIZE) {
		if (dev->dead)
			cw_keep_taken(range->segment, PHYS_PFN(moving->address) + i,
				      moving->pages[i]);
		else
			copy_highpage(cw_page(dev, offset), moving->pages[i]);
	}
	up_read(&dev->map_lock);
}

/*
 * The kernel unmaps what is there before it takes memory for the new mapping. Where it has none
 * then, nothing is mapped, and only the pages that were taken have the process's contents: it is
 * asked until it has, or the process is killed.
 */
static unsigned long cw_inplace_map(struct file *file, struct cw_moving *moving)
{
	unsigned long bytes = moving->count << PAGE_SHIFT, mapped;
	struct mm_struct *mm = current->mm;

	for (;;) {
		mapped = vm_mmap(file, moving->address, bytes, PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_FIXED, moving->address);
		if (moving->began) {
			/* It was refused after all. */
			mmap_write_lock(mm);
			cw_inplace_unlock_pins(mm, moving);
			mmap_write_unlock(mm);
		}
		/* With all that was taken it goes on if nothing is there: see cw_inplace_take. */
		if (mapped != (unsigned long)-ENOMEM || !moving->whole ||
		    fatal_signal_pending(current))
			return mapped;
		cond_resched();
	}
}

/* Maps the segment over the pages, and copies them. */
static int cw_inplace_move(struct file *file, struct cw_range *range, struct cw_moving *moving)
{
	struct cw_segment *segment = file->private_data;
	unsigned long end = moving->address + (moving->count << PAGE_SHIFT), mapped;

	cw_hold(segment, moving->address, end);
	segment->inplace.moving = moving;
	WRITE_ONCE(segment->inplace.mover, current);
	mapped = cw_inplace_map(file, moving);
	WRITE_ONCE(segment->inplace.mover, NULL);
	if (!IS_ERR_VALUE(mapped))
		cw_inplace_copy(range, moving);
	cw_hold(segment, 0, 0);
	return IS_ERR_VALUE(mapped) ? (int)mapped : 0;
}

/* Makes room to note pages, or gives it back: what is noted already stays so. */
static void cw_inplace_release(struct cw_segment *segment, unsigned long first, unsigned long count)
{
	while (count--)
		xa_release(&segment->inplace.pages, first + count);
}

static int cw_inplace_reserve(struct cw_segment *segment, unsigned long first, unsigned long count)
{
	unsigned long i;
	int error = 0;

	for (i = 0; i < count && !error; i++)
		error = xa_reserve(&segment->inplace.pages, first + i, GFP_KERNEL);
	if (error)
		cw_inplace_release(segment, first, count);
	return error;
}

/* One process has its memory in a segment. Its mmap lock is taken. */
static int cw_inplace_watch(struct cw_segment *segment)
{
	struct cw_inplace *inplace = &segment->inplace;
	int error;

	if (inplace->mm)
		return inplace->mm == current->mm ? 0 : -EPERM;
	inplace->notifier.ops = &cw_inplace_notifier_ops;
	error = mmu_notifier_register(&inplace->notifier, current->mm);
	if (!error)
		inplace->mm = current->mm;
	return error;
}

static bool cw_has_pages(struct cw_range *range, u64 offset)
{
	struct cw_device *dev = range->segment->dev;
	bool has;

	down_read(&dev->map_lock);
	has = cw_page(dev, cw_in_window(range, offset));
	up_read(&dev->map_lock);
	return has;
}

static long cw_inplace_with(struct file *file, struct cw_range *range, struct cw_moving *moving)
{
	struct cw_segment *segment = file->private_data;
	unsigned long first = PHYS_PFN(moving->address), i;
	long error;

	if (!cw_has_pages(range, moving->address))
		return -EOPNOTSUPP;
	error = cw_inplace_reserve(segment, first, moving->count);
	if (error)
		return error;
	error = cw_inplace_move(file, range, moving);
	if (error)
		cw_inplace_release(segment, first, moving->count);
	for (i = 0; i < moving->taken; i++)
		put_page(moving->pages[i]);
	return error;
}

static long cw_inplace(struct file *file, const struct causeway_span *span)
{
	struct cw_segment *segment = file->private_data;
	struct cw_moving *moving;
	struct cw_range *range;
	long error = segment->inplace.held_end ? -EBUSY : cw_inplace_watch(segment);

	if (error)
		return error;
	moving = kzalloc_obj(*moving, GFP_KERNEL);
	if (!moving)
		return -ENOMEM;
	moving->address = span->start;
	moving->count = PHYS_PFN(span->length);
	range = cw_range_get(segment, PHYS_PFN(span->start));
	if (IS_ERR(range)) {
		error = PTR_ERR(range);
	} else {
		error = cw_inplace_with(file, range, moving);
		cw_range_put(range);
	}
	kfree(moving);
	return error;
}

/* Whether nobody else has any of these pages, which no process has mapped. Under map_lock. */
static bool cw_inplace_quiet(struct cw_segment *segment, struct cw_range *range,
			     const struct causeway_span *span)
{
	if (segment->dev->dead)
		return cw_kept_quiet(segment, PHYS_PFN(span->start),
				     PHYS_PFN(span->start + span->length));
	return !IS_ERR(range) &&
	       cw_pages_quiet(segment->dev, cw_in_window(range, span->start), span->length);
}

/* Takes the pages away from all threads, who wait if they want them again. */
static long cw_inplace_hold(struct cw_segment *segment, const struct causeway_span *span)
{
	struct cw_device *dev = segment->dev;
	struct cw_range *range;
	bool quiet;

	if (segment->inplace.held_end)
		return -EBUSY;
	range = cw_range_get(segment, PHYS_PFN(span->start));
	if (IS_ERR(range) && PTR_ERR(range) != -ENODEV)
		return PTR_ERR(range);
	cw_hold(segment, span->start, span->start + span->length);
	down_write(&dev->map_lock);
	cw_unmap(segment, span->start, span->length);
	/* Peers in this machine, too; if they touch it again, they wait for nobody. */
	if (!IS_ERR(range))
		cw_unmap_twins(range, span->start, span->length);
	quiet = cw_inplace_quiet(segment, range, span);
	up_write(&dev->map_lock);
	if (!IS_ERR(range))
		cw_range_put(range);
	if (!quiet)
		cw_hold(segment, 0, 0);
	return quiet ? 0 : -EBUSY;
}

/* Copies a page, or a part, of a segment. */
static int cw_read_page(struct cw_segment *segment, u64 offset, void *to, size_t bytes)
{
	struct cw_range *range = cw_range_get(segment, PHYS_PFN(offset));
	struct cw_device *dev = segment->dev;
	struct page *page;
	int error = 0;

	if (IS_ERR(range) && PTR_ERR(range) != -ENODEV)
		return PTR_ERR(range);
	down_read(&dev->map_lock);
	if (dev->dead)
		page = cw_kept(segment, PHYS_PFN(offset));
	else
		page = IS_ERR(range) ? NULL : cw_page(dev, cw_in_window(range, offset & PAGE_MASK));
	if (page)
		memcpy_from_page(to, page, offset_in_page(offset), bytes);
	else
		error = -EIO;
	up_read(&dev->map_lock);
	if (!IS_ERR(range))
		cw_range_put(range);
	return error;
}

/* By way of a page of the kernel's: what it goes to may be memory of the window as well. */
ssize_t cw_inplace_read(struct file *file, char __user *to, size_t bytes, loff_t *at)
{
	struct cw_segment *segment = file->private_data;
	size_t done = 0, part;
	int error = 0;
	void *page;

	if (*at < 0 || *at >= segment->length)
		return 0;
	bytes = min_t(u64, bytes, segment->length - *at);
	page = (void *)__get_free_page(GFP_KERNEL);
	if (!page)
		return -ENOMEM;
	while (done < bytes && !error) {
		part = min(bytes - done, PAGE_SIZE - offset_in_page(*at));
		error = cw_read_page(segment, *at, page, part);
		if (!error && copy_to_user(to + done, page, part))
			error = -EFAULT;
		if (error)
			break;
		*at += part;
		done += part;
		cond_resched();
	}
	free_page((unsigned long)page);
	return done ? done : error;
}

/* Whole pages of the segment; for some requests few of them, of which a fault shows all. */
static bool cw_span_valid(const struct cw_segment *segment, const struct causeway_span *span,
			  bool few)
{
	u64 last = span->start + span->length - 1;

	return span->length && PAGE_ALIGNED(span->start) && PAGE_ALIGNED(span->length) &&
	       span->start < segment->length && span->length <= segment->length - span->start &&
	       (!few || span->start / CAUSEWAY_SPAN_MAX == last / CAUSEWAY_SPAN_MAX);
}

static long cw_inplace_request(struct file *file, unsigned int number,
			       const struct causeway_span *span)
{
	struct cw_segment *segment = file->private_data;

	if (!cw_span_valid(segment, span, number != CAUSEWAY_PUNCH))
		return -EINVAL;
	if (number == CAUSEWAY_HOME)
		return cw_inplace(file, span);
	if (number == CAUSEWAY_HOLD)
		return cw_inplace_hold(segment, span);
	return cw_punch(segment, span->start, span->length);
}

long cw_inplace_ioctl(struct file *file, unsigned int number, unsigned long argument)
{
	struct cw_segment *segment = file->private_data;
	struct causeway_span span;
	long error = 0;

	if (number == CAUSEWAY_LET_GO) {
		mutex_lock(&segment->inplace.lock);
		cw_hold(segment, 0, 0);
		mutex_unlock(&segment->inplace.lock);
		return 0;
	}
	if (number != CAUSEWAY_HOME && number != CAUSEWAY_PUNCH && number != CAUSEWAY_HOLD)
		return -ENOTTY;
	if (!(file->f_mode & FMODE_WRITE))
		return -EBADF;
	if (copy_from_user(&span, (void __user *)argument, sizeof(span)))
		return -EFAULT;
	mutex_lock(&segment->inplace.lock);
	error = cw_inplace_request(file, number, &span);
	mutex_unlock(&segment->inplace.lock);
	return error;
}
