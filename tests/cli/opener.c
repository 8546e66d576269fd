// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Opens libraries as programs do that don't link them. Each argument is HOW:NAME; prints for each
// where the library came from, which devices it finds and, if it is the connection manager's, how
// many of them that one finds. That one has a thread by then, of which the program's own C library
// must know, also where it is in a namespace with another one.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/single_threaded.h>

struct device;

static void *open_as(const char *how, const char *name)
{
	if (strcmp(how, "dlmopen") == 0)
		return dlmopen(LM_ID_NEWLM, name, RTLD_NOW | RTLD_LOCAL);
	if (strcmp(how, "noload") == 0)
		return dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
	return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

// The file that holds `symbol`, as the dynamic linker names it.
static const char *file_of(void *symbol)
{
	Dl_info info;

	return symbol && dladdr(symbol, &info) ? info.dli_fname : "nowhere";
}

static void show_verbs(void *library)
{
	// With its version, as NCCL asks.
	void *found = dlvsym(library, "ibv_get_device_list", "IBVERBS_1.1");
	struct device **(*list)(int *) = (struct device **(*)(int *))found;
	const char *(*name)(struct device *) = dlsym(library, "ibv_get_device_name");
	int count = 0;
	struct device **devices = list ? list(&count) : NULL;

	printf("%s %d %s\n", file_of(found), count, count ? name(devices[0]) : "-");
}

static void show_manager(void *library)
{
	void *found = dlsym(library, "rdma_get_devices");
	struct device **(*list)(int *) = (struct device **(*)(int *))found;
	int count = 0;

	list(&count);
	printf("%s %d -\n", file_of(found), count);
	if (__libc_single_threaded)
		printf("the C library knows of one thread\n");
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		char *name = strchr(argv[i], ':');
		void *library;

		if (!name)
			return 2;
		*name++ = '\0';
		library = open_as(argv[i], name);
		if (!library)
			printf("%s\n", dlerror());
		else if (dlsym(library, "plugin"))
			printf("%s\n", file_of(dlsym(library, "plugin")));
		else if (dlsym(library, "rdma_get_devices"))
			show_manager(library);
		else
			show_verbs(library);
	}
	return 0;
}
