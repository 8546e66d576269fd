// SPDX-License-Identifier: MIT OR Apache-2.0
//
// mortal fault|bus|sent: a program that has memory registered dies, by a load from where nothing
// is, from behind the end of a file, or by a signal that it sends itself. What a register holds
// then and where it dies stands in its core file.

#define _GNU_SOURCE
#include <err.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { BYTES = 1 << 16, PAGE = 4096 };

__attribute__((noinline)) static void load(const char *at)
{
	register unsigned long mark asm("r12") = 0x5eed5eed5eed5eed;

	asm volatile("movzbl (%1), %%eax" : "+r"(mark) : "r"(at) : "eax", "memory");
}

int main(int argc, char **argv)
{
	struct rlimit all = { RLIM_INFINITY, RLIM_INFINITY };
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *device = list && *list ? ibv_open_device(*list) : NULL;
	struct ibv_pd *pd = device ? ibv_alloc_pd(device) : NULL;
	void *memory = aligned_alloc(PAGE, BYTES);
	char *cut = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, memfd_create("cut", 0), 0);

	if (!pd || !memory || !ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE))
		err(1, "registering memory");
	if (argc != 2 || cut == MAP_FAILED || setrlimit(RLIMIT_CORE, &all))
		err(1, "usage: mortal fault|bus|sent");
	if (!strcmp(argv[1], "sent"))
		kill(getpid(), SIGSEGV);
	load(strcmp(argv[1], "bus") ? (const char *)0x123 : cut + 0x123);
	return 2;
}
