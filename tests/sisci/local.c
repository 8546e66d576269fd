/* One process: the library, descriptors, local segments, maps, sequences, and all their errors. */
#include "check.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define ID 100

static void without_initialize(void)
{
	sci_desc_t sd;
	unsigned int node;

	REFUSED(SCI_ERR_NOT_INITIALIZED, SCIOpen, &sd, NO_FLAGS);
	REFUSED(SCI_ERR_NOT_INITIALIZED, SCIGetLocalNodeId, 0, &node, NO_FLAGS);
	SCITerminate();
	DO(SCIInitialize, NO_FLAGS);
	DO(SCIOpen, &sd, NO_FLAGS);
	DO(SCIClose, sd, NO_FLAGS);
	SCITerminate();
	REFUSED(SCI_ERR_NOT_INITIALIZED, SCIOpen, &sd, NO_FLAGS);
	REFUSED(SCI_ERR_NOT_INITIALIZED, SCIClose, sd, NO_FLAGS);
	/* Again, twice: as many ends as beginnings. */
	DO(SCIInitialize, NO_FLAGS);
	DO(SCIInitialize, NO_FLAGS);
	SCITerminate();
	DO(SCIOpen, &sd, NO_FLAGS);
	SCITerminate();
	REFUSED(SCI_ERR_NOT_INITIALIZED, SCIClose, sd, NO_FLAGS);
	DO(SCIInitialize, NO_FLAGS);
	/* What was open is not any more. */
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIClose, sd, NO_FLAGS);
}

static void descriptors(void)
{
	sci_desc_t first = open_library(), second, none = GARBAGE(sci_desc_t);
	sci_local_segment_t segment;

	DO(SCIOpen, &second, SCI_FLAG_THREAD_SAFE);
	EXPECT(first != second);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIInitialize, 0x40);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIOpen, &second, 0x40);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIOpen, NULL, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIClose, second, 1);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIClose, none, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIClose, NULL, NO_FLAGS);
	DO(SCICreateSegment, first, &segment, ID, PAGE, NO_CALLBACK, NO_ARG, NO_FLAGS);
	REFUSED(SCI_ERR_BUSY, SCIClose, first, NO_FLAGS);
	DO(SCIClose, second, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIClose, second, NO_FLAGS);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
	DO(SCIClose, first, NO_FLAGS);
	/* An error that nobody wants to know. */
	SCIClose(first, NO_FLAGS, NULL);
}

static void error_strings(void)
{
	EXPECT(strstr(SCIGetErrorString(SCI_ERR_BUSY), "BUSY"));
	EXPECT(SCIGetErrorString(SCI_ERR_OK));
	EXPECT(SCIGetErrorString((sci_error_t)12345));
	EXPECT(SCI_ERR_BUSY == 0x40000900 && SCI_ERR_ACCESS == 0x40000921);
	EXPECT(SCI_ERR_NO_SUCH_INTNO == SCI_ERR_NO_SUCH_SEGMENT);
	EXPECT(SCI_ERR_REMOTE_BUSY == 0x40000B00 && SCI_ERR_TRANSFER_FAILED == 0x40000A06);
}

static void creating(void)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment, other;
	struct sysinfo info;
	size_t most;

