/*
 * A transfer that shows if it passes in the clear (served.h): writes a text to the segment again
 * and again, reads it back, and ends.
 */
#include "served.h"

#include <stdio.h>
#include <string.h>

#define TIMES 64
#define MARK "what nobody else may read "

const unsigned int segment_id = 0x5ec2e7ed;

void use(sci_sequence_t sequence, sci_map_t map)
{
	static char bytes[SIZE], back[SIZE];
	sci_error_t error;

	for (size_t at = 0; at + sizeof(MARK) <= SIZE; at += sizeof(MARK) - 1)
		memcpy(bytes + at, MARK, sizeof(MARK));
	for (int n = 0; n < TIMES; n++) {
		SCIMemCpy(sequence, bytes, map, 0, SIZE, SCI_FLAG_ERROR_CHECK, &error);
		demand(error == SCI_ERR_OK, "write", error);
		SCIMemCpy(sequence, back, map, 0, SIZE,
				SCI_FLAG_BLOCK_READ | SCI_FLAG_ERROR_CHECK, &error);
		demand(error == SCI_ERR_OK, "read", error);
		demand(!memcmp(bytes, back, SIZE), "other bytes came back", error);
		memset(back, 0, SIZE);
	}
	puts("done");
}
