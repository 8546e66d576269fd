/* A process that can have no more threads, as in a container at its limit. Defines a function in
 * the place of the C library's: for one source file of a program. */
#ifndef NO_THREADS_H
#define NO_THREADS_H

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

typedef int create_t(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

/* No thread can be made while this is set. */
static volatile int no_threads;

/* Also for libsisci.so. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
		void *(*function)(void *), void *argument)
{
	create_t *create = (create_t *)dlsym(RTLD_NEXT, "pthread_create");

	return no_threads ? EAGAIN : create(thread, attributes, function, argument);
}

#endif
