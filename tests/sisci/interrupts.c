/* Interrupts and data interrupts, in one process and between several. */
#include "check.h"

#include <pthread.h>
#include <unistd.h>

#define NUMBER 17
#define ROUNDS 200
/* More than any queue of data interrupts holds. */
#define FLOOD 100000
#define LONGEST 4088

static sci_local_interrupt_t create(sci_desc_t sd, unsigned int number, unsigned int flags)
{
	sci_local_interrupt_t interrupt;

	DO(SCICreateInterrupt, sd, &interrupt, ADAPTER, &number, NO_CALLBACK, NO_ARG,
			SCI_FLAG_FIXED_INTNO | flags);
	return interrupt;
}

static sci_remote_interrupt_t connect_interrupt(sci_desc_t sd, unsigned int node,
		unsigned int number)
{
	sci_remote_interrupt_t interrupt;
	sci_error_t error;

	do
		SCIConnectInterrupt(sd, &interrupt, node, ADAPTER, number, SCI_INFINITE_TIMEOUT,
				NO_FLAGS, &error);
	while (error == SCI_ERR_NO_SUCH_INTNO);
	if (error != SCI_ERR_OK)
		give_up(__FILE__, __LINE__, "SCIConnectInterrupt", error);
	return interrupt;
}

static sci_remote_data_interrupt_t connect_data(sci_desc_t sd, unsigned int node,
		unsigned int number)
{
	sci_remote_data_interrupt_t interrupt;
	sci_error_t error;

	do
		SCIConnectDataInterrupt(sd, &interrupt, node, ADAPTER, number, SCI_INFINITE_TIMEOUT,
				NO_FLAGS, &error);
	while (error == SCI_ERR_NO_SUCH_INTNO);
	if (error != SCI_ERR_OK)
		give_up(__FILE__, __LINE__, "SCIConnectDataInterrupt", error);
	return interrupt;
}

static void numbers_and_errors(void)
{
	sci_desc_t sd = open_library(), no_sd = GARBAGE(sci_desc_t);
	sci_local_interrupt_t fixed, other, none = GARBAGE(sci_local_interrupt_t);
	sci_remote_interrupt_t remote, nowhere = GARBAGE(sci_remote_interrupt_t);
	unsigned int number = NUMBER, node = own_node();

#define CREATE(sd, out, adapter, no, flags) sd, out, adapter, no, NO_CALLBACK, NO_ARG, flags
	fixed = create(sd, NUMBER, NO_FLAGS);
	REFUSED(SCI_ERR_INTNO_USED, SCICreateInterrupt,
			CREATE(sd, &other, 0, &number, SCI_FLAG_FIXED_INTNO));
	REFUSED(SCI_ERR_INTNO_USED, SCICreateInterrupt,
			CREATE(sd, &other, 0, &number, SCI_FLAG_FIXED_INTNO | SCI_FLAG_SHARED_INT));
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCICreateInterrupt, CREATE(sd, &other, 0, &number, 0x1000));
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCICreateInterrupt,
			CREATE(sd, &other, 0, &number, SCI_FLAG_USE_CALLBACK));
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCICreateInterrupt, CREATE(sd, NULL, 0, &number, 0));
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCICreateInterrupt, CREATE(sd, &other, 0, NULL, 0));
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCICreateInterrupt,
			CREATE(no_sd, &other, 0, &number, 0));
	REFUSED(SCI_ERR_NO_SUCH_ADAPTERNO, SCICreateInterrupt, CREATE(sd, &other, 1, &number, 0));
	REFUSED(SCI_ERR_FLAG_NOT_IMPLEMENTED, SCICreateInterrupt,
			CREATE(sd, &other, 0, &number, SCI_FLAG_CONDITIONAL_INTERRUPT));
	DO(SCICreateInterrupt, CREATE(sd, &other, 0, &number, NO_FLAGS));
	EXPECT(number != NUMBER);
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForInterrupt, fixed, SHORT_MS, NO_FLAGS);
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForInterrupt, fixed, 0, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIWaitForInterrupt, fixed, 0, 1);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIWaitForInterrupt, none, 0, NO_FLAGS);
	DO(SCIRemoveInterrupt, other, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIWaitForInterrupt, other, 0, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIRemoveInterrupt, other, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIRemoveInterrupt, none, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIRemoveInterrupt, fixed, 1);
