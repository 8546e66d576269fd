/*
 * What goes wrong between two hosts, and comes right: the daemon of the owner's host is killed and
 * started, the link of this host (CHECK_LINK) goes down and up, in one test for longer than the
 * process tries to come back (CHECK_DOWN_MS).
 */
#include "far.h"

#include <dirent.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Bytes of a copy that waits for no acknowledgment. */
#define SMALL 64
#define GROUP 12
#define BROADCAST SCI_FLAG_BROADCAST

static unsigned char bytes[SIZE];

static unsigned int descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned int count = 0;

	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static void link_is(const char *state)
{
	char command[64];

	snprintf(command, sizeof(command), "ip link set %s %s", getenv("CHECK_LINK"), state);
	EXPECT(system(command) == 0);
}

static void order(struct peer *peer, unsigned int what)
{
	say(peer, what);
	hear(peer);
}

static void expect_event(sci_remote_segment_t remote, sci_segment_cb_reason_t reason)
{
	sci_error_t error, status;

	EXPECT(SCIWaitForRemoteSegmentEvent(remote, &status, LONG_MS, NO_FLAGS, &error) == reason);
	EXPECT(error == SCI_ERR_OK);
}

/* Everything is copied, and has arrived. */
static void copy_all(struct peer *peer, sci_sequence_t sequence, sci_map_t map, int seed)
{
	sci_error_t error;

	for (unsigned int i = 0; i < SIZE; i++)
		bytes[i] = pattern(i, (unsigned int)seed);
	EXPECT(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	DO(SCIMemCpy, sequence, bytes, map, 0, SIZE, NO_FLAGS);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	say(peer, SUM);
	EXPECT(hear(peer) == sum(bytes, SIZE));
}

/* The daemon is killed, and another started: segments and interrupts are had again. */
static void restarted_daemon(void)
{
	sci_remote_segment_t remote;
	sci_remote_interrupt_t bell;
	sci_sequence_t sequence;
	sci_error_t error;
	struct peer peer;
	unsigned char *there;
	unsigned int before = 0;
	sci_map_t map;
	sci_desc_t sd = begin(&peer, &remote);

	map = map_all(remote, &there);
	DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	DO(SCIConnectInterrupt, sd, &bell, SCIGetRemoteSegmentNodeId(remote), ADAPTER, BELL,
			LONG_MS, NO_FLAGS);
	copy_all(&peer, sequence, map, 1);
	for (int round = 0; round < 3; round++) {
		EXPECT(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
		order(&peer, KILL_DAEMON);
		expect_event(remote, SCI_CB_NOT_OPERATIONAL);
		EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_RETRIABLE);
		EXPECT(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_PENDING);
		/* It reaches nobody, and holds up nobody. */
		there[0] = 0xee;
		REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemCpy, sequence, bytes, map, 0, SMALL,
				NO_FLAGS);
		REFUSED(SCI_ERR_NOT_CONNECTED, SCITriggerInterrupt, bell, NO_FLAGS);
		order(&peer, START_DAEMON);
		expect_event(remote, SCI_CB_OPERATIONAL);
		/* The owner knows of nothing. */
		say(&peer, HEARD);
		EXPECT(hear(&peer) == 0);
		copy_all(&peer, sequence, map, 2 + round);
		there[1] = bytes[1] = 0x5a;
		EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
		say(&peer, SUM);
		EXPECT(hear(&peer) == sum(bytes, SIZE));
		DO(SCITriggerInterrupt, bell, NO_FLAGS);
		say(&peer, TRIGGERED);
		EXPECT(hear(&peer) == 1);
		if (round == 0)
			before = descriptors();
	}
	EXPECT(descriptors() <= before);
	DO(SCIRemoveSequence, sequence, NO_FLAGS);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	say(&peer, WAIT_DISCONNECT);
	EXPECT(hear(&peer) == own_node());
	end(&peer);
}

/* A queue of transfers ends in an error when the daemon goes. */
static void dma_under_way(void)
{
	sci_remote_segment_t remote;
	sci_dma_queue_t queue;
	sci_error_t error;
	struct peer peer;
	sci_desc_t sd = begin(&peer, &remote);

	DO(SCICreateDMAQueue, sd, &queue, ADAPTER, 4096, NO_FLAGS);
	order(&peer, STOP_DAEMON);
	for (int i = 0; i < 64; i++)
		DO(SCIStartDmaTransferMem, queue, bytes, remote, SIZE, 0, NO_CALLBACK, NO_ARG,
				NO_FLAGS);
	order(&peer, KILL_DAEMON);
	EXPECT(SCIWaitForDMAQueue(queue, LONG_MS, NO_FLAGS, &error) == SCI_DMAQUEUE_ERROR);
	EXPECT(error == SCI_ERR_TRANSFER_FAILED);
	order(&peer, START_DAEMON);
	expect_event(remote, SCI_CB_NOT_OPERATIONAL);
	expect_event(remote, SCI_CB_OPERATIONAL);
	DO(SCIStartDmaTransferMem, queue, bytes, remote, SIZE, 0, NO_CALLBACK, NO_ARG,
			SCI_FLAG_DMA_WAIT);
	end(&peer);
}

