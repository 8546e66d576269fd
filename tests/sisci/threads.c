/* The library's threads. A process that can have no more, as in a container at its limit: what
 * needs one is refused, DMA does without, and both work as usual once there are threads again. And
 * signals, which are the program's. */
#define _GNU_SOURCE
#include "check.h"
#include "no_threads.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#define ID 700
#define NUMBER 27
#define GROUP 5
/* More than who starts a transfer copies itself where there is an engine's thread. */
#define SIZE (8u << 20)

static volatile int calls;

static sci_callback_action_t on_segment(void *argument, sci_local_segment_t segment,
		sci_segment_cb_reason_t reason, unsigned int node, unsigned int adapter,
		sci_error_t error)
{
	(void)argument, (void)segment, (void)reason, (void)node, (void)adapter, (void)error;
	calls++;
	return SCI_CALLBACK_CONTINUE;
}

static sci_callback_action_t on_remote(void *argument, sci_remote_segment_t segment,
		sci_segment_cb_reason_t reason, sci_error_t status)
{
	(void)argument, (void)segment, (void)reason, (void)status;
	return SCI_CALLBACK_CONTINUE;
}

static sci_callback_action_t on_interrupt(void *argument, sci_local_interrupt_t interrupt,
		sci_error_t status)
{
	(void)argument, (void)interrupt, (void)status;
	calls++;
	return SCI_CALLBACK_CONTINUE;
}

static sci_callback_action_t on_data(void *argument, sci_local_data_interrupt_t interrupt,
		void *data, unsigned int length, sci_error_t status)
{
	(void)argument, (void)interrupt, (void)data, (void)length, (void)status;
	return SCI_CALLBACK_CONTINUE;
}

static sci_callback_action_t on_end(void *argument, sci_dma_queue_t queue, sci_error_t status)
{
	(void)argument, (void)queue;
	EXPECT(status == SCI_ERR_OK);
	calls++;
	return SCI_CALLBACK_CONTINUE;
}

static void await_calls(int count)
{
	while (calls < count)
		usleep(1000);
}

static void callbacks(void)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment, other;
	sci_remote_segment_t remote;
	sci_local_interrupt_t interrupt;
	sci_remote_interrupt_t trigger;
	sci_local_data_interrupt_t data;
	sci_dma_queue_t queue;
	unsigned int number = NUMBER;
	sci_map_t map;

	offer(sd, &other, &map, ID + 1, PAGE);
	no_threads = 1;
#define CREATE sd, &segment, ID, PAGE, on_segment, NO_ARG, SCI_FLAG_USE_CALLBACK
	REFUSED(SCI_ERR_SYSTEM, SCICreateSegment, CREATE);
#define CONNECT(id, callback, flags) \
	sd, &remote, own_node(), id, ADAPTER, callback, NO_ARG, 0, flags
	REFUSED(SCI_ERR_SYSTEM, SCIConnectSegment,
			CONNECT(ID + 1, on_remote, SCI_FLAG_USE_CALLBACK));
#define INTERRUPT(interrupt, callback) sd, interrupt, ADAPTER, &number, callback, NO_ARG, \
		SCI_FLAG_USE_CALLBACK | SCI_FLAG_FIXED_INTNO
	REFUSED(SCI_ERR_SYSTEM, SCICreateInterrupt, INTERRUPT(&interrupt, on_interrupt));
	REFUSED(SCI_ERR_SYSTEM, SCICreateDataInterrupt, INTERRUPT(&data, on_data));
	/* Without a callback it takes no thread. */
	DO(SCIConnectSegment, CONNECT(ID + 1, NO_CALLBACK, NO_FLAGS));
	DO(SCICreateDMAQueue, sd, &queue, ADAPTER, 1, NO_FLAGS);
#define START queue, other, remote, 0, 8, 8, on_end, NO_ARG, SCI_FLAG_USE_CALLBACK
	REFUSED(SCI_ERR_SYSTEM, SCIStartDmaTransfer, START);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	no_threads = 0;
	/* Nothing is left of what was refused. */
	DO(SCICreateSegment, CREATE);
	DO(SCIPrepareSegment, segment, ADAPTER, NO_FLAGS);
	DO(SCISetSegmentAvailable, segment, ADAPTER, NO_FLAGS);
	DO(SCIConnectSegment, CONNECT(ID, on_remote, SCI_FLAG_USE_CALLBACK));
	await_calls(1);
	DO(SCICreateInterrupt, INTERRUPT(&interrupt, on_interrupt));
	DO(SCIConnectInterrupt, sd, &trigger, own_node(), ADAPTER, NUMBER, 0, NO_FLAGS);
	DO(SCITriggerInterrupt, trigger, NO_FLAGS);
	await_calls(2);
	DO(SCIStartDmaTransfer, START);
	await_calls(3);
}