#define CREATE(id, size, flags) sd, &other, id, size, NO_CALLBACK, NO_ARG, flags
	DO(SCICreateSegment, sd, &segment, ID, 1000, NO_CALLBACK, NO_ARG, NO_FLAGS);
	EXPECT(SCIGetLocalSegmentId(segment) == ID);
	EXPECT(SCIGetLocalSegmentSize(segment) >= 1000);
	REFUSED(SCI_ERR_SEGMENTID_USED, SCICreateSegment, CREATE(ID, PAGE, NO_FLAGS));
	REFUSED(SCI_ERR_SIZE_ALIGNMENT, SCICreateSegment, CREATE(ID + 1, 0, NO_FLAGS));
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCICreateSegment, CREATE(ID + 1, PAGE, 0x10));
	REFUSED(SCI_ERR_FLAG_NOT_IMPLEMENTED, SCICreateSegment,
			CREATE(ID + 1, PAGE, SCI_FLAG_PHYSICAL));
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCICreateSegment,
			CREATE(ID + 1, PAGE, SCI_FLAG_USE_CALLBACK));
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCICreateSegment, GARBAGE(sci_desc_t), &other, ID + 1,
			PAGE, NO_CALLBACK, NO_ARG, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCICreateSegment, sd, NULL, ID + 1, PAGE, NO_CALLBACK,
			NO_ARG, NO_FLAGS);
	REFUSED(SCI_ERR_NOSPC, SCICreateSegment, CREATE(ID + 1, (size_t)1 << 60, NO_FLAGS));
	REFUSED(SCI_ERR_NOSPC, SCICreateSegment, CREATE(ID + 1, SIZE_MAX, NO_FLAGS));
	/* More than memory and swap; what is almost all of it is taken at its word. Segments of a
	 * guest lie in the host's memory, of which it knows nothing. */
	EXPECT(sysinfo(&info) == 0);
	most = ((size_t)info.totalram + info.totalswap) * info.mem_unit;
	if (access("/dev/causeway", F_OK) != 0)
		REFUSED(SCI_ERR_NOSPC, SCICreateSegment, CREATE(ID + 1, most + PAGE, NO_FLAGS));
	REFUSED(SCI_ERR_NOSPC, SCICreateSegment, CREATE(ID + 1, (size_t)1 << 46, NO_FLAGS));
	DO(SCICreateSegment, CREATE(ID + 1, most / 2, NO_FLAGS));
	DO(SCIRemoveSegment, other, NO_FLAGS);
	/* No power of two is more than the most that there is room for, but no room. */
	for (size_t size = (size_t)1 << 48; size; size <<= 1) {
		REFUSED(SCI_ERR_NOSPC, SCICreateSegment, CREATE(ID + 1, size, NO_FLAGS));
		REFUSED(SCI_ERR_NOSPC, SCICreateSegment, CREATE(ID + 1, size - 1, NO_FLAGS));
	}
	DO(SCICreateSegment, CREATE(0, PAGE, SCI_FLAG_AUTO_ID));
	EXPECT(SCIGetLocalSegmentId(other) != ID);
	DO(SCIRemoveSegment, other, NO_FLAGS);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIRemoveSegment, segment, NO_FLAGS);
	EXPECT(SCIGetLocalSegmentSize(segment) == 0);
	/* The id is free again. */
	DO(SCICreateSegment, CREATE(ID, PAGE, NO_FLAGS));
	DO(SCIRemoveSegment, other, SCI_FLAG_FORCE_REMOVE);
}

static void states(void)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment, hidden, none = GARBAGE(sci_local_segment_t);

	DO(SCICreateSegment, sd, &segment, ID, PAGE, NO_CALLBACK, NO_ARG, NO_FLAGS);
	REFUSED(SCI_ERR_SEGMENT_NOT_PREPARED, SCISetSegmentAvailable, segment, ADAPTER, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIPrepareSegment, segment, ADAPTER, 0x1);
	REFUSED(SCI_ERR_NO_SUCH_ADAPTERNO, SCIPrepareSegment, segment, 1, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_ADAPTERNO, SCIPrepareSegment, segment, 1000, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIPrepareSegment, none, ADAPTER, NO_FLAGS);
	DO(SCIPrepareSegment, segment, ADAPTER, SCI_FLAG_DMA_SOURCE_ONLY);
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCISetSegmentUnavailable, segment, ADAPTER, NO_FLAGS);
	REFUSED(SCI_ERR_NO_SUCH_ADAPTERNO, SCISetSegmentAvailable, segment, 1, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCISetSegmentAvailable, segment, ADAPTER, 1);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCISetSegmentAvailable, none, ADAPTER, NO_FLAGS);
	DO(SCISetSegmentAvailable, segment, ADAPTER, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCISetSegmentUnavailable, segment, ADAPTER, 1);
	REFUSED(SCI_ERR_NO_SUCH_ADAPTERNO, SCISetSegmentUnavailable, segment, 2, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCISetSegmentUnavailable, none, ADAPTER, NO_FLAGS);
	DO(SCISetSegmentUnavailable, segment, ADAPTER, NO_FLAGS);
	DO(SCISetSegmentAvailable, segment, ADAPTER, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIRemoveSegment, segment, 1);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
	DO(SCICreateSegment, sd, &hidden, ID, PAGE, NO_CALLBACK, NO_ARG, SCI_FLAG_PRIVATE);
	REFUSED(SCI_ERR_SEGMENT_NOT_PREPARED, SCISetSegmentUnavailable, hidden, ADAPTER, NO_FLAGS);
	DO(SCIPrepareSegment, hidden, ADAPTER, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCISetSegmentAvailable, hidden, ADAPTER, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCISetSegmentUnavailable, hidden, ADAPTER, NO_FLAGS);
	DO(SCIRemoveSegment, hidden, NO_FLAGS);
}