#define CONNECT(node, adapter, no, flags) sd, &remote, node, adapter, no, SHORT_MS, flags
	REFUSED(SCI_ERR_NO_SUCH_INTNO, SCIConnectInterrupt, CONNECT(node, 0, NUMBER + 999, 0));
	REFUSED(SCI_ERR_NO_SUCH_NODEID, SCIConnectInterrupt, CONNECT(node + 4, 0, NUMBER, 0));
	REFUSED(SCI_ERR_NO_SUCH_ADAPTERNO, SCIConnectInterrupt, CONNECT(node, 1, NUMBER, 0));
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIConnectInterrupt, CONNECT(node, 0, NUMBER, 1));
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCITriggerInterrupt, nowhere, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIDisconnectInterrupt, nowhere, NO_FLAGS);
	DO(SCIConnectInterrupt, CONNECT(node, 0, NUMBER, NO_FLAGS));
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCITriggerInterrupt, remote, 1);
	DO(SCITriggerInterrupt, remote, NO_FLAGS);
	DO(SCIWaitForInterrupt, fixed, LONG_MS, NO_FLAGS);
	DO(SCIDisconnectInterrupt, remote, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIDisconnectInterrupt, remote, NO_FLAGS);
	REFUSED(SCI_ERR_BUSY, SCIClose, sd, NO_FLAGS);
	DO(SCIRemoveInterrupt, fixed, NO_FLAGS);
	DO(SCICreateNamedInterrupt, sd, &fixed, ADAPTER, &number, "a name", NO_CALLBACK, NO_ARG,
			NO_FLAGS);
	DO(SCIRemoveInterrupt, fixed, NO_FLAGS);
	DO(SCIClose, sd, NO_FLAGS);
}

/* Answers each interrupt with one. */
static void echo(struct peer *parent)
{
	unsigned int node = hear(parent);
	sci_desc_t sd = open_library();
	sci_local_interrupt_t own = create(sd, NUMBER + 1, NO_FLAGS);
	sci_remote_interrupt_t other = connect_interrupt(sd, node, NUMBER);

	for (int i = 0; i < ROUNDS; i++) {
		DO(SCIWaitForInterrupt, own, LONG_MS, NO_FLAGS);
		DO(SCITriggerInterrupt, other, NO_FLAGS);
	}
	hear(parent);
}

static void back_and_forth(void)
{
	struct peer peer;
	sci_desc_t sd;
	sci_local_interrupt_t own;
	sci_remote_interrupt_t other;

	spawn(&peer, echo);
	sd = open_library();
	own = create(sd, NUMBER, NO_FLAGS);
	say(&peer, own_node());
	other = connect_interrupt(sd, node_of(&peer), NUMBER + 1);
	for (int i = 0; i < ROUNDS; i++) {
		DO(SCITriggerInterrupt, other, NO_FLAGS);
		DO(SCIWaitForInterrupt, own, LONG_MS, NO_FLAGS);
	}
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForInterrupt, own, SHORT_MS, NO_FLAGS);
	kill_peer(&peer);
	/* Nobody is there to be interrupted. */
	for (;;) {
		sci_error_t error;

		SCITriggerInterrupt(other, NO_FLAGS, &error);
		if (error == SCI_ERR_NOT_CONNECTED)
			break;
		EXPECT(error == SCI_ERR_OK);
	}
	DO(SCIDisconnectInterrupt, other, NO_FLAGS);
}