static void transfers(void)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_remote_segment_t remote;
	sci_dma_queue_t queue;
	sci_map_t map;
	char *memory = offer(sd, &segment, &map, ID, 2 * SIZE);

	connect_to(sd, &remote, own_node(), ID);
	DO(SCICreateDMAQueue, sd, &queue, ADAPTER, 2, NO_FLAGS);
#define TRANSFER queue, segment, remote, 0, SIZE, SIZE, NO_CALLBACK, NO_ARG, NO_FLAGS
	for (int round = 0; round < 4; round++) {
		/* There is none at first, and one is missed for the first time then. */
		no_threads = round < 2;
		memory[0] = memory[SIZE - 1] = (char)round + 1;
		DO(SCIStartDmaTransfer, TRANSFER);
		/* Nobody waits for it but by looks. */
		while (SCIDMAQueueState(queue) == SCI_DMAQUEUE_POSTED)
			usleep(1000);
		EXPECT(SCIDMAQueueState(queue) == SCI_DMAQUEUE_DONE);
		EXPECT(memory[SIZE] == round + 1 && memory[2 * SIZE - 1] == round + 1);
	}
	DO(SCIRemoveDMAQueue, queue, NO_FLAGS);
}

/* What a transfer to a group has begun is undone: it has a thread of its queue's. */
static void to_a_group(void)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment, member;
	sci_remote_segment_t group;
	sci_dma_queue_t queue;
	sci_error_t error;

	DO(SCICreateSegment, CREATE);
	DO(SCIPrepareSegment, segment, ADAPTER, NO_FLAGS);
	DO(SCICreateSegment, sd, &member, GROUP, PAGE, NO_CALLBACK, NO_ARG, SCI_FLAG_BROADCAST);
	DO(SCIPrepareSegment, member, ADAPTER, SCI_FLAG_BROADCAST);
	DO(SCISetSegmentAvailable, member, ADAPTER, NO_FLAGS);
	DO(SCIConnectSegment, sd, &group, DIS_BROADCAST_NODEID_GROUP_ALL, GROUP, ADAPTER,
			NO_CALLBACK, NO_ARG, 0, SCI_FLAG_BROADCAST);
	DO(SCICreateDMAQueue, sd, &queue, ADAPTER, 1, NO_FLAGS);
#define TO_GROUP queue, segment, group, 0, 8, 0, on_end, NO_ARG, \
		SCI_FLAG_USE_CALLBACK | SCI_FLAG_BROADCAST
	no_threads = 1;
	REFUSED(SCI_ERR_SYSTEM, SCIStartDmaTransfer, TO_GROUP);
	EXPECT(SCIWaitForDMAQueue(queue, 0, NO_FLAGS, &error) == SCI_DMAQUEUE_IDLE);
	EXPECT(error == SCI_ERR_OK);
	no_threads = 0;
	DO(SCIStartDmaTransfer, TO_GROUP);
	await_calls(1);
}

/* A signal that the program blocks and waits for comes to none of the library's threads, each of
 * which has been started before the program blocks it. */
static void signals(void)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_remote_segment_t remote;
	sci_local_interrupt_t interrupt, flag;
	sci_dma_queue_t queue;
	unsigned int number = NUMBER;
	sci_map_t map;
	sigset_t set;
	int got;

	offer(sd, &segment, &map, ID, 2 * SIZE);
	connect_to(sd, &remote, own_node(), ID);
	DO(SCICreateInterrupt, INTERRUPT(&interrupt, on_interrupt));
	DO(SCIRegisterInterruptFlag, ADAPTER, &flag, segment, 0, NO_CALLBACK, NO_ARG, NO_FLAGS);
	DO(SCIEnableConditionalInterrupt, flag, NO_FLAGS);
	DO(SCICreateDMAQueue, sd, &queue, ADAPTER, 1, NO_FLAGS);
	DO(SCIStartDmaTransfer, TRANSFER);
	while (SCIDMAQueueState(queue) == SCI_DMAQUEUE_POSTED)
		usleep(1000);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	EXPECT(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
	for (int i = 0; i < 100; i++) {
		EXPECT(kill(getpid(), SIGUSR1) == 0);
		EXPECT(sigwait(&set, &got) == 0 && got == SIGUSR1);
	}
}

int main(void)
{
	static const struct test tests[] = {
		{"threads: callbacks", callbacks},
		{"threads: transfers", transfers},
		{"threads: to a group", to_a_group},
		{"threads: signals", signals},
	};

	return run_tests(tests, COUNT(tests));
}
