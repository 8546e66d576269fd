/* Ways to hold a page, one at a time. */
#ifndef CAUSEWAY_HOSTILE_HOLD_H
#define CAUSEWAY_HOSTILE_HOLD_H

#include "stage.h"

/* Has a page held in a way by a file at an offset, and answers. */
void hold_begin(unsigned char *page, char **args);
/* The commands "letgo" and "run". */
void hold_end(char **args, int count);
void hold_run(char **args, int count);

#endif