/* What was done already is done; each kind of segment refuses what is not for it. */
static void kinds(void)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment, empty, hidden, other;
	sci_remote_segment_t remote;
	unsigned int node = own_node();
	size_t size;

#define MADE(out, id, flags) sd, out, id, PAGE, NO_CALLBACK, NO_ARG, flags
	DO(SCICreateSegment, MADE(&segment, ID, SCI_FLAG_DMA_GLOBAL));
	for (int again = 0; again < 2; again++)
		DO(SCIPrepareSegment, segment, ADAPTER, NO_FLAGS);
	for (int again = 0; again < 2; again++)
		DO(SCISetSegmentAvailable, segment, ADAPTER, NO_FLAGS);
	for (int again = 0; again < 2; again++)
		DO(SCISetSegmentUnavailable, segment, ADAPTER,
				again ? SCI_FLAG_NOTIFY | SCI_FLAG_FORCE_DISCONNECT : NO_FLAGS);
	for (int again = 0; again < 2; again++)
		DO(SCIShareSegment, segment, NO_FLAGS);
	DO(SCICreateSegment, MADE(&empty, ID + 1, SCI_FLAG_EMPTY));
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCIShareSegment, empty, NO_FLAGS);
	REFUSED(SCI_ERR_SEGMENT_NOT_PREPARED, SCISetSegmentAvailable, empty, ADAPTER, NO_FLAGS);
	DO(SCICreateSegment, MADE(&hidden, ID + 2, SCI_FLAG_PRIVATE));
	DO(SCIPrepareSegment, hidden, ADAPTER, NO_FLAGS);
#define CONNECT(id, flags) \
	sd, &remote, node, id, ADAPTER, NO_CALLBACK, NO_ARG, SHORT_MS, flags
	REFUSED(SCI_ERR_NO_SUCH_SEGMENT, SCIConnectSegment, CONNECT(ID + 1, NO_FLAGS));
	REFUSED(SCI_ERR_NO_SUCH_SEGMENT, SCIConnectSegment, CONNECT(ID + 2, NO_FLAGS));
	/* Nobody can attach to what is not shared, nor to what can't be. */
#define ATTACH(id) sd, &other, id, &size, NO_CALLBACK, NO_ARG, NO_FLAGS
	REFUSED(SCI_ERR_ACCESS, SCIAttachLocalSegment, ATTACH(ID + 1));
	REFUSED(SCI_ERR_ACCESS, SCIAttachLocalSegment, ATTACH(ID + 2));
	DO(SCIShareSegment, hidden, NO_FLAGS);
	DO(SCIAttachLocalSegment, ATTACH(ID + 2));
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCISetSegmentAvailable, other, ADAPTER, NO_FLAGS);
	DO(SCIRemoveSegment, other, NO_FLAGS);
	/* The process itself may, if that is any use. */
	DO(SCIAttachLocalSegment, sd, &other, ID, NULL, NO_CALLBACK, NO_ARG, NO_FLAGS);
	EXPECT(other != segment && SCIGetLocalSegmentId(other) == ID);
	DO(SCIRemoveSegment, other, NO_FLAGS);
	/* An id that is to be chosen is not the one that is given; nobody else has it. */
	DO(SCICreateSegment, MADE(&other, ID, SCI_FLAG_AUTO_ID | SCI_FLAG_PRIVATE));
	EXPECT(SCIGetLocalSegmentId(other) != ID);
	REFUSED(SCI_ERR_SEGMENTID_USED, SCICreateSegment,
			MADE(&empty, SCIGetLocalSegmentId(other), NO_FLAGS));
	REFUSED(SCI_ERR_FLAG_NOT_IMPLEMENTED, SCICreateSegment,
			MADE(&empty, ID + 3, SCI_FLAG_CUDA_BUFFER));
	REFUSED(SCI_ERR_FLAG_NOT_IMPLEMENTED, SCICreateSegment,
			MADE(&empty, ID + 3, SCI_FLAG_SCIF_BUFFER | SCI_FLAG_EMPTY));
	DO(SCIRemoveSegment, other, NO_FLAGS);
	DO(SCIRemoveSegment, hidden, NO_FLAGS);
	DO(SCIRemoveSegment, empty, NO_FLAGS);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
	DO(SCIClose, sd, NO_FLAGS);
}

