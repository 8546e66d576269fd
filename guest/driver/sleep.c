// SPDX-License-Identifier: GPL-2.0
/*
 * Sleeping on words of the window. Nobody outside of this machine can wake its processes as
 * futex(2) does, so that the host sleeps in their place, and rings a doorbell when it is woken. A
 * process that sleeps has such a doorbell; afterwards it is the next one's. It may be rung late,
 * which makes the next one look once too often.
 */
#include <linux/slab.h>

#include "causeway.h"

struct cw_sleeper {
	struct list_head list; /* in the device's, while nobody has it */
	struct cw_bell bell;
};

static struct cw_sleeper *cw_sleeper_new(struct cw_device *dev)
{
	struct cw_request_header header = { .operation = cpu_to_le16(CW_DOORBELL) };
	struct cw_sleeper *sleeper = kzalloc_obj(*sleeper, GFP_KERNEL);
	struct cw_answer answer;
	int error;

	if (!sleeper)
		return ERR_PTR(-ENOMEM);
	init_waitqueue_head(&sleeper->bell.wait);
	error = cw_call(dev, &header, NULL, &answer);
	if (error)
		goto failed;
	sleeper->bell.handle = le32_to_cpu(answer.handle);
	error = xa_insert_irq(&dev->bells, sleeper->bell.handle, &sleeper->bell, GFP_KERNEL);
	if (!error)
		return sleeper;
	cw_release_handle(dev, sleeper->bell.handle);
failed:
	kfree(sleeper);
	return ERR_PTR(error);
}

static struct cw_sleeper *cw_sleeper_get(struct cw_device *dev)
{
	struct cw_sleeper *sleeper;

	mutex_lock(&dev->lock);
	sleeper = list_first_entry_or_null(&dev->sleepers, struct cw_sleeper, list);
	if (sleeper)
		list_del(&sleeper->list);
	mutex_unlock(&dev->lock);
	return sleeper ? sleeper : cw_sleeper_new(dev);
}

static void cw_sleeper_put(struct cw_device *dev, struct cw_sleeper *sleeper)
{
	mutex_lock(&dev->lock);
	list_add(&sleeper->list, &dev->sleepers);
	mutex_unlock(&dev->lock);
}

/* Nobody rings any more: the device has no queues. */
void cw_sleepers_free(struct cw_device *dev)
{
	struct cw_sleeper *sleeper, *next;

	list_for_each_entry_safe(sleeper, next, &dev->sleepers, list)
		kfree(sleeper);
	INIT_LIST_HEAD(&dev->sleepers);
}

/* True if the doorbell was rung; it is silent then. */
static bool cw_sleeper_rung(struct cw_sleeper *sleeper)
{
	bool rung;

	spin_lock_irq(&sleeper->bell.wait.lock);
	rung = sleeper->bell.count;
	sleeper->bell.count = 0;
	spin_unlock_irq(&sleeper->bell.wait.lock);
	return rung;
}

static int cw_sleep_on(struct cw_device *dev, struct cw_sleeper *sleeper,
		       struct cw_request_header *header, const struct cw_sleep_word *words,
		       u64 nanoseconds)
{
	struct cw_request_header rise = { .operation = cpu_to_le16(CW_RISE) };
	unsigned long time = min(nsecs_to_jiffies64(nanoseconds) + 1, (u64)CW_ANSWER_TIMEOUT);
	struct cw_answer answer;
	int error;

	header->handle = cpu_to_le32(sleeper->bell.handle);
	rise.handle = header->handle;
	cw_sleeper_rung(sleeper);
	error = cw_call(dev, header, words, &answer);
	if (error)
		return error;
	if (wait_event_interruptible_timeout(sleeper->bell.wait, cw_sleeper_rung(sleeper),
					     time) > 0)
		return 0;
	/* If it is rung all the same, that was for this one, who looks. */
	return cw_post(dev, &rise);
}

/* Sleeps while all the words are as expected. May return at any time. */
long cw_sleep(struct cw_device *dev, const struct causeway_sleep *sleep)
{
	struct cw_request_header header = { .operation = cpu_to_le16(CW_SLEEP) };
	struct cw_sleep_word words[CAUSEWAY_WORDS_MAX] = {};
	struct cw_sleeper *sleeper;
	unsigned int i;
	int error;

	if (!sleep->count || sleep->count > CAUSEWAY_WORDS_MAX)
		return -EINVAL;
	for (i = 0; i < sleep->count; i++) {
		words[i].expected = cpu_to_le32(sleep->expected[i]);
		error = cw_find_word(dev, sleep->addresses[i], &header.handles[i],
				     &words[i].offset);
		if (error)
			return error;
	}
	header.count = cpu_to_le32(sleep->count);
	header.length = cpu_to_le32(sleep->count * sizeof(words[0]));
	sleeper = cw_sleeper_get(dev);
	if (IS_ERR(sleeper))
		return PTR_ERR(sleeper);
	error = cw_sleep_on(dev, sleeper, &header, words, sleep->nanoseconds);
	cw_sleeper_put(dev, sleeper);
	return error;
}