static void counting(void)
{
	sci_desc_t sd = open_library();
	sci_local_interrupt_t each = create(sd, NUMBER, SCI_FLAG_COUNTING_INT);
	sci_local_interrupt_t once = create(sd, NUMBER + 1, NO_FLAGS);
	sci_remote_interrupt_t to_each = connect_interrupt(sd, own_node(), NUMBER);
	sci_remote_interrupt_t to_once = connect_interrupt(sd, own_node(), NUMBER + 1);

	for (int i = 0; i < 5; i++) {
		DO(SCITriggerInterrupt, to_each, NO_FLAGS);
		DO(SCITriggerInterrupt, to_once, NO_FLAGS);
	}
	for (int i = 0; i < 5; i++)
		DO(SCIWaitForInterrupt, each, LONG_MS, NO_FLAGS);
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForInterrupt, each, SHORT_MS, NO_FLAGS);
	DO(SCIWaitForInterrupt, once, LONG_MS, NO_FLAGS);
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForInterrupt, once, SHORT_MS, NO_FLAGS);
	/* What was triggered before the other end left counts. */
	DO(SCITriggerInterrupt, to_each, NO_FLAGS);
	DO(SCIDisconnectInterrupt, to_each, NO_FLAGS);
	DO(SCIWaitForInterrupt, each, LONG_MS, NO_FLAGS);
}

static void sharer(struct peer *parent)
{
	sci_desc_t sd = open_library();
	sci_local_interrupt_t own = create(sd, NUMBER, SCI_FLAG_SHARED_INT);

	say(parent, own_node());
	DO(SCIWaitForInterrupt, own, LONG_MS, NO_FLAGS);
	say(parent, 0);
	hear(parent);
	DO(SCIWaitForInterrupt, own, LONG_MS, NO_FLAGS);
}

static void shared_by_three(void)
{
	struct peer peers[2];
	sci_desc_t sd;
	sci_local_interrupt_t own;
	sci_remote_interrupt_t all;
	unsigned int node = 0;

	for (int i = 0; i < 2; i++) {
		spawn(&peers[i], sharer);
		node = hear(&peers[i]);
	}
	sd = open_library();
	all = connect_interrupt(sd, node, NUMBER);
	DO(SCITriggerInterrupt, all, NO_FLAGS);
	hear(&peers[0]);
	hear(&peers[1]);
	/* One that comes later is connected too, as soon as it is heard of. */
	own = create(sd, NUMBER, SCI_FLAG_SHARED_INT);
	for (;;) {
		sci_error_t error;

		DO(SCITriggerInterrupt, all, NO_FLAGS);
		SCIWaitForInterrupt(own, 1, NO_FLAGS, &error);
		if (error == SCI_ERR_OK)
			break;
	}
	for (int i = 0; i < 2; i++) {
		say(&peers[i], 0);
		join(&peers[i]);
	}
	/* Those who have ended are missed by nobody. */
	DO(SCITriggerInterrupt, all, NO_FLAGS);
	DO(SCIWaitForInterrupt, own, LONG_MS, NO_FLAGS);
}

/* --- removal while others wait --- */

static void *wait_forever(void *interrupt)
{
	sci_error_t error;

	SCIWaitForInterrupt(interrupt, SCI_INFINITE_TIMEOUT, NO_FLAGS, &error);
	return (void *)(uintptr_t)error;
}