/* The owner ends while there is no daemon: that is known when there is one again. */
static void owner_ends_meanwhile(void)
{
	sci_remote_segment_t remote;
	struct peer peer;

	begin(&peer, &remote);
	order(&peer, KILL_DAEMON);
	expect_event(remote, SCI_CB_NOT_OPERATIONAL);
	order(&peer, START_DAEMON);
	kill_peer(&peer);
	for (;;) {
		sci_error_t error, status;
		sci_segment_cb_reason_t reason = SCIWaitForRemoteSegmentEvent(remote, &status,
				LONG_MS, NO_FLAGS, &error);

		if (reason != SCI_CB_OPERATIONAL) {
			EXPECT(reason == SCI_CB_LOST);
			break;
		}
	}
}

static volatile unsigned int *join_group(sci_desc_t sd)
{
	sci_local_segment_t segment;
	sci_error_t error;
	sci_map_t map;
	void *memory;

	DO(SCICreateSegment, sd, &segment, GROUP, PAGE, NO_CALLBACK, NO_ARG, BROADCAST);
	DO(SCIPrepareSegment, segment, ADAPTER, BROADCAST);
	memory = (void *)SCIMapLocalSegment(segment, &map, 0, PAGE, NULL, NO_FLAGS, &error);
	EXPECT(error == SCI_ERR_OK);
	DO(SCISetSegmentAvailable, segment, ADAPTER, NO_FLAGS);
	return memory;
}

/* Says what it has at an index of its replica, until it is told to end by a larger number. */
static void group_member(struct peer *parent)
{
	volatile unsigned int *words = join_group(open_library());

	say(parent, 0);
	for (unsigned int index; (index = hear(parent)) < PAGE / sizeof(*words);)
		say(parent, words[index]);
}

static void spawn_member(struct peer *member)
{
	spawn(member, group_member);
	hear(member);
}

static unsigned int word(struct peer *member, unsigned int index)
{
	say(member, index);
	return hear(member);
}

static void end_member(struct peer *member)
{
	say(member, PAGE);
	join(member);
}

static volatile unsigned int *map_group(sci_sequence_t *sequence)
{
	sci_desc_t sd = open_library();
	sci_remote_segment_t group;
	sci_error_t error;
	sci_map_t map;
	void *memory;

	join_group(sd);
	DO(SCIConnectSegment, sd, &group, DIS_BROADCAST_NODEID_GROUP_ALL, GROUP, ADAPTER,
			NO_CALLBACK, NO_ARG, LONG_MS, BROADCAST);
	memory = (void *)SCIMapRemoteSegment(group, &map, 0, PAGE, NULL, BROADCAST, &error);
	EXPECT(error == SCI_ERR_OK);
	DO(SCICreateMapSequence, map, sequence, NO_FLAGS);
	return memory;
}

/* A group's member on the other host misses what is stored while the daemon there is away, and has
 * what is stored later; so has a member that comes when all of that host have gone meanwhile. */
