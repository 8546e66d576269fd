// SPDX-License-Identifier: GPL-2.0
/*
 * Descriptors for what a process was granted: a segment, which it can map, and a doorbell, which it
 * can ring by writing to it, or wait for. A handle is given up when the last user of the descriptor
 * is gone, mappings included.
 *
 * The host shows few segments at a time. One that a process touches is shown then; if there is no
 * room, the one that was shown first is hidden: its pages are taken from all processes before the
 * host may show anything else there, and who touches it again finds it again, perhaps elsewhere.
 */
#include <linux/anon_inodes.h>
#include <linux/eventfd.h>
#include <linux/mm.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "causeway.h"

struct cw_segment {
	struct list_head list; /* in the device's, while it is shown */
	struct cw_device *dev;
	struct address_space *mapping;
	u32 handle;
	bool shown;
	u64 offset; /* where */
	u64 length;
};

struct cw_ring {
	struct cw_device *dev;
	struct mutex lock; /* of what follows */
	bool watched; /* the host tells when it is rung */
	struct cw_bell bell;
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

/* Hides the segment that was shown first. Under show_lock. */
static bool cw_hide_first(struct cw_device *dev)
{
	struct cw_request_header header = { .operation = cpu_to_le16(CW_HIDE) };
	struct cw_segment *segment;
	struct cw_answer answer;

	down_write(&dev->map_lock);
	segment = list_first_entry_or_null(&dev->segments, struct cw_segment, list);
	if (segment) {
		header.handle = cpu_to_le32(segment->handle);
		segment->shown = false;
		list_del_init(&segment->list);
		unmap_mapping_range(segment->mapping, 0, 0, 1);
	}
	up_write(&dev->map_lock);
	/* One that is released meanwhile is hidden by that. */
	return segment && cw_call(dev, &header, NULL, &answer) != -ENODEV;
}

/* Has the host show a segment. Under show_lock. */
static int cw_segment_show(struct cw_segment *segment)
{
	struct cw_request_header header = {
		.operation = cpu_to_le16(CW_SHOW),
		.handle = cpu_to_le32(segment->handle),
	};
	struct cw_device *dev = segment->dev;
	struct cw_answer answer;
	u64 offset;
	int error;

	if (segment->shown)
		return 0;
	do
		error = cw_call(dev, &header, NULL, &answer);
	while (error == -ENOSPC && cw_hide_first(dev));
	if (error)
		return error;
	offset = le64_to_cpu(answer.offset);
	if (!PAGE_ALIGNED(offset) || offset >= dev->window_bytes ||
	    segment->length > dev->window_bytes - offset)
		return -EPROTO;
	down_write(&dev->map_lock);
	segment->offset = offset;
	segment->shown = true;
	list_add_tail(&segment->list, &dev->segments);
	up_write(&dev->map_lock);
	return 0;
}

/* Gives a process the page that it touches, and those around it. Under map_lock. */
static vm_fault_t cw_insert_around(struct cw_segment *segment, struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	unsigned long pfn = PHYS_PFN(segment->dev->window + segment->offset) + vma->vm_pgoff;
	unsigned long around = round_down(vmf->address, CW_FAULT_BYTES);
	unsigned long at = max(vma->vm_start, around);
	unsigned long end = min(vma->vm_end, around + CW_FAULT_BYTES);
	vm_fault_t result = vmf_insert_pfn(vma, vmf->address,
					   pfn + PHYS_PFN(vmf->address - vma->vm_start));

	for (; result == VM_FAULT_NOPAGE && at < end; at += PAGE_SIZE)
		result = vmf_insert_pfn(vma, at, pfn + PHYS_PFN(at - vma->vm_start));
	return result;
}

/* The same, if the segment is shown. */
static bool cw_segment_insert(struct cw_segment *segment, struct vm_fault *vmf, vm_fault_t *result)
{
	struct cw_device *dev = segment->dev;
	bool done;

	down_read(&dev->map_lock);
	done = dev->dead || segment->shown;
	*result = VM_FAULT_SIGBUS;
	if (!dev->dead && segment->shown)
		*result = cw_insert_around(segment, vmf);
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
	if (cw_segment_show(segment) || !cw_segment_insert(segment, vmf, &result))
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

	down_write(&dev->map_lock);
	list_del_init(&segment->list);
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
	bool inside = PAGE_ALIGNED(length) && length <= dev->window_bytes;
	struct cw_segment *segment = inside ? kzalloc(sizeof(*segment), GFP_KERNEL) : NULL;
	struct file *file;

	if (!segment) {
		cw_release_handle(dev, handle);
		return ERR_PTR(inside ? -ENOMEM : -EPROTO);
	}
	INIT_LIST_HEAD(&segment->list);
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

/* Wakes those who sleep outside of this machine on a word at an address of the caller's. */
long cw_wake(struct cw_device *dev, u64 address, u32 count)
{
	struct cw_request_header header = {
		.operation = cpu_to_le16(CW_WAKE),
		.session = cpu_to_le32(count),
	};
	int error = cw_find_word(dev, address, &header.handle, &header.size);

	return error ? error : cw_post(dev, &header);
}

/* In an interrupt, too. */
void cw_bell_rung(struct cw_bell *bell)
{
	unsigned long flags;

	if (bell->event) {
		eventfd_signal(bell->event);
		return;
	}
	spin_lock_irqsave(&bell->wait.lock, flags);
	bell->count++;
	wake_up_locked_poll(&bell->wait, EPOLLIN);
	spin_unlock_irqrestore(&bell->wait.lock, flags);
}

static ssize_t cw_ring_write(struct file *file, const char __user *from, size_t bytes, loff_t *at)
{
	struct cw_ring *ring = file->private_data;
	struct cw_request_header header = {
		.operation = cpu_to_le16(CW_RING),
		.handle = cpu_to_le32(ring->bell.handle),
	};
	int error;

	/* As eventfd(2) has it; what is added does not matter. */
	if (bytes < sizeof(u64))
		return -EINVAL;
	error = cw_post(ring->dev, &header);
	return error ? error : sizeof(u64);
}

/* As an eventfd that does not block. */
static ssize_t cw_ring_read(struct file *file, char __user *to, size_t bytes, loff_t *at)
{
	struct cw_ring *ring = file->private_data;
	u64 count;

	if (bytes < sizeof(count))
		return -EINVAL;
	spin_lock_irq(&ring->bell.wait.lock);
	count = ring->bell.count;
	ring->bell.count = 0;
	spin_unlock_irq(&ring->bell.wait.lock);
	if (!count)
		return -EAGAIN;
	return copy_to_user(to, &count, sizeof(count)) ? -EFAULT : sizeof(count);
}

static __poll_t cw_ring_poll(struct file *file, poll_table *table)
{
	struct cw_ring *ring = file->private_data;

	poll_wait(file, &ring->bell.wait, table);
	return EPOLLOUT | (READ_ONCE(ring->bell.count) ? EPOLLIN : 0);
}

/* Has the host tell when it is rung. */
static int cw_ring_watch(struct cw_ring *ring)
{
	struct cw_request_header header = {
		.operation = cpu_to_le16(CW_WATCH),
		.handle = cpu_to_le32(ring->bell.handle),
	};
	struct xarray *bells = &ring->dev->bells;
	struct cw_answer answer;
	int error = 0;

	mutex_lock(&ring->lock);
	if (!ring->watched)
		error = xa_insert_irq(bells, ring->bell.handle, &ring->bell, GFP_KERNEL);
	if (!ring->watched && !error) {
		error = cw_call(ring->dev, &header, NULL, &answer);
		ring->watched = true;
	}
	mutex_unlock(&ring->lock);
	return error;
}

static long cw_ring_ioctl(struct file *file, unsigned int number, unsigned long argument)
{
	return number == CAUSEWAY_WATCH ? cw_ring_watch(file->private_data) : -ENOTTY;
}

static int cw_ring_release(struct inode *inode, struct file *file)
{
	struct cw_ring *ring = file->private_data;

	if (ring->watched) {
		xa_erase_irq(&ring->dev->bells, ring->bell.handle);
		/* The interrupt may be about to ring it. */
		synchronize_rcu();
	}
	cw_release_handle(ring->dev, ring->bell.handle);
	cw_device_put(ring->dev);
	kfree(ring);
	return 0;
}

static const struct file_operations cw_ring_fops = {
	.owner = THIS_MODULE,
	.read = cw_ring_read,
	.write = cw_ring_write,
	.poll = cw_ring_poll,
	.unlocked_ioctl = cw_ring_ioctl,
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
	mutex_init(&ring->lock);
	init_waitqueue_head(&ring->bell.wait);
	ring->bell.handle = handle;
	file = anon_inode_getfile("[causeway-doorbell]", &cw_ring_fops, ring, O_RDWR);
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

		*handle = ring->bell.handle;
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
