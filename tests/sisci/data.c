/*
 * Interrupts between processes, with data above all: who can't be connected to, queues that are
 * full, those who share one, callbacks that have had enough, and ends of all kinds.
 */
#include "check.h"

#include <unistd.h>

#define NUMBER 41
/* As many as a queue holds. */
#define DEPTH 64
#define SHARERS 2

static sci_local_data_interrupt_t create(sci_desc_t sd, unsigned int flags)
{
	sci_local_data_interrupt_t interrupt;
	unsigned int number = NUMBER;

	DO(SCICreateDataInterrupt, sd, &interrupt, ADAPTER, &number, NO_CALLBACK, NO_ARG,
			SCI_FLAG_FIXED_INTNO | flags);
	return interrupt;
}

static sci_remote_data_interrupt_t connect_data(sci_desc_t sd, unsigned int node)
{
	sci_remote_data_interrupt_t interrupt;
	sci_error_t error;

	do
		SCIConnectDataInterrupt(sd, &interrupt, node, ADAPTER, NUMBER, SCI_INFINITE_TIMEOUT,
				NO_FLAGS, &error);
	while (error == SCI_ERR_NO_SUCH_INTNO);
	if (error != SCI_ERR_OK)
		give_up(__FILE__, __LINE__, "SCIConnectDataInterrupt", error);
	return interrupt;
}

static unsigned int take(sci_local_data_interrupt_t interrupt)
{
	unsigned int value = 0, length = sizeof(value);

	DO(SCIWaitForDataInterrupt, interrupt, &value, &length, LONG_MS, NO_FLAGS);
	EXPECT(length == sizeof(value));
	return value;
}

/* --- errors --- */

static void what_cannot_be_connected(void)
{
	sci_desc_t sd = open_library();
	sci_local_data_interrupt_t own = create(sd, NO_FLAGS), again;
	sci_local_interrupt_t plain;
	sci_remote_interrupt_t trigger;
	sci_remote_data_interrupt_t data_trigger;
	unsigned int node = own_node(), number = NUMBER, length = 0;

#define PLAIN(node, number) sd, &trigger, node, ADAPTER, number, SHORT_MS, NO_FLAGS
#define DATA(node, number) sd, &data_trigger, node, ADAPTER, number, SHORT_MS, NO_FLAGS
	REFUSED(SCI_ERR_ILLEGAL_NODEID, SCIConnectInterrupt, PLAIN(0, NUMBER));
	REFUSED(SCI_ERR_ILLEGAL_NODEID, SCIConnectInterrupt, PLAIN(1u << 20, NUMBER));
	REFUSED(SCI_ERR_ILLEGAL_NODEID, SCIConnectDataInterrupt, DATA(0, NUMBER));
	REFUSED(SCI_ERR_ILLEGAL_NODEID, SCIConnectDataInterrupt, DATA(1u << 20, NUMBER));
	REFUSED(SCI_ERR_NO_SUCH_NODEID, SCIConnectDataInterrupt, DATA(node + 4, NUMBER));
	/* One with data is not one without, though the number is the same. */
	REFUSED(SCI_ERR_NO_SUCH_INTNO, SCIConnectInterrupt, PLAIN(node, NUMBER));
	DO(SCIConnectDataInterrupt, DATA(SCI_LOCAL_HOST, NUMBER));
	DO(SCITriggerDataInterrupt, data_trigger, &number, sizeof(number), NO_FLAGS);
	/* How long it is can be asked for before there is a place for it. */
	REFUSED(SCI_ERR_NOSPC, SCIWaitForDataInterrupt, own, NULL, &length, LONG_MS, NO_FLAGS);
	EXPECT(length == sizeof(number) && take(own) == NUMBER);
	DO(SCICreateNamedInterrupt, sd, &plain, ADAPTER, &number, "name", NO_CALLBACK, NO_ARG,
			SCI_FLAG_FIXED_INTNO);
	REFUSED(SCI_ERR_INTNO_USED, SCICreateNamedInterrupt, sd, &plain, ADAPTER, &number, "other",
			NO_CALLBACK, NO_ARG, SCI_FLAG_FIXED_INTNO);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCICreateDataInterrupt, sd, &again, ADAPTER, &number,
			NO_CALLBACK, NO_ARG, SCI_FLAG_USE_CALLBACK);
	DO(SCIConnectInterrupt, PLAIN(SCI_LOCAL_HOST, NUMBER));
	DO(SCITriggerInterrupt, trigger, NO_FLAGS);
	DO(SCIWaitForInterrupt, plain, LONG_MS, NO_FLAGS);
	/* The other end is removed: those who are connected find out. */
	DO(SCIRemoveInterrupt, plain, NO_FLAGS);
	DO(SCIRemoveDataInterrupt, own, NO_FLAGS);
	for (sci_error_t error = SCI_ERR_OK; error != SCI_ERR_NOT_CONNECTED; )
		SCITriggerInterrupt(trigger, NO_FLAGS, &error);
	for (sci_error_t error = SCI_ERR_OK; error != SCI_ERR_NOT_CONNECTED; )
		SCITriggerDataInterrupt(data_trigger, &number, 4, NO_FLAGS, &error);
	REFUSED(SCI_ERR_NOT_CONNECTED, SCITriggerInterrupt, trigger, NO_FLAGS);
	REFUSED(SCI_ERR_NOT_CONNECTED, SCITriggerDataInterrupt, data_trigger, &number, 4, NO_FLAGS);
	DO(SCIDisconnectInterrupt, trigger, NO_FLAGS);
	DO(SCIDisconnectDataInterrupt, data_trigger, NO_FLAGS);
	DO(SCIClose, sd, NO_FLAGS);
}

