/* Calls that wait go on after a signal whose handler asks for that (SA_RESTART), as reads of the
 * kernel's channels and sockets do, and end with EINTR after another. */
#define _GNU_SOURCE
#include "peer.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SIGNALS 5
#define WAIT_MS 20000

enum call { CM_EVENT, ACCEPT, RECEIVE, CALLS };
static const char *const NAMES[] = { "rdma_get_cm_event", "raccept", "rrecv" };

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;
static struct sockaddr_storage address;
static int listener, client, accepted;
static atomic_int handled;

struct waiter {
	pthread_t thread;
	enum call call;
	_Atomic pid_t tid;
	/* What the call failed with; 0: it did not. */
	int error;
	atomic_bool returned;
};

static void note(int number)
{
	(void)number;
	handled++;
}

static void handle(int flags)
{
	struct sigaction action = { .sa_handler = note, .sa_flags = flags };

	need(!sigaction(SIGUSR1, &action, NULL), "sigaction");
}

static bool call(enum call call)
{
	struct rdma_cm_event *event;
	char byte;
	int fd;

	switch (call) {
	case CM_EVENT:
		if (rdma_get_cm_event(channel, &event))
			return false;
		rdma_ack_cm_event(event);
		return true;
	case ACCEPT:
		fd = raccept(listener, NULL, NULL);
		accepted = fd >= 0 ? fd : accepted;
		return fd >= 0;
	default:
		return rrecv(accepted, &byte, 1, 0) == 1;
	}
}

static void *wait_once(void *arg)
{
	struct waiter *waiter = arg;

	waiter->tid = (pid_t)syscall(SYS_gettid);
	waiter->error = call(waiter->call) ? 0 : errno;
	waiter->returned = true;
	return NULL;
}

/* Has happen what a thread waits for. */
static void give(enum call call)
{
	switch (call) {
	case CM_EVENT:
		need(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, RESOLVE_MS),
		     "rdma_resolve_addr");
		break;
	case ACCEPT:
		client = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		need(client >= 0, "rsocket");
		need(rconnect(client, (struct sockaddr *)&address, sizeof(struct sockaddr_in)) &&
		     errno == EINPROGRESS, "rconnect");
		break;
	default:
		need(rsend(client, "x", 1, 0) == 1, "rsend");
	}
}

/* Signals come while a thread is in the call, each in a sleep of its own. */
static void signalled(struct waiter *waiter, int signals)
{
	waiter->tid = 0;
	need0(pthread_create(&waiter->thread, NULL, wait_once, waiter));
	for (int n = 0; n < signals; n++) {
		int before = handled;

		await_sleep(&waiter->tid);
		need0(pthread_kill(waiter->thread, SIGUSR1));
		while (handled == before)
			sched_yield();
	}
}

/* Signals come until the call returns: one that comes between two sleeps ends nothing. */
static void interrupted(struct waiter *waiter)
{
	waiter->tid = 0;
	waiter->returned = false;
	need0(pthread_create(&waiter->thread, NULL, wait_once, waiter));
	while (!waiter->returned) {
		need0(pthread_kill(waiter->thread, SIGUSR1));
		sched_yield();
	}
}

static void ends_with(struct waiter *waiter, int error)
{
	need0(pthread_join(waiter->thread, NULL));
	if (waiter->error != error)
		fail("%s: error %d, not %d", NAMES[waiter->call], waiter->error, error);
}

int hear_signals(const char *host, const char *port)
{
	struct pollfd polled = { .events = POLLOUT };

	address = address_of(host, port);
	channel = rdma_create_event_channel();
	need(channel, "rdma_create_event_channel");
	need(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	listener = rsocket(AF_INET, SOCK_STREAM, 0);
	need(listener >= 0, "rsocket");
	need(!rbind(listener, (struct sockaddr *)&address, sizeof(struct sockaddr_in)), "rbind");
	need(!rlisten(listener, 1), "rlisten");
	for (int call = 0; call < CALLS; call++) {
		struct waiter waiter = { .call = call };

		handle(SA_RESTART);
		signalled(&waiter, SIGNALS);
		give(call);
		ends_with(&waiter, 0);
		if (call == ACCEPT) {
			polled.fd = client;
			need(rpoll(&polled, 1, WAIT_MS) == 1, "the client is connected");
		}
		handle(0);
		interrupted(&waiter);
		ends_with(&waiter, EINTR);
	}
	need(!rclose(client) && !rclose(accepted) && !rclose(listener), "rclose");
	need(!rdma_destroy_id(id), "rdma_destroy_id");
	rdma_destroy_event_channel(channel);
	printf("%d calls go on after signals\n", CALLS);
	return 0;
}