static void removed_while_waited_for(void)
{
	sci_desc_t sd = open_library();
	sci_local_interrupt_t own = create(sd, NUMBER, NO_FLAGS);
	sci_remote_interrupt_t other = connect_interrupt(sd, own_node(), NUMBER);
	pthread_t waiters[3];
	void *result;

	for (int i = 0; i < 3; i++)
		pthread_create(&waiters[i], NULL, wait_forever, own);
	DO(SCIRemoveInterrupt, own, NO_FLAGS);
	for (int i = 0; i < 3; i++) {
		pthread_join(waiters[i], &result);
		/* Had it not begun to wait, the handle meant nothing any more. */
		EXPECT((uintptr_t)result == SCI_ERR_CANCELLED ||
				(uintptr_t)result == SCI_ERR_ILLEGAL_PARAMETER);
	}
	for (;;) {
		sci_error_t error;

		SCITriggerInterrupt(other, NO_FLAGS, &error);
		if (error == SCI_ERR_NOT_CONNECTED)
			break;
	}
	DO(SCIDisconnectInterrupt, other, NO_FLAGS);
}

static void many_wait(void)
{
	sci_desc_t sd = open_library();
	sci_local_interrupt_t own = create(sd, NUMBER, SCI_FLAG_COUNTING_INT);
	sci_remote_interrupt_t other = connect_interrupt(sd, own_node(), NUMBER);
	pthread_t waiters[4];
	void *result;

	for (int i = 0; i < 4; i++)
		pthread_create(&waiters[i], NULL, wait_forever, own);
	for (int i = 0; i < 4; i++)
		DO(SCITriggerInterrupt, other, NO_FLAGS);
	for (int i = 0; i < 4; i++) {
		pthread_join(waiters[i], &result);
		EXPECT((uintptr_t)result == SCI_ERR_OK);
	}
}

/* --- callbacks --- */

struct heard {
	pthread_mutex_t mutex;
	pthread_cond_t more;
	int count;
	unsigned int bytes;
	sci_callback_action_t action;
	int remove;
};

#define HEARD {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, SCI_CALLBACK_CONTINUE, 0}

static sci_callback_action_t note(struct heard *heard, unsigned int bytes)
{
	sci_callback_action_t action;

	pthread_mutex_lock(&heard->mutex);
	heard->count++;
	heard->bytes += bytes;
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

static sci_callback_action_t on_interrupt(void *arg, sci_local_interrupt_t interrupt,
		sci_error_t status)
{
	struct heard *heard = arg;

	EXPECT(status == SCI_ERR_OK);
	if (heard->remove)
		DO(SCIRemoveInterrupt, interrupt, NO_FLAGS);
	return note(heard, 0);
}

static sci_callback_action_t on_data(void *arg, sci_local_data_interrupt_t interrupt, void *data,
		unsigned int length, sci_error_t status)
{
	struct heard *heard = arg;

	EXPECT(status == SCI_ERR_OK && interrupt != NULL);
	for (unsigned int i = 0; i < length; i++)
		EXPECT(((unsigned char *)data)[i] == (length & 0xff));
	return note(heard, length);
}

static void callbacks(void)
{
	struct heard heard = HEARD;
	sci_desc_t sd = open_library();
	sci_local_interrupt_t own;
	sci_remote_interrupt_t other;
	unsigned int number;

	DO(SCICreateInterrupt, sd, &own, ADAPTER, &number, on_interrupt, &heard,
			SCI_FLAG_USE_CALLBACK | SCI_FLAG_COUNTING_INT);
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCIWaitForInterrupt, own, 0, NO_FLAGS);
	other = connect_interrupt(sd, own_node(), number);
	for (int i = 0; i < ROUNDS; i++)
		DO(SCITriggerInterrupt, other, NO_FLAGS);
	await(&heard, ROUNDS);
	pthread_mutex_lock(&heard.mutex);
	heard.action = SCI_CALLBACK_CANCEL;
	pthread_mutex_unlock(&heard.mutex);
	DO(SCITriggerInterrupt, other, NO_FLAGS);
	await(&heard, ROUNDS + 1);
	DO(SCITriggerInterrupt, other, NO_FLAGS);
	DO(SCIRemoveInterrupt, own, NO_FLAGS);
	EXPECT(heard.count == ROUNDS + 1);
	DO(SCIDisconnectInterrupt, other, NO_FLAGS);
	/* One that removes itself. */
	heard.remove = 1;
	DO(SCICreateInterrupt, sd, &own, ADAPTER, &number, on_interrupt, &heard,
			SCI_FLAG_USE_CALLBACK);
	other = connect_interrupt(sd, own_node(), number);
	DO(SCITriggerInterrupt, other, NO_FLAGS);
	await(&heard, ROUNDS + 2);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIRemoveInterrupt, own, NO_FLAGS);
}