/* --- a queue that is full --- */

static void taker(struct peer *parent)
{
	sci_desc_t sd = open_library();
	sci_local_data_interrupt_t own = create(sd, NO_FLAGS);

	say(parent, own_node());
	for (unsigned int more = hear(parent); more; more = hear(parent)) {
		while (more-- > 0)
			say(parent, take(own));
	}
}

static void full_and_emptied(void)
{
	struct peer peer;
	sci_desc_t sd;
	sci_remote_data_interrupt_t other;
	unsigned int value, taken = 0, sent = 0;

	spawn(&peer, taker);
	sd = open_library();
	other = connect_data(sd, hear(&peer));
	for (; sent < DEPTH; sent++)
		DO(SCITriggerDataInterrupt, other, &sent, sizeof(sent), NO_FLAGS);
	value = 77;
	for (int again = 0; again < 3; again++)
		REFUSED(SCI_ERR_NOSPC, SCITriggerDataInterrupt, other, &value, 4, NO_FLAGS);
	/* Each that is taken is room for one. */
	for (int round = 0; round < 3; round++) {
		say(&peer, 1);
		EXPECT(hear(&peer) == taken++);
		DO(SCITriggerDataInterrupt, other, &sent, sizeof(sent), NO_FLAGS);
		sent++;
		REFUSED(SCI_ERR_NOSPC, SCITriggerDataInterrupt, other, &value, 4, NO_FLAGS);
	}
	/* What was sent before the sender goes is not lost. */
	DO(SCIDisconnectDataInterrupt, other, NO_FLAGS);
	say(&peer, DEPTH);
	while (taken < sent)
		EXPECT(hear(&peer) == taken++);
	other = connect_data(sd, node_of(&peer));
	kill_peer(&peer);
	for (sci_error_t error = SCI_ERR_OK; error != SCI_ERR_NOT_CONNECTED; ) {
		SCITriggerDataInterrupt(other, &value, 4, NO_FLAGS, &error);
		EXPECT(error == SCI_ERR_OK || error == SCI_ERR_NOSPC ||
				error == SCI_ERR_NOT_CONNECTED);
	}
	DO(SCIDisconnectDataInterrupt, other, NO_FLAGS);
	DO(SCIClose, sd, NO_FLAGS);
}

