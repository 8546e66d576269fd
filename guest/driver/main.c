// SPDX-License-Identifier: GPL-2.0
/*
 * Causeway in a virtual machine: memory and doorbells shared with other machines of the same host
 * and with the host, by a vhost-user device that the host's broker serves.
 */
#include <linux/io.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/reboot.h>
#include <linux/slab.h>

#include "causeway.h"

static DEFINE_MUTEX(cw_current_lock);
static struct cw_device *cw_current; /* under cw_current_lock */

static struct miscdevice cw_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "causeway",
	.fops = &cw_device_fops,
	.mode = 0666, /* as /dev/infiniband/uverbs0: whoever may run a program may use it */
};

static void cw_device_free(struct kref *refs)
{
	struct cw_device *dev = container_of(refs, struct cw_device, refs);

	xa_destroy(&dev->sessions);
	cw_sleepers_free(dev);
	xa_destroy(&dev->bells);
	kfree(dev);
}

void cw_device_put(struct cw_device *dev)
{
	kref_put(&dev->refs, cw_device_free);
}

/* The device that is there now. */
struct cw_device *cw_device_get(void)
{
	struct cw_device *dev;

	mutex_lock(&cw_current_lock);
	dev = cw_current;
	if (dev)
		kref_get(&dev->refs);
	mutex_unlock(&cw_current_lock);
	return dev;
}

static int cw_find_queues(struct cw_device *dev)
{
	struct virtqueue_info info[] = {
		{ .name = "control", .callback = cw_control_done },
		{ .name = "events", .callback = cw_events_done },
	};
	struct virtqueue *queues[ARRAY_SIZE(info)];
	int error = virtio_find_vqs(dev->vdev, ARRAY_SIZE(info), queues, info, NULL);

	if (error)
		return error;
	dev->control = queues[0];
	dev->events = queues[1];
	return 0;
}

static int cw_find_window(struct cw_device *dev)
{
	struct virtio_shm_region region;

	if (!virtio_get_shm_region(dev->vdev, &region, CW_WINDOW_ID)) {
		dev_err(&dev->vdev->dev, "the device has no window\n");
		return -ENODEV;
	}
	dev->window = region.addr;
	dev->window_bytes = region.len;
	/* Not used: it makes processes' mappings cached, as other memory is. */
	return PTR_ERR_OR_ZERO(devm_memremap(&dev->vdev->dev, region.addr, region.len,
					     MEMREMAP_WB));
}

static int cw_check_device(struct virtio_device *vdev)
{
	u32 magic, version;

	virtio_cread_le(vdev, struct cw_config, magic, &magic);
	virtio_cread_le(vdev, struct cw_config, version, &version);
	if (magic == CW_CONFIG_MAGIC && version == CW_CONFIG_VERSION)
		return 0;
	if (magic == CW_CONFIG_MAGIC)
		dev_err(&vdev->dev, "the device is of version %u, this driver of version %u\n",
			version, CW_CONFIG_VERSION);
	else
		dev_err(&vdev->dev, "not a Causeway device: magic %#x\n", magic);
	return -ENODEV;
}

static struct cw_device *cw_device_new(struct virtio_device *vdev)
{
	struct cw_device *dev = kzalloc_obj(*dev, GFP_KERNEL);

	if (!dev)
		return NULL;
	kref_init(&dev->refs);
	spin_lock_init(&dev->queue_lock);
	init_waitqueue_head(&dev->room);
	mutex_init(&dev->lock);
	mutex_init(&dev->show_lock);
	init_rwsem(&dev->map_lock);
	xa_init_flags(&dev->sessions, XA_FLAGS_ALLOC1);
	xa_init_flags(&dev->bells, XA_FLAGS_LOCK_IRQ);
	INIT_LIST_HEAD(&dev->ranges);
	xa_init(&dev->chunks);
	INIT_LIST_HEAD(&dev->lingering);
	INIT_DELAYED_WORK(&dev->linger, cw_linger);
	INIT_LIST_HEAD(&dev->sleepers);
	dev->vdev = vdev;
	vdev->priv = dev;
	return dev;
}

