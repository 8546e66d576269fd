/* Compares what needs no device between two builds of libibverbs: argv[1] and argv[2]. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *find(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found) {
		fprintf(stderr, "%s: %s\n", name, dlerror());
		exit(1);
	}
	return found;
}

static int failures;

static void compare_numbers(void *ours, void *theirs, const char *name)
{
	int (*a)(int) = find(ours, name), (*b)(int) = find(theirs, name);

	for (int i = -2; i < 2000000; i++)
		if (a(i) != b(i)) {
			printf("%s(%d): %d, not %d\n", name, i, a(i), b(i));
			failures++;
		}
}

static void compare_strings(void *ours, void *theirs, const char *name, int last)
{
	const char *(*a)(int) = find(ours, name), *(*b)(int) = find(theirs, name);

	for (int i = -2; i <= last; i++)
		if (strcmp(a(i), b(i))) {
			printf("%s(%d): %s, not %s\n", name, i, a(i), b(i));
			failures++;
		}
}

/* The 1.0 names must fail as a machine without devices would make them. */
static void check_legacy(void *ours)
{
	void *(*list)(int *) = dlvsym(ours, "ibv_get_device_list", "IBVERBS_1.0");
	int count = 7;

	errno = 0;
	if (!list || list(&count) || count || errno != ENOSYS) {
		printf("ibv_get_device_list@IBVERBS_1.0: count %d, errno %d\n", count, errno);
		failures++;
	}
}

static void check_device_list(void *ours)
{
	struct ibv_device **(*list)(int *) = find(ours, "ibv_get_device_list");
	void (*release)(struct ibv_device **) = find(ours, "ibv_free_device_list");
	const char *(*name)(struct ibv_device *) = find(ours, "ibv_get_device_name");
	int count = 0;
	struct ibv_device **devices = list(&count);

	if (count != 1 || !devices[0] || devices[1] || strcmp(name(devices[0]), "cway0") ||
	    strcmp(devices[0]->dev_name, "uverbs0") || devices[0]->node_type != IBV_NODE_CA ||
	    devices[0]->transport_type != IBV_TRANSPORT_IB) {
		printf("the device list is wrong\n");
		failures++;
	}
	release(devices);
}

int main(int argc, char **argv)
{
	void *ours = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	void *theirs = argc == 3 ? dlopen(argv[2], RTLD_NOW | RTLD_LOCAL) : NULL;

	if (!ours || !theirs) {
		fprintf(stderr, "usage: differential OURS THEIRS: %s\n", dlerror());
		return 2;
	}
	compare_numbers(ours, theirs, "ibv_rate_to_mult");
	compare_numbers(ours, theirs, "mult_to_ibv_rate");
	compare_numbers(ours, theirs, "ibv_rate_to_mbps");
	compare_numbers(ours, theirs, "mbps_to_ibv_rate");
	compare_strings(ours, theirs, "ibv_node_type_str", 9);
	compare_strings(ours, theirs, "ibv_port_state_str", 9);
	compare_strings(ours, theirs, "ibv_event_type_str", IBV_EVENT_WQ_FATAL);
	compare_strings(ours, theirs, "ibv_wc_status_str", 30);
	check_legacy(ours);
	check_device_list(ours);
	return failures != 0;
}
