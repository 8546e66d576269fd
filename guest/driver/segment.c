// SPDX-License-Identifier: GPL-2.0
/*
 * Segments: descriptors that a process can map. A handle is given up when the last user of the
 * descriptor is gone, mappings included.
 *
 * A segment may be larger than the window. The host shows ranges of segments, few at a time: one
 * that a process touches is shown then; if there is no room, one that nobody has used lately is
 * hidden: its pages are taken from all processes before the host may show anything else there, and
 * who touches it again finds it again, perhaps elsewhere.
 */
#include <linux/anon_inodes.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "causeway.h"

/* How often it is looked whether pages are pinned of which nobody has a descriptor any more. */
#define CW_LINGER HZ

/* Takes pages away from all processes, which find them again. Under map_lock, for writing. */
void cw_unmap(struct cw_segment *segment, u64 from, u64 bytes)
{
	struct cw_device *dev = segment->dev;

	WRITE_ONCE(dev->zapper, current);
	unmap_mapping_range(segment->mapping, from, bytes, 1);
	WRITE_ONCE(dev->zapper, NULL);
}

/*
 * A range that the host shows at the same place: of the same memory, which somebody else in this
 * machine has by a handle of its own. From `at` on in the device's list. Under map_lock.
 */
static struct cw_range *cw_twin_from(struct cw_range *range, struct cw_range *at)
{
	list_for_each_entry_from(at, &range->segment->dev->ranges, list)
		if (at != range && at->offset == range->offset && at->length == range->length)
			return at;
	return NULL;
}

static struct cw_range *cw_twin(struct cw_range *range)
{
	struct cw_device *dev = range->segment->dev;

	return cw_twin_from(range, list_first_entry(&dev->ranges, struct cw_range, list));
}

/* Takes pages away from those who have them by other handles. */
void cw_unmap_twins(struct cw_range *range, u64 from, u64 bytes)
{
	struct cw_range *at;

	for (at = cw_twin(range); at; at = cw_twin_from(range, list_next_entry(at, list)))
		cw_unmap(at->segment, from, bytes);
}

/* Takes a range away from all processes; false if somebody still has a page. Under map_lock. */
static bool cw_range_clear(struct cw_range *range)
{
	struct cw_segment *segment = range->segment;

	if (range->users)
		return false;
	cw_unmap(segment, range->number * CW_RANGE_BYTES, range->length);
	return cw_pages_quiet(segment->dev, range->offset, range->length);
}

/* A range that can be hidden and is not in use, as far as that is known. Under map_lock. */
static struct cw_range *cw_find_idle(struct cw_device *dev)
{
	struct cw_range *range;

	list_for_each_entry(range, &dev->ranges, list)
		if (!range->touched && cw_range_clear(range))
			return range;
	return NULL;
}

/*
 * Hides a range that nobody has touched since room was last sought, the one shown first of those.
 * Where all have been touched they are taken from the processes, who find them again: so it shows
 * which are in use. Under show_lock.
 */
static bool cw_hide_one(struct cw_device *dev)
{
	struct cw_request_header header = { .operation = cpu_to_le16(CW_HIDE) };
	struct cw_range *at, *range;
	struct cw_answer answer;

	down_write(&dev->map_lock);
	range = cw_find_idle(dev);
	if (!range) {
		list_for_each_entry(at, &dev->ranges, list) {
			at->touched = false;
			cw_range_clear(at);
		}
		range = cw_find_idle(dev);
	}
	if (range) {
		header.handle = cpu_to_le32(range->segment->handle);
		header.size = cpu_to_le64(range->number * CW_RANGE_BYTES);
		list_del(&range->list);
		list_del(&range->of_segment);
	}
	up_write(&dev->map_lock);
	if (!range)
		return false;
	kfree(range);
	/* One that is released meanwhile is hidden by that. */
	return cw_call(dev, &header, NULL, &answer) != -ENODEV;
}

/* A range that is shown. Under map_lock or show_lock. */
struct cw_range *cw_find_range(struct cw_segment *segment, u64 number)
{
	struct cw_range *range;

	list_for_each_entry(range, &segment->ranges, of_segment)
		if (range->number == number)
			return range;
	return NULL;
}

