/* Interrupts by a store to memory: conditional interrupts. */
#include "check.h"

#include <pthread.h>
#include <unistd.h>

#define ID 700
#define OFFSET 64
/* Behind the flag: how many items there are. */
#define ITEMS (OFFSET + 64)
#define STORES 20000

static sci_local_interrupt_t register_flag(sci_local_segment_t segment, unsigned int offset)
{
	sci_local_interrupt_t interrupt;

	DO(SCIRegisterInterruptFlag, ADAPTER, &interrupt, segment, offset, NO_CALLBACK, NO_ARG,
			SCI_FLAG_CONDITIONAL_INTERRUPT);
	return interrupt;
}

/* The whole of a segment as others have it, mapped for triggering. */
static volatile unsigned int *reach_map(sci_desc_t sd, unsigned int node, sci_map_t *map)
{
	sci_remote_segment_t remote;
	sci_error_t error;
	volatile unsigned int *words;

	connect_to(sd, &remote, node, ID);
	words = SCIMapRemoteSegment(remote, map, 0, PAGE, NULL,
			SCI_FLAG_CONDITIONAL_INTERRUPT_MAP, &error);
	EXPECT(error == SCI_ERR_OK);
	return words;
}

static volatile unsigned int *reach(sci_desc_t sd, unsigned int node)
{
	sci_map_t map;

	return reach_map(sd, node, &map);
}

static void errors(void)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment, bare, none = GARBAGE(sci_local_segment_t);
	sci_local_interrupt_t flag, other, plain, nothing = GARBAGE(sci_local_interrupt_t);
	unsigned int number, count = 77;
	sci_map_t map;

	offer(sd, &segment, &map, ID, PAGE);
#define REGISTER(adapter, out, segment, offset, flags) \
	adapter, out, segment, offset, NO_CALLBACK, NO_ARG, flags
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIRegisterInterruptFlag,
			REGISTER(0, NULL, segment, 0, NO_FLAGS));
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIRegisterInterruptFlag,
			REGISTER(0, &flag, none, 0, NO_FLAGS));
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIRegisterInterruptFlag,
			REGISTER(0, &flag, segment, 0, SCI_FLAG_USE_CALLBACK));
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIRegisterInterruptFlag,
			REGISTER(0, &flag, segment, 0, SCI_FLAG_FIXED_INTNO));
	REFUSED(SCI_ERR_NO_SUCH_ADAPTERNO, SCIRegisterInterruptFlag,
			REGISTER(1, &flag, segment, 0, NO_FLAGS));
	REFUSED(SCI_ERR_OFFSET_ALIGNMENT, SCIRegisterInterruptFlag,
			REGISTER(0, &flag, segment, 2, NO_FLAGS));
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCIRegisterInterruptFlag,
			REGISTER(0, &flag, segment, PAGE, NO_FLAGS));
	DO(SCICreateSegment, sd, &bare, ID + 1, PAGE, NO_CALLBACK, NO_ARG, NO_FLAGS);
	REFUSED(SCI_ERR_SEGMENT_NOT_PREPARED, SCIRegisterInterruptFlag,
			REGISTER(0, &flag, bare, 0, NO_FLAGS));
	flag = register_flag(segment, OFFSET);
	REFUSED(SCI_ERR_BUSY, SCIRegisterInterruptFlag,
			REGISTER(0, &other, segment, OFFSET, NO_FLAGS));
	other = register_flag(segment, OFFSET + 4);
	DO(SCICreateInterrupt, sd, &plain, ADAPTER, &number, NO_CALLBACK, NO_ARG, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCIEnableConditionalInterrupt, plain, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCIDisableConditionalInterrupt, plain, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCIGetConditionalInterruptTrigCounter, plain, &count,
			NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIEnableConditionalInterrupt, nothing, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIDisableConditionalInterrupt, nothing, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIGetConditionalInterruptTrigCounter, flag, NULL,
			NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIEnableConditionalInterrupt, flag, 1);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIDisableConditionalInterrupt, flag, 1);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIGetConditionalInterruptTrigCounter, flag, &count, 1);
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForInterrupt, flag, SHORT_MS, NO_FLAGS);
	/* A flag is a use of its segment. */
	DO(SCIUnmapSegment, map, NO_FLAGS);
	REFUSED(SCI_ERR_BUSY, SCIRemoveSegment, segment, NO_FLAGS);
	DO(SCIRemoveInterrupt, flag, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIEnableConditionalInterrupt, flag, NO_FLAGS);
	flag = register_flag(segment, OFFSET);
	DO(SCIEnableConditionalInterrupt, flag, NO_FLAGS);
	DO(SCIRemoveInterrupt, flag, NO_FLAGS);
	DO(SCIRemoveInterrupt, other, NO_FLAGS);
	DO(SCIRemoveInterrupt, plain, NO_FLAGS);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
	DO(SCIRemoveSegment, bare, NO_FLAGS);
	DO(SCIClose, sd, NO_FLAGS);
}

