/*
 * What every function has in common: before SCIInitialize, with flags and adapters that there are
 * not, with handles of nothing, of something else and of what was removed, and without a place for
 * the result. Each is called with one thing wrong at a time, and with nothing wrong in the end.
 */
#include "check.h"

#define ID 900
#define NUMBER 31
/* Bits that no function has. */
#define NO_SUCH_FLAG 0x40000000u

/* What the calls below are made with. */
static sci_desc_t sd;
static sci_local_segment_t local;
static sci_remote_segment_t remote;
static sci_map_t map;
static sci_sequence_t sequence;
static sci_dma_queue_t queue;
static sci_dma_channel_t channel;
static sci_local_interrupt_t interrupt, flagged;
static sci_remote_interrupt_t trigger;
static sci_local_data_interrupt_t data;
static sci_remote_data_interrupt_t data_trigger;
static sci_block_transfer_t block;
static unsigned int adapter, flags, node;
static char *memory, buffer[64];
static int no_place;

/* Results, which go nowhere if `no_place` says so. */
#define TO(type) (no_place ? NULL : (type *)buffer)
#define NUMBER_AT TO(unsigned int)

/* Kinds of arguments that a function has. */
enum {
	FLAGS = 1 << 0,
	ADAPTERS = 1 << 1,
	PLACE = 1 << 2,
	/* Handles, in the order of `handles`. */
	SD = 1 << 3,
	LOCAL = 1 << 4,
	REMOTE = 1 << 5,
	MAP = 1 << 6,
	SEQUENCE = 1 << 7,
	QUEUE = 1 << 8,
	CHANNEL = 1 << 9,
	INTERRUPT = 1 << 10,
	FLAGGED = 1 << 11,
	TRIGGER = 1 << 12,
	DATA = 1 << 13,
	DATA_TRIGGER = 1 << 14,
	BLOCK = 1 << 15,
	/* What is looked at first in each function. */
	FIRST_HANDLE = SD,
	/* NULL stands for no sequence, or no map. */
	MAY_BE_NULL = 1 << 16,
};

static void **const handles[] = {(void **)&sd, (void **)&local, (void **)&remote, (void **)&map,
	(void **)&sequence, (void **)&queue, (void **)&channel, (void **)&interrupt,
	(void **)&flagged, (void **)&trigger, (void **)&data, (void **)&data_trigger,
	(void **)&block};

#define NOBODY NO_CALLBACK, NO_ARG
#define NAMES(X) \
	X(SCIOpen, FLAGS | PLACE, TO(sci_desc_t), flags) \
	X(SCIClose, SD | FLAGS, sd, flags) \
	X(SCIGetLocalNodeId, ADAPTERS | PLACE | FLAGS, adapter, NUMBER_AT, flags) \
	X(SCIGetNodeIdByAdapterName, PLACE | FLAGS, no_place ? NULL : "4", \
			TO(dis_nodeId_list_t), NULL, flags) \
	X(SCIGetNodeInfoByAdapterName, PLACE | FLAGS, no_place ? NULL : "4", NULL, \
			TO(dis_nodeId_list_t), NULL, flags) \
	X(SCIProbeNode, SD | ADAPTERS | FLAGS, sd, adapter, node, flags) \
	X(SCIQuery, PLACE | FLAGS, SCI_Q_API, TO(sci_query_string_t), flags)