/* Has the host show a range. Under show_lock. */
static int cw_range_show(struct cw_segment *segment, struct cw_range *range)
{
	struct cw_request_header header = {
		.operation = cpu_to_le16(CW_SHOW),
		.handle = cpu_to_le32(segment->handle),
		.size = cpu_to_le64(range->number * CW_RANGE_BYTES),
	};
	struct cw_device *dev = segment->dev;
	struct cw_answer answer;
	unsigned long align;
	int error;

	do
		error = cw_call(dev, &header, NULL, &answer);
	while (error == -ENOSPC && cw_hide_one(dev));
	if (error)
		return error;
	range->offset = le64_to_cpu(answer.offset);
	/* What is moved or touched at once has struct pages, or has none, as a whole. */
	align = min_t(unsigned long, roundup_pow_of_two(range->length), CAUSEWAY_SPAN_MAX);
	if (range->offset & (align - 1) || range->offset >= dev->window_bytes ||
	    range->length > dev->window_bytes - range->offset)
		return -EPROTO;
	range->touched = true;
	down_write(&dev->map_lock);
	list_add_tail(&range->list, &dev->ranges);
	list_add(&range->of_segment, &segment->ranges);
	up_write(&dev->map_lock);
	return 0;
}

/* The same, of a range that may be shown already. */
static int cw_segment_show(struct cw_segment *segment, u64 number)
{
	struct cw_range *range;
	int error;

	if (cw_find_range(segment, number))
		return 0;
	range = kzalloc_obj(*range, GFP_KERNEL);
	if (!range)
		return -ENOMEM;
	range->segment = segment;
	range->number = number;
	range->length = min(segment->length - number * CW_RANGE_BYTES, (u64)CW_RANGE_BYTES);
	error = cw_range_show(segment, range);
	if (error)
		kfree(range);
	return error;
}

/*
 * The range of a segment, shown and with struct pages if there can be any, which stays so until
 * `cw_range_put`. Its pages are those of a fault that named `page` of the segment.
 */
struct cw_range *cw_range_get(struct cw_segment *segment, u64 page)
{
	u64 number = page / PHYS_PFN(CW_RANGE_BYTES);
	struct cw_device *dev = segment->dev;
	struct cw_range *range;
	int error;

	mutex_lock(&dev->show_lock);
	error = dev->dead ? -ENODEV : cw_segment_show(segment, number);
	range = error ? ERR_PTR(error) : cw_find_range(segment, number);
	if (!error)
		error = cw_pages_make(dev, range->offset + (page << PAGE_SHIFT) -
					   number * CW_RANGE_BYTES);
	if (error)
		range = ERR_PTR(error);
	else
		range->users++;
	mutex_unlock(&dev->show_lock);
	return range;
}

void cw_range_put(struct cw_range *range)
{
	struct cw_device *dev = range->segment->dev;

	mutex_lock(&dev->show_lock);
	range->users--;
	mutex_unlock(&dev->show_lock);
}

/* Gives a process the page that it touches, and those around it. Under map_lock. */
static vm_fault_t cw_insert_around(struct cw_range *range, struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	/* All in pages of the segment. */
	unsigned long touched = vma->vm_pgoff + PHYS_PFN(vmf->address - vma->vm_start);
	unsigned long around = round_down(touched, PHYS_PFN(CW_FAULT_BYTES));
	unsigned long at = max(vma->vm_pgoff, around);
	unsigned long end = min(vma->vm_pgoff + vma_pages(vma), around + PHYS_PFN(CW_FAULT_BYTES));
	/* What to add to them for the window's, in bytes. */
	u64 offset = range->offset - range->number * CW_RANGE_BYTES;
	struct cw_device *dev = range->segment->dev;
	vm_fault_t result;

	if (!cw_pages_made(dev, offset + ((u64)touched << PAGE_SHIFT)))
		return 0;
	WRITE_ONCE(range->touched, true);
	result = cw_page_insert(dev, vma, vmf->address, offset + ((u64)touched << PAGE_SHIFT),
				touched);
	if (range->segment->inplace.held_end)
		return result;
	for (; result == VM_FAULT_NOPAGE && at < end; at++)
		result = cw_page_insert(dev, vma,
					vma->vm_start + ((at - vma->vm_pgoff) << PAGE_SHIFT),
					offset + ((u64)at << PAGE_SHIFT), at);
	return result;
}

/* Which page of a segment a process touches. */
static u64 cw_touched(const struct vm_fault *vmf)
{
	return vmf->vma->vm_pgoff + PHYS_PFN(vmf->address - vmf->vma->vm_start);
}

