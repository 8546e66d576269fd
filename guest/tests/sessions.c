// SPDX-License-Identifier: GPL-2.0
/* Open files: what goes out and comes in with descriptors, what is left when they are closed. */
#include "host.h"

#define TEXT_BYTES 16

static struct cw_session *session_of(struct file *file)
{
	return file->private_data;
}

/* A descriptor of the process's own. */
static int install(struct file *file)
{
	int fd = get_unused_fd_flags(O_CLOEXEC);

	assert(fd >= 0);
	fd_install(fd, file);
	return fd;
}

static void tell_grants(struct file *file, const struct cw_grant *grants, u16 count)
{
	struct cw_event event = { .kind = CW_MESSAGE, .count = count,
				  .session = session_of(file)->number };

	memcpy(event.grants, grants, count * sizeof(*grants));
	tell(&event, NULL);
}

static void opened(void)
{
	struct file *first, *second;

	begin();
	first = open_device();
	second = open_device();
	EXPECT(session_of(first)->number != session_of(second)->number);
	/* The host hears of a session with its first message, of its user, and once. */
	EXPECT(host.asked[CW_OPEN] == 0);
	EXPECT(send(first, "a", -1) == 0 && send(first, "b", -1) == 0);
	EXPECT(host.asked[CW_OPEN] == 1 && host.asked[CW_SEND] == 2 && host.last.length == 1);
	EXPECT(host.last.session == session_of(first)->number);
	close_file(first);
	close_file(second);
	EXPECT(host.asked[CW_CLOSE] == 1);
	/* A number is not used again soon. */
	first = open_device();
	EXPECT(session_of(first)->number == 3);
	host.status = EMFILE;
	EXPECT(send(first, "a", -1) == -EMFILE);
	host.status = 0;
	EXPECT(send(first, "a", -1) == 0 && host.asked[CW_OPEN] == 3);
	close_file(first);
	end();
}

static void limits(void)
{
	struct causeway_transfer transfer = { .message = PAGE_SIZE };
	struct file *file;
	long (*ioctl)(struct file *file, unsigned int number, unsigned long argument);

	begin();
	file = open_device();
	ioctl = file->f_op->unlocked_ioctl;
	transfer.count = CAUSEWAY_FDS_MAX + 1;
	EXPECT(ioctl(file, CAUSEWAY_SEND, (uintptr_t)&transfer) == -EINVAL);
	transfer.count = 0;
	transfer.length = CAUSEWAY_MESSAGE_MAX + 1;
	EXPECT(ioctl(file, CAUSEWAY_SEND, (uintptr_t)&transfer) == -EINVAL);
	transfer.length = 1;
	transfer.message = 1;
	EXPECT(ioctl(file, CAUSEWAY_SEND, (uintptr_t)&transfer) == -EFAULT);
	EXPECT(ioctl(file, CAUSEWAY_SEND, 0) == -EFAULT);
	EXPECT(ioctl(file, CAUSEWAY_WAKE, 0) == -EFAULT);
	EXPECT(ioctl(file, CAUSEWAY_CREATE, 0) == -EFAULT);
	EXPECT(ioctl(file, _IO(0xca, 0x7f), 0) == -ENOTTY);
	EXPECT(host.asked[CW_SEND] == 0);
	close_file(file);
	end();
}

/* An eventfd that is sent is a doorbell: the same one each time, until the session ends. */
static void doorbells(void)
{
	struct eventfd_ctx *event;
	struct file *file;
	int fd, more[CW_BELLS_MAX];
	u32 handle;

	begin();
	file = open_device();
	fd = install(eventfd_file());
	event = file_of(fd)->private_data;
	EXPECT(send(file, "x", fd) == 0);
	handle = host.last.handles[0];
	EXPECT(send(file, "x", fd) == 0 && host.last.handles[0] == handle && granted() == 1);
	tell(&(struct cw_event){ .kind = CW_RUNG, .handle = handle }, NULL);
	tell(&(struct cw_event){ .kind = CW_RUNG, .handle = handle + 1 }, NULL);
	EXPECT(event->rung == 1);
	for (int i = 0; i < CW_BELLS_MAX; i++) {
		more[i] = i < 32 ? install(eventfd_file()) : -1;
		if (more[i] >= 0)
			EXPECT(send(file, "x", more[i]) == 0);
	}
	/* The process's own descriptor is not needed for it. */
	put_unused_fd(fd);
	tell(&(struct cw_event){ .kind = CW_RUNG, .handle = handle }, NULL);
	EXPECT(event->rung == 2 && granted() == 33);
	for (int i = 0; i < 32; i++)
		put_unused_fd(more[i]);
	close_file(file);
	EXPECT(granted() == 0);
	end();
}

