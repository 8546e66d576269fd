// SPDX-License-Identifier: GPL-2.0
/* What the host tells, rightly and wrongly. */
#include "host.h"

#include <stdio.h>

static u32 number_of(struct file *file)
{
	return ((struct cw_session *)file->private_data)->number;
}

static struct cw_event message_for(struct file *file, u32 length)
{
	return (struct cw_event){ .kind = CW_MESSAGE, .session = number_of(file),
				  .length = length };
}

static __poll_t polled(struct file *file)
{
	return file->f_op->poll(file, NULL);
}

static void messages(void)
{
	struct causeway_transfer transfer;
	char text[64] = "";
	struct file *file;

	begin();
	file = open_device();
	EXPECT(polled(file) == EPOLLOUT);
	EXPECT(receive(file, &transfer, text, sizeof(text)) == -EAGAIN);
	for (int i = 0; i < 2 * CW_EVENT_BUFFERS; i++) {
		struct cw_event event = message_for(file, 3);

		tell(&event, "abc");
	}
	EXPECT(polled(file) == (EPOLLOUT | EPOLLIN));
	for (int i = 0; i < 2 * CW_EVENT_BUFFERS; i++)
		EXPECT(receive(file, &transfer, text, sizeof(text)) == 0 && transfer.length == 3 &&
		       transfer.count == 0 && transfer.fds[0] == -1 && !memcmp(text, "abc", 3));
	EXPECT(receive(file, &transfer, text, sizeof(text)) == -EAGAIN);
	/* All buffers are with the host again. */
	EXPECT(host.events.given_count == CW_EVENT_BUFFERS);
	close_file(file);
	end();
}

static void ends(void)
{
	struct causeway_transfer transfer;
	struct cw_event event;
	struct file *file;
	char text[8];

	begin();
	file = open_device();
	event = message_for(file, 1);
	tell(&event, "x");
	tell(&(struct cw_event){ .kind = CW_ENDED, .session = number_of(file) }, NULL);
	EXPECT(polled(file) == (EPOLLOUT | EPOLLIN | EPOLLHUP));
	/* What came before is read before the end. */
	EXPECT(receive(file, &transfer, text, sizeof(text)) == 0);
	EXPECT(receive(file, &transfer, text, sizeof(text)) == -EPIPE);
	EXPECT(send(file, "x", -1) == -EPIPE);
	close_file(file);
	end();
}

/* Whom nobody answers for, or who does not read: what was granted is given back. */
static void refused(void)
{
	struct cw_event event;
	struct file *file;

	begin();
	file = open_device();
	event = message_for(file, 0);
	event.session++;
	event.count = 2;
	event.grants[0].handle = grant();
	event.grants[1].handle = grant();
	tell(&event, NULL);
	EXPECT(granted() == 0);
	event = message_for(file, 0);
	for (int i = 0; i < CW_MESSAGES_MAX; i++)
		tell(&event, NULL);
	event.count = 1;
	event.grants[0] = (struct cw_grant){ .kind = CW_GRANT_BELL, .handle = grant() };
	tell(&event, NULL);
	EXPECT(granted() == 0 && polled(file) & EPOLLHUP);
	close_file(file);
	end();
}

/* Buffers whose words do not fit their bytes. */
static void misfits(void)
{
	struct cw_event event;
	struct file *file;

	begin();
	file = open_device();
	event = message_for(file, 5);
	tell_bytes(&event, sizeof(event));
	tell_bytes(&event, sizeof(event) - 1);
	tell_bytes(&event, 0);
	/* More than the buffer holds. */
	host.long_by = CW_EVENT_BYTES;
	event = message_for(file, CW_EVENT_BYTES);
	tell_bytes(&event, sizeof(event));
	host.long_by = 0;
	event = message_for(file, 0);
	event.count = CAUSEWAY_FDS_MAX + 1;
	tell_bytes(&event, sizeof(event));
	event = message_for(file, 0);
	event.kind = 77;
	tell_bytes(&event, sizeof(event));
	event = (struct cw_event){ .kind = CW_RUNG, .handle = 99 };
	tell_bytes(&event, sizeof(event));
	EXPECT(polled(file) == EPOLLOUT && host.events.given_count == CW_EVENT_BUFFERS);
	close_file(file);
	end();
}

/* With less memory there are fewer buffers, and nothing is lost. */
static void without_memory(void)
{
	struct causeway_transfer transfer;
	struct cw_event event;
	struct file *file;
	char text[8];

	begin();
	file = open_device();
	event = message_for(file, 1);
	kernel.allocations = 0;
	for (int i = 0; i < CW_EVENT_BUFFERS - 1; i++)
		tell(&event, "x");
	kernel.allocations = -1;
	EXPECT(host.events.given_count == 1);
	tell(&event, "x");
	for (int i = 0; i < CW_EVENT_BUFFERS; i++)
		EXPECT(receive(file, &transfer, text, sizeof(text)) == 0);
	close_file(file);
	end();
}

void test_events(void)
{
	messages();
	ends();
	refused();
	misfits();
	without_memory();
}
