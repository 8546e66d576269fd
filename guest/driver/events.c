// SPDX-License-Identifier: GPL-2.0
/* What the host tells: messages for sessions, and doorbells. */
#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "causeway.h"

void cw_message_free(struct cw_message *message)
{
	kfree(message->event);
	kfree(message);
}

static struct cw_message *cw_message_new(void)
{
	struct cw_message *message = kzalloc_obj(*message, GFP_KERNEL);

	if (!message)
		return NULL;
	message->event = kmalloc(CW_EVENT_BYTES, GFP_KERNEL);
	if (message->event)
		return message;
	kfree(message);
	return NULL;
}

/* Gives the device a buffer. Under queue_lock. */
static int cw_offer(struct cw_device *dev, struct cw_message *message)
{
	struct scatterlist in;

	sg_init_one(&in, message->event, CW_EVENT_BYTES);
	return virtqueue_add_inbuf(dev->events, &in, 1, message, GFP_ATOMIC);
}

/* A doorbell takes no time; messages are handed on by the work. */
void cw_events_done(struct virtqueue *vq)
{
	struct cw_device *dev = vq->vdev->priv;
	struct cw_message *message;
	unsigned long flags;
	unsigned int length;
	bool work = false;

	spin_lock_irqsave(&dev->queue_lock, flags);
	while (!dev->dead && (message = virtqueue_get_buf(vq, &length))) {
		struct cw_event *event = message->event;

		message->bytes = length;
		if (length >= sizeof(*event) && le16_to_cpu(event->kind) == CW_RUNG) {
			struct cw_bell *bell;

			rcu_read_lock();
			bell = xa_load(&dev->bells, le32_to_cpu(event->handle));
			if (bell)
				cw_bell_rung(bell);
			rcu_read_unlock();
			if (!cw_offer(dev, message))
				continue;
		}
		list_add_tail(&message->list, &dev->messages);
		work = true;
	}
	if (!dev->dead)
		virtqueue_kick(vq);
	spin_unlock_irqrestore(&dev->queue_lock, flags);
	if (work)
		schedule_work(&dev->work);
}

/* Soon the host shows nothing any more: it waits until processes have got what is theirs there. */
static void cw_window_ends(struct cw_device *dev)
{
	struct cw_request_header header = { .operation = cpu_to_le16(CW_LEFT) };

	cw_leave(dev);
	cw_post(dev, &header);
}

/* The buffer's own words are the host's: what does not fit is nothing. */
static void cw_hand_on(struct cw_device *dev, struct cw_message *message)
{
	struct cw_event *event = message->event;
	struct cw_session *session;
	unsigned int kind, i;
	bool whole = message->bytes >= sizeof(*event) && message->bytes <= CW_EVENT_BYTES &&
		     le32_to_cpu(event->length) == message->bytes - sizeof(*event) &&
		     le16_to_cpu(event->count) <= CAUSEWAY_FDS_MAX;

	if (whole && le16_to_cpu(event->kind) == CW_ENDING) {
		cw_message_free(message);
		cw_window_ends(dev);
		return;
	}
	mutex_lock(&dev->lock);
	session = whole ? xa_load(&dev->sessions, le32_to_cpu(event->session)) : NULL;
	kind = session ? le16_to_cpu(event->kind) : 0;
	if (kind == CW_MESSAGE) {
		/* It is the session's now, and may be gone already. */
		cw_session_take(session, message);
	} else {
		if (kind == CW_ENDED)
			cw_session_end(session);
		/* Nobody is there to take what was granted. */
		for (i = 0; whole && i < le16_to_cpu(event->count); i++)
			cw_release_handle(dev, le32_to_cpu(event->grants[i].handle));
		cw_message_free(message);
	}
	mutex_unlock(&dev->lock);
}

static void cw_work(struct work_struct *work)
{
	struct cw_device *dev = container_of(work, struct cw_device, work);

	for (;;) {
		struct cw_message *message, *fresh;

		spin_lock_irq(&dev->queue_lock);
		message = list_first_entry_or_null(&dev->messages, struct cw_message, list);
		if (message)
			list_del(&message->list);
		spin_unlock_irq(&dev->queue_lock);
		if (!message)
			return;
		cw_hand_on(dev, message);
		/* With fewer buffers it goes slower; it goes on as long as there is one. */
		fresh = cw_message_new();
		if (!fresh)
			continue;
		spin_lock_irq(&dev->queue_lock);
		if (dev->dead || cw_offer(dev, fresh)) {
			spin_unlock_irq(&dev->queue_lock);
			cw_message_free(fresh);
			continue;
		}
		virtqueue_kick(dev->events);
		spin_unlock_irq(&dev->queue_lock);
	}
}

int cw_events_begin(struct cw_device *dev)
{
	int i, error = 0;

	INIT_LIST_HEAD(&dev->messages);
	INIT_WORK(&dev->work, cw_work);
	for (i = 0; !error && i < CW_EVENT_BUFFERS; i++) {
		struct cw_message *message = cw_message_new();

		if (!message)
			return -ENOMEM;
		spin_lock_irq(&dev->queue_lock);
		error = cw_offer(dev, message);
		spin_unlock_irq(&dev->queue_lock);
		if (error)
			cw_message_free(message);
	}
	return error;
}

/* The device is reset, and writes to no buffer any more. */
void cw_events_end(struct cw_device *dev)
{
	struct cw_message *message, *next;

	cancel_work_sync(&dev->work);
	while ((message = virtqueue_detach_unused_buf(dev->events)))
		cw_message_free(message);
	list_for_each_entry_safe(message, next, &dev->messages, list)
		cw_message_free(message);
	INIT_LIST_HEAD(&dev->messages);
}