/* --- a sender that is killed --- */

static void sender(struct peer *parent)
{
	sci_desc_t sd = open_library();
	sci_remote_data_interrupt_t other = connect_data(sd, node_of(parent));

	for (unsigned int i = 0; i < DEPTH; i++)
		DO(SCITriggerDataInterrupt, other, &i, sizeof(i), NO_FLAGS);
	say(parent, 0);
	hear(parent);
}

static void the_sender_is_killed(void)
{
	struct peer peers[2];
	sci_desc_t sd = open_library();
	sci_local_data_interrupt_t own = create(sd, NO_FLAGS);
	unsigned int next[DEPTH] = {0}, value, length;

	for (int i = 0; i < 2; i++) {
		spawn(&peers[i], sender);
		hear(&peers[i]);
	}
	for (int i = 0; i < 2; i++)
		kill_peer(&peers[i]);
	/* Those of each in their order: every number comes twice. */
	for (int i = 0; i < 2 * DEPTH; i++) {
		value = take(own);
		EXPECT(value < DEPTH && (value == 0 || next[value] < next[value - 1]));
		next[value < DEPTH ? value : 0]++;
	}
	length = sizeof(value);
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForDataInterrupt, own, &value, &length, SHORT_MS, NO_FLAGS);
	DO(SCIRemoveDataInterrupt, own, NO_FLAGS);
	DO(SCIClose, sd, NO_FLAGS);
}

/* --- one that several share --- */

static void sharer(struct peer *parent)
{
	sci_desc_t sd = open_library();
	sci_local_data_interrupt_t own = create(sd, SCI_FLAG_SHARED_INT);

	say(parent, own_node());
	while (hear(parent))
		say(parent, take(own));
}

static void shared_by_several(void)
{
	struct peer peers[SHARERS];
	sci_desc_t sd;
	sci_remote_data_interrupt_t all;
	unsigned int value = 1, node = 0;

	for (int i = 0; i < SHARERS; i++) {
		spawn(&peers[i], sharer);
		node = hear(&peers[i]);
	}
	sd = open_library();
	all = connect_data(sd, node);
	for (unsigned int i = 0; i < DEPTH; i++)
		DO(SCITriggerDataInterrupt, all, &i, sizeof(i), NO_FLAGS);
	/* One takes all that it has, the other nothing: that is full, and the other gets it. */
	for (unsigned int i = 0; i < DEPTH; i++) {
		say(&peers[0], 1);
		EXPECT(hear(&peers[0]) == i);
	}
	value = DEPTH;
	REFUSED(SCI_ERR_NOSPC, SCITriggerDataInterrupt, all, &value, sizeof(value), NO_FLAGS);
	say(&peers[0], 1);
	EXPECT(hear(&peers[0]) == DEPTH);
	/* It is in nobody's way once it is dead. */
	kill_peer(&peers[1]);
	for (sci_error_t error = SCI_ERR_NOSPC; error == SCI_ERR_NOSPC; ) {
		SCITriggerDataInterrupt(all, &value, sizeof(value), NO_FLAGS, &error);
		EXPECT(error == SCI_ERR_OK || error == SCI_ERR_NOSPC);
		say(&peers[0], 1);
		EXPECT(hear(&peers[0]) == DEPTH);
	}
	say(&peers[0], 0);
	join(&peers[0]);
}

/* --- callbacks --- */

struct heard {
	pthread_mutex_t mutex;
	pthread_cond_t more;
	int count;
	sci_callback_action_t action;
	int remove;
};

#define HEARD {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, SCI_CALLBACK_CONTINUE, 0}

static sci_callback_action_t on_data(void *arg, sci_local_data_interrupt_t interrupt, void *data,
		unsigned int length, sci_error_t status)
{
	struct heard *heard = arg;
	sci_callback_action_t action;

	EXPECT(status == SCI_ERR_OK && data != NULL && length == sizeof(unsigned int));
	if (heard->remove)
		DO(SCIRemoveDataInterrupt, interrupt, NO_FLAGS);
	pthread_mutex_lock(&heard->mutex);
	heard->count++;
	action = heard->action;
	pthread_cond_broadcast(&heard->more);
	pthread_mutex_unlock(&heard->mutex);
	return action;
}