static void mapping(void)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_map_t whole, part, none = GARBAGE(sci_map_t);
	sci_error_t error;
	char *all, *some;
	void *place;

	DO(SCICreateSegment, sd, &segment, ID, 4 * PAGE, NO_CALLBACK, NO_ARG, NO_FLAGS);
	all = SCIMapLocalSegment(segment, &whole, 0, 4 * PAGE, NULL, NO_FLAGS, &error);
	EXPECT(error == SCI_ERR_OK && all && (char *)SCIGetMapPointer(whole) == all);
	EXPECT(all[0] == 0 && all[4 * PAGE - 1] == 0);
	some = SCIMapLocalSegment(segment, &part, PAGE + 10, PAGE, NULL, NO_FLAGS, &error);
	EXPECT(error == SCI_ERR_OK && SCIGetMapPhysAddr(part) == PAGE + 10);
	some[0] = 'x';
	EXPECT(all[PAGE + 10] == 'x');
	REFUSED(SCI_ERR_BUSY, SCIRemoveSegment, segment, NO_FLAGS);
	REFUSED(SCI_ERR_BUSY, SCIRemoveSegment, segment, SCI_FLAG_FORCE_REMOVE);
	DO(SCIUnmapSegment, part, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIUnmapSegment, part, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIUnmapSegment, none, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIUnmapSegment, whole, 1);
	EXPECT(SCIGetMapPointer(none) == NULL && SCIGetMapPointer(part) == NULL);
#define MAP(offset, size, at, flags) segment, &part, offset, size, at, flags
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCIMapLocalSegment, MAP(0, 4 * PAGE + 1, NULL, NO_FLAGS));
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCIMapLocalSegment, MAP(PAGE, 4 * PAGE, NULL, NO_FLAGS));
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCIMapLocalSegment, MAP(SIZE_MAX, 2, NULL, NO_FLAGS));
	REFUSED(SCI_ERR_SIZE_ALIGNMENT, SCIMapLocalSegment, MAP(0, 0, NULL, NO_FLAGS));
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIMapLocalSegment, MAP(0, PAGE, NULL, 0x40000000));
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIMapLocalSegment, segment, NULL, 0, PAGE, NULL,
			NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIMapLocalSegment, GARBAGE(sci_local_segment_t), &part,
			0, PAGE, NULL, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_ADDRESS, SCIMapLocalSegment,
			MAP(0, PAGE, NULL, SCI_FLAG_FIXED_MAP_ADDR));
	REFUSED(SCI_ERR_ILLEGAL_ADDRESS, SCIMapLocalSegment,
			MAP(0, PAGE, all, SCI_FLAG_FIXED_MAP_ADDR));
	REFUSED(SCI_ERR_ILLEGAL_ADDRESS, SCIMapLocalSegment,
			MAP(0, PAGE, all + 1, SCI_FLAG_FIXED_MAP_ADDR));
	place = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(place, PAGE);
	some = SCIMapLocalSegment(MAP(0, PAGE, place, SCI_FLAG_FIXED_MAP_ADDR), &error);
	EXPECT(error == SCI_ERR_OK && some == place);
	DO(SCIUnmapSegment, part, NO_FLAGS);
	some = SCIMapLocalSegment(MAP(PAGE, PAGE, NULL, SCI_FLAG_READONLY_MAP), &error);
	EXPECT(error == SCI_ERR_OK && some[10] == 'x');
	EXPECT(mprotect(some, PAGE, PROT_READ) == 0);
	REFUSED(SCI_ERR_ACCESS, SCIMemCpy, NULL, all, part, 0, 1, NO_FLAGS);
	DO(SCIUnmapSegment, part, NO_FLAGS);
	DO(SCIUnmapSegment, whole, NO_FLAGS);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
	DO(SCIClose, sd, NO_FLAGS);
}