#define LOCAL_SEGMENTS(X) \
	X(SCICreateSegment, SD | PLACE | FLAGS, sd, TO(sci_local_segment_t), ID + 1, PAGE, NOBODY, \
			flags) \
	X(SCIPrepareSegment, LOCAL | ADAPTERS | FLAGS, local, adapter, flags) \
	X(SCISetSegmentAvailable, LOCAL | ADAPTERS | FLAGS, local, adapter, flags) \
	X(SCISetSegmentUnavailable, LOCAL | ADAPTERS | FLAGS, local, adapter, flags) \
	X(SCIRemoveSegment, LOCAL | FLAGS, local, flags) \
	X(SCIMapLocalSegment, LOCAL | PLACE | FLAGS, local, TO(sci_map_t), 0, PAGE, NULL, flags) \
	X(SCIWaitForLocalSegmentEvent, LOCAL | FLAGS, local, NULL, NULL, 0, flags) \
	X(SCIShareSegment, LOCAL | FLAGS, local, flags) \
	X(SCIAttachLocalSegment, SD | PLACE | FLAGS, sd, TO(sci_local_segment_t), ID, NULL, \
			NOBODY, flags) \
	X(SCIRegisterSegmentMemory, LOCAL | FLAGS, memory, PAGE, local, flags)
#define REMOTE_SEGMENTS(X) \
	X(SCIConnectSegment, SD | ADAPTERS | PLACE | FLAGS, sd, TO(sci_remote_segment_t), node, \
			ID, adapter, NOBODY, 0, flags) \
	X(SCIDisconnectSegment, REMOTE | FLAGS, remote, flags) \
	X(SCIWaitForRemoteSegmentEvent, REMOTE | FLAGS, remote, NULL, 0, flags) \
	X(SCIMapRemoteSegment, REMOTE | PLACE | FLAGS, remote, TO(sci_map_t), 0, PAGE, NULL, \
			flags) \
	X(SCIUnmapSegment, MAP | FLAGS, map, flags)
#define COPIES(X) \
	X(SCIMemCpy, SEQUENCE | FLAGS | MAY_BE_NULL, sequence, buffer, map, 0, 8, flags) \
	X(SCIMemCopy, MAP | FLAGS, buffer, map, 0, 8, flags) \
	X(SCIMemCpy_dual, MAP | FLAGS, NULL, buffer, map, 0, map, 0, 8, flags) \
	X(SCIMemWrite, FLAGS, buffer, memory, 8, flags) \
	X(SCITransferBlock, MAP | FLAGS, map, 0, map, 64, 8, flags) \
	X(SCITransferBlockAsync, MAP | PLACE | FLAGS, map, 0, map, 64, 8, \
			TO(sci_block_transfer_t), NOBODY, flags) \
	X(SCIWaitForBlockTransfer, BLOCK | FLAGS, block, 0, flags) \
	X(SCIAbortBlockTransfer, BLOCK | FLAGS, block, flags) \
	X(SCICreateMapSequence, MAP | PLACE | FLAGS, map, TO(sci_sequence_t), flags) \
	X(SCIRemoveSequence, SEQUENCE | FLAGS, sequence, flags) \
	X(SCIStartSequence, SEQUENCE | FLAGS, sequence, flags) \
	X(SCICheckSequence, SEQUENCE | FLAGS, sequence, flags) \
	X(SCICacheSync, MAP | FLAGS | MAY_BE_NULL, map, memory, 8, flags)
#define TRANSFERS(X) \
	X(SCICreateDMAQueue, SD | ADAPTERS | PLACE | FLAGS, sd, TO(sci_dma_queue_t), adapter, 1, \
			flags) \
	X(SCIRemoveDMAQueue, QUEUE | FLAGS, queue, flags) \
	X(SCIAbortDMAQueue, QUEUE | FLAGS, queue, flags) \
	X(SCIWaitForDMAQueue, QUEUE | FLAGS, queue, 0, flags) \
	X(SCIStartDmaTransfer, QUEUE | LOCAL | REMOTE | FLAGS, queue, local, remote, 0, 8, 0, \
			NOBODY, flags) \
	X(SCIStartDmaTransferMem, QUEUE | REMOTE | FLAGS, queue, buffer, remote, 8, 0, NOBODY, \
			flags) \
	X(SCIStartDmaTransferVec, QUEUE | LOCAL | REMOTE | PLACE | FLAGS, queue, local, remote, 1, \
			TO(dis_dma_vec_t), NOBODY, flags) \
	X(DISStartDmaTransfer, QUEUE | LOCAL | REMOTE | FLAGS, queue, local, remote, 0, 8, 0, \
			NOBODY, flags) \
	X(DISStartDmaTransferVec, QUEUE | LOCAL | REMOTE | PLACE | FLAGS, queue, local, remote, 1, \
			TO(dis_dma_vec_t), NOBODY, flags) \
	X(SCIEnqueueDMATransfer, QUEUE | LOCAL | REMOTE | FLAGS, queue, local, remote, 0, 0, 8, \
			flags) \
	X(SCIPostDMAQueue, QUEUE | FLAGS, queue, NOBODY, flags) \
	X(SCIResetDMAQueue, QUEUE | FLAGS, queue, flags)
