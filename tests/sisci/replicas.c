/*
 * Reflective memory with replicas: each member's memory is its own, and a store to the group
 * reaches all. This process is a member too; between hosts, the others are on the other one.
 */
#include "check.h"

#include <immintrin.h>
#include <sched.h>

#define GROUP 9
#define SIZE (16 * PAGE)
#define PEERS 2
#define MEMBERS (PEERS + 1)
#define NOBODY NO_CALLBACK, NO_ARG
#define ALL DIS_BROADCAST_NODEID_GROUP_ALL
#define REQUESTS 300
#define STORES 600
#define ROUNDS 600

enum order { END, LOOK, STORE, SUM, REMOVE, SERVE, RACE };

/* What a process has of the group. */
struct member {
	unsigned int number;
	sci_desc_t sd;
	sci_local_segment_t segment;
	sci_remote_segment_t remote;
	sci_map_t own_map, all_map;
	unsigned char *own, *all;
};

static void join_group(struct member *member)
{
	sci_error_t error;

	member->sd = open_library();
	DO(SCICreateSegment, member->sd, &member->segment, GROUP, SIZE, NOBODY,
			SCI_FLAG_BROADCAST);
	DO(SCIPrepareSegment, member->segment, ADAPTER, SCI_FLAG_BROADCAST);
	member->own = (unsigned char *)SCIMapLocalSegment(member->segment, &member->own_map, 0,
			SIZE, NULL, NO_FLAGS, &error);
	if (error != SCI_ERR_OK)
		give_up(__FILE__, __LINE__, "SCIMapLocalSegment", error);
	DO(SCISetSegmentAvailable, member->segment, ADAPTER, NO_FLAGS);
}

static void connect_group(struct member *member)
{
	sci_error_t error;

	DO(SCIConnectSegment, member->sd, &member->remote, ALL, GROUP, ADAPTER, NOBODY, LONG_MS,
			SCI_FLAG_BROADCAST);
	member->all = (unsigned char *)SCIMapRemoteSegment(member->remote, &member->all_map, 0,
			SIZE, NULL, SCI_FLAG_BROADCAST, &error);
	if (error != SCI_ERR_OK)
		give_up(__FILE__, __LINE__, "SCIMapRemoteSegment", error);
}

static void leave_group(struct member *member)
{
	DO(SCIUnmapSegment, member->own_map, NO_FLAGS);
	DO(SCIRemoveSegment, member->segment, NO_FLAGS);
}

static unsigned int sum(const volatile unsigned char *memory)
{
	unsigned int total = 0;

	for (size_t i = 0; i < SIZE; i++)
		total = total * 31 + memory[i];
	return total;
}

/* --- a key-value store: each member is a client and a replica --- */

struct mailbox {
	volatile unsigned int full, request, unused[14];
};

struct store {
	struct mailbox boxes[MEMBERS];
	/* How many requests of each client a replica has carried out. */
	volatile unsigned int done[MEMBERS][MEMBERS];
};

static unsigned int request_of(unsigned int client, unsigned int number)
{
	return (client + 1) * 1000003 + number * 7919;
}

/* A replica empties its mailbox in its own memory, and the client fills it with the same value
 * again. Returns what the replica has become, of the requests of all clients. */
static unsigned int serve(struct member *member)
{
	struct store *own = (struct store *)member->own, *all = (struct store *)member->all;
	unsigned int asked = 0, done[MEMBERS] = {0}, state[MEMBERS] = {0}, self = member->number;

	for (unsigned int total = 0, answered = 0; total < MEMBERS * REQUESTS || !answered;) {
		answered = 1;
		for (unsigned int i = 0; i < MEMBERS; i++)
			answered &= own->done[i][self] == asked;
		if (answered && asked < REQUESTS) {
			answered = 0;
			all->boxes[self].request = request_of(self, asked++);
			all->boxes[self].full = 1;
		}
		for (unsigned int i = 0; i < MEMBERS; i++) {
			if (!own->boxes[i].full)
				continue;
			state[i] = state[i] * 31 + own->boxes[i].request;
			own->boxes[i].full = 0;
			__sync_synchronize();
			total++;
			all->done[self][i] = ++done[i];
		}
		sched_yield();
	}
	return state[0] ^ state[1] * 3 ^ state[2] * 5;
}