/* A word is one flag, whichever handle of its segment names it. */
static void by_two_handles(void)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment, attached;
	sci_local_interrupt_t flag, other;
	sci_map_t map;

	offer(sd, &segment, &map, ID, PAGE);
	DO(SCIShareSegment, segment, NO_FLAGS);
	DO(SCIAttachLocalSegment, sd, &attached, ID, NULL, NO_CALLBACK, NO_ARG, NO_FLAGS);
	flag = register_flag(segment, OFFSET);
	REFUSED(SCI_ERR_BUSY, SCIRegisterInterruptFlag,
			REGISTER(0, &other, attached, OFFSET, NO_FLAGS));
	other = register_flag(attached, OFFSET + 4);
	DO(SCIEnableConditionalInterrupt, flag, NO_FLAGS);
	DO(SCIEnableConditionalInterrupt, other, NO_FLAGS);
	DO(SCIRemoveInterrupt, flag, NO_FLAGS);
	flag = register_flag(attached, OFFSET);
	DO(SCIRemoveInterrupt, flag, NO_FLAGS);
	DO(SCIRemoveInterrupt, other, NO_FLAGS);
}

static void expect_count(sci_local_interrupt_t flag, unsigned int want)
{
	unsigned int count = 77;

	DO(SCIGetConditionalInterruptTrigCounter, flag, &count, NO_FLAGS);
	EXPECT(count == want);
}

/* In one process, through a connection to itself. */
static void enabled_and_disabled(void)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_local_interrupt_t flag;
	sci_map_t map;
	volatile unsigned int *words;

	offer(sd, &segment, &map, ID, PAGE);
	words = reach(sd, own_node());
	flag = register_flag(segment, OFFSET);
	/* Disabled at first: a store is no interrupt, but not forgotten. */
	words[OFFSET / 4] = 1;
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForInterrupt, flag, SHORT_MS, NO_FLAGS);
	expect_count(flag, 1);
	REFUSED(SCI_ERR_COND_INT_RACE_PROBLEM, SCIEnableConditionalInterrupt, flag, NO_FLAGS);
	expect_count(flag, 0);
	DO(SCIEnableConditionalInterrupt, flag, NO_FLAGS);
	DO(SCIEnableConditionalInterrupt, flag, NO_FLAGS);
	/* Words beside it are none of its business. */
	words[OFFSET / 4 + 1] = 1;
	words[OFFSET / 4 - 1] = 1;
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForInterrupt, flag, SHORT_MS, NO_FLAGS);
	words[OFFSET / 4] = 1;
	DO(SCIWaitForInterrupt, flag, LONG_MS, NO_FLAGS);
	expect_count(flag, 1);
	/* One interrupt for each time that it is enabled. */
	words[OFFSET / 4] = 1;
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForInterrupt, flag, SHORT_MS, NO_FLAGS);
	expect_count(flag, 2);
	REFUSED(SCI_ERR_COND_INT_RACE_PROBLEM, SCIEnableConditionalInterrupt, flag, NO_FLAGS);
	DO(SCIEnableConditionalInterrupt, flag, NO_FLAGS);
	DO(SCIDisableConditionalInterrupt, flag, NO_FLAGS);
	words[OFFSET / 4] = 0;
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForInterrupt, flag, SHORT_MS, NO_FLAGS);
	expect_count(flag, 1);
	DO(SCIDisableConditionalInterrupt, flag, NO_FLAGS);
	expect_count(flag, 0);
	DO(SCIRemoveInterrupt, flag, NO_FLAGS);
}

