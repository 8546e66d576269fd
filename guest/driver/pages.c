// SPDX-License-Identifier: GPL-2.0
/*
 * Struct pages for the window, so that what lies in it is memory like other memory to the kernel:
 * direct I/O, vmsplice and futexes between processes work on it. They cost a 64th of what they
 * describe, and the window is huge: they are made for chunks of it, when something is first touched
 * there, and stay until the device goes.
 *
 * A page is referenced once by itself, once by each mapping of a process, and by whoever has it
 * pinned: a disk that writes to it, say. While it is pinned the host must show nothing else there.
 */
#include <linux/delay.h>
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "causeway.h"

/* What gets struct pages at once: half a MiB of them. Aligned. */
#define CW_CHUNK_BYTES (32ULL << 20)
/* How long the end of others' reading and writing is waited for when the device goes. */
#define CW_PINS_MILLISECONDS 10000
#define CW_NAP_MILLISECONDS 10

/* In the place of a chunk: it has none, and can have none. */
static void *cw_no_chunk(void)
{
	return xa_mk_value(0);
}

static struct dev_pagemap *cw_chunk(struct cw_device *dev, u64 offset)
{
	return xa_load(&dev->chunks, offset / CW_CHUNK_BYTES);
}

static struct dev_pagemap *cw_chunk_new(struct cw_device *dev, u64 begin)
{
	struct dev_pagemap *chunk;

	if (begin + CW_CHUNK_BYTES > dev->window_bytes)
		return cw_no_chunk();
	chunk = kzalloc_obj(*chunk, GFP_KERNEL);
	if (!chunk)
		return NULL;
	chunk->type = MEMORY_DEVICE_GENERIC;
	chunk->range.start = dev->window + begin;
	chunk->range.end = chunk->range.start + CW_CHUNK_BYTES - 1;
	chunk->nr_range = 1;
	if (IS_ERR(memremap_pages(chunk, NUMA_NO_NODE))) {
		kfree(chunk);
		return cw_no_chunk();
	}
	return chunk;
}

/*
 * Makes struct pages around an offset of the window, unless that was tried before: where there can
 * be none, it is memory without. Under show_lock.
 */
int cw_pages_make(struct cw_device *dev, u64 offset)
{
	u64 index = offset / CW_CHUNK_BYTES;
	struct dev_pagemap *chunk;
	int error;

	if (cw_chunk(dev, offset))
		return 0;
	chunk = cw_chunk_new(dev, index * CW_CHUNK_BYTES);
	if (!chunk)
		return -ENOMEM;
	error = xa_insert(&dev->chunks, index, chunk, GFP_KERNEL);
	if (error && !xa_is_value(chunk)) {
		memunmap_pages(chunk);
		kfree(chunk);
	}
	return error;
}

/* Whether `cw_pages_make` was called for an offset. */
bool cw_pages_made(struct cw_device *dev, u64 offset)
{
	return cw_chunk(dev, offset);
}

/* The page at an offset of the window; NULL if it has none. */
struct page *cw_page(struct cw_device *dev, u64 offset)
{
	struct dev_pagemap *chunk = cw_chunk(dev, offset);

	return chunk && !xa_is_value(chunk) ? pfn_to_page(PHYS_PFN(dev->window + offset)) : NULL;
}

/*
 * Gives a process the page at an offset of the window, which is the page `index` of a file. Under
 * map_lock; the page is made.
 */
vm_fault_t cw_page_insert(struct cw_device *dev, struct vm_area_struct *vma, unsigned long address,
			  u64 offset, pgoff_t index)
{
	struct page *page = cw_page(dev, offset);
	int error;

	if (!page) {
		/* Struct pages of an earlier device, which somebody has pinned: the kernel ends. */
		if (pfn_valid(PHYS_PFN(dev->window + offset)))
			return VM_FAULT_SIGBUS;
		return vmf_insert_pfn(vma, address, PHYS_PFN(dev->window + offset));
	}
	/* What futexes of different processes go by. */
	page_folio(page)->index = index;
	page_folio(page)->mapping = vma->vm_file->f_mapping;
	error = vm_insert_page(vma, address, page);
	/* EBUSY: another thread was first. */
	if (!error || error == -EBUSY)
		return VM_FAULT_NOPAGE;
	return error == -ENOMEM ? VM_FAULT_OOM : VM_FAULT_SIGBUS;
}