#define CHANNELS(X) \
	X(SCIRequestDMAChannel, SD | ADAPTERS | PLACE | FLAGS, sd, TO(sci_dma_channel_t), adapter, \
			SCI_DMA_TYPE_DONTCARE, 0, flags) \
	X(SCIReturnDMAChannel, CHANNEL, channel) \
	X(SCIAssignDMAChannel, CHANNEL | QUEUE | FLAGS, channel, queue, flags) \
	X(SCIPrepareLocalSegmentForDMA, CHANNEL | LOCAL | FLAGS, channel, local, flags) \
	X(SCIUnprepareLocalSegmentForDMA, CHANNEL | LOCAL | FLAGS, channel, local, flags) \
	X(SCIPrepareRemoteSegmentForDMA, CHANNEL | REMOTE | FLAGS, channel, remote, flags) \
	X(SCIUnprepareRemoteSegmentForDMA, CHANNEL | REMOTE | FLAGS, channel, remote, flags)
#define INTERRUPTS(X) \
	X(SCICreateInterrupt, SD | ADAPTERS | PLACE | FLAGS, sd, (sci_local_interrupt_t *)buffer, \
			adapter, NUMBER_AT, NOBODY, flags) \
	X(SCICreateNamedInterrupt, SD | ADAPTERS | PLACE | FLAGS, sd, TO(sci_local_interrupt_t), \
			adapter, (unsigned int *)buffer, "name", NOBODY, flags) \
	X(SCIRemoveInterrupt, INTERRUPT | FLAGS, interrupt, flags) \
	X(SCIWaitForInterrupt, INTERRUPT | FLAGS, interrupt, 0, flags) \
	X(SCIConnectInterrupt, SD | ADAPTERS | PLACE | FLAGS, sd, TO(sci_remote_interrupt_t), \
			node, adapter, NUMBER, 0, flags) \
	X(SCIDisconnectInterrupt, TRIGGER | FLAGS, trigger, flags) \
	X(SCITriggerInterrupt, TRIGGER | FLAGS, trigger, flags) \
	X(SCIRegisterInterruptFlag, LOCAL | ADAPTERS | PLACE | FLAGS, adapter, \
			TO(sci_local_interrupt_t), local, 1024, NOBODY, flags) \
	X(SCIEnableConditionalInterrupt, FLAGGED | FLAGS, flagged, flags) \
	X(SCIDisableConditionalInterrupt, FLAGGED | FLAGS, flagged, flags) \
	X(SCIGetConditionalInterruptTrigCounter, FLAGGED | PLACE | FLAGS, flagged, NUMBER_AT, flags)
#define DATA_INTERRUPTS(X) \
	X(SCICreateDataInterrupt, SD | ADAPTERS | PLACE | FLAGS, sd, \
			TO(sci_local_data_interrupt_t), adapter, NUMBER_AT, NOBODY, flags) \
	X(SCIRemoveDataInterrupt, DATA | FLAGS, data, flags) \
	X(SCIWaitForDataInterrupt, DATA | PLACE | FLAGS, data, buffer, NUMBER_AT, 0, flags) \
	X(SCIConnectDataInterrupt, SD | ADAPTERS | PLACE | FLAGS, sd, \
			TO(sci_remote_data_interrupt_t), node, adapter, NUMBER, 0, flags) \
	X(SCIDisconnectDataInterrupt, DATA_TRIGGER | FLAGS, data_trigger, flags) \
	X(SCITriggerDataInterrupt, DATA_TRIGGER | FLAGS, data_trigger, buffer, 8, flags)
