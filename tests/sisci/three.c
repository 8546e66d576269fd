/* Three processes: segments that are shared by attaching, and reflective memory. */
#include "check.h"

#include <pthread.h>
#include <unistd.h>

#define ID 400
#define GROUP 3
#define SIZE (2 * PAGE)

/* --- sharing --- */

static void creator(struct peer *parent)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_error_t error;
	sci_map_t map;
	char *memory;

	DO(SCICreateSegment, sd, &segment, ID, SIZE, NO_CALLBACK, NO_ARG, NO_FLAGS);
	DO(SCIPrepareSegment, segment, ADAPTER, NO_FLAGS);
	memory = SCIMapLocalSegment(segment, &map, 0, SIZE, NULL, NO_FLAGS, &error);
	memory[0] = 'c';
	say(parent, own_node());
	hear(parent);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIShareSegment, segment, 1);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIShareSegment, GARBAGE(sci_local_segment_t), NO_FLAGS);
	DO(SCIShareSegment, segment, NO_FLAGS);
	say(parent, 0);
	hear(parent);
	EXPECT(memory[1] == 'a');
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
	say(parent, 0);
	hear(parent);
}

static void sharing(void)
{
	struct peer peer, third;
	sci_desc_t sd;
	sci_local_segment_t segment;
	sci_remote_segment_t remote;
	sci_error_t error;
	sci_map_t map;
	size_t size = 0;
	char *memory;
	unsigned int node;

	spawn(&peer, creator);
	node = hear(&peer);
	sd = open_library();
#define ATTACH(id, flags) sd, &segment, id, &size, NO_CALLBACK, NO_ARG, flags
	REFUSED(SCI_ERR_ACCESS, SCIAttachLocalSegment, ATTACH(ID, NO_FLAGS));
	REFUSED(SCI_ERR_NO_SUCH_SEGMENT, SCIAttachLocalSegment, ATTACH(ID + 1, NO_FLAGS));
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCIAttachLocalSegment, ATTACH(ID, 0x2));
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIAttachLocalSegment,
			ATTACH(ID, SCI_FLAG_USE_CALLBACK));
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCIAttachLocalSegment, sd, NULL, ID, &size, NO_CALLBACK,
			NO_ARG, NO_FLAGS);
	say(&peer, 0);
	hear(&peer);
	DO(SCIAttachLocalSegment, ATTACH(ID, NO_FLAGS));
	EXPECT(size >= SIZE && SCIGetLocalSegmentSize(segment) == size);
	EXPECT(SCIGetLocalSegmentId(segment) == ID);
	memory = SCIMapLocalSegment(segment, &map, 0, SIZE, NULL, NO_FLAGS, &error);
	EXPECT(error == SCI_ERR_OK && memory[0] == 'c');
	memory[1] = 'a';
	/* Its creator goes; it lives on, and can be connected to. */
	say(&peer, 0);
	hear(&peer);
	kill_peer(&peer);
	DO(SCISetSegmentAvailable, segment, ADAPTER, NO_FLAGS);
	connect_to(sd, &remote, node, ID);
	EXPECT(SCIWaitForLocalSegmentEvent(segment, &node, NULL, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_CONNECT);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
	REFUSED(SCI_ERR_NO_SUCH_SEGMENT, SCIAttachLocalSegment, ATTACH(ID, NO_FLAGS));
	(void)third;
}

/* --- events of a shared segment --- */

