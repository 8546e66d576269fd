// SPDX-License-Identifier: MIT OR Apache-2.0
//
// closed_pool HOW: as closed, for a program of libcauseway.

#include "own.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <causeway.h>

enum { BYTES = 65536, BLOCKS = 4, NAP_US = 100000 };

#define DO(call)                                                                           \
	do {                                                                               \
		int error = call;                                                          \
		if (error) {                                                               \
			fprintf(stderr, "%s: %d\n", #call, error);                         \
			return 1;                                                          \
		}                                                                          \
	} while (0)

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	cw_block *blocks[BLOCKS], *late;
	void *address;
	cw_pool *pool;
	cw_lib *lib;

	alarm(60);
	DO(cw_open(&lib));
	DO(cw_pool_create(lib, "closed", BYTES, 16, 0, &pool));
	for (int i = 0; i < BLOCKS; i++) {
		DO(cw_block_alloc(pool, 0, 0, &blocks[i]));
		DO(cw_block_map(blocks[i], CW_WRITE, &address));
		memset(address, 1, BYTES);
	}
	DO(cw_mutex_init(blocks[0], 0));
	close_all(how);
	open_own(how);
	// None of these need succeed.
	if (cw_block_alloc(pool, 0, 0, &late) == 0)
		cw_block_map(late, CW_WRITE, &address);
	cw_block_name(blocks[0], "frame", 0);
	cw_block_grant(blocks[1], CW_EVERYBODY, 0, CW_READ);
	check_own("after calls");
	check_child("in a child");
	usleep(NAP_US);
	cw_block_free(blocks[2]);
	cw_block_close(blocks[3]);
	cw_pool_close(pool);
	check_own("after closing a pool");
	cw_close(lib);
	check_own("after the end");
	printf("ok\n");
	return 0;
}
