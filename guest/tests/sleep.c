// SPDX-License-Identifier: GPL-2.0
/* Sleeping by the host: rung, not rung, refused, and words that are nobody's. */
#include "host.h"

#define PAGES 2

static struct file *files[1];
static struct vm_area_struct vma;
static u32 bell;

static long sleep_on(u64 address, u32 count)
{
	struct causeway_sleep sleep = { .addresses = { address, address + PAGE_SIZE },
					.expected = { 1, 2 }, .count = count,
					.nanoseconds = 500000000 };

	return cw_sleep(device, &sleep);
}

static void ring_it(void)
{
	struct cw_event event = { .kind = CW_RUNG, .handle = bell };

	tell(&event, NULL);
}

static void begin_with_segment(void)
{
	begin();
	files[0] = cw_segment_file(device, grant(), PAGES * PAGE_SIZE, true);
	EXPECT(!IS_ERR(files[0]));
	map(&vma, files[0], PAGES);
	process.vma = &vma;
}

/* Doorbells of sleepers stay with the device. */
static void end_with_segment(void)
{
	process.vma = NULL;
	fput(files[0]);
	unmap(&vma, files[0]);
	EXPECT(device->bells.count == 1 && host.asked[CW_DOORBELL] == 1);
	xa_erase(&device->bells, bell);
	host.has[bell] = false;
	end();
}

static void rung_or_not(void)
{
	u64 word;

	begin_with_segment();
	word = vma.vm_start + 8;
	/* The host gives out handles in order. */
	bell = host.last_handle + 1;
	kernel.asleep = ring_it;
	EXPECT(sleep_on(word, 2) == 0);
	EXPECT(host.last.operation == CW_SLEEP && host.last.handle == bell);
	EXPECT(host.last.count == 2 && host.last.length == 2 * sizeof(struct cw_sleep_word));
	EXPECT(host.asked[CW_RISE] == 0);
	/* Its time is over: the host is told. */
	kernel.asleep = NULL;
	EXPECT(sleep_on(word, 1) == 0);
	EXPECT(host.asked[CW_SLEEP] == 2 && host.asked[CW_RISE] == 1);
	/* What was rung for the one before is not for the next. */
	ring_it();
	EXPECT(sleep_on(word, 1) == 0 && host.asked[CW_RISE] == 2);
	host.status = ENOSPC;
	EXPECT(sleep_on(word, 1) == -ENOSPC);
	host.status = 0;
	EXPECT(sleep_on(word, 0) == -EINVAL && sleep_on(word, CAUSEWAY_WORDS_MAX + 1) == -EINVAL);
	EXPECT(sleep_on(vma.vm_end + PAGE_SIZE, 1) == -EFAULT);
	EXPECT(sleep_on(vma.vm_end - 8, 2) == -EFAULT);
	EXPECT(host.asked[CW_SLEEP] == 4);
	end_with_segment();
}

void test_sleep(void)
{
	rung_or_not();
}