/* A map does not wait for its sequences, and these end whenever they are told to. */
static void sequences_outlive_maps(void)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_sequence_t sequence, left;
	sci_map_t map;
	sci_error_t error;

	(void)offer(sd, &segment, &map, ID, PAGE);
	DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	DO(SCICreateMapSequence, map, &left, NO_FLAGS);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	DO(SCIRemoveSequence, sequence, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIRemoveSequence, sequence, NO_FLAGS);
	DO(SCIClose, sd, NO_FLAGS);
}

static void copying(void)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_sequence_t sequence, none = GARBAGE(sci_sequence_t);
	sci_map_t map, other;
	sci_block_transfer_t block;
	char *memory = offer(sd, &segment, &map, ID, 2 * PAGE);
	char *second, buffer[64] = "the quick brown fox";
	sci_error_t error;

	second = SCIMapLocalSegment(segment, &other, PAGE, PAGE, NULL, NO_FLAGS, &error);
	EXPECT(error == SCI_ERR_OK);
	DO(SCICreateMapSequence, map, &sequence, SCI_FLAG_FAST_BARRIER);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCICreateMapSequence, map, &sequence, 0x80);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCICreateMapSequence, map, NULL, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCICreateMapSequence, GARBAGE(sci_map_t), &sequence,
			NO_FLAGS);
	EXPECT(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK && error == SCI_ERR_OK);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK && error == SCI_ERR_OK);
	EXPECT(SCICheckSequence(sequence, SCI_FLAG_NO_FLUSH | SCI_FLAG_NO_STORE_BARRIER,
			&error) == SCI_SEQ_OK);
	EXPECT(SCICheckSequence(none, NO_FLAGS, &error) == SCI_SEQ_NOT_RETRIABLE);
	EXPECT(error == SCI_ERR_ILLEGAL_PARAMETER);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIStartSequence, sequence, 1);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCICheckSequence, sequence, 0x10);
	DO(SCIMemCpy, sequence, buffer, map, 7, 20, SCI_FLAG_ERROR_CHECK);
	EXPECT(!memcmp(memory + 7, buffer, 20));
	memset(buffer, 0, sizeof(buffer));
	DO(SCIMemCpy, NULL, buffer, map, 7, 20, SCI_FLAG_BLOCK_READ);
	EXPECT(!strcmp(buffer, "the quick brown fox"));
	DO(SCIMemCpy, NULL, buffer, map, 2 * PAGE, 0, NO_FLAGS);
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCIMemCpy, NULL, buffer, map, 2 * PAGE, 1, NO_FLAGS);
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCIMemCpy, NULL, buffer, map, SIZE_MAX, 2, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIMemCpy, NULL, NULL, map, 0, 1, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIMemCpy, none, buffer, map, 0, 1, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIMemCpy, NULL, buffer, NULL, 0, 1, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIMemCpy, NULL, buffer, map, 0, 1, 0x8);
	DO(SCIMemCopy, buffer, map, 100, 20, NO_FLAGS);
	EXPECT(!memcmp(memory + 100, buffer, 20));
	DO(SCIMemWrite, buffer, memory + 200, 20, NO_FLAGS);
	EXPECT(!memcmp(memory + 200, buffer, 20));
	REFUSED(SCI_ERR_ILLEGAL_ADDRESS, SCIMemWrite, buffer, buffer, 20, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_ADDRESS, SCIMemWrite, buffer, memory + 2 * PAGE - 1, 20, NO_FLAGS);
	DO(SCIMemCpy_dual, NULL, buffer, map, 300, other, 300, 20, NO_FLAGS);
	EXPECT(!memcmp(memory + 300, buffer, 20) && !memcmp(second + 300, buffer, 20));
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCIMemCpy_dual, NULL, buffer, map, 300, other, PAGE, 20,
			NO_FLAGS);
	DO(SCITransferBlock, map, 300, other, 0, 20, NO_FLAGS);
	EXPECT(!memcmp(second, buffer, 20));
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCITransferBlock, map, 300, other, PAGE, 20, NO_FLAGS);
	DO(SCITransferBlockAsync, map, 300, other, 50, 20, &block, NULL, NULL, NO_FLAGS);
	DO(SCIWaitForBlockTransfer, block, LONG_MS, NO_FLAGS);
	EXPECT(!memcmp(second + 50, buffer, 20));
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIWaitForBlockTransfer, block, 0, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIAbortBlockTransfer, block, NO_FLAGS);
	SCIStoreBarrier(sequence, NO_FLAGS);
	SCIStoreBarrier(NULL, NO_FLAGS);
	SCIFlush(NULL, SCI_FLAG_FLUSH_CPU_BUFFERS_ONLY);
	SCIFlushReadBuffers(sequence);
	SetSciMemCopyFunction(5);
	(void)GetSciMemCopyFunction();
	DO(SCICacheSync, NULL, buffer, 20, SCI_FLAG_CACHE_FLUSH);
	DO(SCICacheSync, map, memory, PAGE, SCI_FLAG_CACHE_FLUSH | SCI_FLAG_CACHE_INVALIDATE);
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCICacheSync, map, memory, 3 * PAGE, NO_FLAGS);
	DO(SCIRemoveSequence, sequence, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIRemoveSequence, sequence, NO_FLAGS);
	DO(SCIUnmapSegment, map, NO_FLAGS);
}