static void too_many_doorbells(void)
{
	struct file *file;

	begin();
	file = open_device();
	for (int i = 0; i <= CW_BELLS_MAX; i++) {
		int fd = install(eventfd_file());

		EXPECT(send(file, "x", fd) == (i < CW_BELLS_MAX ? 0 : -EDQUOT));
		put_unused_fd(fd);
	}
	EXPECT(granted() == CW_BELLS_MAX);
	close_file(file);
	end();
}

/* Descriptors that are nobody's, of another kind, or of another device. */
static void foreign(void)
{
	static const struct file_operations others;
	struct file *file, *other = calloc(1, sizeof(*other));
	struct cw_device *this;
	int fd;

	begin();
	assert(other);
	*other = (struct file){ .f_op = &others, .refs = 1 };
	fd = install(other);
	file = open_device();
	EXPECT(send(file, "x", 60) == -EBADF && send(file, "x", fd) == -EINVAL);
	EXPECT(host.asked[CW_SEND] == 0);
	put_unused_fd(fd);
	fd = install(cw_segment_file(device, grant(), PAGE_SIZE, true));
	EXPECT(send(file, "x", fd) == 0 && host.last.handles[0] == host.last_handle);
	/* After the device was plugged in again. */
	this = session_of(file)->dev;
	session_of(file)->dev = calloc(1, sizeof(*device));
	*session_of(file)->dev = *this;
	EXPECT(send(file, "x", fd) == -EINVAL);
	free(session_of(file)->dev);
	session_of(file)->dev = this;
	put_unused_fd(fd);
	close_file(file);
	end();
}

static void grants(void)
{
	struct causeway_transfer transfer;
	char text[TEXT_BYTES];
	struct file *file;

	begin();
	file = open_device();
	tell_grants(file, (struct cw_grant[]){
		{ .kind = CW_GRANT_SEGMENT, .flags = CW_GRANT_WRITABLE, .handle = grant(),
		  .length = PAGE_SIZE },
		{ .kind = CW_GRANT_SEGMENT, .handle = grant(), .length = PAGE_SIZE },
		{ .kind = CW_GRANT_BELL, .handle = grant() } }, 3);
	EXPECT(receive(file, &transfer, text, sizeof(text)) == 0 && transfer.count == 3);
	EXPECT(file_of(transfer.fds[0])->flags == O_RDWR);
	EXPECT(file_of(transfer.fds[1])->flags == O_RDONLY);
	EXPECT(granted() == 3 && transfer.fds[3] == -1);
	/* What was granted outlives the session. */
	close_file(file);
	EXPECT(granted() == 3);
	for (int i = 0; i < 3; i++)
		put_unused_fd(transfer.fds[i]);
	EXPECT(granted() == 0);
	end();
}

/* All or nothing: a kind that is not known, a segment that is longer than the window, a process
 * that has no room for the message or its descriptors. */
static void nothing_is_half_granted(void)
{
	static const struct cw_grant wrong[] = {
		{ .kind = 9 },
		{ .kind = CW_GRANT_SEGMENT, .length = CW_SEGMENT_MAX + PAGE_SIZE },
		{ .kind = CW_GRANT_SEGMENT, .length = PAGE_SIZE + 1 },
	};
	struct causeway_transfer transfer;
	char text[TEXT_BYTES];

	for (unsigned int i = 0; i < 2 * ARRAY_SIZE(wrong); i++) {
		struct cw_grant both[3] = { [1] = { .kind = CW_GRANT_BELL } };
		struct file *file;

		begin();
		file = open_device();
		both[0] = both[2] = (struct cw_grant){ .kind = CW_GRANT_BELL };
		both[i % 2] = wrong[i / 2];
		for (int j = 0; j < 3; j++)
			both[j].handle = grant();
		tell_grants(file, both, 3);
		EXPECT(receive(file, &transfer, text, sizeof(text)) == -EPROTO);
		EXPECT(granted() == 0);
		EXPECT(receive(file, &transfer, text, sizeof(text)) == -EPIPE);
		close_file(file);
		end();
	}
}