/* Puts items in the segment, and says so by the flag each time. */
static void producer(struct peer *parent)
{
	unsigned int node = hear(parent);
	sci_desc_t sd = open_library();
	sci_map_t map;
	volatile unsigned int *words = reach_map(sd, node, &map);
	sci_sequence_t sequence;
	sci_error_t error;

	DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	for (unsigned int i = 1; i <= STORES; i++) {
		words[ITEMS / 4] = i;
		SCIStoreBarrier(NULL, NO_FLAGS);
		words[OFFSET / 4] = 1;
		if (i % 1000 == 0)
			usleep(500);
	}
	/* On a link without room stores may be missing, which a sequence tells. Those that it has
	 * seen have arrived. */
	do {
		while (SCIStartSequence(sequence, NO_FLAGS, &error) != SCI_SEQ_OK)
			EXPECT(error == SCI_ERR_OK);
		words[ITEMS / 4] = STORES;
		SCIStoreBarrier(NULL, NO_FLAGS);
		words[OFFSET / 4] = 1;
	} while (SCICheckSequence(sequence, NO_FLAGS, &error) != SCI_SEQ_OK);
	say(parent, 0);
	hear(parent);
}

/* No item is ever left lying: the last store is heard of, whenever it comes. */
static void no_wake_up_is_lost(void)
{
	struct peer peers[2];
	sci_desc_t sd;
	sci_local_segment_t segment;
	sci_local_interrupt_t flag;
	sci_map_t map;
	sci_error_t error;
	volatile unsigned int *words;

	spawn(&peers[0], producer);
	spawn(&peers[1], producer);
	sd = open_library();
	words = offer(sd, &segment, &map, ID, PAGE);
	flag = register_flag(segment, OFFSET);
	say(&peers[0], own_node());
	while (words[ITEMS / 4] < STORES) {
		SCIEnableConditionalInterrupt(flag, NO_FLAGS, &error);
		if (error == SCI_ERR_COND_INT_RACE_PROBLEM)
			continue;
		EXPECT(error == SCI_ERR_OK);
		if (words[ITEMS / 4] == STORES)
			break;
		DO(SCIWaitForInterrupt, flag, LONG_MS, NO_FLAGS);
	}
	hear(&peers[0]);
	say(&peers[0], 0);
	join(&peers[0]);
	/* Another goes on, and the flag is as good as new. */
	words[ITEMS / 4] = 0;
	DO(SCIDisableConditionalInterrupt, flag, NO_FLAGS);
	do
		SCIEnableConditionalInterrupt(flag, NO_FLAGS, &error);
	while (error == SCI_ERR_COND_INT_RACE_PROBLEM);
	say(&peers[1], own_node());
	/* The first one's last store may have raised one that nobody has waited for. */
	do
		DO(SCIWaitForInterrupt, flag, LONG_MS, NO_FLAGS);
	while (words[ITEMS / 4] == 0);
	hear(&peers[1]);
	kill_peer(&peers[1]);
	DO(SCIRemoveInterrupt, flag, NO_FLAGS);
}

