/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Memory, for kernel.h: pages, mappings of a process, and what the kernel does with them. A page of
 * the window has a struct page once memremap_pages has made one; a process's own has one always.
 */
#ifndef MEMORY_H
#define MEMORY_H

#define VM_READ 1ul
#define VM_WRITE 2ul
#define VM_EXEC 4ul
#define VM_SHARED 8ul
#define VM_MAYSHARE 16ul
#define VM_GROWSDOWN 32ul
#define VM_LOCKED 64ul
#define VM_HUGETLB 128ul
#define VM_WIPEONFORK 256ul
#define VM_DONTCOPY 512ul
#define VM_MIXEDMAP 1024ul
#define VM_DONTEXPAND 2048ul
#define VM_DONTDUMP 4096ul
#define VM_SPECIAL (VM_MIXEDMAP | VM_DONTEXPAND)
#define VM_FAULT_OOM 1u
#define VM_FAULT_SIGBUS 2u
#define VM_FAULT_NOPAGE 0x100u
#define VM_FAULT_RETRY 0x400u
#define FAULT_FLAG_ALLOW_RETRY 1u
#define FAULT_FLAG_RETRY_NOWAIT 2u
/* Pages of a mapping, and of a process's own memory. */
#define VMA_PAGES 64

struct page {
	unsigned int refs;
	unsigned int pins; /* of the references */
	bool anon;
	struct address_space *mapping;
	unsigned long index;
	bool lone; /* it is of nothing, and ends with its last reference */
	unsigned char *bytes; /* once there are any */
};

#define folio page
typedef unsigned long pgoff_t;
#define page_folio(page) (page)
#define folio_test_anon(page) ((page)->anon)
#define folio_maybe_dma_pinned(page) ((page)->pins > 0)
#define page_ref_count(p) (((struct page *)(p))->refs)
void put_page(struct page *page);
struct page *alloc_page(gfp_t flags);
#define GFP_HIGHUSER GFP_KERNEL
#define __GFP_NOWARN 0
#define __GFP_ZERO 0 /* all is, here */
#define __GFP_ACCOUNT 0
#define xa_err(entry) ((entry) == ERR_PTR(-ENOMEM) ? -ENOMEM : 0)
#define clear_highpage(page) memset(page_bytes(page), 0, PAGE_SIZE)
unsigned char *page_bytes(struct page *page);
#define copy_highpage(to, from) memcpy(page_bytes(to), page_bytes(from), PAGE_SIZE)
#define memcpy_from_page(to, page, offset, bytes) memcpy(to, page_bytes(page) + (offset), bytes)
#define offset_in_page(at) ((unsigned long)(at) % PAGE_SIZE)
#define __get_free_page(flags) ((unsigned long)allocate(PAGE_SIZE, flags))
#define free_page(at) free((void *)(at))

struct range {
	u64 start, end;
};

enum { MEMORY_DEVICE_GENERIC };

struct dev_pagemap {
	int type, nr_range;
	struct range range;
	struct page *pages;
	struct dev_pagemap *next;
};

#define NUMA_NO_NODE (-1)
/* Fails if `no_pages` says so. */
extern bool no_pages;
void *memremap_pages(struct dev_pagemap *map, int node);
void memunmap_pages(struct dev_pagemap *map);
/* What a device has left for ever ends. */
void forget_pages(void);
struct page *pfn_to_page(unsigned long pfn);
bool pfn_valid(unsigned long pfn);

struct vm_fault {
	struct vm_area_struct *vma;
	unsigned long address;
	unsigned int flags;
};

struct vm_operations_struct {
	vm_fault_t (*fault)(struct vm_fault *vmf);
	void (*close)(struct vm_area_struct *vma);
	int (*mremap)(struct vm_area_struct *vma);
};