static void group_and_restarted_daemon(void)
{
	sci_remote_segment_t remote;
	sci_sequence_t sequence;
	sci_error_t error;
	struct peer peer, member;
	volatile unsigned int *all;

	spawn_member(&member);
	/* Before the segment: so it has heard of the daemon's end when the segment has. */
	all = map_group(&sequence);
	begin(&peer, &remote);
	EXPECT(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	all[0] = 1;
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	EXPECT(word(&member, 0) == 1);
	for (unsigned int round = 2; round < 4; round++) {
		order(&peer, KILL_DAEMON);
		expect_event(remote, SCI_CB_NOT_OPERATIONAL);
		all[0] = round;
		EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_RETRIABLE);
		EXPECT(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_PENDING);
		if (round == 3)
			end_member(&member);
		order(&peer, START_DAEMON);
		expect_event(remote, SCI_CB_OPERATIONAL);
		EXPECT(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
		all[1] = round;
		EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
		if (round == 2)
			EXPECT(word(&member, 0) == 1 && word(&member, 1) == 2);
	}
	spawn_member(&member);
	while (word(&member, 2) == 0)
		all[2]++;
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	EXPECT(all[0] == 3 && all[1] == 3 && word(&member, 1) == 0);
	end_member(&member);
	end(&peer);
}

/* The link is down for so long, during which a little is stored. */
static void link_down(unsigned int ms)
{
	sci_remote_segment_t remote;
	sci_sequence_t sequence;
	sci_sequence_status_t status;
	sci_error_t error;
	struct peer peer;
	unsigned char *there;
	sci_map_t map;

	begin(&peer, &remote);
	map = map_all(remote, &there);
	DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	copy_all(&peer, sequence, map, 1);
	EXPECT(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	link_is("down");
	DO(SCIMemCpy, sequence, bytes, map, 0, SMALL, NO_FLAGS);
	there[0] = bytes[0] = 0x33;
	if (ms >= 1000) {
		EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_RETRIABLE);
		EXPECT(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_PENDING);
	}
	usleep(ms * 1000);
	link_is("up");
	/* As a program does: it stores again until that has arrived. */
	do {
		while (SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_PENDING)
			usleep(1000);
		SCIMemCpy(sequence, bytes, map, 0, SMALL, NO_FLAGS, &error);
		status = SCICheckSequence(sequence, NO_FLAGS, &error);
	} while (status == SCI_SEQ_RETRIABLE);
	EXPECT(status == SCI_SEQ_OK);
	say(&peer, SUM);
	EXPECT(hear(&peer) == sum(bytes, SIZE));
	say(&peer, HEARD);
	EXPECT(hear(&peer) == 0);
	end(&peer);
}

static void down_shortly(void)
{
	link_down(50);
}

static void down_for_a_while(void)
{
	link_down(2000);
}

/* Longer than the queue pair tries, and shorter than the process does. */
static void down_for_longer(void)
{
	link_down(6000);
}

/* Longer than the process tries: its segment is lost while the link is down, and the owner hears of
 * its end. When the link is up it connects anew. */
static void down_until_lost(void)
{
	const char *ms = getenv("CHECK_DOWN_MS");
	struct timespec up;
	sci_remote_segment_t remote;
	sci_remote_interrupt_t bell;
	sci_sequence_t sequence;
	sci_error_t error;
	struct peer peer;
	unsigned char *there;
	sci_map_t map;
	sci_desc_t sd = begin(&peer, &remote);
	unsigned int node = SCIGetRemoteSegmentNodeId(remote);

	map = map_all(remote, &there);
	DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	DO(SCIConnectInterrupt, sd, &bell, node, ADAPTER, BELL, LONG_MS, NO_FLAGS);
	copy_all(&peer, sequence, map, 1);
	clock_gettime(CLOCK_MONOTONIC, &up);
	up.tv_sec += ms ? atoi(ms) / 1000 : 20;
	link_is("down");
	there[0] = 0x33;
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_RETRIABLE);
	expect_event(remote, SCI_CB_NOT_OPERATIONAL);
	expect_event(remote, SCI_CB_LOST);
	EXPECT(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_NOT_RETRIABLE);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_NOT_RETRIABLE);
	/* As a master abort: stores vanish, loads give ones. */
	there[0] = 0x44;
	EXPECT(*(volatile unsigned char *)there == 0xff);
	REFUSED(SCI_ERR_TRANSFER_FAILED, SCIMemCpy, sequence, bytes, map, 0, SMALL, NO_FLAGS);
	REFUSED(SCI_ERR_NOT_CONNECTED, SCITriggerInterrupt, bell, NO_FLAGS);
	/* All of this was so while the link was down. */
	EXPECT(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &up, NULL) == 0);
	link_is("up");
	say(&peer, SUM);
	EXPECT(hear(&peer) == sum(bytes, SIZE));
	say(&peer, WAIT_DISCONNECT);
	EXPECT(hear(&peer) == own_node());
	DO(SCIRemoveSequence, sequence, NO_FLAGS);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	connect_to(sd, &remote, node, ID);
	map = map_all(remote, &there);
	DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	copy_all(&peer, sequence, map, 2);
	end(&peer);
}

int main(void)
{
	static const struct test tests[] = {
		{"a daemon that is killed, and another that is started", restarted_daemon},
		{"DMA under way when the daemon is killed", dma_under_way},
		{"an owner that ends while there is no daemon", owner_ends_meanwhile},
		{"a group, and a daemon that is started again", group_and_restarted_daemon},
		{"a link that is down for 50 ms", down_shortly},
		{"a link that is down for 2 s", down_for_a_while},
		{"a link that is down for 6 s", down_for_longer},
		{"a link that is down until the segment is lost", down_until_lost},
	};

	return run_tests(tests, COUNT(tests));
}
