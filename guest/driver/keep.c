// SPDX-License-Identifier: GPL-2.0
/*
 * What becomes of processes' memory that is at home in segments when the device goes: the kernel
 * keeps a copy of each page, which takes its place in the process. Peers have the old ones. What
 * the host does not show at that moment is lost, and what there is no memory for.
 */
#include <linux/highmem.h>
#include <linux/mm.h>

#include "causeway.h"

/* A page of the process's own in the place of the window's, which is not mapped any more. */
static void cw_keep_page(struct cw_range *range, unsigned long number)
{
	struct cw_segment *segment = range->segment;
	void *there = xa_mk_value(0);
	struct page *from, *to;

	from = cw_page(segment->dev, cw_in_window(range, (u64)number << PAGE_SHIFT));
	to = from ? alloc_page(GFP_HIGHUSER | __GFP_NOWARN) : NULL;
	if (!to)
		return;
	copy_highpage(to, from);
	/* It may be unmapped at this moment. */
	if (xa_cmpxchg(&segment->home.pages, number, there, to, GFP_KERNEL) != there)
		put_page(to);
}

/* Keeps what is at home in a range. Under map_lock, for writing. */
void cw_keep(struct cw_range *range)
{
	unsigned long first = range->number * PHYS_PFN(CW_RANGE_BYTES), at;
	void *entry;

	xa_for_each_range(&range->segment->home.pages, at, entry, first,
			  first + PHYS_PFN(range->length) - 1)
		cw_keep_page(range, at);
}

/* What was kept of a page; NULL if nothing was. */
struct page *cw_kept(struct cw_segment *segment, unsigned long number)
{
	void *entry = xa_load(&segment->home.pages, number);

	return !entry || xa_is_value(entry) ? NULL : entry;
}

/* Gives a process back what it touches. */
vm_fault_t cw_kept_insert(struct cw_segment *segment, struct vm_fault *vmf, unsigned long number)
{
	struct page *page = cw_is_home(vmf->vma) ? cw_kept(segment, number) : NULL;
	int error = page ? vm_insert_page(vmf->vma, vmf->address, page) : -ENODEV;

	return !error || error == -EBUSY ? VM_FAULT_NOPAGE : VM_FAULT_SIGBUS;
}

/* The process gives up pages of which some were kept. */
void cw_kept_discard(struct cw_segment *segment, unsigned long first, unsigned long end)
{
	unsigned long at;
	void *entry;

	xa_for_each_range(&segment->home.pages, at, entry, first, end - 1)
		if (!xa_is_value(entry))
			clear_highpage(entry);
}

/* Whether nobody else has a page that was kept, which no process has mapped. */
bool cw_kept_quiet(struct cw_segment *segment, unsigned long first, unsigned long end)
{
	unsigned long at;
	void *entry;

	xa_for_each_range(&segment->home.pages, at, entry, first, end - 1)
		if (!xa_is_value(entry) && page_ref_count(entry) != 1)
			return false;
	return true;
}

/* These pages are at home no more. */
void cw_kept_forget(struct cw_segment *segment, unsigned long first, unsigned long end)
{
	unsigned long at;
	void *entry;

	xa_for_each_range(&segment->home.pages, at, entry, first, end - 1) {
		entry = xa_erase(&segment->home.pages, at);
		if (entry && !xa_is_value(entry))
			put_page(entry);
	}
}
