// SPDX-License-Identifier: GPL-2.0
/*
 * Requests of the host. A request belongs to the device from the moment that it is queued until it
 * is answered, however long its caller has waited: a caller that gives up leaves it behind.
 *
 * The host is asked to interrupt only while somebody waits, for an answer or for room. Answers that
 * nobody waits for are taken off the queue by the next request.
 */
#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "causeway.h"

struct cw_call {
	struct kref refs;
	struct completion done;
	bool awaited; /* the host shall interrupt */
	bool answered;
	u32 bytes;
	struct cw_answer answer;
	/* What the device reads: the header, and a message behind it. */
	struct cw_request_header header;
	u8 message[];
};

static void cw_call_free(struct kref *refs)
{
	kvfree(container_of(refs, struct cw_call, refs));
}

/* kmalloc: the device needs it in one piece. */
static struct cw_call *cw_call_new(const struct cw_request_header *header, const void *message,
				   bool awaited)
{
	u32 length = le32_to_cpu(header->length);
	struct cw_call *call = kmalloc(struct_size(call, message, length), GFP_KERNEL);

	if (!call)
		return NULL;
	kref_init(&call->refs);
	init_completion(&call->done);
	call->awaited = awaited;
	call->answered = false;
	call->bytes = sizeof(*header) + length;
	memset(&call->answer, 0, sizeof(call->answer));
	call->header = *header;
	if (length)
		memcpy(call->message, message, length);
	return call;
}

/* Takes off the queue what is answered; true if that made room. Under queue_lock. */
static bool cw_reap(struct cw_device *dev)
{
	struct cw_call *call;
	unsigned int length;
	bool room = false;

	while ((call = virtqueue_get_buf(dev->control, &length))) {
		call->answered = length >= sizeof(call->answer);
		if (call->awaited)
			dev->awaited--;
		complete(&call->done);
		kref_put(&call->refs, cw_call_free);
		room = true;
	}
	return room;
}

/* Has the host interrupt. What it has answered before it saw that is taken now. */
static bool cw_enable(struct cw_device *dev)
{
	bool room = false;

	while (!virtqueue_enable_cb(dev->control))
		room |= cw_reap(dev);
	return room;
}

static int cw_add(struct cw_device *dev, struct cw_call *call)
{
	struct scatterlist out, in, *sgs[] = { &out, &in };

	sg_init_one(&out, &call->header, call->bytes);
	sg_init_one(&in, &call->answer, sizeof(call->answer));
	return virtqueue_add_sgs(dev->control, sgs, 1, 1, call, GFP_ATOMIC);
}

/* What the host hears of a device that is dead: that it has been left, and that all of it ends. */
static bool cw_is_last(const struct cw_call *call)
{
	return call->header.operation == cpu_to_le16(CW_LEFT) ||
	       call->header.operation == cpu_to_le16(CW_BEGIN);
}

static int cw_try_queue(struct cw_device *dev, struct cw_call *call)
{
	int error = -ENODEV;
	bool room = false;

	spin_lock_irq(&dev->queue_lock);
	if (dev->gone || (dev->dead && !cw_is_last(call)))
		goto out;
	room = cw_reap(dev);
	error = cw_add(dev, call);
	if (error == -ENOSPC) {
		/* The caller waits for room. */
		room |= cw_enable(dev);
		error = cw_add(dev, call);
	}
	if (!error) {
		kref_get(&call->refs);
		virtqueue_kick(dev->control);
	}
	if (!error && call->awaited) {
		dev->awaited++;
		room |= cw_enable(dev);
	}
out:
	spin_unlock_irq(&dev->queue_lock);
	/* The interrupt for what was taken here finds nothing, and wakes nobody. */
	if (room)
		wake_up(&dev->room);
	return error;
}

static int cw_queue(struct cw_device *dev, struct cw_call *call)
{
	int error;
	long left = wait_event_timeout(dev->room, (error = cw_try_queue(dev, call)) != -ENOSPC,
				       CW_ANSWER_TIMEOUT);

	return left ? error : -ETIMEDOUT;
}

/* Asks the host, and waits for the answer. */
int cw_call(struct cw_device *dev, struct cw_request_header *header, const void *message,
	    struct cw_answer *answer)
{
	struct cw_call *call = cw_call_new(header, message, true);
	int error;

	if (!call)
		return -ENOMEM;
	error = cw_queue(dev, call);
	if (error)
		goto out;
	if (!wait_for_completion_timeout(&call->done, CW_ANSWER_TIMEOUT)) {
		error = -ETIMEDOUT;
		goto out;
	}
	if (!call->answered) {
		error = -ENODEV;
		goto out;
	}
	*answer = call->answer;
	error = le32_to_cpu(answer->status);
	/* A status that is no errno value is still a refusal. */
	error = error < 0 || error > MAX_ERRNO ? -EIO : -error;
out:
	kref_put(&call->refs, cw_call_free);
	return error;
}

/* Tells the host, and does not wait. */
int cw_post(struct cw_device *dev, struct cw_request_header *header)
{
	struct cw_call *call = cw_call_new(header, NULL, false);
	int error;

	if (!call)
		return -ENOMEM;
	error = cw_queue(dev, call);
	kref_put(&call->refs, cw_call_free);
	return error;
}

void cw_control_done(struct virtqueue *vq)
{
	struct cw_device *dev = vq->vdev->priv;
	unsigned long flags;

	spin_lock_irqsave(&dev->queue_lock, flags);
	cw_reap(dev);
	/* Who still finds no room says so again. */
	if (!dev->awaited)
		virtqueue_disable_cb(vq);
	spin_unlock_irqrestore(&dev->queue_lock, flags);
	wake_up(&dev->room);
}

/* The device is gone: nobody will answer. */
void cw_control_drain(struct cw_device *dev)
{
	struct cw_call *call;

	while ((call = virtqueue_detach_unused_buf(dev->control))) {
		complete(&call->done);
		kref_put(&call->refs, cw_call_free);
	}
	wake_up_all(&dev->room);
}