static void sharing_owner(struct peer *parent)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_error_t error;
	sci_map_t map;

	offer(sd, &segment, &map, ID, SIZE);
	DO(SCIShareSegment, segment, NO_FLAGS);
	say(parent, own_node());
	EXPECT(SCIWaitForLocalSegmentEvent(segment, NULL, NULL, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_CONNECT);
	say(parent, 0);
	EXPECT(SCIWaitForLocalSegmentEvent(segment, NULL, NULL, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_DISCONNECT);
	/* The other owner has it mapped, and keeps it: this one's share ends all the same. */
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
	say(parent, 0);
	hear(parent);
}

static void visitor(struct peer *parent)
{
	unsigned int node = hear(parent);
	sci_desc_t sd = open_library();
	sci_remote_segment_t remote;

	while (hear(parent)) {
		connect_to(sd, &remote, node, ID);
		say(parent, 0);
		hear(parent);
		DO(SCIDisconnectSegment, remote, NO_FLAGS);
		say(parent, 0);
	}
}

struct heard {
	pthread_mutex_t mutex;
	pthread_cond_t more;
	sci_segment_cb_reason_t reasons[4];
	int count;
};

/* It has had enough after three. */
static sci_callback_action_t on_event(void *arg, sci_local_segment_t segment,
		sci_segment_cb_reason_t reason, unsigned int node, unsigned int adapter,
		sci_error_t error)
{
	struct heard *heard = arg;
	int count;

	EXPECT(SCIGetLocalSegmentId(segment) == ID && node != 0);
	EXPECT(adapter == ADAPTER && error == SCI_ERR_OK);
	pthread_mutex_lock(&heard->mutex);
	heard->reasons[heard->count % 4] = reason;
	count = ++heard->count;
	pthread_cond_broadcast(&heard->more);
	pthread_mutex_unlock(&heard->mutex);
	return count < 3 ? SCI_CALLBACK_CONTINUE : SCI_CALLBACK_CANCEL;
}

static void await(struct heard *heard, int count)
{
	pthread_mutex_lock(&heard->mutex);
	while (heard->count < count)
		pthread_cond_wait(&heard->more, &heard->mutex);
	pthread_mutex_unlock(&heard->mutex);
}

static void all_owners_hear(void)
{
	struct heard heard = {.mutex = PTHREAD_MUTEX_INITIALIZER,
		.more = PTHREAD_COND_INITIALIZER};
	struct peer owner, guest;
	sci_local_segment_t segment;
	sci_error_t error;
	sci_map_t map;
	sci_desc_t sd;
	unsigned int node;

	spawn(&owner, sharing_owner);
	spawn(&guest, visitor);
	node = hear(&owner);
	sd = open_library();
	DO(SCIAttachLocalSegment, sd, &segment, ID, NULL, on_event, &heard, SCI_FLAG_USE_CALLBACK);
	SCIMapLocalSegment(segment, &map, 0, SIZE, NULL, NO_FLAGS, &error);
	EXPECT(error == SCI_ERR_OK);
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCIWaitForLocalSegmentEvent, segment, NULL, NULL, 0,
			NO_FLAGS);
	say(&guest, node);
	for (int round = 0; round < 2; round++) {
		say(&guest, 1);
		hear(&guest);
		await(&heard, 2 * round + 1);
		EXPECT(heard.reasons[2 * round] == SCI_CB_CONNECT);
		if (round == 0)
			hear(&owner);
		say(&guest, 1);
		hear(&guest);
		if (round == 1)
			break;
		await(&heard, 2);
		EXPECT(heard.reasons[1] == SCI_CB_DISCONNECT);
		hear(&owner);
	}
	say(&guest, 0);
	join(&guest);
	say(&owner, 0);
	join(&owner);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
	EXPECT(heard.count == 3);
}

/* --- reflective memory --- */

static void member(struct peer *parent)
{
	unsigned int number = hear(parent);
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_remote_segment_t remote;
	sci_map_t map, reflected;
	sci_error_t error;
	volatile unsigned int *memory, *all;

	DO(SCICreateSegment, sd, &segment, GROUP, SIZE, NO_CALLBACK, NO_ARG, SCI_FLAG_BROADCAST);
	DO(SCIPrepareSegment, segment, ADAPTER, SCI_FLAG_BROADCAST);
	memory = SCIMapLocalSegment(segment, &map, 0, SIZE, NULL, NO_FLAGS, &error);
	EXPECT(error == SCI_ERR_OK);
	DO(SCISetSegmentAvailable, segment, ADAPTER, NO_FLAGS);
	say(parent, 0);
	hear(parent);
	DO(SCIConnectSegment, sd, &remote, DIS_BROADCAST_NODEID_GROUP_ALL, GROUP, ADAPTER,
			NO_CALLBACK, NO_ARG, SCI_INFINITE_TIMEOUT, SCI_FLAG_BROADCAST);
	all = SCIMapRemoteSegment(remote, &reflected, 0, SIZE, NULL, SCI_FLAG_BROADCAST, &error);
	EXPECT(error == SCI_ERR_OK);
	all[number] = number + 1;
#ifndef __x86_64__
	/* Only on x86-64 stores are caught one by one; else they travel with a flush, or later. */
	SCIFlush(NULL, NO_FLAGS);
#endif
	say(parent, 0);
	hear(parent);
	for (unsigned int i = 0; i < 3; i++)
		EXPECT(memory[i] == i + 1);
	DO(SCIUnmapSegment, reflected, NO_FLAGS);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	say(parent, 0);
	hear(parent);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
}