/* Those that fail anyhow, once the library is initialized. */
#define ABSENT(X) \
	X(SCIAttachPhysicalMemory, 0, 0, NULL, 0, PAGE, local, flags) \
	X(SCIConnectSCISpace, 0, sd, adapter, TO(sci_remote_segment_t), (sci_address_t){4, 0, 0}, \
			PAGE, flags) \
	X(SCIphDmaEnqueue, 0, queue, 8, 0, node, 0, 0, flags) \
	X(SCIphDmaStart, 0, queue, NOBODY, flags) \
	X(SCIGetCSRRegister, 0, sd, adapter, node, 0, flags) \
	X(SCISetCSRRegister, 0, sd, adapter, node, 0, 0, flags) \
	X(SCIGetLocalCSR, 0, sd, adapter, 0, flags) \
	X(SCISetLocalCSR, 0, sd, adapter, 0, 0, flags) \
	X(SCIBorrowDevice, 0, sd, NULL, 1, flags) \
	X(SCIReturnDevice, 0, NULL, flags) \
	X(SCIReleaseExclusiveBorrow, 0, NULL, flags) \
	X(SCIGetDeviceList, SD, sd, NULL, 0, NULL, flags) \
	X(SCIConnectDeviceSegment, 0, NULL, NULL, 0, 0, NOBODY, flags) \
	X(SCIConnectDeviceSegmentPath, 0, NULL, NULL, 0, 0, adapter, NOBODY, flags) \
	X(SCICreateDeviceSegment, 0, NULL, 0, PAGE, 0, 0, flags) \
	X(SCIMapLocalSegmentForDevice, 0, local, adapter, NULL, NULL, 0, PAGE, flags) \
	X(SCIUnmapLocalSegmentForDevice, 0, local, adapter, NULL, flags) \
	X(SCIMapRemoteSegmentForDevice, 0, remote, NULL, NULL, 0, PAGE, flags) \
	X(SCIUnmapRemoteSegmentForDevice, 0, remote, NULL, flags) \
	X(SCIRegisterPCIeRequester, 0, sd, adapter, 0, 0, flags) \
	X(SCIUnregisterPCIeRequester, 0, sd, adapter, 0, 0, flags) \
	X(SCIConnectDeviceMemory, 0, sd, NULL, adapter, NULL, 0, 0, flags) \
	X(SCIConnectDeviceBar, 0, sd, NULL, 1, 0, adapter, flags) \
	X(SCIMapSegmentForDevice, 0, local, NULL, adapter, NULL, flags) \
	X(SCIUnmapSegmentForDevice, 0, local, NULL, adapter, flags)
#define ALL(X) \
	NAMES(X) LOCAL_SEGMENTS(X) REMOTE_SEGMENTS(X) COPIES(X) TRANSFERS(X) CHANNELS(X) \
	INTERRUPTS(X) DATA_INTERRUPTS(X) ABSENT(X)

#define DEFINE(function, kinds, ...) \
	static void call_##function(sci_error_t *error) \
	{ \
		(void)function(__VA_ARGS__, error); \
	}
#define ENTRY(function, kinds, ...) {#function, call_##function, kinds},

ALL(DEFINE)

static const struct call {
	const char *name;
	void (*make)(sci_error_t *error);
	unsigned int kinds;
} calls[] = {ALL(ENTRY)};

static void expect(const struct call *call, sci_error_t want, const char *why)
{
	char what[256];
	sci_error_t got = (sci_error_t)77;

	call->make(&got);
	snprintf(what, sizeof(what), "%s, %s", call->name, why);
	expect_error(__FILE__, __LINE__, what, want, got);
	/* Nobody has to want to know. */
	call->make(NULL);
}

