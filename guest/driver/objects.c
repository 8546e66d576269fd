// SPDX-License-Identifier: GPL-2.0
/*
 * Descriptors for doorbells that a process was granted, which it can ring by writing to them, or
 * wait for; and what is common to all that stands for a handle. A handle is given up when the last
 * user of the descriptor is gone, mappings included.
 */
#include <linux/anon_inodes.h>
#include <linux/eventfd.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/uio.h>

#include "causeway.h"

struct cw_ring {
	struct cw_device *dev;
	struct mutex lock; /* of what follows */
	bool listed; /* among those that the host tells of, */
	bool watched; /* when they are rung */
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
static ssize_t cw_ring_read(struct kiocb *call, struct iov_iter *to)
{
	struct cw_ring *ring = call->ki_filp->private_data;
	u64 count;

	if (iov_iter_count(to) < sizeof(count))
		return -EINVAL;
	spin_lock_irq(&ring->bell.wait.lock);
	count = ring->bell.count;
	ring->bell.count = 0;
	spin_unlock_irq(&ring->bell.wait.lock);
	if (!count)
		return -EAGAIN;
	return copy_to_iter(&count, sizeof(count), to) == sizeof(count) ? sizeof(count) : -EFAULT;
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
	if (!ring->listed)
		error = xa_insert_irq(bells, ring->bell.handle, &ring->bell, GFP_KERNEL);
	ring->listed |= !error;
	if (!ring->watched && !error)
		error = cw_call(ring->dev, &header, NULL, &answer);
	ring->watched |= !error;
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

	if (ring->listed) {
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
	.read_iter = cw_ring_read,
	.write = cw_ring_write,
	.poll = cw_ring_poll,
	.unlocked_ioctl = cw_ring_ioctl,
	.release = cw_ring_release,
};

/* As with a segment. */
struct file *cw_ring_file(struct cw_device *dev, u32 handle)
{
	struct cw_ring *ring = kzalloc_obj(*ring, GFP_KERNEL);
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
	/* RWF_NOWAIT: whoever reads it asks for that, as of an eventfd. */
	file->f_mode |= FMODE_NOWAIT;
	kref_get(&dev->refs);
	ring->dev = dev;
	return file;
}

/* What a descriptor that a process sends stands for, if it is one of ours and of this device. */
bool cw_file_handle(struct cw_device *dev, struct file *file, u32 *handle)
{
	struct cw_segment *segment = cw_file_segment(file);

	if (segment) {
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