static void await(struct heard *heard, int count)
{
	pthread_mutex_lock(&heard->mutex);
	while (heard->count < count)
		pthread_cond_wait(&heard->more, &heard->mutex);
	pthread_mutex_unlock(&heard->mutex);
}

/* One that has had enough is not called again; one may remove what it is called for. */
static void callbacks_end(void)
{
	struct heard heard = HEARD;
	sci_desc_t sd = open_library();
	sci_local_data_interrupt_t own;
	sci_remote_data_interrupt_t other;
	unsigned int number = NUMBER, sent = 0;

	for (heard.remove = 0; heard.remove < 2; heard.remove++) {
		heard.action = SCI_CALLBACK_CONTINUE;
		DO(SCICreateDataInterrupt, sd, &own, ADAPTER, &number, on_data, &heard,
				SCI_FLAG_USE_CALLBACK | SCI_FLAG_FIXED_INTNO);
		other = connect_data(sd, own_node());
		heard.count = 0;
		if (!heard.remove) {
			DO(SCITriggerDataInterrupt, other, &sent, sizeof(sent), NO_FLAGS);
			await(&heard, 1);
		}
		pthread_mutex_lock(&heard.mutex);
		heard.action = SCI_CALLBACK_CANCEL;
		pthread_mutex_unlock(&heard.mutex);
		for (int i = 0; i < 3; i++) {
			sci_error_t error;

			SCITriggerDataInterrupt(other, &sent, sizeof(sent), NO_FLAGS, &error);
			EXPECT(error == SCI_ERR_OK || error == SCI_ERR_NOT_CONNECTED);
		}
		await(&heard, 2 - heard.remove);
		if (heard.remove)
			REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIRemoveDataInterrupt, own, NO_FLAGS);
		else
			DO(SCIRemoveDataInterrupt, own, NO_FLAGS);
		EXPECT(heard.count == 2 - heard.remove);
		DO(SCIDisconnectDataInterrupt, other, NO_FLAGS);
	}
	DO(SCIClose, sd, NO_FLAGS);
}

/* --- waits that are ended by removing what is waited for --- */

static void wait_for_interrupt(void *interrupt, sci_error_t *error)
{
	SCIWaitForInterrupt(interrupt, SCI_INFINITE_TIMEOUT, NO_FLAGS, error);
}

static void wait_for_data(void *interrupt, sci_error_t *error)
{
	unsigned int value, length = sizeof(value);

	SCIWaitForDataInterrupt(interrupt, &value, &length, SCI_INFINITE_TIMEOUT, NO_FLAGS, error);
}

static void wait_for_local(void *segment, sci_error_t *error)
{
	SCIWaitForLocalSegmentEvent(segment, NULL, NULL, SCI_INFINITE_TIMEOUT, NO_FLAGS, error);
}

static void wait_for_remote(void *segment, sci_error_t *error)
{
	SCIWaitForRemoteSegmentEvent(segment, NULL, SCI_INFINITE_TIMEOUT, NO_FLAGS, error);
}

