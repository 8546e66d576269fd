/*
 * Traffic that does not end (served.h): stores a number to the segment and reads it back, again and
 * again. It says every hundredth number, and ends with the first error.
 */
#include "served.h"

#include <stdio.h>
#include <time.h>

#define SAY_EVERY 100
#define PAUSE_NS 1000000

const unsigned int segment_id = 910;

void use(sci_sequence_t sequence, sci_map_t map)
{
	const struct timespec rest = {.tv_nsec = PAUSE_NS};
	sci_error_t error;

	for (unsigned long n = 1;; n++) {
		unsigned long back = 0;

		SCIMemCpy(sequence, &n, map, 0, sizeof(n), SCI_FLAG_ERROR_CHECK, &error);
		demand(error == SCI_ERR_OK, "write", error);
		SCIMemCpy(sequence, &back, map, 0, sizeof(back),
				SCI_FLAG_BLOCK_READ | SCI_FLAG_ERROR_CHECK, &error);
		demand(error == SCI_ERR_OK, "read", error);
		demand(back == n, "another number came back", error);
		if (n % SAY_EVERY == 0)
			printf("%lu\n", n);
		nanosleep(&rest, NULL);
	}
}
