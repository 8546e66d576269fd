/*
 * Peers of a conformance test in other machines. The same program is started there with
 * CHECK_SERVE=PORT, and here with CHECK_PEERS=ADDRESS:PORT,... : the first process that a test
 * spawns runs at the first address, the second at the second, and so on in turn. Where these are
 * other hosts, CHECK_PEER_NODES=NODE,... are their nodes here, and CHECK_NODE this one's there.
 */
#ifndef REMOTE_H
#define REMOTE_H

#include "check.h"

/* Serves until it is killed. */
int serve_peers(int port);
/* As spawn, elsewhere. */
void spawn_remote(struct peer *peer, void (*role)(struct peer *));
void kill_remote(struct peer *peer);
/* Waits for its end: as waitpid has it. */
int status_of_remote(struct peer *peer);

/* Runs a role to its end, which is the process's. Defined in check.c. */
void run_role(struct peer *parent, void (*role)(struct peer *)) __attribute__((noreturn));

#endif