/* --- data --- */

static void data_errors(void)
{
	sci_desc_t sd = open_library();
	sci_local_data_interrupt_t own, none = GARBAGE(sci_local_data_interrupt_t);
	sci_remote_data_interrupt_t other, nowhere = GARBAGE(sci_remote_data_interrupt_t);
	unsigned int number = NUMBER, length = 4, node = own_node();
	char data[8] = "abcdefg";
	static char longest[LONGEST + 1];

	DO(SCICreateDataInterrupt, sd, &own, ADAPTER, &number, NO_CALLBACK, NO_ARG,
			SCI_FLAG_FIXED_INTNO);
	EXPECT(number == NUMBER);
	REFUSED(SCI_ERR_INTNO_USED, SCICreateDataInterrupt, sd, &own, ADAPTER, &number,
			NO_CALLBACK, NO_ARG, SCI_FLAG_FIXED_INTNO);
	/* Interrupts without data have numbers of their own. */
	DO(SCIRemoveInterrupt, create(sd, NUMBER, NO_FLAGS), NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCICreateDataInterrupt, sd, &own, ADAPTER, &number,
			NO_CALLBACK, NO_ARG, SCI_FLAG_COUNTING_INT);
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForDataInterrupt, own, data, &length, SHORT_MS, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIWaitForDataInterrupt, own, data, NULL, 0, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIWaitForDataInterrupt, own, NULL, &length, 0,
			NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIWaitForDataInterrupt, none, data, &length, 0,
			NO_FLAGS);
	REFUSED(SCI_ERR_NO_SUCH_INTNO, SCIConnectDataInterrupt, sd, &other, node, ADAPTER,
			NUMBER + 9, 0, NO_FLAGS);
	DO(SCIConnectDataInterrupt, sd, &other, node, ADAPTER, NUMBER, 0, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCITriggerDataInterrupt, nowhere, data, 4, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCITriggerDataInterrupt, other, NULL, 4, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCITriggerDataInterrupt, other, data, 4, 1);
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCITriggerDataInterrupt, other, longest, LONGEST + 1,
			NO_FLAGS);
	DO(SCITriggerDataInterrupt, other, data, 6, NO_FLAGS);
	memset(data, 0, sizeof(data));
	REFUSED(SCI_ERR_NOSPC, SCIWaitForDataInterrupt, own, data, &length, LONG_MS, NO_FLAGS);
	EXPECT(length == 6 && data[0] == 0);
	DO(SCIWaitForDataInterrupt, own, data, &length, LONG_MS, NO_FLAGS);
	EXPECT(length == 6 && !memcmp(data, "abcdef", 7));
	DO(SCITriggerDataInterrupt, other, NULL, 0, NO_FLAGS);
	DO(SCIWaitForDataInterrupt, own, data, &length, LONG_MS, NO_FLAGS);
	EXPECT(length == 0);
	DO(SCITriggerDataInterrupt, other, longest, LONGEST, NO_FLAGS);
	length = LONGEST + 1;
	DO(SCIWaitForDataInterrupt, own, longest, &length, LONG_MS, NO_FLAGS);
	EXPECT(length == LONGEST);
	DO(SCIDisconnectDataInterrupt, other, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIDisconnectDataInterrupt, other, NO_FLAGS);
	DO(SCIRemoveDataInterrupt, own, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIRemoveDataInterrupt, own, NO_FLAGS);
	DO(SCIClose, sd, NO_FLAGS);
}