/* The same, if the range is shown and has struct pages, or can't. */
static bool cw_segment_insert(struct cw_segment *segment, struct vm_fault *vmf, vm_fault_t *result)
{
	struct cw_device *dev = segment->dev;
	struct cw_range *range;
	bool held;

	*result = VM_FAULT_SIGBUS;
	down_read(&dev->map_lock);
	range = cw_find_range(segment, cw_touched(vmf) / PHYS_PFN(CW_RANGE_BYTES));
	held = cw_inplace_held(segment, vmf);
	if (dev->dead && !held)
		*result = cw_kept_insert(segment, vmf, cw_touched(vmf));
	else if (!held)
		*result = range ? cw_insert_around(range, vmf) : 0;
	up_read(&dev->map_lock);
	if (held)
		*result = cw_inplace_wait(segment, vmf);
	return *result;
}

static vm_fault_t cw_segment_fault(struct vm_fault *vmf)
{
	struct cw_segment *segment = vmf->vma->vm_private_data;
	struct cw_range *range;
	vm_fault_t result;

	if (cw_segment_insert(segment, vmf, &result))
		return result;
	range = cw_range_get(segment, cw_touched(vmf));
	if (IS_ERR(range)) {
		/* If the device has died meanwhile there is what it leaves. */
		if (READ_ONCE(segment->dev->dead) && cw_segment_insert(segment, vmf, &result))
			return result;
		return VM_FAULT_SIGBUS;
	}
	if (!cw_segment_insert(segment, vmf, &result))
		result = VM_FAULT_SIGBUS;
	cw_range_put(range);
	return result;
}

static void cw_inplace_close(struct vm_area_struct *vma)
{
	cw_inplace_gone(vma->vm_private_data, vma);
}

/* A program's own memory at its own addresses: elsewhere the library would not find it. */
static int cw_inplace_mremap(struct vm_area_struct *vma)
{
	return -EINVAL;
}

static const struct vm_operations_struct cw_segment_vm_ops = {
	.fault = cw_segment_fault,
};

static const struct vm_operations_struct cw_inplace_vm_ops = {
	.fault = cw_segment_fault,
	.close = cw_inplace_close,
	.mremap = cw_inplace_mremap,
};

/*
 * Whether a mapping is of memory that is in place. Not what a child has of it, to which the process
 * may have it copied by madvise(2); nor where mremap(2) is about to fail to move it.
 */
bool cw_is_inplace(const struct vm_area_struct *vma)
{
	struct cw_segment *segment = vma->vm_private_data;

	return vma->vm_ops == &cw_inplace_vm_ops && vma->vm_mm == segment->inplace.mm &&
	       PHYS_PFN(vma->vm_start) == vma->vm_pgoff;
}

static int cw_segment_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct cw_segment *segment = file->private_data;
	u64 pages = PHYS_PFN(segment->length);

	/* Not VM_SHARED, which a shared mapping for reading lacks. */
	if (!(vma->vm_flags & VM_MAYSHARE))
		return -EINVAL;
	if (vma->vm_pgoff >= pages || vma_pages(vma) > pages - vma->vm_pgoff)
		return -EINVAL;
	/* Pages with and without struct page; and none is another's beyond the end. */
	vm_flags_set(vma, VM_MIXEDMAP | VM_DONTEXPAND | VM_DONTDUMP);
	vma->vm_private_data = segment;
	vma->vm_ops = &cw_segment_vm_ops;
	if (cw_inplace_mapped(segment, vma)) {
		vm_flags_set(vma, VM_DONTCOPY);
		vma->vm_ops = &cw_inplace_vm_ops;
	}
	return 0;
}

/* Gives up a segment that nobody has open, unless pages of it are pinned. */
static bool cw_segment_end(struct cw_segment *segment)
{
	struct cw_device *dev = segment->dev;
	struct cw_range *range, *next, *twin;
	bool quiet = true;

	down_write(&dev->map_lock);
	/* Where the host goes on showing the same, nothing need be waited for. */
	list_for_each_entry(range, &segment->ranges, of_segment)
		quiet &= cw_twin(range) || cw_pages_quiet(dev, range->offset, range->length);
	if (quiet) {
		list_for_each_entry_safe(range, next, &segment->ranges, of_segment) {
			twin = cw_twin(range);
			if (twin)
				cw_pages_pass(range, twin);
			list_del(&range->list);
			kfree(range);
		}
	}
	up_write(&dev->map_lock);
	if (!quiet)
		return false;
	cw_release_handle(dev, segment->handle);
	kfree(segment);
	cw_device_put(dev);
	return true;
}

