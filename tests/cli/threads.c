// SPDX-License-Identifier: MIT OR Apache-2.0
//
// What a program with one thread counts on when a call has returned: each thread that the libraries
// have made meanwhile has had its first memory, for which the C library maps an arena for it and
// unmaps what is left over. Prints the threads and the arenas after each call.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <err.h>
#include <infiniband/verbs.h>
#include <malloc.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

static int threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *entry;
	int count = 0;

	if (!tasks)
		err(1, "/proc/self/task");
	while ((entry = readdir(tasks)))
		count += entry->d_name[0] != '.';
	closedir(tasks);
	return count;
}

static int arenas(void)
{
	static const char each[] = "<heap nr=";
	char *text = NULL;
	size_t size;
	FILE *file = open_memstream(&text, &size);
	int count = 0;

	if (!file || malloc_info(0, file) || fclose(file))
		err(1, "malloc_info");
	for (const char *at = text; (at = strstr(at, each)); at += sizeof(each) - 1)
		count++;
	free(text);
	return count;
}

static void look(const char *call)
{
	// The arenas first: a thread that has had its memory stays.
	int had = arenas(), there = threads();

	printf("%s: %d threads, %d arenas\n", call, there, had);
	failures += had < there;
}

int main(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct rdma_event_channel *channel;
	struct ibv_device **list;
	struct ibv_context *device;
	struct rdma_cm_id *id;
	cpu_set_t one;

	// On one processor the new thread does not run before this one sleeps.
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	if (sched_setaffinity(0, sizeof(one), &one))
		err(1, "sched_setaffinity");
	list = ibv_get_device_list(NULL);
	device = list && *list ? ibv_open_device(*list) : NULL;
	if (!device)
		err(1, "ibv_open_device");
	look("ibv_open_device");
	channel = rdma_create_event_channel();
	if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		err(1, "rdma_create_id");
	look("rdma_create_id");
	inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
	if (rdma_bind_addr(id, (struct sockaddr *)&address))
		err(1, "rdma_bind_addr");
	look("rdma_bind_addr");
	if (rdma_listen(id, 1))
		err(1, "rdma_listen");
	look("rdma_listen");
	return failures != 0;
}
