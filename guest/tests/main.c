// SPDX-License-Identifier: GPL-2.0
/*
 * Tests of the driver's files as they are, in a process: with AddressSanitizer, which finds what is
 * used after it was given up or never given up, and UndefinedBehaviorSanitizer.
 */
#include "host.h"

#include <stdio.h>

/* A host that says anything. */
#define ROUNDS 2000
#define EVENTS 40

/* xorshift64. */
static u64 rubbish(void)
{
	static u64 state = 88172645463325252ull;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/* An event that is nearly right: small numbers, often those that mean something. */
static unsigned int invent(unsigned char *bytes)
{
	struct cw_event event = {
		.kind = rubbish() % 5,
		.count = rubbish() % 8 ? rubbish() % 3 : rubbish(),
		.session = rubbish() % 4,
		.handle = rubbish() % 4,
		.length = rubbish() % 64,
	};
	unsigned int total = sizeof(event) + event.length;

	for (unsigned int i = 0; i < CAUSEWAY_FDS_MAX; i++)
		event.grants[i] = (struct cw_grant){ .kind = rubbish() % 4, .flags = rubbish() % 2,
			.handle = rubbish() % 3 ? rubbish() % HANDLES : rubbish(),
			.length = rubbish() % 2 ? PAGE_SIZE : rubbish() };
	if (rubbish() % 8 == 0)
		event.length = rubbish();
	if (rubbish() % 8 == 0)
		total = rubbish() % (sizeof(event) + 64);
	memset(bytes, 0, CW_EVENT_BYTES);
	memcpy(bytes, &event, sizeof(event));
	return total;
}

static void life(unsigned char *bytes)
{
	struct file *files[2];

	begin();
	files[0] = open_device();
	files[1] = open_device();
	for (int i = 0; i < EVENTS; i++) {
		struct causeway_transfer transfer;
		struct file *file = files[rubbish() % 2];
		char text[64];

		host.status = rubbish() % 8 ? 0 : (int)rubbish();
		host.short_by = rubbish() % 8 == 0;
		tell_bytes(bytes, invent(bytes));
		send(file, "x", -1);
		/* Told that it is over, the driver takes nothing more. */
		if (device->dead)
			break;
		if (receive(file, &transfer, text, sizeof(text)))
			continue;
		for (u32 j = 0; j < transfer.count; j++)
			put_unused_fd(transfer.fds[j]);
	}
	close_file(files[0]);
	close_file(files[1]);
	memset(host.has, 0, sizeof(host.has));
	end();
}

void test_rubbish(void)
{
	unsigned char *bytes = malloc(CW_EVENT_BYTES);
	int before = passed;

	assert(bytes);
	for (int i = 0; i < ROUNDS; i++)
		life(bytes);
	free(bytes);
	passed = before + 1;
}

int main(void)
{
	test_control();
	test_events();
	test_sessions();
	test_objects();
	test_sleep();
	test_inplace();
	test_rubbish();
	printf("%d passed, %d failed\n", passed, failed);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