/* Ends those segments of which no page is pinned any more. */
void cw_linger(struct work_struct *work)
{
	struct cw_device *dev = container_of(to_delayed_work(work), struct cw_device, linger);
	struct cw_segment *segment, *next;
	struct inode *inode;

	kref_get(&dev->refs);
	mutex_lock(&dev->lock);
	list_for_each_entry_safe(segment, next, &dev->lingering, list) {
		inode = segment->mapping->host;
		list_del(&segment->list);
		if (cw_segment_end(segment))
			iput(inode);
		else
			list_add(&segment->list, &dev->lingering);
	}
	if (!list_empty(&dev->lingering) && !dev->dead)
		schedule_delayed_work(&dev->linger, CW_LINGER);
	mutex_unlock(&dev->lock);
	cw_device_put(dev);
}

/*
 * In the place of what a disk, say, reads or writes after the last user of a segment is gone the
 * host must not show anything else. Nobody tells when that ends. On a device that is dead it stays
 * for ever: that has waited already.
 */
static int cw_segment_release(struct inode *inode, struct file *file)
{
	struct cw_segment *segment = file->private_data;
	struct cw_device *dev = segment->dev;

	cw_inplace_end(segment);
	kref_get(&dev->refs);
	ihold(inode);
	if (cw_segment_end(segment)) {
		iput(inode);
	} else {
		mutex_lock(&dev->lock);
		list_add(&segment->list, &dev->lingering);
		if (!dev->dead)
			schedule_delayed_work(&dev->linger, CW_LINGER);
		mutex_unlock(&dev->lock);
	}
	cw_device_put(dev);
	return 0;
}

static const struct file_operations cw_segment_fops = {
	.owner = THIS_MODULE,
	.mmap = cw_segment_mmap,
	.get_unmapped_area = cw_inplace_area,
	.read = cw_inplace_read,
	.unlocked_ioctl = cw_inplace_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.release = cw_segment_release,
};

/* The handle is given up with the file, and also if there can be none. */
struct file *cw_segment_file(struct cw_device *dev, u32 handle, u64 length, bool writable)
{
	bool inside = PAGE_ALIGNED(length) && length <= CW_SEGMENT_MAX;
	struct cw_segment *segment = inside ? kzalloc_obj(*segment, GFP_KERNEL) : NULL;
	struct file *file;

	if (!segment) {
		cw_release_handle(dev, handle);
		return ERR_PTR(inside ? -ENOMEM : -EPROTO);
	}
	INIT_LIST_HEAD(&segment->ranges);
	cw_inplace_init(segment);
	segment->handle = handle;
	segment->length = length;
	file = anon_inode_create_getfile("[causeway-segment]", &cw_segment_fops, segment,
					 writable ? O_RDWR : O_RDONLY, NULL);
	if (IS_ERR(file)) {
		kfree(segment);
		cw_release_handle(dev, handle);
		return file;
	}
	kref_get(&dev->refs);
	segment->dev = dev;
	segment->mapping = file->f_mapping;
	i_size_write(file_inode(file), length);
	file->f_mode |= FMODE_PREAD;
	return file;
}

/* The segment of a descriptor; NULL if it is of something else. */
struct cw_segment *cw_file_segment(struct file *file)
{
	return file->f_op == &cw_segment_fops ? file->private_data : NULL;
}

/* The segment of a word at an address of the caller's, and where the word is in it. */
int cw_find_word(struct cw_device *dev, u64 address, __le32 *handle, __le64 *offset)
{
	struct vm_area_struct *vma;
	int error = -EFAULT;

	mmap_read_lock(current->mm);
	vma = vma_lookup(current->mm, address);
	if (vma && (vma->vm_ops == &cw_segment_vm_ops || vma->vm_ops == &cw_inplace_vm_ops)) {
		struct cw_segment *segment = vma->vm_private_data;

		*handle = cpu_to_le32(segment->handle);
		*offset = cpu_to_le64(address - vma->vm_start +
				      ((u64)vma->vm_pgoff << PAGE_SHIFT));
		error = segment->dev == dev ? 0 : -EXDEV;
	}
	mmap_read_unlock(current->mm);
	return error;
}

/* The window goes. The device is dead. */
void cw_objects_kill(struct cw_device *dev)
{
	/* Who schedules it looks whether the device is dead, under this lock. */
	mutex_lock(&dev->lock);
	mutex_unlock(&dev->lock);
	/* So does who makes struct pages, under this one. */
	mutex_lock(&dev->show_lock);
	mutex_unlock(&dev->show_lock);
	cancel_delayed_work_sync(&dev->linger);
	cw_pages_free(dev);
	cw_linger(&dev->linger.work);
}
