/* Instructions that the library executes in an operation, counted by single steps. */
#ifndef CAUSEWAY_COUNTS_H
#define CAUSEWAY_COUNTS_H

#include <stdbool.h>

/* Most operations that are counted: each trap costs some 10 us in a virtual machine, and the median
 * of 100 is that of 1,000. */
#define SAMPLES_MAX 100

/* What is counted. An operation is carried out by one thread, which holds both ends. */
struct operation {
	const char *name;
	/* Carries out one operation; what lies between counts_begin() and counts_end() counts. */
	void (*run)(void);
	/* Calls of the library in it, at least. */
	int calls;
	/* Counting ends at the first system call that sends. */
	bool until_sent;
	/* How many are counted. */
	int samples;
};
extern const struct operation operations[];
extern const int operations_number;

/* Opens the device and connects two queue pairs of this process. */
void operations_open(void);

/* From the return of the first to the call of the second the calling thread is stepped. Neither
 * does anything while the program warms up. */
void counts_begin(void);
void counts_end(void);

#endif
