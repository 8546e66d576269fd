// SPDX-License-Identifier: GPL-2.0
/*
 * Descriptors for what a process was granted: a segment, which it can map, and a peer's doorbell,
 * which it can ring by writing to it. A handle is given up when the last user of the descriptor is
 * gone, mappings included; so the host never shows anything else in a range that somebody has
 * mapped.
 */
#include <linux/anon_inodes.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "causeway.h"

struct cw_segment {
	struct list_head list;
	struct cw_device *dev;
	struct address_space *mapping;
	u32 handle;
	u64 offset;
	u64 length;
};

struct cw_ring {
	struct cw_device *dev;
	u32 handle;
};

void cw_release_handle(struct cw_device *dev, u32 handle)
{
	struct cw_request_header header = {
		.operation = cpu_to_le16(CW_RELEASE),
		.handle = cpu_to_le32(handle),
	};

	/* A host that does not take it has lost all that it gave. */
	cw_post(dev, &header);
}

static vm_fault_t cw_segment_fault(struct vm_fault *vmf)
{
	struct cw_segment *segment = vmf->vma->vm_private_data;
	struct cw_device *dev = segment->dev;
	phys_addr_t at = dev->window + segment->offset + ((u64)vmf->pgoff << PAGE_SHIFT);
	vm_fault_t result = VM_FAULT_SIGBUS;

	down_read(&dev->map_lock);
	if (!dev->dead)
		result = vmf_insert_pfn(vmf->vma, vmf->address, PHYS_PFN(at));
	up_read(&dev->map_lock);
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

	down_write(&dev->map_lock);
	list_del(&segment->list);
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
struct file *cw_segment_file(struct cw_device *dev, u32 handle, u64 offset, u64 length,
			     bool writable)
{
	bool inside = length && PAGE_ALIGNED(length) && PAGE_ALIGNED(offset) &&
		      offset < dev->window_bytes && length <= dev->window_bytes - offset;
	struct cw_segment *segment = inside ? kzalloc(sizeof(*segment), GFP_KERNEL) : NULL;
	struct file *file;

	if (!segment) {
		cw_release_handle(dev, handle);
		return ERR_PTR(inside ? -ENOMEM : -EPROTO);
	}
	segment->handle = handle;
	segment->offset = offset;
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
	down_write(&dev->map_lock);
	list_add(&segment->list, &dev->segments);
	up_write(&dev->map_lock);
	return file;
}

static ssize_t cw_ring_write(struct file *file, const char __user *from, size_t bytes, loff_t *at)
{
	struct cw_ring *ring = file->private_data;
	struct cw_request_header header = {
		.operation = cpu_to_le16(CW_RING),
		.handle = cpu_to_le32(ring->handle),
	};
	int error;

	/* As eventfd(2) has it; what is added does not matter. */
	if (bytes < sizeof(u64))
		return -EINVAL;
	error = cw_post(ring->dev, &header);
	return error ? error : sizeof(u64);
}

static int cw_ring_release(struct inode *inode, struct file *file)
{
	struct cw_ring *ring = file->private_data;

	cw_release_handle(ring->dev, ring->handle);
	cw_device_put(ring->dev);
	kfree(ring);
	return 0;
}

static const struct file_operations cw_ring_fops = {
	.owner = THIS_MODULE,
	.write = cw_ring_write,
	.release = cw_ring_release,
};

/* As with a segment. */
struct file *cw_ring_file(struct cw_device *dev, u32 handle)
{
	struct cw_ring *ring = kzalloc(sizeof(*ring), GFP_KERNEL);
	struct file *file;

	if (!ring) {
		cw_release_handle(dev, handle);
		return ERR_PTR(-ENOMEM);
	}
	ring->handle = handle;
	file = anon_inode_getfile("[causeway-doorbell]", &cw_ring_fops, ring, O_WRONLY);
	if (IS_ERR(file)) {
		kfree(ring);
		cw_release_handle(dev, handle);
		return file;
	}
	kref_get(&dev->refs);
	ring->dev = dev;
	return file;
}

/* What a descriptor that a process sends stands for, if it is one of ours and of this device. */
bool cw_file_handle(struct cw_device *dev, struct file *file, u32 *handle)
{
	if (file->f_op == &cw_segment_fops) {
		struct cw_segment *segment = file->private_data;

		*handle = segment->handle;
		return segment->dev == dev;
	}
	if (file->f_op == &cw_ring_fops) {
		struct cw_ring *ring = file->private_data;

		*handle = ring->handle;
		return ring->dev == dev;
	}
	return false;
}

/* Nobody reaches the window any more. The device is dead: no fault brings it back. */
void cw_objects_kill(struct cw_device *dev)
{
	struct cw_segment *segment;

	down_write(&dev->map_lock);
	list_for_each_entry(segment, &dev->segments, list)
		unmap_mapping_range(segment->mapping, 0, 0, 1);
	up_write(&dev->map_lock);
}