/* Stores `value`, of so many bytes, `at` bytes into the flag, which must be heard of. */
static void store_and_wait(sci_local_interrupt_t flag, volatile unsigned int *words, size_t bytes,
		size_t at, unsigned int value)
{
	volatile char *place = (volatile char *)words + OFFSET + at;

	DO(SCIEnableConditionalInterrupt, flag, NO_FLAGS);
	if (bytes == 1)
		*(volatile uint8_t *)place = (uint8_t)value;
	else if (bytes == 2)
		*(volatile uint16_t *)place = (uint16_t)value;
	else
		*(volatile uint32_t *)place = value;
	DO(SCIWaitForInterrupt, flag, LONG_MS, NO_FLAGS);
}

/* The very first store, whatever it is; parts of the word; the same again and again. */
static void stores_of_every_size(void)
{
	static const unsigned int values[] = {0, 1, 2, 0x7f, 0x80, 0xff, 0xffff, 0x8000, 0x0100,
		0xffffffff, 0x80000000};
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_local_interrupt_t flag;
	sci_map_t map;
	volatile unsigned int *words;

	offer(sd, &segment, &map, ID, PAGE);
	words = reach(sd, own_node());
	for (size_t bytes = 1; bytes <= 4; bytes *= 2) {
		words[OFFSET / 4] = 0;
		flag = register_flag(segment, OFFSET);
		for (size_t at = 0; at < 4; at += bytes)
			for (size_t i = 0; i < COUNT(values); i++)
				for (int again = 0; again < 4; again++)
					store_and_wait(flag, words, bytes, at, values[i]);
		/* What was stored there last shows again, whatever it is. */
		for (size_t at = 0; at < 4; at += bytes) {
			store_and_wait(flag, words, 4, 0, 0xa5a5a5a5);
			for (int again = 0; again < 100; again++)
				store_and_wait(flag, words, bytes, at, 0xa5a5a5a5);
		}
		DO(SCIRemoveInterrupt, flag, NO_FLAGS);
	}
}

struct heard {
	pthread_mutex_t mutex;
	pthread_cond_t more;
	int count;
};

/* Enables its flag again, as a handler would. */
static sci_callback_action_t on_store(void *arg, sci_local_interrupt_t flag, sci_error_t status)
{
	struct heard *heard = arg;
	sci_error_t error;

	EXPECT(status == SCI_ERR_OK);
	do
		SCIEnableConditionalInterrupt(flag, NO_FLAGS, &error);
	while (error == SCI_ERR_COND_INT_RACE_PROBLEM);
	EXPECT(error == SCI_ERR_OK);
	pthread_mutex_lock(&heard->mutex);
	heard->count++;
	pthread_cond_broadcast(&heard->more);
	pthread_mutex_unlock(&heard->mutex);
	return SCI_CALLBACK_CONTINUE;
}

static void callbacks(void)
{
	struct heard heard = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_local_interrupt_t flag;
	sci_map_t map;
	volatile unsigned int *words;

	offer(sd, &segment, &map, ID, PAGE);
	DO(SCIRegisterInterruptFlag, ADAPTER, &flag, segment, OFFSET, on_store, &heard,
			SCI_FLAG_USE_CALLBACK | SCI_FLAG_CONDITIONAL_INTERRUPT);
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCIWaitForInterrupt, flag, 0, NO_FLAGS);
	words = reach(sd, own_node());
	DO(SCIEnableConditionalInterrupt, flag, NO_FLAGS);
	for (int i = 1; i <= 100; i++) {
		words[OFFSET / 4] = 1;
		pthread_mutex_lock(&heard.mutex);
		while (heard.count < i)
			pthread_cond_wait(&heard.more, &heard.mutex);
		pthread_mutex_unlock(&heard.mutex);
	}
	DO(SCIRemoveInterrupt, flag, NO_FLAGS);
	EXPECT(heard.count == 100);
}

int main(void)
{
	static const struct test tests[] = {
		{"flags: errors", errors},
		{"flags: by two handles", by_two_handles},
		{"flags: enabled and disabled", enabled_and_disabled},
		{"flags: stores of every size", stores_of_every_size},
		{"flags: no wake-up is lost", no_wake_up_is_lost},
		{"flags: callbacks", callbacks},
	};

	return run_tests(tests, COUNT(tests));
}
