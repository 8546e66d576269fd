// SPDX-License-Identifier: GPL-2.0
/* Memory of the kernel that the driver's tests run on: see memory.h. */
#include "kernel.h"

static struct dev_pagemap *maps;
bool no_pages;
struct vm_area_struct placed;

unsigned char *page_bytes(struct page *page)
{
	if (!page->bytes)
		page->bytes = calloc(1, PAGE_SIZE);
	assert(page->bytes);
	return page->bytes;
}

struct page *alloc_page(gfp_t flags)
{
	struct page *page = allocate(sizeof(*page), flags);

	if (page)
		*page = (struct page){ .refs = 1, .lone = true };
	return page;
}

void put_page(struct page *page)
{
	assert(page->refs > 0);
	if (--page->refs || !page->lone)
		return;
	free(page->bytes);
	free(page);
}

static unsigned long map_pages(const struct dev_pagemap *map)
{
	return PHYS_PFN(map->range.end + 1 - map->range.start);
}

/* Numbers of pages that are not the window's: where their structures are. */
#define LONE (1ul << 62)

static struct page *page_at(unsigned long pfn)
{
	if (pfn & LONE)
		return (struct page *)(pfn & ~LONE);
	for (struct dev_pagemap *map = maps; map; map = map->next)
		if (pfn >= PHYS_PFN(map->range.start) && pfn <= PHYS_PFN(map->range.end))
			return &map->pages[pfn - PHYS_PFN(map->range.start)];
	return NULL;
}

void *memremap_pages(struct dev_pagemap *map, int node)
{
	may_sleep();
	assert(map->nr_range == 1 && map->type == MEMORY_DEVICE_GENERIC && node == NUMA_NO_NODE);
	if (no_pages || page_at(PHYS_PFN(map->range.start)))
		return ERR_PTR(-EINVAL);
	map->pages = calloc(map_pages(map), sizeof(*map->pages));
	assert(map->pages);
	for (unsigned long i = 0; i < map_pages(map); i++)
		map->pages[i].refs = 1;
	map->next = maps;
	maps = map;
	return map->pages;
}

void memunmap_pages(struct dev_pagemap *map)
{
	struct dev_pagemap **at = &maps;

	may_sleep();
	while (*at != map)
		at = &(*at)->next;
	*at = map->next;
	for (unsigned long i = 0; i < map_pages(map); i++) {
		/* Nobody may have a page without struct page. */
		assert(map->pages[i].refs == 1 && !map->pages[i].mapping);
		free(map->pages[i].bytes);
	}
	free(map->pages);
}

void forget_pages(void)
{
	while (maps) {
		struct dev_pagemap *map = maps;

		memunmap_pages(map);
		free(map);
	}
}

struct page *pfn_to_page(unsigned long pfn)
{
	struct page *page = page_at(pfn);

	assert(page);
	return page;
}

bool pfn_valid(unsigned long pfn)
{
	return page_at(pfn);
}

static unsigned long page_to_pfn(const struct page *page)
{
	if (page->lone)
		return (unsigned long)page | LONE;
	for (struct dev_pagemap *map = maps; map; map = map->next)
		if (page >= map->pages && page < map->pages + map_pages(map))
			return PHYS_PFN(map->range.start) + (page - map->pages);
	assert(!"a page of the window");
	return 0;
}

struct vm_area_struct *vma_lookup(struct mm_struct *mm, unsigned long address)
{
	struct vm_area_struct *vma = mm->vma;

	return vma && address >= vma->vm_start && address < vma->vm_end ? vma : NULL;
}

static unsigned long *entry(struct vm_area_struct *vma, unsigned long address)
{
	assert(address >= vma->vm_start && address < vma->vm_end && vma_pages(vma) <= VMA_PAGES);
	return &vma->pages[(address - vma->vm_start) >> PAGE_SHIFT];
}

vm_fault_t vmf_insert_pfn(struct vm_area_struct *vma, unsigned long address, unsigned long pfn)
{
	assert(!page_at(pfn) && vma->vm_flags & VM_MIXEDMAP);
	*entry(vma, address) = pfn;
	return VM_FAULT_NOPAGE;
}

