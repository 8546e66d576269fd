/* Reflective memory: who is a member, who can connect, and what becomes of it as members end. */
#include "check.h"

#include <unistd.h>

#define GROUP 7
#define LAST_GROUP 63
#define SIZE (2 * PAGE)
#define MEMBERS 3
#define NOBODY NO_CALLBACK, NO_ARG
#define ALL DIS_BROADCAST_NODEID_GROUP_ALL

enum order { END, STORE, LOOK, AVAILABLE, UNAVAILABLE, REMOVE, WAIT_CONNECT };

static volatile unsigned int *join_group(sci_desc_t sd, sci_local_segment_t *segment,
		sci_map_t *map)
{
	volatile unsigned int *words;
	sci_error_t error;

	DO(SCICreateSegment, sd, segment, GROUP, SIZE, NOBODY,
			SCI_FLAG_BROADCAST | SCI_FLAG_BROADCAST_SHARED |
			SCI_FLAG_ALLOW_UNICAST);
	DO(SCIPrepareSegment, *segment, ADAPTER, SCI_FLAG_BROADCAST);
	words = SCIMapLocalSegment(*segment, map, 0, SIZE, NULL, SCI_FLAG_BROADCAST, &error);
	if (error != SCI_ERR_OK)
		give_up(__FILE__, __LINE__, "SCIMapLocalSegment", error);
	return words;
}

/* A member that does as it is told. */
static void member(struct peer *parent)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_map_t map;
	volatile unsigned int *words = join_group(sd, &segment, &map);
	sci_error_t outcome;

	say(parent, own_node());
	for (unsigned int order; (order = hear(parent)) != END; say(parent, outcome)) {
		outcome = SCI_ERR_OK;
		switch (order) {
		case STORE:
			words[1]++;
			break;
		case LOOK:
			outcome = words[0];
			break;
		case AVAILABLE:
			SCISetSegmentAvailable(segment, ADAPTER, NO_FLAGS, &outcome);
			break;
		case UNAVAILABLE:
			SCISetSegmentUnavailable(segment, ADAPTER, SCI_FLAG_FORCE_DISCONNECT,
					&outcome);
			break;
		case REMOVE:
			DO(SCIUnmapSegment, map, NO_FLAGS);
			SCIRemoveSegment(segment, NO_FLAGS, &outcome);
			break;
		case WAIT_CONNECT:
			EXPECT(SCIWaitForLocalSegmentEvent(segment, NULL, NULL, LONG_MS, NO_FLAGS,
					&outcome) == SCI_CB_CONNECT);
			break;
		default:
			break;
		}
	}
}

static unsigned int tell(struct peer *peer, enum order order)
{
	say(peer, order);
	return hear(peer);
}

static unsigned int start(struct peer *peers, size_t count)
{
	unsigned int node = 0;

	for (size_t i = 0; i < count; i++) {
		spawn(&peers[i], member);
		node = hear(&peers[i]);
	}
	return node;
}

#define CREATE(id, size, flags) sd, &segment, id, size, NOBODY, flags
#define CONNECT(out, node, flags) sd, out, node, GROUP, ADAPTER, NOBODY, SHORT_MS, flags

static void who_is_a_member(void)
{
	struct peer peer;
	sci_desc_t sd;
	sci_local_segment_t segment, plain;
	sci_remote_segment_t remote;
	sci_map_t map, own;
	volatile unsigned int *words, *single;
	unsigned int node = start(&peer, 1);

	sd = open_library();
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCICreateSegment,
			CREATE(LAST_GROUP + 1, SIZE, SCI_FLAG_BROADCAST));
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCICreateSegment,
			CREATE(GROUP, SIZE, SCI_FLAG_BROADCAST | SCI_FLAG_AUTO_ID));
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCICreateSegment,
			CREATE(GROUP, SIZE, SCI_FLAG_BROADCAST | SCI_FLAG_EMPTY));
	/* All members have the same size. */
	REFUSED(SCI_ERR_ILLEGAL_PARAMETER, SCICreateSegment,
			CREATE(GROUP, SIZE + PAGE, SCI_FLAG_BROADCAST));
	DO(SCICreateSegment, CREATE(LAST_GROUP, SIZE, SCI_FLAG_BROADCAST));
	DO(SCIRemoveSegment, segment, NO_FLAGS);
	words = join_group(sd, &segment, &map);
	/* An ordinary segment of the same number is another one. */
	single = offer(sd, &plain, &own, GROUP, PAGE);
	tell(&peer, STORE);
	EXPECT(words[1] == 1 && single[1] == 0);
	words[0] = 5;
	EXPECT(tell(&peer, LOOK) == 5);
	EXPECT(SCIGetLocalSegmentId(segment) == GROUP && SCIGetLocalSegmentSize(segment) == SIZE);
	/* Nobody lets others connect yet. */
	REFUSED(SCI_ERR_NO_SUCH_SEGMENT, SCIConnectSegment, CONNECT(&remote, ALL,
			SCI_FLAG_BROADCAST));
	DO(SCISetSegmentAvailable, segment, ADAPTER, NO_FLAGS);
	DO(SCIConnectSegment, CONNECT(&remote, ALL, SCI_FLAG_BROADCAST));
	EXPECT(SCIGetRemoteSegmentSize(remote) == SIZE);
	EXPECT(SCIGetRemoteSegmentNodeId(remote) == ALL);
	/* Every member hears of it. */
	EXPECT(tell(&peer, WAIT_CONNECT) == SCI_ERR_OK);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	/* Without the flag, the ordinary one is meant. */
	DO(SCIConnectSegment, CONNECT(&remote, node, NO_FLAGS));
	EXPECT(SCIGetRemoteSegmentSize(remote) == PAGE);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	REFUSED(SCI_ERR_ILLEGAL_NODEID, SCIConnectSegment, CONNECT(&remote, ALL, NO_FLAGS));
	REFUSED(SCI_ERR_ILLEGAL_NODEID, SCIProbeNode, sd, ADAPTER, ALL, NO_FLAGS);
	DO(SCIUnmapSegment, own, NO_FLAGS);
	DO(SCIRemoveSegment, plain, NO_FLAGS);
	/* Or a member, if there is none. */
	DO(SCIConnectSegment, CONNECT(&remote, node, NO_FLAGS));
	EXPECT(SCIGetRemoteSegmentSize(remote) == SIZE);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
	say(&peer, END);
	join(&peer);
}

