// SPDX-License-Identifier: GPL-2.0
/* Open files of the device: each is a client of the host's broker. */
#include <linux/cred.h>
#include <linux/eventfd.h>
#include <linux/file.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "causeway.h"

/* Gives up what a message grants, which nobody will take. */
static void cw_message_refuse(struct cw_device *dev, struct cw_message *message, unsigned int from)
{
	unsigned int i;

	for (i = from; i < le16_to_cpu(message->event->count); i++)
		cw_release_handle(dev, le32_to_cpu(message->event->grants[i].handle));
	cw_message_free(message);
}

/* The session takes a message over. Under the device's lock, as is its end. */
void cw_session_take(struct cw_session *session, struct cw_message *message)
{
	bool room;

	spin_lock(&session->queue_lock);
	room = !session->ended && session->count < CW_MESSAGES_MAX;
	if (room) {
		list_add_tail(&message->list, &session->messages);
		session->count++;
	} else {
		/* It does not read. Nothing that follows would make sense. */
		session->ended = true;
	}
	spin_unlock(&session->queue_lock);
	if (!room)
		cw_message_refuse(session->dev, message, 0);
	wake_up(&session->wait);
}

void cw_session_end(struct cw_session *session)
{
	WRITE_ONCE(session->ended, true);
	wake_up(&session->wait);
}

static int cw_open(struct inode *inode, struct file *file)
{
	struct cw_device *dev = cw_device_get();
	struct cw_session *session;
	int error;

	if (!dev)
		return -ENODEV;
	session = kzalloc_obj(*session, GFP_KERNEL);
	if (!session) {
		cw_device_put(dev);
		return -ENOMEM;
	}
	session->dev = dev;
	mutex_init(&session->lock);
	spin_lock_init(&session->queue_lock);
	INIT_LIST_HEAD(&session->messages);
	INIT_LIST_HEAD(&session->bells);
	init_waitqueue_head(&session->wait);
	mutex_lock(&dev->lock);
	error = xa_alloc_cyclic(&dev->sessions, &session->number, session, xa_limit_31b,
				&dev->last_session, GFP_KERNEL);
	mutex_unlock(&dev->lock);
	if (error < 0) {
		kfree(session);
		cw_device_put(dev);
		return error;
	}
	file->private_data = session;
	return 0;
}

static void cw_bells_free(struct cw_session *session)
{
	struct cw_device *dev = session->dev;
	struct cw_bell *bell, *next;

	list_for_each_entry(bell, &session->bells, list)
		xa_erase_irq(&dev->bells, bell->handle);
	/* The interrupt may be about to signal one. */
	synchronize_rcu();
	list_for_each_entry_safe(bell, next, &session->bells, list) {
		cw_release_handle(dev, bell->handle);
		eventfd_ctx_put(bell->event);
		kfree(bell);
	}
}

static int cw_release(struct inode *inode, struct file *file)
{
	struct cw_session *session = file->private_data;
	struct cw_device *dev = session->dev;
	struct cw_message *message, *next;
	struct cw_request_header header = {
		.operation = cpu_to_le16(CW_CLOSE),
		.session = cpu_to_le32(session->number),
	};
	struct cw_answer answer;

	mutex_lock(&dev->lock);
	xa_erase(&dev->sessions, session->number);
	mutex_unlock(&dev->lock);
	/* Waits: who hears of the process's end may count on that what it had has ended, too. */
	if (session->opened)
		cw_call(dev, &header, NULL, &answer);
	if (!list_empty(&session->bells))
		cw_bells_free(session);
	list_for_each_entry_safe(message, next, &session->messages, list)
		cw_message_refuse(dev, message, 0);
	kfree(session);
	cw_device_put(dev);
	return 0;
}

static __poll_t cw_poll(struct file *file, poll_table *table)
{
	struct cw_session *session = file->private_data;
	__poll_t ready = EPOLLOUT;

	poll_wait(file, &session->wait, table);
	if (READ_ONCE(session->ended) || READ_ONCE(session->dev->dead))
		ready |= EPOLLIN | EPOLLHUP;
	spin_lock(&session->queue_lock);
	if (!list_empty(&session->messages))
		ready |= EPOLLIN;
	spin_unlock(&session->queue_lock);
	return ready;
}

