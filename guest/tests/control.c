// SPDX-License-Identifier: GPL-2.0
/* Requests: answers, those that do not come or come late, full queues, a device that goes. */
#include "host.h"

static struct cw_request_header ring = { .operation = CW_RING, .handle = 7 };

static int ask(void)
{
	struct cw_request_header header = ring;
	struct cw_answer answer;

	return cw_call(device, &header, NULL, &answer);
}

static void answers(void)
{
	static const struct {
		int status, error;
	} cases[] = {
		{ 0, 0 }, { ENOSPC, -ENOSPC }, { MAX_ERRNO, -MAX_ERRNO },
		{ MAX_ERRNO + 1, -EIO }, { -1, -EIO }, { INT32_MIN, -EIO },
	};

	begin();
	for (unsigned int i = 0; i < ARRAY_SIZE(cases); i++) {
		host.status = cases[i].status;
		EXPECT(ask() == cases[i].error);
	}
	EXPECT(host.last.handle == 7);
	host.status = 0;
	/* Half an answer is none. */
	host.short_by = 1;
	EXPECT(ask() == -ENODEV);
	end();
}

static void come_late(void)
{
	begin();
	host.silent = true;
	EXPECT(ask() == -ETIMEDOUT);
	EXPECT(cw_post(device, &ring) == 0);
	/* The caller is gone; its request is the device's still. */
	host.silent = false;
	EXPECT(ask() == 0);
	EXPECT(host.asked[CW_RING] == 3);
	end();
}

static void come_meanwhile(void)
{
	begin();
	host.silent = true;
	kernel.asleep = answer_all;
	/* Answered while it sleeps, but the interrupt is late: its time is over. */
	EXPECT(ask() == -ETIMEDOUT);
	end();
}

static void serve(void)
{
	host.silent = false;
	spin_lock_irq(&device->queue_lock);
	spin_unlock_irq(&device->queue_lock);
}

static void full(void)
{
	begin();
	host.silent = true;
	host.room = 1;
	EXPECT(ask() == -ETIMEDOUT);
	EXPECT(ask() == -ETIMEDOUT && host.control.given_count == 1);
	EXPECT(cw_post(device, &ring) == -ETIMEDOUT);
	/* There is room while it waits. */
	kernel.asleep = serve;
	EXPECT(ask() == 0);
	end();
}

/* The host interrupts for answers that somebody waits for. */
static void interrupts_are_few(void)
{
	begin();
	EXPECT(ask() == 0 && host.control.quiet);
	for (unsigned int i = 1; i <= 3; i++) {
		EXPECT(cw_post(device, &ring) == 0);
		/* The one before was taken off with it. */
		EXPECT(host.control.done_count == 1);
	}
	EXPECT(ask() == 0 && host.control.done_count == 0 && device->awaited == 0);
	/* Nobody is interrupted for what one that gave up had asked, but for who waits for room. */
	host.silent = true;
	host.room = 1;
	EXPECT(cw_post(device, &ring) == 0 && host.control.quiet);
	kernel.asleep = serve;
	EXPECT(cw_post(device, &ring) == 0);
	end();
}

static void dead(void)
{
	begin();
	host.silent = true;
	kernel.asleep = unplug;
	EXPECT(ask() == -ENODEV);
	kernel.asleep = NULL;
	EXPECT(ask() == -ENODEV && cw_post(device, &ring) == -ENODEV);
	end();
}

static void without_memory(void)
{
	begin();
	kernel.allocations = 0;
	EXPECT(ask() == -ENOMEM && cw_post(device, &ring) == -ENOMEM);
	end();
}

void test_control(void)
{
	answers();
	come_late();
	come_meanwhile();
	full();
	interrupts_are_few();
	dead();
	without_memory();
}
