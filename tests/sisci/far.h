/*
 * Programs whose peer is on another host: it owns a segment there (far_peer.c), and does what it is
 * told.
 */
#ifndef FAR_H
#define FAR_H

#include "check.h"

#define ID 900
/* More than what a copy posts and does not wait for. */
#define SIZE (80 * PAGE)
#define POSTED (64 * PAGE)
#define ROUNDS 200
/* An interrupt of the owner's. */
#define BELL 33
/* Letters of a mailbox, unless CHECK_LETTERS says otherwise. */
#define LETTERS 2000

enum order {
	END, SUM, FILL, OFFER, TRY_REMOVE, REMOVE, WAIT_DISCONNECT, STOP_DAEMON, WAKE_DAEMON,
	KILL_DAEMON, MAILBOX,
	/* Starts another daemon; says whether the owner has heard anything; takes a trigger. */
	START_DAEMON, HEARD, TRIGGERED
};

/* After MAILBOX comes the number of letters. What FILL leaves with a seed of 3. */
unsigned char pattern(unsigned int i, unsigned int seed);
/* What SUM says of memory. */
unsigned int sum(const unsigned char *memory, size_t size);
/* The owner's process; far.h's orders are for it. */
void peer_owner(struct peer *parent);
/* Connects to the owner's segment; the owner hears from which node. */
sci_desc_t begin(struct peer *peer, sci_remote_segment_t *remote);
/* The owner ends. */
void end(struct peer *peer);
/* Maps all of it. */
sci_map_t map_all(sci_remote_segment_t remote, unsigned char **memory);

#endif