static void *wait_for_event(void *segment)
{
	sci_error_t error;
	unsigned int node, adapter;

	SCIWaitForLocalSegmentEvent(segment, &node, &adapter, SCI_INFINITE_TIMEOUT, NO_FLAGS,
			&error);
	return (void *)(uintptr_t)error;
}

static void waiting_ends_with_the_segment(void)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	unsigned int node, adapter;
	pthread_t waiter;
	void *result;

	DO(SCICreateSegment, sd, &segment, ID, PAGE, NO_CALLBACK, NO_ARG, NO_FLAGS);
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForLocalSegmentEvent, segment, &node, &adapter, SHORT_MS,
			NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIWaitForLocalSegmentEvent, segment, &node, &adapter, 0, 1);
	pthread_create(&waiter, NULL, wait_for_event, segment);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
	pthread_join(waiter, &result);
	/* Had it not begun to wait, the handle meant nothing any more. */
	EXPECT((uintptr_t)result == SCI_ERR_CANCELLED ||
			(uintptr_t)result == SCI_ERR_ILLEGAL_PARAMETER);
}

static void forked_child(struct peer *parent)
{
	sci_desc_t sd;
	sci_local_segment_t segment = (sci_local_segment_t)(uintptr_t)hear(parent);

	(void)segment;
	REFUSED(SCI_ERR_NOT_INITIALIZED, SCIOpen, &sd, NO_FLAGS);
	sd = open_library();
	REFUSED(SCI_ERR_SEGMENTID_USED, SCICreateSegment, sd, &segment, ID, PAGE, NO_CALLBACK,
			NO_ARG, NO_FLAGS);
	DO(SCICreateSegment, sd, &segment, ID + 1, PAGE, NO_CALLBACK, NO_ARG, NO_FLAGS);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
}

static sci_local_segment_t inherited;

static void heir(struct peer *parent)
{
	forked_child(parent);
	EXPECT(SCIGetLocalSegmentSize(inherited) == 0);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIRemoveSegment, inherited, NO_FLAGS);
}