struct vm_area_struct {
	unsigned long vm_start, vm_end, vm_pgoff, vm_flags;
	struct mm_struct *vm_mm;
	struct file *vm_file;
	void *vm_private_data;
	const struct vm_operations_struct *vm_ops;
	struct vm_area_struct *next; /* of the same file */
	int key; /* of protection; 0: as most have */
	unsigned long pages[VMA_PAGES]; /* what the process has there; 0: nothing */
};

struct mmu_notifier;

/* A process, with one mapping at a time that the driver looks for. */
struct mm_struct {
	struct vm_area_struct *vma;
	struct page own[VMA_PAGES]; /* of `vma`, if it is of no file */
	unsigned long def_flags;
	int write_protect_seq; /* odd: nothing gets pinned */
	bool locked; /* for writing */
	struct mmu_notifier *notifier;
};

struct task_struct {
	struct mm_struct *mm;
};

extern struct mm_struct process;
extern struct task_struct *current;

#define vma_pages(vma) (((vma)->vm_end - (vma)->vm_start) >> PAGE_SHIFT)
#define vma_is_anonymous(vma) (!(vma)->vm_ops)
#define userfaultfd_armed(vma) false
#define vma_pkey(vma) ((vma)->key)
#define vm_flags_set(vma, flags) ((vma)->vm_flags |= (flags))
#define mmap_read_lock(mm) (may_sleep(), assert(!(mm)->locked))
#define mmap_read_unlock(mm) ((void)(mm))
#define mmap_write_lock(mm) (mmap_read_lock(mm), (void)((mm)->locked = true))
#define mmap_write_unlock(mm) ((mm)->locked = false)
#define release_fault_lock(vmf) ((void)(vmf))
#define raw_write_seqcount_begin(seq) ((void)(assert(!(*(seq) & 1)), ++*(seq)))
#define raw_write_seqcount_end(seq) ((void)(assert(*(seq) & 1), ++*(seq)))
#define find_vma_intersection(mm, start, end) ((start) < (end) ? (mm)->vma : NULL)
struct vm_area_struct *vma_lookup(struct mm_struct *mm, unsigned long address);
vm_fault_t vmf_insert_pfn(struct vm_area_struct *vma, unsigned long address, unsigned long pfn);
int vm_insert_page(struct vm_area_struct *vma, unsigned long address, struct page *page);
/* Takes a process's pages away, from one of a file's on. */
void zap(struct vm_area_struct *vma, unsigned long first, unsigned long count);
void unmap_mapping_range(struct address_space *mapping, loff_t from, loff_t bytes, int even);

#define FOLL_WRITE 1
#define PROT_READ 1
#define PROT_WRITE 2
#define MAP_SHARED 1
#define MAP_FIXED 16
#define IS_ERR_VALUE(value) ((unsigned long)(value) >= (unsigned long)-MAX_ERRNO)
long get_user_pages(unsigned long address, unsigned long count, unsigned int flags,
		    struct page **pages);
#define mm_get_unmapped_area(file, address, length, page, flags) (address)
/* Maps `placed` over the process's memory. */
extern struct vm_area_struct placed;
unsigned long vm_mmap(struct file *file, unsigned long address, unsigned long length,
		      unsigned long protection, unsigned long flags, unsigned long offset);

enum { MMU_NOTIFY_UNMAP, MMU_NOTIFY_CLEAR };

struct mmu_notifier_range {
	unsigned long start, end;
	int event;
};

struct mmu_notifier_ops {
	int (*invalidate_range_start)(struct mmu_notifier *notifier,
				      const struct mmu_notifier_range *range);
};

struct mmu_notifier {
	const struct mmu_notifier_ops *ops;
};

#define mmu_notifier_range_blockable(range) true
int mmu_notifier_register(struct mmu_notifier *notifier, struct mm_struct *mm);
void mmu_notifier_unregister(struct mmu_notifier *notifier, struct mm_struct *mm);
#define memalloc_noreclaim_save() 0
#define memalloc_noreclaim_restore(flags) ((void)(flags))

#endif