static void uninitialized(const char *when)
{
	for (size_t i = 0; i < COUNT(calls); i++)
		expect(&calls[i], SCI_ERR_NOT_INITIALIZED, when);
	EXPECT(SCIGetLocalSegmentSize(local) == 0 && SCIGetLocalSegmentId(local) == 0);
	EXPECT(SCIGetRemoteSegmentSize(remote) == 0 && SCIGetRemoteSegmentId(remote) == 0);
	EXPECT(SCIGetRemoteSegmentNodeId(remote) == 0 && SCIGetMapPointer(map) == NULL);
	EXPECT(SCIGetMapPhysAddr(map) == 0 && SCIDMAQueueState(queue) == SCI_DMAQUEUE_ERROR);
	EXPECT(SCIGetFabricDeviceId(NULL) == 0 && SCIGetErrorString(SCI_ERR_BUSY) != NULL);
	SCIStoreBarrier(sequence, NO_FLAGS);
	SCIFlush(sequence, NO_FLAGS);
	SCIFlushReadBuffers(sequence);
}

/* One of each. */
static void set_up(void)
{
	unsigned int number = NUMBER;

	sd = open_library();
	node = own_node();
	memory = offer(sd, &local, &map, ID, PAGE);
	connect_to(sd, &remote, node, ID);
	DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	DO(SCICreateDMAQueue, sd, &queue, ADAPTER, 4, NO_FLAGS);
	DO(SCIRequestDMAChannel, sd, &channel, ADAPTER, SCI_DMA_TYPE_DONTCARE, 0, NO_FLAGS);
	DO(SCICreateInterrupt, sd, &interrupt, ADAPTER, &number, NOBODY, SCI_FLAG_FIXED_INTNO);
	DO(SCICreateDataInterrupt, sd, &data, ADAPTER, &number, NOBODY, SCI_FLAG_FIXED_INTNO);
	DO(SCIConnectInterrupt, sd, &trigger, node, ADAPTER, NUMBER, LONG_MS, NO_FLAGS);
	DO(SCIConnectDataInterrupt, sd, &data_trigger, node, ADAPTER, NUMBER, LONG_MS, NO_FLAGS);
	DO(SCIRegisterInterruptFlag, ADAPTER, &flagged, local, 512, NOBODY, NO_FLAGS);
	DO(SCITransferBlockAsync, map, 0, map, 64, 8, &block, NOBODY, NO_FLAGS);
}

/* All of it works, and is removed. */
static void tear_down(void)
{
	unsigned int length = sizeof(buffer);

	DO(SCIWaitForBlockTransfer, block, LONG_MS, NO_FLAGS);
	DO(SCIEnableConditionalInterrupt, flagged, NO_FLAGS);
	DO(SCIRemoveInterrupt, flagged, NO_FLAGS);
	DO(SCITriggerInterrupt, trigger, NO_FLAGS);
	DO(SCITriggerDataInterrupt, data_trigger, buffer, 8, NO_FLAGS);
	DO(SCIWaitForInterrupt, interrupt, LONG_MS, NO_FLAGS);
	DO(SCIWaitForDataInterrupt, data, buffer, &length, LONG_MS, NO_FLAGS);
	EXPECT(length == 8);
	DO(SCIDisconnectInterrupt, trigger, NO_FLAGS);
	DO(SCIDisconnectDataInterrupt, data_trigger, NO_FLAGS);
	DO(SCIRemoveInterrupt, interrupt, NO_FLAGS);
	DO(SCIRemoveDataInterrupt, data, NO_FLAGS);
	DO(SCIReturnDMAChannel, channel);
	EXPECT(SCIDMAQueueState(queue) == SCI_DMAQUEUE_IDLE);
	DO(SCIStartDmaTransfer, queue, local, remote, 0, 8, 64, NOBODY, SCI_FLAG_DMA_WAIT);
	DO(SCIRemoveDMAQueue, queue, NO_FLAGS);
	DO(SCIMemCpy, sequence, buffer, map, 0, 8, SCI_FLAG_ERROR_CHECK);
	DO(SCIRemoveSequence, sequence, NO_FLAGS);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	DO(SCIRemoveSegment, local, NO_FLAGS);
	DO(SCIClose, sd, NO_FLAGS);
}