static void a_child_has_nothing_of_its_parent(void)
{
	sci_desc_t sd = open_library();
	sci_map_t map;
	struct peer child;
	char *memory = offer(sd, &inherited, &map, ID, PAGE);

	spawn(&child, heir);
	say(&child, 0);
	join(&child);
	memory[0] = 1;
	DO(SCISetSegmentUnavailable, inherited, ADAPTER, NO_FLAGS);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIRemoveSegment, inherited, NO_FLAGS);
	DO(SCIClose, sd, NO_FLAGS);
}

static void registered_memory(void)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_remote_segment_t remote;
	sci_map_t map, there;
	sci_error_t error;
	char *own, *alias, *shared;
	volatile char *seen;

	shared = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	own = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(own, 'a', 4 * PAGE);
	DO(SCICreateSegment, sd, &segment, ID, 2 * PAGE, NO_CALLBACK, NO_ARG, SCI_FLAG_EMPTY);
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCIPrepareSegment, segment, ADAPTER, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCIMapLocalSegment, segment, &map, 0, PAGE, NULL,
			NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_ADDRESS, SCIRegisterSegmentMemory, own + 1, 2 * PAGE, segment,
			NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_ADDRESS, SCIRegisterSegmentMemory, NULL, 2 * PAGE, segment,
			NO_FLAGS);
	REFUSED(SCI_ERR_SIZE_ALIGNMENT, SCIRegisterSegmentMemory, own, PAGE + 1, segment,
			NO_FLAGS);
	REFUSED(SCI_ERR_OUT_OF_RANGE, SCIRegisterSegmentMemory, own, 3 * PAGE, segment, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIRegisterSegmentMemory, own, 2 * PAGE, segment, 0x1);
	REFUSED(SCI_ERR_FLAG_NOT_IMPLEMENTED, SCIRegisterSegmentMemory, own, 2 * PAGE, segment,
			SCI_FLAG_CUDA_BUFFER);
	/* Memory that can't be the segment's leaves it as it was. */
	for (int i = 0; i < 2; i++)
		REFUSED(SCI_ERR_ILLEGAL_ADDRESS, SCIRegisterSegmentMemory, shared, 2 * PAGE,
				segment, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCIPrepareSegment, segment, ADAPTER, NO_FLAGS);
	DO(SCIRegisterSegmentMemory, own + PAGE, 2 * PAGE, segment, SCI_FLAG_LOCK_USER_MEM);
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCIRegisterSegmentMemory, own + PAGE, 2 * PAGE, segment,
			NO_FLAGS);
	DO(SCIPrepareSegment, segment, ADAPTER, NO_FLAGS);
	DO(SCISetSegmentAvailable, segment, ADAPTER, NO_FLAGS);
	alias = SCIMapLocalSegment(segment, &map, 0, 2 * PAGE, NULL, NO_FLAGS, &error);
	EXPECT(error == SCI_ERR_OK && alias[0] == 'a');
	connect_to(sd, &remote, own_node(), ID);
	seen = SCIMapRemoteSegment(remote, &there, 0, 2 * PAGE, NULL, NO_FLAGS, &error);
	EXPECT(error == SCI_ERR_OK && seen[2 * PAGE - 1] == 'a');
	own[PAGE] = 'b';
	seen[PAGE] = 'c';
	EXPECT(seen[0] == 'b' && alias[0] == 'b' && own[2 * PAGE] == 'c');
	EXPECT(own[0] == 'a' && own[3 * PAGE] == 'a');
	DO(SCIUnmapSegment, there, NO_FLAGS);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
	EXPECT(own[PAGE] == 'b' && own[2 * PAGE] == 'c');
}

int main(void)
{
	static const struct test tests[] = {
		{"nothing works before SCIInitialize", without_initialize},
		{"descriptors", descriptors},
		{"error strings", error_strings},
		{"segments are created", creating},
		{"segments change their state", states},
		{"segments of every kind", kinds},
		{"segments are mapped", mapping},
		{"sequences outlive their maps", sequences_outlive_maps},
		{"copies, sequences, barriers", copying},
		{"a wait ends with its segment", waiting_ends_with_the_segment},
		{"a child has nothing of its parent", a_child_has_nothing_of_its_parent},
		{"memory of the program's own", registered_memory},
	};

	return run_tests(tests, COUNT(tests));
}