/* Nothing goes to or comes from the device any more; whoever waits is woken. */
static void cw_kill(struct cw_device *dev)
{
	cw_leave(dev);
	spin_lock_irq(&dev->queue_lock);
	dev->gone = true;
	spin_unlock_irq(&dev->queue_lock);
	virtio_reset_device(dev->vdev);
	cw_control_drain(dev);
	cw_events_end(dev);
	dev->vdev->config->del_vqs(dev->vdev);
}

/* Whatever the host has of an earlier driver, which may have been killed with its kernel, ends. */
static int cw_begin(struct cw_device *dev)
{
	struct cw_request_header header = { .operation = cpu_to_le16(CW_BEGIN) };
	struct cw_answer answer;
	int error = cw_events_begin(dev);

	if (error)
		return error;
	virtio_device_ready(dev->vdev);
	virtqueue_kick(dev->events);
	return cw_call(dev, &header, NULL, &answer);
}

/* Nothing is shown any more when this returns, unless the host is silent. */
static void cw_end_shown(struct cw_device *dev)
{
	int error = cw_withdraw(dev);

	if (error)
		dev_warn(&dev->vdev->dev, "the host may show something yet: %d\n", error);
}

/*
 * The machine starts again, another kernel begins, or the power goes. Processes may run yet: to
 * them the device is dead, and what is their own they have.
 */
static int cw_reboot(struct notifier_block *reboot, unsigned long how, void *command)
{
	cw_end_shown(container_of(reboot, struct cw_device, reboot));
	return NOTIFY_DONE;
}

/* Not held while the name is made or taken away: who opens it holds the lock of names. */
static void cw_set_current(struct cw_device *dev)
{
	mutex_lock(&cw_current_lock);
	cw_current = dev;
	mutex_unlock(&cw_current_lock);
}

static int cw_publish(struct cw_device *dev)
{
	int error = 0;

	mutex_lock(&cw_current_lock);
	if (cw_current)
		error = -EBUSY;
	else
		cw_current = dev;
	mutex_unlock(&cw_current_lock);
	if (error)
		return error;
	error = misc_register(&cw_misc);
	if (error)
		cw_set_current(NULL);
	return error;
}

static int cw_probe(struct virtio_device *vdev)
{
	struct cw_device *dev;
	int error = cw_check_device(vdev);

	if (error)
		return error;
	dev = cw_device_new(vdev);
	if (!dev)
		return -ENOMEM;
	error = cw_find_window(dev);
	if (!error)
		error = cw_find_queues(dev);
	if (error) {
		cw_device_put(dev);
		return error;
	}
	error = cw_begin(dev);
	if (error)
		goto dead;
	error = cw_publish(dev);
	if (error)
		goto dead;
	dev->reboot.notifier_call = cw_reboot;
	/* It can't fail. */
	register_reboot_notifier(&dev->reboot);
	dev_info(&vdev->dev, "window of %llu MiB at %pa\n", dev->window_bytes >> 20, &dev->window);
	return 0;
dead:
	cw_kill(dev);
	cw_device_put(dev);
	return error;
}

static void cw_remove(struct virtio_device *vdev)
{
	struct cw_device *dev = vdev->priv;

	unregister_reboot_notifier(&dev->reboot);
	misc_deregister(&cw_misc);
	cw_set_current(NULL);
	cw_end_shown(dev);
	cw_kill(dev);
	cw_device_put(dev);
}

static const struct virtio_device_id cw_ids[] = {
	{ CW_VIRTIO_ID, VIRTIO_DEV_ANY_ID },
	{ 0 },
};
MODULE_DEVICE_TABLE(virtio, cw_ids);

static struct virtio_driver cw_driver = {
	.driver.name = "causeway",
	.id_table = cw_ids,
	.probe = cw_probe,
	.remove = cw_remove,
};
module_virtio_driver(cw_driver);

MODULE_DESCRIPTION("Memory and doorbells shared with other machines of the host");
MODULE_LICENSE("GPL");