static void before_and_after(void)
{
	uninitialized("before SCIInitialize");
	set_up();
	SCITerminate();
	uninitialized("after SCITerminate");
	/* Nothing else is looked at before. */
	flags = NO_SUCH_FLAG;
	adapter = 1;
	no_place = 1;
	uninitialized("after SCITerminate, with wrong arguments");
	flags = NO_FLAGS;
	adapter = ADAPTER;
	no_place = 0;
	/* What was left open is gone, and the library as good as new. */
	set_up();
	tear_down();
}

static void no_such_flag(void)
{
	set_up();
	flags = NO_SUCH_FLAG;
	for (size_t i = 0; i < COUNT(calls); i++)
		if (calls[i].kinds & FLAGS)
			expect(&calls[i], SCI_ERR_ILLEGAL_FLAG, "no such flag");
	flags = NO_FLAGS;
	tear_down();
}

static void no_such_adapter(void)
{
	static const struct {
		unsigned int number;
		sci_error_t want;
	} wrong[] = {{1, SCI_ERR_NO_SUCH_ADAPTERNO}, {15, SCI_ERR_NO_SUCH_ADAPTERNO},
		{16, SCI_ERR_ILLEGAL_ADAPTERNO}, {~0u, SCI_ERR_ILLEGAL_ADAPTERNO}};
	char what[32];

	set_up();
	for (size_t w = 0; w < COUNT(wrong); w++) {
		adapter = wrong[w].number;
		snprintf(what, sizeof(what), "adapter %u", adapter);
		for (size_t i = 0; i < COUNT(calls); i++)
			if (calls[i].kinds & ADAPTERS)
				expect(&calls[i], wrong[w].want, what);
	}
	adapter = ADAPTER;
	tear_down();
}

static void no_place_for_results(void)
{
	set_up();
	no_place = 1;
	for (size_t i = 0; i < COUNT(calls); i++)
		if (calls[i].kinds & PLACE)
			expect(&calls[i], SCI_ERR_ILLEGAL_PARAMETER, "no place");
	no_place = 0;
	tear_down();
}

/* Every function with one handle that is not what it should be. */
static void with_handle(size_t which, void *handle, const char *what)
{
	void *good = *handles[which];

	*handles[which] = handle;
	for (size_t i = 0; i < COUNT(calls); i++) {
		int may = handle == NULL && calls[i].kinds & MAY_BE_NULL;

		if (calls[i].kinds & FIRST_HANDLE << which && !may)
			expect(&calls[i], SCI_ERR_ILLEGAL_PARAMETER, what);
	}
	*handles[which] = good;
}

static void wrong_handles(void)
{
	void *removed[COUNT(handles)];

	set_up();
	for (size_t i = 0; i < COUNT(handles); i++)
		removed[i] = *handles[i];
	tear_down();
	set_up();
	for (size_t i = 0; i < COUNT(handles); i++) {
		with_handle(i, NULL, "NULL");
		with_handle(i, GARBAGE(void *), "an address");
		with_handle(i, (void *)UINTPTR_MAX, "all bits set");
		with_handle(i, *handles[(i + 2) % COUNT(handles)], "something else");
		/* Its entry of the table may be another's now. */
		with_handle(i, removed[i], "removed");
	}
	tear_down();
}

int main(void)
{
	static const struct test tests[] = {
		{"every function without SCIInitialize", before_and_after},
		{"every function with a flag that it has not", no_such_flag},
		{"every function with an adapter that there is not", no_such_adapter},
		{"every function without a place for its result", no_place_for_results},
		{"every function with a handle that is none", wrong_handles},
	};

	return run_tests(tests, COUNT(tests));
}