/* Triggers until there is no room, says how often, and on for as often as it is told. */
static void flooder(struct peer *parent)
{
	unsigned int node = hear(parent), sent = 0, more;
	sci_desc_t sd = open_library();
	sci_remote_data_interrupt_t other = connect_data(sd, node, NUMBER);
	sci_error_t error;

	do
		SCITriggerDataInterrupt(other, &sent, sizeof(sent), NO_FLAGS, &error);
	while (error == SCI_ERR_OK && ++sent < FLOOD);
	EXPECT(error == SCI_ERR_NOSPC);
	say(parent, sent);
	for (more = hear(parent); more > 0; ) {
		SCITriggerDataInterrupt(other, &sent, sizeof(sent), NO_FLAGS, &error);
		EXPECT(error == SCI_ERR_OK || error == SCI_ERR_NOSPC);
		if (error == SCI_ERR_OK)
			more--, sent++;
	}
}

static void a_bounded_queue(void)
{
	struct peer peer;
	sci_desc_t sd;
	sci_local_data_interrupt_t own;
	unsigned int number = NUMBER, sent, value, length;

	spawn(&peer, flooder);
	sd = open_library();
	DO(SCICreateDataInterrupt, sd, &own, ADAPTER, &number, NO_CALLBACK, NO_ARG,
			SCI_FLAG_FIXED_INTNO);
	say(&peer, own_node());
	sent = hear(&peer);
	EXPECT(sent > 0 && sent < FLOOD);
	say(&peer, 5000);
	for (unsigned int i = 0; i < sent + 5000; i++) {
		length = sizeof(value);
		DO(SCIWaitForDataInterrupt, own, &value, &length, LONG_MS, NO_FLAGS);
		EXPECT(length == sizeof(value) && value == i);
	}
	join(&peer);
	length = sizeof(value);
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForDataInterrupt, own, &value, &length, 0, NO_FLAGS);
	DO(SCIRemoveDataInterrupt, own, NO_FLAGS);
}

static void data_callbacks(void)
{
	struct heard heard = HEARD;
	sci_desc_t sd = open_library();
	sci_local_data_interrupt_t own;
	sci_remote_data_interrupt_t other;
	unsigned int number, bytes = 0;
	unsigned char data[ROUNDS];
	uint32_t length = 1;

	DO(SCICreateDataInterrupt, sd, &own, ADAPTER, &number, on_data, &heard,
			SCI_FLAG_USE_CALLBACK);
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCIWaitForDataInterrupt, own, data, &length, 0,
			NO_FLAGS);
	other = connect_data(sd, own_node(), number);
	for (int i = 1; i <= ROUNDS; ) {
		sci_error_t error;

		memset(data, i & 0xff, sizeof(data));
		SCITriggerDataInterrupt(other, data, i, NO_FLAGS, &error);
		EXPECT(error == SCI_ERR_OK || error == SCI_ERR_NOSPC);
		if (error == SCI_ERR_OK)
			bytes += i++;
	}
	await(&heard, ROUNDS);
	EXPECT(heard.bytes == bytes);
	DO(SCIRemoveDataInterrupt, own, NO_FLAGS);
	EXPECT(heard.count == ROUNDS);
	DO(SCIDisconnectDataInterrupt, other, NO_FLAGS);
}

int main(void)
{
	static const struct test tests[] = {
		{"numbers and errors", numbers_and_errors},
		{"back and forth, and the other side is killed", back_and_forth},
		{"counting", counting},
		{"shared by three processes", shared_by_three},
		{"removed while waited for", removed_while_waited_for},
		{"many wait for one", many_wait},
		{"callbacks, which cancel and remove themselves", callbacks},
		{"data: errors", data_errors},
		{"data: a bounded queue", a_bounded_queue},
		{"data: callbacks", data_callbacks},
	};

	return run_tests(tests, COUNT(tests));
}
