/*
 * Programs that own a segment until they are killed (`PROGRAM`), or use the one of a node
 * (`PROGRAM NODE`).
 */
#ifndef SERVED_H
#define SERVED_H

#include <sisci_api.h>

#define NO_FLAGS 0
/* Bytes of the segment. */
#define SIZE 4096

/* The number of the segment. */
extern const unsigned int segment_id;
/* What is done with the segment of that node. */
void use(sci_sequence_t sequence, sci_map_t map);
/* Says what has failed, and ends the program, unless the condition holds. */
void demand(int holds, const char *what, sci_error_t error);

#endif