static unsigned int served(void)
{
	unsigned int state[MEMBERS] = {0};

	for (unsigned int i = 0; i < MEMBERS; i++)
		for (unsigned int number = 0; number < REQUESTS; number++)
			state[i] = state[i] * 31 + request_of(i, number);
	return state[0] ^ state[1] * 3 ^ state[2] * 5;
}

/* --- writers at once --- */

/* Stores to two words in turn, and looks that nobody's second word is ahead of the first, or falls
 * behind what it was. Returns how often that was so. */
static unsigned int race(struct member *member)
{
	volatile unsigned int *own = (unsigned int *)member->own;
	volatile unsigned int *all = (unsigned int *)member->all;
	unsigned int wrong = 0, last[MEMBERS] = {0}, ended = 0;

	for (unsigned int i = 1; i <= STORES || ended < MEMBERS; i++) {
		if (i <= STORES) {
			all[64 * member->number] = i;
			all[64 * member->number + 32] = i;
		}
		ended = 0;
		for (unsigned int j = 0; j < MEMBERS; j++) {
			unsigned int second = own[64 * j + 32], first;

			__sync_synchronize();
			first = own[64 * j];
			wrong += first < second || second < last[j];
			last[j] = second;
			ended += second == STORES;
		}
		sched_yield();
	}
	return wrong;
}

static void member(struct peer *parent)
{
	struct member self = {.number = hear(parent)};
	volatile unsigned int *words;

	join_group(&self);
	words = (unsigned int *)self.own;
	say(parent, 0);
	for (unsigned int order; (order = hear(parent)) != END;) {
		unsigned int outcome = 0;

		switch (order) {
		case LOOK: outcome = words[0]; break;
		case STORE: words[0] = 100 + self.number; break;
		case SUM: outcome = sum(self.own); break;
		case REMOVE: leave_group(&self); break;
		case SERVE: connect_group(&self); outcome = serve(&self); break;
		case RACE: connect_group(&self); outcome = race(&self); break;
		}
		say(parent, outcome);
	}
}

static unsigned int tell(struct peer *peer, enum order order)
{
	say(peer, order);
	return hear(peer);
}

static void start(struct peer *peer, unsigned int number)
{
	spawn(peer, member);
	say(peer, number);
	hear(peer);
}

static void begin(struct peer *peers, struct member *self)
{
	for (unsigned int i = 0; i < PEERS; i++)
		start(&peers[i], i + 1);
	*self = (struct member){.number = 0};
	join_group(self);
	connect_group(self);
}

static void end(struct peer *peers)
{
	for (unsigned int i = 0; i < PEERS; i++) {
		say(&peers[i], END);
		join(&peers[i]);
	}
}

static void own_memory(void)
{
	struct peer peers[PEERS];
	struct member self;
	volatile unsigned int *all;
	sci_local_segment_t other;

	begin(peers, &self);
	all = (unsigned int *)self.all;
	*(volatile unsigned int *)self.own = 100;
	for (unsigned int i = 0; i < PEERS; i++)
		tell(&peers[i], STORE);
	for (unsigned int i = 0; i < PEERS; i++)
		EXPECT(tell(&peers[i], LOOK) == 101 + i);
	EXPECT(*(volatile unsigned int *)self.own == 100);
	/* Loads come from this process's own replica. */
	EXPECT(all[0] == 100);
	all[0] = 7;
	for (unsigned int i = 0; i < PEERS; i++)
		EXPECT(tell(&peers[i], LOOK) == 7);
	EXPECT(*(volatile unsigned int *)self.own == 7 && all[0] == 7);
	/* A group is of one kind. */
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCICreateSegment, self.sd, &other, GROUP, SIZE, NOBODY,
			SCI_FLAG_BROADCAST | SCI_FLAG_BROADCAST_SHARED);
	DO(SCICreateSegment, self.sd, &other, GROUP + 1, SIZE, NOBODY,
			SCI_FLAG_BROADCAST | SCI_FLAG_BROADCAST_SHARED);
	REFUSED(SCI_ERR_ILLEGAL_OPERATION, SCICreateSegment, self.sd, &other, GROUP + 1, SIZE,
			NOBODY, SCI_FLAG_BROADCAST);
	REFUSED(SCI_ERR_ILLEGAL_FLAG, SCICreateSegment, self.sd, &other, GROUP + 2, SIZE, NOBODY,
			SCI_FLAG_BROADCAST_SHARED);
	end(peers);
}