static bool cw_chunk_quiet(struct cw_device *dev, u64 from, u64 to)
{
	for (; from < to; from += PAGE_SIZE) {
		if (page_ref_count(cw_page(dev, from)) != 1)
			return false;
	}
	return true;
}

/* The pages are no file's any more. */
static void cw_chunk_disown(struct cw_device *dev, u64 from, u64 to)
{
	for (; from < to; from += PAGE_SIZE)
		page_folio(cw_page(dev, from))->mapping = NULL;
}

/*
 * Whether nobody has any of these pages of the window, which no process has mapped: they are not
 * the file's any more then.
 */
bool cw_pages_quiet(struct cw_device *dev, u64 offset, u64 bytes)
{
	u64 end = offset + bytes, at, next;

	for (at = offset; at < end; at = next) {
		next = min(end, round_down(at, CW_CHUNK_BYTES) + CW_CHUNK_BYTES);
		if (cw_page(dev, at) && !cw_chunk_quiet(dev, at, next))
			return false;
	}
	for (at = offset; at < end; at = next) {
		next = min(end, round_down(at, CW_CHUNK_BYTES) + CW_CHUNK_BYTES);
		if (cw_page(dev, at))
			cw_chunk_disown(dev, at, next);
	}
	return true;
}

/* The pages of a segment that ends, which somebody has of another segment, are that one's. */
void cw_pages_pass(struct cw_range *range, const struct cw_range *twin)
{
	struct cw_device *dev = range->segment->dev;
	u64 end = range->offset + range->length, at;
	struct page *page;

	for (at = range->offset; at < end; at += PAGE_SIZE) {
		page = cw_page(dev, at);
		if (!page)
			at = round_down(at, CW_CHUNK_BYTES) + CW_CHUNK_BYTES - PAGE_SIZE;
		else if (page_folio(page)->mapping == range->segment->mapping)
			page_folio(page)->mapping = twin->segment->mapping;
	}
}

/* Forgets a chunk if nobody has a page of it, or if `forced`: then its struct pages stay. */
static bool cw_chunk_free(struct cw_device *dev, unsigned long index, bool forced)
{
	u64 begin = index * CW_CHUNK_BYTES;
	struct dev_pagemap *chunk;
	bool quiet;

	down_write(&dev->map_lock);
	chunk = xa_load(&dev->chunks, index);
	quiet = xa_is_value(chunk) || cw_pages_quiet(dev, begin, CW_CHUNK_BYTES);
	/* Who has them pinned may mark them dirty when their file is no more. */
	if (!quiet && forced)
		cw_chunk_disown(dev, begin, begin + CW_CHUNK_BYTES);
	if (quiet || forced)
		xa_erase(&dev->chunks, index);
	up_write(&dev->map_lock);
	if (quiet && !xa_is_value(chunk)) {
		memunmap_pages(chunk);
		kfree(chunk);
	}
	return quiet;
}

/*
 * The device goes, and no process has pages of it any more. Of pins nobody tells when they end;
 * what is pinned for long keeps its struct pages for ever, and another device at its place has none
 * there.
 */
void cw_pages_free(struct cw_device *dev)
{
	unsigned int patience = CW_PINS_MILLISECONDS / CW_NAP_MILLISECONDS;
	struct dev_pagemap *chunk;
	unsigned long index;

	xa_for_each(&dev->chunks, index, chunk) {
		while (!cw_chunk_free(dev, index, !patience) && patience) {
			msleep(CW_NAP_MILLISECONDS);
			patience--;
		}
	}
	xa_destroy(&dev->chunks);
}