static void no_room_for_grants(void)
{
	struct causeway_transfer transfer;
	struct cw_grant both[2] = { { .kind = CW_GRANT_BELL }, { .kind = CW_GRANT_BELL } };
	char text[TEXT_BYTES];

	for (long room = 0; room < 4; room++) {
		struct file *file;

		begin();
		file = open_device();
		both[0].handle = grant();
		both[1].handle = grant();
		tell_grants(file, both, 2);
		kernel.descriptors = room;
		if (room == 3) {
			transfer = (struct causeway_transfer){ .count = 1 };
			EXPECT(file->f_op->unlocked_ioctl(file, CAUSEWAY_RECEIVE,
					(uintptr_t)&transfer) == -EFAULT);
		} else if (room == 2) {
			EXPECT(receive(file, &transfer, text, sizeof(text)) == 0);
			put_unused_fd(transfer.fds[0]);
			put_unused_fd(transfer.fds[1]);
		} else {
			EXPECT(receive(file, &transfer, text, sizeof(text)) == -EMFILE);
		}
		EXPECT(granted() == 0);
		close_file(file);
		end();
	}
}

/* A host that does not answer holds nobody up for ever. */
static void closed_in_vain(void)
{
	struct file *file;

	begin();
	file = open_device();
	EXPECT(send(file, "x", -1) == 0);
	host.silent = true;
	close_file(file);
	EXPECT(host.control.given_count == 1 && host.asked[CW_CLOSE] == 0);
	end();
}

/* A session that ends with messages that nobody has read. */
static void unread(void)
{
	struct file *file;

	begin();
	file = open_device();
	for (int i = 0; i < 3; i++) {
		struct cw_grant one = { .kind = CW_GRANT_BELL, .handle = grant() };

		tell_grants(file, &one, 1);
	}
	close_file(file);
	EXPECT(granted() == 0);
	end();
}

static void unplugged(void)
{
	struct causeway_transfer transfer;
	char text[TEXT_BYTES];
	struct file *file;
	int fd;

	begin();
	file = open_device();
	fd = install(eventfd_file());
	EXPECT(send(file, "x", fd) == 0);
	unplug();
	EXPECT(file->f_op->poll(file, NULL) & EPOLLHUP);
	EXPECT(send(file, "x", fd) == -ENODEV);
	EXPECT(receive(file, &transfer, text, sizeof(text)) == -ENODEV);
	close_file(file);
	put_unused_fd(fd);
	/* The host has lost what it gave. */
	memset(host.has, 0, sizeof(host.has));
	end();
}

/* One life, in which the n-th allocation fails: whatever comes of it, nothing is left. */
static bool scanty(long allocations)
{
	struct causeway_transfer transfer;
	char text[TEXT_BYTES];
	struct file *file;
	int fd;

	begin();
	fd = install(eventfd_file());
	kernel.allocations = allocations;
	file = open_device();
	if (file) {
		struct causeway_creation creation = { .length = PAGE_SIZE };
		struct cw_grant both[2] = {
			{ .kind = CW_GRANT_SEGMENT, .handle = grant(), .length = PAGE_SIZE },
			{ .kind = CW_GRANT_BELL, .handle = grant() } };

		send(file, "x", fd);
		if (!file->f_op->unlocked_ioctl(file, CAUSEWAY_CREATE, (uintptr_t)&creation))
			put_unused_fd(creation.fd);
		tell_grants(file, both, 2);
		if (!receive(file, &transfer, text, sizeof(text))) {
			put_unused_fd(transfer.fds[0]);
			put_unused_fd(transfer.fds[1]);
		}
	}
	/* Where there is no memory for a word to the host, it has the handle for good. */
	allocations = kernel.allocations;
	kernel.allocations = -1;
	if (file)
		close_file(file);
	put_unused_fd(fd);
	if (allocations <= 0)
		memset(host.has, 0, sizeof(host.has));
	end();
	return allocations > 0;
}

static void without_memory(void)
{
	long allocations = 0;

	while (!scanty(allocations))
		allocations++;
	EXPECT(allocations > 10);
}

void test_sessions(void)
{
	opened();
	limits();
	doorbells();
	too_many_doorbells();
	foreign();
	grants();
	nothing_is_half_granted();
	no_room_for_grants();
	closed_in_vain();
	unread();
	unplugged();
	without_memory();
}