static void same_everywhere(struct peer *peers, struct member *self, const unsigned char *model)
{
	unsigned int expected = sum(model);

	EXPECT(sum(self->own) == expected);
	for (unsigned int i = 0; i < PEERS; i++)
		EXPECT(tell(&peers[i], SUM) == expected);
}

static void stores(void)
{
	static unsigned char model[SIZE] __attribute__((aligned(PAGE)));
	struct peer peers[PEERS];
	struct member self;

	begin(peers, &self);
	for (unsigned int i = 0; i < ROUNDS; i++) {
		unsigned int at = i * 331 % (SIZE - 64);
		__m128i vector = _mm_set1_epi32((int)(i * 11));

		for (int which = 0; which < 2; which++) {
			unsigned char *to = (which ? model : self.all) + at;

			switch (i % 8) {
			case 0: *(volatile unsigned char *)to = (unsigned char)i; break;
			case 1: *(volatile unsigned short *)to = (unsigned short)(i * 3); break;
			case 2: *(volatile unsigned int *)to = i * 5; break;
			case 3: *(volatile unsigned long long *)to = i * 7ull << 20; break;
			case 4: *(volatile unsigned int *)to += i; break;
			case 5: _mm_storeu_si128((__m128i *)to, vector); break;
			case 6: __builtin_memset(to, (int)i, 61); break;
			default: {
				const unsigned char *from = model + i;
				size_t count = 50;

				__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count)
						: : "memory");
			}
			}
		}
	}
	SCIFlush(NULL, NO_FLAGS);
	same_everywhere(peers, &self, model);
	/* Densely, so that pages are opened. */
	for (unsigned int i = 0; i < SIZE; i += 4)
		*(volatile unsigned int *)(self.all + i) = *(unsigned int *)(model + i) =
				i ^ 0x55aa;
	SCIFlush(NULL, NO_FLAGS);
	same_everywhere(peers, &self, model);
	/* By the library. */
	for (unsigned int i = 0; i < SIZE; i++)
		model[i] = (unsigned char)(i * 13 + i / PAGE);
	DO(SCIMemCopy, model, self.all_map, 0, SIZE, NO_FLAGS);
	same_everywhere(peers, &self, model);
	memset(self.own, 5, PAGE);
	DO(SCITransferBlock, self.own_map, 0, self.all_map, PAGE, PAGE, NO_FLAGS);
	memset(model + PAGE, 5, PAGE);
	memcpy(self.own, model, PAGE);
	same_everywhere(peers, &self, model);
	end(peers);
}

static void transfers(void)
{
	static unsigned char model[SIZE];
	struct peer peers[PEERS];
	struct member self;
	sci_dma_queue_t queue;

	begin(peers, &self);
	for (unsigned int i = 0; i < SIZE; i++)
		model[i] = (unsigned char)(i * 17 + i / PAGE);
	DO(SCICreateDMAQueue, self.sd, &queue, ADAPTER, 1, NO_FLAGS);
	DO(SCIStartDmaTransferMem, queue, model, self.remote, SIZE, 0, NOBODY,
			SCI_FLAG_BROADCAST | SCI_FLAG_DMA_WAIT | SCI_FLAG_DMA_USER_MEM);
	same_everywhere(peers, &self, model);
	end(peers);
}

/* More than the library copies at a time, and less than all of it. */
#define LARGE (256 * PAGE)
#define MOVED (LARGE - 3 * PAGE - 8)

