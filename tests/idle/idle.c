// SPDX-License-Identifier: MIT OR Apache-2.0
//
// idle [HOST]: two sides with a connected QP that has been busy must cost nothing once nobody
// polls, and still answer when woken. Without HOST the server. Exits with 1 if a side was not idle.

#define _GNU_SOURCE
#include "side.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum {
	TURNS = 500,
	IDLE_SECONDS = 3,
	// After the last message: time for timers and the helper thread to come to rest.
	SETTLE_MS = 500,
	// A side that polls would use 3000 ms, one that ticks every 200 us about 15000
	// switches, one that ticks every 200 ms fifteen. Looking costs a switch, and some
	// microseconds. Over UDP each side asks now and then whether the other is there.
	CPU_MS_MAX = 20,
	SWITCHES_MAX = 10,
	SWITCHES_MAX_UDP = 60,
};

struct usage {
	double cpu_ms;
	long switches;
	double broker_ms;
};

// The processor time of this user's broker, in milliseconds; 0 if there is none.
static double broker_ms(void)
{
	char path[512];
	long user = 0, kernel = 0;
	int pid = 0;
	FILE *f;

	snprintf(path, sizeof path, "%s/broker.pid", getenv("CAUSEWAY_RUNTIME_DIR"));
	f = fopen(path, "r");
	if (!f)
		return 0;
	if (fscanf(f, "%d", &pid) != 1)
		pid = 0;
	fclose(f);
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	f = fopen(path, "r");
	if (!f)
		return 0;
	if (fscanf(f, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user,
		   &kernel) != 2)
		user = kernel = 0;
	fclose(f);
	return (double)(user + kernel) * 1000.0 / (double)sysconf(_SC_CLK_TCK);
}

static double own_ms(const struct rusage *r)
{
	return (double)(r->ru_utime.tv_sec + r->ru_stime.tv_sec) * 1e3 +
	       (double)(r->ru_utime.tv_usec + r->ru_stime.tv_usec) / 1e3;
}

static void sleep_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

// What is watched, and where the other side is told that it was.
struct watch {
	struct usage used;
	int oob;
};

// What this process and the broker use while nothing is to be done. The broker is looked at outside
// of the time in which this process is: that costs, too.
static void *watch(void *arg)
{
	struct watch *w = arg;
	struct usage *u = &w->used;
	struct rusage before, after;

	sleep_ms(SETTLE_MS);
	u->broker_ms = -broker_ms();
	getrusage(RUSAGE_SELF, &before);
	sleep_ms(IDLE_SECONDS * 1000);
	getrusage(RUSAGE_SELF, &after);
	u->broker_ms += broker_ms();
	u->cpu_ms = own_ms(&after) - own_ms(&before);
	u->switches = after.ru_nvcsw - before.ru_nvcsw;
	// Neither side is disturbed before both have been watched.
	oob_barrier(w->oob, 3);
	return NULL;
}

int main(int argc, char **argv)
{
	struct side s = { 0 };
	struct watch watched = { 0 };
	bool client = argc > 1;
	pthread_t watcher;

	open_side(&s, client ? argv[1] : NULL);
	for (int i = 0; i < TURNS; i++) {
		if (client)
			post_send(&s);
		await(&s, client, 1);
		if (!client) {
			post_send(&s);
			await(&s, 1, 0);
		}
	}
	oob_barrier(s.oob, 2);
	watched.oob = s.oob;
	need(pthread_create(&watcher, NULL, watch, &watched) == 0, "pthread_create");
	if (client) {
		pthread_join(watcher, NULL);
		post_send(&s);
		await(&s, 1, 1);
	} else {
		// Sleeps in ibv_get_cq_event until the client's message.
		await(&s, 0, 1);
		pthread_join(watcher, NULL);
		post_send(&s);
		await(&s, 1, 0);
	}
	oob_barrier(s.oob, 4);
	struct usage used = watched.used;
	const char *wire = getenv("CAUSEWAY_WIRE");
	long most = wire && !strcmp(wire, "shm") ? SWITCHES_MAX : SWITCHES_MAX_UDP;
	printf("in %d s without work: %.1f ms of processor, %ld switches, broker %.0f ms\n",
	       IDLE_SECONDS, used.cpu_ms, used.switches, used.broker_ms);
	return used.cpu_ms > CPU_MS_MAX || used.switches > most ||
	       used.broker_ms > CPU_MS_MAX;
}