/* The handle of an eventfd that the process waits for: the same one each time it is sent. */
static int cw_bell_handle(struct cw_session *session, struct file *file, u32 *handle)
{
	struct cw_request_header header = { .operation = cpu_to_le16(CW_DOORBELL) };
	struct eventfd_ctx *event = eventfd_ctx_fileget(file);
	struct cw_answer answer;
	struct cw_bell *bell;
	int error;

	if (IS_ERR(event))
		return PTR_ERR(event);
	list_for_each_entry(bell, &session->bells, list) {
		if (bell->event == event) {
			eventfd_ctx_put(event);
			*handle = bell->handle;
			return 0;
		}
	}
	bell = kzalloc_obj(*bell, GFP_KERNEL);
	error = !bell ? -ENOMEM : session->bell_count >= CW_BELLS_MAX ? -EDQUOT : 0;
	if (!error)
		error = cw_call(session->dev, &header, NULL, &answer);
	if (error)
		goto failed;
	bell->event = event;
	bell->handle = le32_to_cpu(answer.handle);
	error = xa_insert_irq(&session->dev->bells, bell->handle, bell, GFP_KERNEL);
	if (error) {
		cw_release_handle(session->dev, bell->handle);
		goto failed;
	}
	list_add(&bell->list, &session->bells);
	session->bell_count++;
	*handle = bell->handle;
	return 0;
failed:
	kfree(bell);
	eventfd_ctx_put(event);
	return error;
}

static int cw_sent_handle(struct cw_session *session, int fd, __le32 *out)
{
	struct file *file = fget(fd);
	u32 handle = 0;
	int error = 0;

	if (!file)
		return -EBADF;
	if (!cw_file_handle(session->dev, file, &handle))
		error = cw_bell_handle(session, file, &handle);
	fput(file);
	*out = cpu_to_le32(handle);
	return error;
}

/* Tells the host of the session before its first message. */
static int cw_session_begin(struct cw_session *session)
{
	struct cw_request_header header = {
		.operation = cpu_to_le16(CW_OPEN),
		.session = cpu_to_le32(session->number),
		.handle = cpu_to_le32(from_kuid(&init_user_ns, current_euid())),
	};
	struct cw_answer answer;
	int error;

	if (session->opened)
		return 0;
	error = cw_call(session->dev, &header, NULL, &answer);
	session->opened = !error;
	return error;
}

static long cw_send(struct cw_session *session, const struct causeway_transfer *transfer)
{
	struct cw_request_header header = {
		.operation = cpu_to_le16(CW_SEND),
		.session = cpu_to_le32(session->number),
		.length = cpu_to_le32(transfer->length),
		.count = cpu_to_le32(transfer->count),
	};
	struct cw_answer answer;
	unsigned int i;
	void *message;
	int error;

	if (transfer->count > CAUSEWAY_FDS_MAX || transfer->length > CAUSEWAY_MESSAGE_MAX)
		return -EINVAL;
	if (READ_ONCE(session->ended))
		return -EPIPE;
	message = vmemdup_user(u64_to_user_ptr(transfer->message), transfer->length);
	if (IS_ERR(message))
		return PTR_ERR(message);
	mutex_lock(&session->lock);
	error = cw_session_begin(session);
	for (i = 0; !error && i < transfer->count; i++)
		error = cw_sent_handle(session, transfer->fds[i], &header.handles[i]);
	if (!error)
		error = cw_call(session->dev, &header, message, &answer);
	mutex_unlock(&session->lock);
	kvfree(message);
	return error;
}

static struct file *cw_granted_file(struct cw_device *dev, const struct cw_grant *grant)
{
	u32 handle = le32_to_cpu(grant->handle);

	switch (le16_to_cpu(grant->kind)) {
	case CW_GRANT_SEGMENT:
		return cw_segment_file(dev, handle, le64_to_cpu(grant->length),
				       le16_to_cpu(grant->flags) & CW_GRANT_WRITABLE);
	case CW_GRANT_BELL:
		return cw_ring_file(dev, handle);
	}
	cw_release_handle(dev, handle);
	return ERR_PTR(-EPROTO);
}

/* Makes descriptors of what was granted: of all, or of nothing. */
static int cw_make_files(struct cw_device *dev, struct cw_message *message, struct file **files,
			 int *fds)
{
	unsigned int count = le16_to_cpu(message->event->count), made, i;
	int error = 0;

	for (made = 0; made < count; made++) {
		files[made] = cw_granted_file(dev, &message->event->grants[made]);
		fds[made] = IS_ERR(files[made]) ? PTR_ERR(files[made]) :
						  get_unused_fd_flags(O_CLOEXEC);
		if (fds[made] >= 0)
			continue;
		error = fds[made];
		if (!IS_ERR(files[made]))
			fput(files[made]);
		for (i = 0; i < made; i++) {
			put_unused_fd(fds[i]);
			fput(files[i]);
		}
		cw_message_refuse(dev, message, made + 1);
		break;
	}
	return error;
}

static struct cw_message *cw_next_message(struct cw_session *session)
{
	struct cw_message *message;