/* Blocks within the group's map are copied as memmove does. */
static void blocks_that_overlap(void)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment;
	sci_remote_segment_t remote;
	sci_map_t own_map, map;
	sci_block_transfer_t block;
	sci_error_t error;
	static unsigned char model[LARGE];
	unsigned char *own;

	DO(SCICreateSegment, sd, &segment, GROUP, LARGE, NOBODY, SCI_FLAG_BROADCAST);
	DO(SCIPrepareSegment, segment, ADAPTER, SCI_FLAG_BROADCAST);
	own = (unsigned char *)SCIMapLocalSegment(segment, &own_map, 0, LARGE, NULL, NO_FLAGS,
			&error);
	EXPECT(error == SCI_ERR_OK);
	DO(SCISetSegmentAvailable, segment, ADAPTER, NO_FLAGS);
	DO(SCIConnectSegment, sd, &remote, ALL, GROUP, ADAPTER, NOBODY, LONG_MS,
			SCI_FLAG_BROADCAST);
	SCIMapRemoteSegment(remote, &map, 0, LARGE, NULL, SCI_FLAG_BROADCAST, &error);
	EXPECT(error == SCI_ERR_OK);
	for (unsigned int i = 0; i < LARGE; i++)
		model[i] = (unsigned char)(i * 7 + i / 251);
	DO(SCIMemCpy, NULL, model, map, 0, LARGE, NO_FLAGS);
	DO(SCITransferBlock, map, 4, map, 3 * PAGE, MOVED, NO_FLAGS);
	memmove(model + 3 * PAGE, model + 4, MOVED);
	EXPECT(memcmp(own, model, LARGE) == 0);
	DO(SCITransferBlock, map, 3 * PAGE, map, 4, MOVED, NO_FLAGS);
	memmove(model + 4, model + 3 * PAGE, MOVED);
	EXPECT(memcmp(own, model, LARGE) == 0);
	DO(SCITransferBlockAsync, map, 0, map, PAGE, MOVED, &block, NOBODY, NO_FLAGS);
	DO(SCIWaitForBlockTransfer, block, LONG_MS, NO_FLAGS);
	memmove(model + PAGE, model, MOVED);
	EXPECT(memcmp(own, model, LARGE) == 0);
	DO(SCIUnmapSegment, map, NO_FLAGS);
	DO(SCIDisconnectSegment, remote, NO_FLAGS);
	DO(SCIUnmapSegment, own_map, NO_FLAGS);
	DO(SCIRemoveSegment, segment, NO_FLAGS);
	DO(SCIClose, sd, NO_FLAGS);
}

static void requests(void)
{
	struct peer peers[PEERS];
	struct member self;
	unsigned int expected = served();

	begin(peers, &self);
	for (unsigned int i = 0; i < PEERS; i++)
		say(&peers[i], SERVE);
	EXPECT(serve(&self) == expected);
	for (unsigned int i = 0; i < PEERS; i++)
		EXPECT(hear(&peers[i]) == expected);
	end(peers);
}

static void writers_at_once(void)
{
	struct peer peers[PEERS];
	struct member self;

	begin(peers, &self);
	for (unsigned int i = 0; i < PEERS; i++)
		say(&peers[i], RACE);
	EXPECT(race(&self) == 0);
	for (unsigned int i = 0; i < PEERS; i++)
		EXPECT(hear(&peers[i]) == 0);
	end(peers);
}

static void members_come_and_go(void)
{
	struct peer peers[PEERS], late, again;
	struct member self;
	sci_sequence_t sequence;
	sci_error_t error;
	volatile unsigned int *all;

	begin(peers, &self);
	all = (unsigned int *)self.all;
	DO(SCICreateMapSequence, self.all_map, &sequence, NO_FLAGS);
	EXPECT(SCIStartSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	all[0] = 1;
	EXPECT(tell(&peers[0], LOOK) == 1 && tell(&peers[1], LOOK) == 1);
	kill_peer(&peers[0]);
	all[0] = 2;
	EXPECT(tell(&peers[1], LOOK) == 2);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	/* One that comes late has what is stored from then on. */
	start(&late, 3);
	EXPECT(tell(&late, LOOK) == 0);
	all[0] = 3;
	EXPECT(tell(&late, LOOK) == 3 && tell(&peers[1], LOOK) == 3);
	EXPECT(tell(&late, REMOVE) == 0);
	all[0] = 4;
	EXPECT(tell(&peers[1], LOOK) == 4);
	start(&again, 4);
	EXPECT(tell(&again, LOOK) == 0);
	all[0] = 5;
	EXPECT(tell(&again, LOOK) == 5 && tell(&peers[1], LOOK) == 5);
	EXPECT(SCICheckSequence(sequence, NO_FLAGS, &error) == SCI_SEQ_OK);
	leave_group(&self);
	for (int i = 0; i < 3; i++) {
		struct peer *left[] = {&peers[1], &late, &again};

		say(left[i], END);
		join(left[i]);
	}
}

int main(void)
{
	static const struct test tests[] = {
		{"replicas: each member's memory is its own", own_memory},
		{"replicas: stores of every width", stores},
		{"replicas: DMA to all", transfers},
		{"replicas: blocks that overlap", blocks_that_overlap},
		{"replicas: a key-value store loses no request", requests},
		{"replicas: writers at once, each in its order", writers_at_once},
		{"replicas: members come and go", members_come_and_go},
	};

	return run_tests(tests, COUNT(tests));
}
