// SPDX-License-Identifier: GPL-2.0
/*
 * What becomes of processes' memory that is in place in segments when the device goes: the kernel
 * keeps a copy of each page, which takes its place in the process. Peers have the old ones. What
 * the host does not show at that moment is lost, and what there is no memory for.
 *
 * Other memory of segments is not the process's, and nobody shares it any more: in its place is
 * what one finds in new memory. A process that was in the middle of using it goes on, and hears of
 * the device's end as of its peers'.
 */
#include <linux/highmem.h>
#include <linux/mm.h>

#include "causeway.h"

/*
 * A page of the process's own with the contents of another, in the place of what is in place there,
 * which is not mapped. If there is no memory for it, it is lost.
 */
static void cw_keep_copy(struct cw_segment *segment, unsigned long number, struct page *from,
			 gfp_t flags)
{
	struct page *to = alloc_page(GFP_HIGHUSER | flags);
	void *there = xa_mk_value(0);

	if (!to)
		return;
	copy_highpage(to, from);
	/* It may be unmapped at this moment. */
	if (xa_cmpxchg(&segment->inplace.pages, number, there, to, GFP_KERNEL) != there)
		put_page(to);
}

/* Keeps what is in place in a range. Under map_lock, for writing. */
static void cw_keep(struct cw_range *range)
{
	unsigned long first = range->number * PHYS_PFN(CW_RANGE_BYTES), at;
	struct cw_segment *segment = range->segment;
	struct page *from;
	void *entry;

	xa_for_each_range(&segment->inplace.pages, at, entry, first,
			  first + PHYS_PFN(range->length) - 1) {
		from = cw_page(segment->dev, cw_in_window(range, (u64)at << PAGE_SHIFT));
		if (from)
			cw_keep_copy(segment, at, from, __GFP_NOWARN);
		cond_resched();
	}
}

/*
 * The device is dead: nobody reaches the window any more, and no fault brings it back. Whoever
 * comes second finds that done.
 */
void cw_leave(struct cw_device *dev)
{
	struct cw_session *session;
	struct cw_range *range;
	unsigned long number;

	down_write(&dev->map_lock);
	if (!dev->dead) {
		spin_lock_irq(&dev->queue_lock);
		WRITE_ONCE(dev->dead, true);
		spin_unlock_irq(&dev->queue_lock);
		list_for_each_entry(range, &dev->ranges, list) {
			cw_unmap(range->segment, range->number * CW_RANGE_BYTES, range->length);
			cw_keep(range);
		}
	}
	up_write(&dev->map_lock);
	mutex_lock(&dev->lock);
	xa_for_each(&dev->sessions, number, session)
		cw_session_end(session);
	mutex_unlock(&dev->lock);
}

/*
 * The device is about to be reset: the host ends what it has of this driver, and says when nothing
 * is shown any more. A QEMU that shows something to a device which is reset ends itself when a
 * driver begins anew. A host that has given the machine up understands the first request, any other
 * the second; who does not answer is not waited for much longer than for any answer.
 */
int cw_withdraw(struct cw_device *dev)
{
	struct cw_request_header left = { .operation = cpu_to_le16(CW_LEFT) };
	struct cw_request_header begin = { .operation = cpu_to_le16(CW_BEGIN) };
	struct cw_answer answer;
	int error;

	cw_leave(dev);
	cw_objects_kill(dev);
	cw_post(dev, &left);
	error = cw_call(dev, &begin, NULL, &answer);
	/* So says one that has given it up. */
	return error == -ENODEV ? 0 : error;
}

/* What was kept of a page; NULL if nothing was. */
struct page *cw_kept(struct cw_segment *segment, unsigned long number)
{
	void *entry = xa_load(&segment->inplace.pages, number);

	return !entry || xa_is_value(entry) ? NULL : entry;
}

/*
 * The device has died after a page was mapped, and before it was copied there: nobody else has its
 * contents. Under map_lock.
 */
void cw_keep_taken(struct cw_segment *segment, unsigned long number, struct page *from)
{
	struct page *kept = cw_kept(segment, number);

	if (kept)
		copy_highpage(kept, from);
	else
		cw_keep_copy(segment, number, from, __GFP_NOFAIL);
}

/* Puts an empty page where there is none. The process pays for it. */
static int cw_keep_blank(struct cw_segment *segment, unsigned long number)
{
	struct page *page = alloc_page(GFP_HIGHUSER | __GFP_ZERO | __GFP_ACCOUNT);
	void *there;

	if (!page)
		return -ENOMEM;
	there = xa_cmpxchg(&segment->inplace.pages, number, NULL, page, GFP_KERNEL);
	/* Not there either if HOME has made room, which is NULL to us. */
	if (cw_kept(segment, number) != page)
		put_page(page);
	return xa_err(there);
}

/* Gives a process back what it touches. Under map_lock. */
vm_fault_t cw_kept_insert(struct cw_segment *segment, struct vm_fault *vmf, unsigned long number)
{
	struct page *page;
	int error = 0;

	if (!xa_load(&segment->inplace.pages, number) && !cw_is_inplace(vmf->vma))
		error = cw_keep_blank(segment, number);
	if (!error) {
		page = cw_kept(segment, number);
		error = page ? vm_insert_page(vmf->vma, vmf->address, page) : -ENODEV;
	}
	if (!error || error == -EBUSY)
		return VM_FAULT_NOPAGE;
	return error == -ENOMEM ? VM_FAULT_OOM : VM_FAULT_SIGBUS;
}

/* The process gives up pages of which some were kept. */
static void cw_kept_discard(struct cw_segment *segment, unsigned long first, unsigned long end)
{
	unsigned long at;
	void *entry;

	xa_for_each_range(&segment->inplace.pages, at, entry, first, end - 1)
		if (!xa_is_value(entry))
			clear_highpage(entry);
}

/*
 * The host has not emptied these pages, for it ends what it shows, or they may have been copied
 * before it did: what is shown yet, or was kept, is emptied here. Else its process would find what
 * it gave up, where it counts on zeros.
 */
void cw_inplace_clear(struct cw_segment *segment, unsigned long first, unsigned long end)
{
	struct cw_device *dev = segment->dev;

	down_read(&dev->map_lock);
	if (dev->dead)
		cw_kept_discard(segment, first, end);
	for (; !dev->dead && first < end; first++) {
		struct cw_range *range = cw_find_range(segment, first / PHYS_PFN(CW_RANGE_BYTES));
		struct page *page = NULL;

		if (range)
			page = cw_page(dev, cw_in_window(range, (u64)first << PAGE_SHIFT));
		if (page)
			clear_highpage(page);
	}
	up_read(&dev->map_lock);
}

/* Whether nobody else has a page that was kept, which no process has mapped. */
bool cw_kept_quiet(struct cw_segment *segment, unsigned long first, unsigned long end)
{
	unsigned long at;
	void *entry;

	xa_for_each_range(&segment->inplace.pages, at, entry, first, end - 1)
		if (!xa_is_value(entry) && page_ref_count(entry) != 1)
			return false;
	return true;
}

/* These pages are in place no more. */
void cw_kept_forget(struct cw_segment *segment, unsigned long first, unsigned long end)
{
	unsigned long at;
	void *entry;

	xa_for_each_range(&segment->inplace.pages, at, entry, first, end - 1) {
		entry = xa_erase(&segment->inplace.pages, at);
		if (entry && !xa_is_value(entry))
			put_page(entry);
	}
}