int vm_insert_page(struct vm_area_struct *vma, unsigned long address, struct page *page)
{
	assert(vma->vm_flags & VM_MIXEDMAP && page->refs);
	if (*entry(vma, address))
		return -EBUSY;
	if (!kernel.allocations)
		return -ENOMEM;
	page->refs++;
	*entry(vma, address) = page_to_pfn(page);
	return 0;
}

void zap(struct vm_area_struct *vma, unsigned long first, unsigned long count)
{
	for (unsigned long i = 0; i < vma_pages(vma); i++) {
		unsigned long number = vma->vm_pgoff + i;
		struct page *page = vma->pages[i] ? page_at(vma->pages[i]) : NULL;

		if (number < first || number - first >= count)
			continue;
		vma->pages[i] = 0;
		if (page)
			put_page(page);
	}
}

void unmap_mapping_range(struct address_space *mapping, loff_t from, loff_t bytes, int even)
{
	may_sleep();
	assert(from % (loff_t)PAGE_SIZE == 0 && bytes % (loff_t)PAGE_SIZE == 0 && bytes && even);
	for (struct vm_area_struct *vma = mapping->mapped; vma; vma = vma->next) {
		struct mmu_notifier_range range = { vma->vm_start, vma->vm_end, MMU_NOTIFY_CLEAR };
		struct mmu_notifier *notifier = process.notifier;

		if (notifier)
			notifier->ops->invalidate_range_start(notifier, &range);
		zap(vma, PHYS_PFN(from), PHYS_PFN(bytes));
	}
}

long get_user_pages(unsigned long address, unsigned long count, unsigned int flags,
		    struct page **pages)
{
	struct vm_area_struct *vma = process.vma;
	unsigned long first;

	assert(process.locked && flags == FOLL_WRITE && vma && !vma->vm_ops);
	first = (address - vma->vm_start) >> PAGE_SHIFT;
	for (unsigned long i = 0; i < count; i++) {
		pages[i] = &process.own[first + i];
		pages[i]->refs++;
	}
	return count;
}

/* As mmap(2) does it: asks where, unmaps what is there, and has the file map. */
unsigned long vm_mmap(struct file *file, unsigned long address, unsigned long length,
		      unsigned long protection, unsigned long flags, unsigned long offset)
{
	unsigned long found;
	int error;

	assert(flags == (MAP_SHARED | MAP_FIXED) && protection == (PROT_READ | PROT_WRITE));
	mmap_write_lock(&process);
	found = file->f_op->get_unmapped_area(file, address, length, offset >> PAGE_SHIFT, flags);
	if (!IS_ERR_VALUE(found) && kernel.mappings_fail) {
		kernel.mappings_fail--;
		process.vma = NULL;
		mmap_write_unlock(&process);
		return -ENOMEM;
	}
	if (IS_ERR_VALUE(found) || !kernel.allocations) {
		mmap_write_unlock(&process);
		return IS_ERR_VALUE(found) ? found : (unsigned long)-ENOMEM;
	}
	assert(process.write_protect_seq & 1 || !process.vma);
	placed = (struct vm_area_struct){ .vm_start = address, .vm_end = address + length,
					 .vm_pgoff = offset >> PAGE_SHIFT, .vm_mm = &process,
					 .vm_flags = VM_MAYSHARE | VM_SHARED | VM_READ | VM_WRITE,
					 .vm_file = file };
	error = file->f_op->mmap(file, &placed);
	assert(!error && !(process.write_protect_seq & 1));
	placed.next = file->space.mapped;
	file->space.mapped = process.vma = &placed;
	file->refs++;
	mmap_write_unlock(&process);
	sleep_once();
	return address;
}

int mmu_notifier_register(struct mmu_notifier *notifier, struct mm_struct *mm)
{
	may_sleep();
	assert(!mm->locked && !mm->notifier);
	if (!kernel.allocations)
		return -ENOMEM;
	mm->notifier = notifier;
	return 0;
}

void mmu_notifier_unregister(struct mmu_notifier *notifier, struct mm_struct *mm)
{
	may_sleep();
	assert(mm->notifier == notifier);
	mm->notifier = NULL;
}
