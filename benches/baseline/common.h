// SPDX-License-Identifier: MIT OR Apache-2.0
//
// What the bare baselines share: time, pinning, medians, arguments.

#ifndef CAUSEWAY_BASELINE_COMMON_H
#define CAUSEWAY_BASELINE_COMMON_H

#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

// Ends the program with the reason that errno gives.
static inline void die(const char *what)
{
	perror(what);
	exit(1);
}

static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// Keeps the calling process on one processor.
static inline void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof set, &set))
		die("sched_setaffinity");
}

static inline int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

// The median of `n` values, which are sorted in place.
static inline double median(double *values, size_t n)
{
	qsort(values, n, sizeof *values, compare_doubles);
	return values[n / 2];
}

// Memory that this process shares with those it forks.
static inline void *shared(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("mmap");
	return p;
}

// A positive decimal argument.
static inline long number(const char *text)
{
	char *end;
	long value = strtol(text, &end, 10);

	if (*end || value <= 0) {
		fprintf(stderr, "%s is not a positive number\n", text);
		exit(2);
	}
	return value;
}

#endif