/* Members come and go, also by force, and those that are left have what was stored. */
static void members_end(void)
{
	struct peer peers[MEMBERS], late;
	sci_desc_t sd;
	sci_remote_segment_t group;
	sci_sequence_t sequence;
	sci_map_t map;
	sci_error_t error, status;
	volatile unsigned int *all;

	start(peers, MEMBERS);
	sd = open_library();
	for (int i = 0; i < 2; i++)
		EXPECT(tell(&peers[i], AVAILABLE) == SCI_ERR_OK);
	DO(SCIConnectSegment, CONNECT(&group, ALL, SCI_FLAG_BROADCAST));
	all = SCIMapRemoteSegment(group, &map, 0, SIZE, NULL, SCI_FLAG_BROADCAST, &error);
	EXPECT(error == SCI_ERR_OK);
	DO(SCICreateMapSequence, map, &sequence, NO_FLAGS);
	EXPECT(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	all[0] = 1;
	for (int i = 0; i < MEMBERS; i++)
		EXPECT(tell(&peers[i], LOOK) == 1);
	/* One is killed, one has the others disconnect, as long as another lets them be. */
	kill_peer(&peers[0]);
	all[0] = 2;
	EXPECT(tell(&peers[2], AVAILABLE) == SCI_ERR_OK);
	EXPECT(tell(&peers[1], UNAVAILABLE) == SCI_ERR_OK);
	EXPECT(tell(&peers[1], LOOK) == 2 && tell(&peers[2], LOOK) == 2);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForRemoteSegmentEvent, group, &status, SHORT_MS, NO_FLAGS);
	/* One that comes late finds what is there. */
	start(&late, 1);
	EXPECT(tell(&late, LOOK) == 2);
	/* A map of a group keeps nobody from leaving it. */
	EXPECT(tell(&peers[1], REMOVE) == SCI_ERR_OK);
	EXPECT(tell(&late, REMOVE) == SCI_ERR_OK);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	EXPECT(tell(&peers[2], REMOVE) == SCI_ERR_OK);
	EXPECT(SCIWaitForRemoteSegmentEvent(group, &status, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_LOST);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_NOT_RETRIABLE);
	all[0] = 3;
	EXPECT(all[0] == 3);
	DO(SCIRemoveSequence, sequence, NO_FLAGS);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIDisconnectSegment, group, NO_FLAGS);
	REFUSED(SCI_ERR_NO_SUCH_SEGMENT, SCIConnectSegment, CONNECT(&group, ALL,
			SCI_FLAG_BROADCAST));
	DO(SCIClose, sd, NO_FLAGS);
}

/* A group that is to come. */
static void waited_for(void)
{
	struct peer peer;
	sci_desc_t sd = open_library();
	sci_remote_segment_t group, refused;
	sci_error_t error, status;

	DO(SCIConnectSegment, sd, &group, ALL, GROUP, ADAPTER, NOBODY, SCI_INFINITE_TIMEOUT,
			SCI_FLAG_BROADCAST | SCI_FLAG_ASYNCHRONOUS_CONNECT);
	start(&peer, 1);
	REFUSED(SCI_ERR_TIMEOUT, SCIWaitForRemoteSegmentEvent, group, &status, SHORT_MS, NO_FLAGS);
	EXPECT(tell(&peer, AVAILABLE) == SCI_ERR_OK);
	EXPECT(SCIWaitForRemoteSegmentEvent(group, &status, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_CONNECT && status == SCI_ERR_OK);
	EXPECT(SCIGetRemoteSegmentSize(group) == SIZE);
	/* The last one that lets others connect cuts them off. */
	EXPECT(tell(&peer, UNAVAILABLE) == SCI_ERR_OK);
	EXPECT(SCIWaitForRemoteSegmentEvent(group, &status, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_LOST);
	REFUSED(SCI_ERR_CONNECTION_REFUSED, SCIConnectSegment, CONNECT(&refused, ALL,
			SCI_FLAG_BROADCAST));
	DO(SCIDisconnectSegment, group, NO_FLAGS);
	say(&peer, END);
	join(&peer);
	DO(SCIClose, sd, NO_FLAGS);
}

int main(void)
{
	static const struct test tests[] = {
		{"groups: who is a member", who_is_a_member},
		{"groups: members end", members_end},
		{"groups: one that is to come", waited_for},
	};

	return run_tests(tests, COUNT(tests));
}
