/* Requests to the broker that no library makes, over the connection that the library opened. */
#ifndef CAUSEWAY_HOSTILE_FORGE_H
#define CAUSEWAY_HOSTILE_FORGE_H

#include <stdint.h>

/* How the broker answered requests for segments. */
struct forged {
	int writers, readers, refused;
};

/* Asks for every segment by every QP number around `qpn`, and for what only its owner may do, while
 * the library's threads are stopped. */
void forge(uint32_t qpn, const uint64_t *segments, int count, struct forged *forged);

/* Ends the connection to the broker, behind the library's back. */
void forge_hang_up(void);

#endif
