// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A library's every pthread_create(3) comes here (`ld --wrap=pthread_create`).
//
// It returns when the thread has had its first memory. For that the C library maps an arena and
// unmaps what is left over, and programs that watch what is unmapped, such as libfabric,
// write their own instructions over those of munmap(2) as they begin: a thread that is in that call
// meanwhile goes on in the middle of one. Programs with one thread expect none to be there.
//
// A library that was loaded into a namespace of its own (dlmopen(3)) has a C library of its own,
// which makes its threads. The process's first C library does not hear of that, and goes on
// allocating memory without locks, as a process with one thread may; but that is where the dynamic
// linker allocates each thread's part of the thread-local variables. So the first C library makes
// a thread before, which ends at once, and locks from then on.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int create_fn(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
typedef int join_fn(pthread_t, void **);

create_fn __real_pthread_create;
create_fn __wrap_pthread_create __attribute__((visibility("hidden")));

static bool is_first_namespace(void)
{
	Lmid_t id = LM_ID_BASE;
	struct link_map *map = NULL;
	Dl_info info;

	if (!dladdr1((void *)__wrap_pthread_create, &info, (void **)&map, RTLD_DL_LINKMAP))
		return true;
	return dlinfo(map, RTLD_DI_LMID, &id) != 0 || id == LM_ID_BASE;
}

static void *end_at_once(void *nothing)
{
	return nothing;
}

static bool make_thread(void *first)
{
	create_fn *create = (create_fn *)dlsym(first, "pthread_create");
	join_fn *join = (join_fn *)dlsym(first, "pthread_join");
	pthread_t thread;

	if (!create || !join)
		return false;
	if (create(&thread, NULL, end_at_once, NULL) == 0)
		join(thread, NULL);
	return true;
}

static void tell_first_namespace(void)
{
	// Until glibc 2.34 threads were a library of their own.
	static const char *const names[] = { "libc.so.6", "libpthread.so.0" };

	bool made = false;

	for (size_t i = 0; !made && i < sizeof(names) / sizeof(*names); i++) {
		void *first = dlmopen(LM_ID_BASE, names[i], RTLD_NOW | RTLD_NOLOAD);

		if (!first)
			continue;
		made = make_thread(first);
		dlclose(first);
	}
}

struct start {
	void *(*run)(void *);
	void *argument;
	_Atomic uint32_t begun;
};

static void *begin(void *at)
{
	struct start *start = at;
	void *(*run)(void *) = start->run, *argument = start->argument;
	void *volatile first = malloc(1);

	free(first);
	atomic_store(&start->begun, 1);
	// What it waited in may be gone by now: then nobody is woken.
	syscall(SYS_futex, &start->begun, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	return run(argument);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
			  void *argument)
{
	struct start start = { .run = run, .argument = argument };
	int error;

	if (!is_first_namespace())
		tell_first_namespace();
	error = __real_pthread_create(thread, attr, begin, &start);
	while (!error && !atomic_load(&start.begun))
		syscall(SYS_futex, &start.begun, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
	return error;
}