static void waits_are_cancelled(void)
{
	sci_desc_t sd = open_library();
	sci_local_data_interrupt_t data = create(sd, NO_FLAGS);
	sci_local_interrupt_t plain;
	sci_local_segment_t local, other;
	sci_remote_segment_t remote;
	sci_map_t map;
	struct sleeper sleepers[4];
	unsigned int number;

	DO(SCICreateInterrupt, sd, &plain, ADAPTER, &number, NO_CALLBACK, NO_ARG, NO_FLAGS);
	DO(SCICreateSegment, sd, &local, NUMBER, PAGE, NO_CALLBACK, NO_ARG, NO_FLAGS);
	offer(sd, &other, &map, NUMBER + 1, PAGE);
	connect_to(sd, &remote, own_node(), NUMBER + 1);
	/* The first wait asks the broker for something; those after it do nothing but sleep. */
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForRemoteSegmentEvent, remote, NULL, 0, NO_FLAGS);
	start_sleeper(&sleepers[0], wait_for_interrupt, plain);
	start_sleeper(&sleepers[1], wait_for_data, data);
	start_sleeper(&sleepers[2], wait_for_local, local);
	start_sleeper(&sleepers[3], wait_for_remote, remote);
	DO(SCIRemoveInterrupt, plain, NO_FLAGS);
	DO(SCIRemoveDataInterrupt, data, NO_FLAGS);
	DO(SCIRemoveSegment, local, NO_FLAGS);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	for (size_t i = 0; i < COUNT(sleepers); i++)
		EXPECT(end_of(&sleepers[i]) == SCI_ERR_CANCELLED);
	/* The handles mean nothing afterwards. */
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIWaitForInterrupt, plain, 0, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIWaitForLocalSegmentEvent, local, NULL, NULL, 0,
			NO_FLAGS);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIRemoveSegment, other, NO_FLAGS);
	DO(SCIClose, sd, NO_FLAGS);
}

/* What a thread waits for that is cancelled wherever it stands; `timeout` alternates. */
struct waits {
	sci_local_interrupt_t plain;
	sci_local_data_interrupt_t data;
	sci_local_segment_t segment;
	unsigned int timeout;
};

static void *wait_until_ended(void *argument)
{
	struct waits *waits = argument;
	unsigned int words[2], length = sizeof(words);
	sci_error_t error;

	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	for (;;) {
		SCIWaitForInterrupt(waits->plain, waits->timeout, NO_FLAGS, &error);
		SCIWaitForDataInterrupt(waits->data, words, &length, waits->timeout, NO_FLAGS,
				&error);
		SCIWaitForLocalSegmentEvent(waits->segment, NULL, NULL, waits->timeout, NO_FLAGS,
				&error);
	}
	return NULL;
}

/* Threads with asynchronous cancellation that are ended in waits leave nothing locked, be they
 * asleep or about to be. */
static void threads_that_wait_are_ended(void)
{
	enum { THREADS = 1500, ASLEEP_EVERY = 100 };
	sci_desc_t sd = open_library();

	for (int i = 0; i < THREADS; i++) {
		struct waits waits = {
			.data = create(sd, NO_FLAGS),
			.timeout = i % ASLEEP_EVERY ? 0 : SCI_INFINITE_TIMEOUT,
		};
		unsigned int number;
		pthread_t thread;

		DO(SCICreateInterrupt, sd, &waits.plain, ADAPTER, &number, NO_CALLBACK, NO_ARG,
				NO_FLAGS);
		DO(SCICreateSegment, sd, &waits.segment, NUMBER, PAGE, NO_CALLBACK, NO_ARG,
				NO_FLAGS);
		EXPECT(pthread_create(&thread, NULL, wait_until_ended, &waits) == 0);
		/* Not always at the same place. */
		usleep((unsigned int)(i * 7 % 150));
		EXPECT(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
		DO(SCIRemoveInterrupt, waits.plain, NO_FLAGS);
		DO(SCIRemoveDataInterrupt, waits.data, NO_FLAGS);
		DO(SCIRemoveSegment, waits.segment, NO_FLAGS);
	}
	DO(SCIClose, sd, NO_FLAGS);
}

int main(void)
{
	static const struct test tests[] = {
		{"data: what cannot be connected", what_cannot_be_connected},
		{"data: a queue is full, and emptied", full_and_emptied},
		{"data: the sender is killed", the_sender_is_killed},
		{"data: shared by several", shared_by_several},
		{"data: callbacks that end", callbacks_end},
		{"waits are cancelled", waits_are_cancelled},
		{"waits: their threads are cancelled", threads_that_wait_are_ended},
	};

	return run_tests(tests, COUNT(tests));
}