static void reflecting(void)
{
	struct peer peers[3];
	sci_local_segment_t segment;
	sci_remote_segment_t remote;
	sci_desc_t sd;

	for (unsigned int i = 0; i < 3; i++)
		spawn(&peers[i], member);
	sd = open_library();
	REFUSED(SCI_ERR_NO_SUCH_SEGMENT, SCIConnectSegment, sd, &remote,
			DIS_BROADCAST_NODEID_GROUP_ALL, GROUP, ADAPTER, NO_CALLBACK, NO_ARG, 0,
			SCI_FLAG_BROADCAST);
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCICreateSegment, sd, &segment, 1u << 20, SIZE,
			NO_CALLBACK, NO_ARG, SCI_FLAG_BROADCAST);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCICreateSegment, sd, &segment, GROUP, SIZE, NO_CALLBACK,
			NO_ARG, SCI_FLAG_BROADCAST | SCI_FLAG_PRIVATE);
	for (unsigned int i = 0; i < 3; i++) {
		say(&peers[i], i);
		hear(&peers[i]);
	}
	/* Each step is taken by all before the next. */
	for (int step = 0; step < 2; step++)
		for (unsigned int i = 0; i < 3; i++) {
			say(&peers[i], 0);
			if (step == 0)
				hear(&peers[i]);
		}
	for (unsigned int i = 0; i < 3; i++)
		hear(&peers[i]);
	for (unsigned int i = 0; i < 3; i++) {
		say(&peers[i], 0);
		join(&peers[i]);
	}
}

/* --- survivors --- */

static void holder(struct peer *parent)
{
	unsigned int id = hear(parent);
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_map_t map;

	offer(sd, &segment, &map, id, SIZE);
	say(parent, own_node());
	hear(parent);
}

static void one_is_killed_the_other_is_not(void)
{
	struct peer peers[2];
	sci_remote_segment_t remotes[2];
	sci_sequence_t sequences[2];
	sci_error_t error, status;
	sci_map_t maps[2];
	sci_desc_t sd;

	for (unsigned int i = 0; i < 2; i++)
		spawn(&peers[i], holder);
	sd = open_library();
	for (unsigned int i = 0; i < 2; i++) {
		say(&peers[i], ID + i);
		connect_to(sd, &remotes[i], hear(&peers[i]), ID + i);
		SCIMapRemoteSegment(remotes[i], &maps[i], 0, SIZE, NULL, NO_FLAGS, &error);
		DO(SCICreateMapSequence, maps[i], &sequences[i], NO_FLAGS);
	}
	kill_peer(&peers[0]);
	EXPECT(SCIWaitForRemoteSegmentEvent(remotes[0], &status, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_LOST);
	EXPECT(SCICheckSequence(sequences[0], NO_FLAGS, &error) == SCI_SEQ_NOT_RETRIABLE);
	EXPECT(SCICheckSequence(sequences[1], NO_FLAGS, &error) == SCI_SEQ_OK);
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForRemoteSegmentEvent, remotes[1], &status, SHORT_MS,
			NO_FLAGS);
	say(&peers[1], 0);
	join(&peers[1]);
	EXPECT(SCIWaitForRemoteSegmentEvent(remotes[1], &status, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_LOST);
}

int main(void)
{
	static const struct test tests[] = {
		{"a segment is attached to, and outlives its creator", sharing},
		{"all who share a segment hear of who connects", all_owners_hear},
		{"reflective memory of three", reflecting},
		{"one owner is killed, the other is not", one_is_killed_the_other_is_not},
	};

	return run_tests(tests, COUNT(tests));
}
