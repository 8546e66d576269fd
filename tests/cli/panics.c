// SPDX-License-Identifier: MIT OR Apache-2.0
//
// panics has|lacks: a panic is unwound and caught in code that is linked as the libraries are, with
// a C library that has _dl_find_object(3), or as in one that lacks it.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 100 };

uint32_t caught(uint32_t depth);

static unsigned int asked;

// What compat/find_object.c calls: its C library is said not to have the function.
void *dlsym(void *restrict handle, const char *restrict name)
{
	if (strcmp(name, "_dl_find_object") == 0) {
		asked++;
		if (getenv("LACKS"))
			return NULL;
	}
	return dlvsym(handle, name, "GLIBC_2.35");
}

int main(void)
{
	uint32_t unwound = caught(DEPTH);

	printf("asked %u, unwound %u\n", asked, unwound);
	return unwound != DEPTH + 1;
}