	spin_lock(&session->queue_lock);
	message = list_first_entry_or_null(&session->messages, struct cw_message, list);
	if (message) {
		list_del(&message->list);
		session->count--;
	}
	spin_unlock(&session->queue_lock);
	if (message)
		return message;
	return ERR_PTR(READ_ONCE(session->ended) ? -EPIPE : -EAGAIN);
}

static long cw_receive(struct cw_session *session, struct causeway_transfer *transfer,
		       struct causeway_transfer __user *argument)
{
	struct cw_message *message = cw_next_message(session);
	struct file *files[CAUSEWAY_FDS_MAX];
	int fds[CAUSEWAY_FDS_MAX], error;
	unsigned int count, i;
	u32 length;

	if (IS_ERR(message))
		return PTR_ERR(message);
	length = le32_to_cpu(message->event->length);
	count = le16_to_cpu(message->event->count);
	error = cw_make_files(session->dev, message, files, fds);
	if (error) {
		cw_session_end(session);
		return error;
	}
	if (length > transfer->length || count > transfer->count ||
	    copy_to_user(u64_to_user_ptr(transfer->message), message->event->message, length))
		error = -EFAULT;
	transfer->length = length;
	transfer->count = count;
	for (i = 0; i < CAUSEWAY_FDS_MAX; i++)
		transfer->fds[i] = i < count ? fds[i] : -1;
	if (!error && copy_to_user(argument, transfer, sizeof(*transfer)))
		error = -EFAULT;
	for (i = 0; i < count; i++) {
		if (error) {
			put_unused_fd(fds[i]);
			fput(files[i]);
		} else {
			fd_install(fds[i], files[i]);
		}
	}
	cw_message_free(message);
	return error;
}

static long cw_create(struct cw_session *session, struct causeway_creation __user *argument)
{
	struct cw_request_header header = { .operation = cpu_to_le16(CW_CREATE) };
	struct causeway_creation creation;
	struct cw_answer answer;
	struct file *file;
	int error;

	if (copy_from_user(&creation, argument, sizeof(creation)))
		return -EFAULT;
	if (!creation.length || !PAGE_ALIGNED(creation.length))
		return -EINVAL;
	header.size = cpu_to_le64(creation.length);
	error = cw_call(session->dev, &header, NULL, &answer);
	if (error)
		return error;
	file = cw_segment_file(session->dev, le32_to_cpu(answer.handle), creation.length, true);
	if (IS_ERR(file))
		return PTR_ERR(file);
	creation.fd = get_unused_fd_flags(O_CLOEXEC);
	error = creation.fd < 0 ? creation.fd : 0;
	if (!error && copy_to_user(argument, &creation, sizeof(creation))) {
		put_unused_fd(creation.fd);
		error = -EFAULT;
	}
	if (error)
		fput(file);
	else
		fd_install(creation.fd, file);
	return error;
}

/* No handle is 0: the host has nothing to do, and says so after all that came before. */
static long cw_settle(struct cw_device *dev)
{
	struct cw_request_header header = { .operation = cpu_to_le16(CW_RELEASE) };
	struct cw_answer answer;
	int error = cw_call(dev, &header, NULL, &answer);

	return error == -EBADF ? 0 : error;
}

static long cw_ioctl(struct file *file, unsigned int number, unsigned long argument)
{
	struct cw_session *session = file->private_data;
	void __user *user = (void __user *)argument;
	struct causeway_transfer transfer;
	struct causeway_waking waking;

	if (READ_ONCE(session->dev->dead))
		return -ENODEV;
	if (number == CAUSEWAY_CREATE)
		return cw_create(session, user);
	if (number == CAUSEWAY_WAKE) {
		if (copy_from_user(&waking, user, sizeof(waking)))
			return -EFAULT;
		return cw_wake(session->dev, waking.address, waking.count);
	}
	if (number == CAUSEWAY_SLEEP) {
		struct causeway_sleep sleep;

		if (copy_from_user(&sleep, user, sizeof(sleep)))
			return -EFAULT;
		return cw_sleep(session->dev, &sleep);
	}
	if (number == CAUSEWAY_SETTLE)
		return cw_settle(session->dev);
	if (number != CAUSEWAY_SEND && number != CAUSEWAY_RECEIVE)
		return -ENOTTY;
	if (copy_from_user(&transfer, user, sizeof(transfer)))
		return -EFAULT;
	return number == CAUSEWAY_SEND ? cw_send(session, &transfer) :
					 cw_receive(session, &transfer, user);
}

const struct file_operations cw_device_fops = {
	.owner = THIS_MODULE,
	.open = cw_open,
	.release = cw_release,
	.poll = cw_poll,
	.unlocked_ioctl = cw_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};
