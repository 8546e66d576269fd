// SPDX-License-Identifier: GPL-2.0
/*
 * Segments: descriptors that a process can map. A handle is given up when the last user of the
 * descriptor is gone, mappings included.
 *
 * A segment may be larger than the window. The host shows ranges of segments, few at a time: one
 * that a process touches is shown then; if there is no room, the one that was shown first is
 * hidden: its pages are taken from all processes before the host may show anything else there, and
 * who touches it again finds it again, perhaps elsewhere.
 */
#include <linux/anon_inodes.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "causeway.h"

/* Hides the range that was shown first. Under show_lock. */
static bool cw_hide_first(struct cw_device *dev)
{
	struct cw_request_header header = { .operation = cpu_to_le16(CW_HIDE) };
	struct cw_answer answer;
	struct cw_range *range;
	u64 from;

	down_write(&dev->map_lock);
	range = list_first_entry_or_null(&dev->ranges, struct cw_range, list);
	if (range) {
		from = range->number * CW_RANGE_BYTES;
		header.handle = cpu_to_le32(range->segment->handle);
		header.size = cpu_to_le64(from);
		list_del(&range->list);
		list_del(&range->of_segment);
		unmap_mapping_range(range->segment->mapping, from, range->length, 1);
	}
	up_write(&dev->map_lock);
	if (!range)
		return false;
	kfree(range);
	/* One that is released meanwhile is hidden by that. */
	return cw_call(dev, &header, NULL, &answer) != -ENODEV;
}

/* A range that is shown. Under map_lock or show_lock. */
static struct cw_range *cw_find_range(struct cw_segment *segment, u64 number)
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
	int error;

	do
		error = cw_call(dev, &header, NULL, &answer);
	while (error == -ENOSPC && cw_hide_first(dev));
	if (error)
		return error;
	range->offset = le64_to_cpu(answer.offset);
	if (!PAGE_ALIGNED(range->offset) || range->offset >= dev->window_bytes ||
	    range->length > dev->window_bytes - range->offset)
		return -EPROTO;
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
	range = kzalloc(sizeof(*range), GFP_KERNEL);
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

/* Gives a process the page that it touches, and those around it. Under map_lock. */
static vm_fault_t cw_insert_around(struct cw_range *range, struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	/* All in pages of the segment. */
	unsigned long first = PHYS_PFN(range->number * CW_RANGE_BYTES);
	unsigned long touched = vma->vm_pgoff + PHYS_PFN(vmf->address - vma->vm_start);
	unsigned long around = round_down(touched, PHYS_PFN(CW_FAULT_BYTES));
	unsigned long at = max(vma->vm_pgoff, around);
	unsigned long end = min(vma->vm_pgoff + vma_pages(vma), around + PHYS_PFN(CW_FAULT_BYTES));
	/* What to add to them for the window's. */
	unsigned long pfn = PHYS_PFN(range->segment->dev->window + range->offset) - first;
	vm_fault_t result = vmf_insert_pfn(vma, vmf->address, pfn + touched);

	for (; result == VM_FAULT_NOPAGE && at < end; at++)
		result = vmf_insert_pfn(vma, vma->vm_start + ((at - vma->vm_pgoff) << PAGE_SHIFT),
					pfn + at);
	return result;
}

/* Which range of a segment a process touches. */
static u64 cw_touched_range(const struct vm_fault *vmf)
{
	u64 page = vmf->vma->vm_pgoff + PHYS_PFN(vmf->address - vmf->vma->vm_start);

	return page / PHYS_PFN(CW_RANGE_BYTES);
}

/* The same, if the range is shown. */
static bool cw_segment_insert(struct cw_segment *segment, struct vm_fault *vmf, vm_fault_t *result)
{
	struct cw_device *dev = segment->dev;
	struct cw_range *range;
	bool done;

	down_read(&dev->map_lock);
	range = cw_find_range(segment, cw_touched_range(vmf));
	done = dev->dead || range;
	*result = VM_FAULT_SIGBUS;
	if (!dev->dead && range)
		*result = cw_insert_around(range, vmf);
	up_read(&dev->map_lock);
	return done;
}

static vm_fault_t cw_segment_fault(struct vm_fault *vmf)
{
	struct cw_segment *segment = vmf->vma->vm_private_data;
	struct cw_device *dev = segment->dev;
	vm_fault_t result;

	if (cw_segment_insert(segment, vmf, &result))
		return result;
	/* It stays shown until the page is there. */
	mutex_lock(&dev->show_lock);
	if (cw_segment_show(segment, cw_touched_range(vmf)) ||
	    !cw_segment_insert(segment, vmf, &result))
		result = VM_FAULT_SIGBUS;
	mutex_unlock(&dev->show_lock);
	return result;
}

static const struct vm_operations_struct cw_segment_vm_ops = {
	.fault = cw_segment_fault,
};

static int cw_segment_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct cw_segment *segment = file->private_data;
	u64 pages = PHYS_PFN(segment->length);

	/* Not VM_SHARED, which a shared mapping for reading lacks. */
	if (!(vma->vm_flags & VM_MAYSHARE))
		return -EINVAL;
	if (vma->vm_pgoff >= pages || vma_pages(vma) > pages - vma->vm_pgoff)
		return -EINVAL;
	vm_flags_set(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP);
	vma->vm_private_data = segment;
	vma->vm_ops = &cw_segment_vm_ops;
	return 0;
}

static int cw_segment_release(struct inode *inode, struct file *file)
{
	struct cw_segment *segment = file->private_data;
	struct cw_device *dev = segment->dev;
	struct cw_range *range, *next;

	down_write(&dev->map_lock);
	list_for_each_entry_safe(range, next, &segment->ranges, of_segment) {
		list_del(&range->list);
		kfree(range);
	}
	up_write(&dev->map_lock);
	cw_release_handle(dev, segment->handle);
	kfree(segment);
	cw_device_put(dev);
	return 0;
}

static const struct file_operations cw_segment_fops = {
	.owner = THIS_MODULE,
	.mmap = cw_segment_mmap,
	.release = cw_segment_release,
};

/* The handle is given up with the file, and also if there can be none. */
struct file *cw_segment_file(struct cw_device *dev, u32 handle, u64 length, bool writable)
{
	bool inside = PAGE_ALIGNED(length) && length <= CW_SEGMENT_MAX;
	struct cw_segment *segment = inside ? kzalloc(sizeof(*segment), GFP_KERNEL) : NULL;
	struct file *file;

	if (!segment) {
		cw_release_handle(dev, handle);
		return ERR_PTR(inside ? -ENOMEM : -EPROTO);
	}
	INIT_LIST_HEAD(&segment->ranges);
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
	if (vma && vma->vm_ops == &cw_segment_vm_ops) {
		struct cw_segment *segment = vma->vm_private_data;

		*handle = cpu_to_le32(segment->handle);
		*offset = cpu_to_le64(address - vma->vm_start +
				      ((u64)vma->vm_pgoff << PAGE_SHIFT));
		error = segment->dev == dev ? 0 : -EXDEV;
	}
	mmap_read_unlock(current->mm);
	return error;
}

/* Nobody reaches the window any more. The device is dead: no fault brings it back. */
void cw_objects_kill(struct cw_device *dev)
{
	struct cw_range *range;

	down_write(&dev->map_lock);
	list_for_each_entry(range, &dev->ranges, list)
		unmap_mapping_range(range->segment->mapping, range->number * CW_RANGE_BYTES,
				    range->length, 1);
	up_write(&dev->map_lock);
}
