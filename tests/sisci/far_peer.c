/* The peer of tests between hosts, and what both sides have in common. */
#include "far.h"

#include <glob.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

unsigned char pattern(unsigned int i, unsigned int seed)
{
	return (unsigned char)(i * 7 + i / PAGE + seed);
}

unsigned int sum(const unsigned char *memory, size_t size)
{
	unsigned int total = 0;

	for (size_t i = 0; i < size; i++)
		total = total * 31 + memory[i];
	return total;
}

/* Whether all threads of a process are stopped: kill(2) returns before they are. */
static int is_stopped(int pid)
{
	char path[64];
	glob_t threads;
	int stopped = 1;

	snprintf(path, sizeof path, "/proc/%d/task/*/stat", pid);
	EXPECT(glob(path, 0, NULL, &threads) == 0);
	for (size_t i = 0; i < threads.gl_pathc; i++) {
		FILE *file = fopen(threads.gl_pathv[i], "r");
		char state = 0;

		/* The name of a thread is in parentheses, and has spaces at most. */
		if (file && fscanf(file, "%*d (%*[^)]) %c", &state) == 1)
			stopped &= state == 'T';
		if (file)
			fclose(file);
	}
	globfree(&threads);
	return stopped;
}

/* To the node daemon of the host that this process is on. One that is killed has ended when this
 * returns: another can have its port. One that is stopped does nothing any more. */
static void signal_daemon(int number)
{
	const char *name = getenv("CHECK_DAEMON_FILE");
	FILE *file = name ? fopen(name, "r") : NULL;
	struct pollfd end = {.events = POLLIN};
	int pid = 0;

	EXPECT(file && fscanf(file, "%d", &pid) == 1);
	if (file)
		fclose(file);
	end.fd = (int)syscall(SYS_pidfd_open, pid, 0);
	EXPECT(pid > 0 && kill(pid, number) == 0);
	if (number == SIGKILL)
		EXPECT(poll(&end, 1, LONG_MS) == 1);
	while (number == SIGSTOP && !is_stopped(pid))
		sched_yield();
	close(end.fd);
}

/* Another daemon of this host, which outlives this process. */
static void start_daemon(void)
{
	const char *name = getenv("CHECK_DAEMON_FILE");
	pid_t child = fork(), daemon;
	FILE *file;

	if (child) {
		EXPECT(child > 0 && waitpid(child, NULL, 0) == child);
		return;
	}
	setsid();
	daemon = fork();
	if (!daemon) {
		execl(getenv("CHECK_NODED"), "causeway-noded", NULL);
		_exit(127);
	}
	file = fopen(name, "w");
	if (file) {
		fprintf(file, "%d\n", (int)daemon);
		fclose(file);
	}
	_exit(0);
}

/* Takes so many letters out of a mailbox: a flag, which the reader resets in its own memory, and a
 * number. Returns how many were what they should be. */
static unsigned int take_letters(volatile unsigned int *box, unsigned int letters)
{
	unsigned int good = 0;

	for (unsigned int i = 0; i < letters; i++) {
		while (!box[0])
			sched_yield();
		good += box[1] == i;
		box[0] = 0;
		__sync_synchronize();
		box[2] = i + 1;
	}
	return good;
}

/* Unmaps and removes a segment; how that went. The second time it is not mapped any more. */
static sci_error_t removed(sci_local_segment_t segment, sci_map_t map, unsigned int flags)
{
	sci_error_t error;

	SCIUnmapSegment(map, NO_FLAGS, &error);
	SCIRemoveSegment(segment, flags, &error);
	return error;
}

static unsigned int fill(unsigned char *memory)
{
	for (unsigned int i = 0; i < SIZE; i++)
		memory[i] = pattern(i, 3);
	return sum(memory, SIZE);
}

/* Whether anything has happened to a segment. */
static int has_heard(sci_local_segment_t segment)
{
	unsigned int node, adapter;
	sci_error_t error;

	SCIWaitForLocalSegmentEvent(segment, &node, &adapter, SHORT_MS, NO_FLAGS, &error);
	return error != SCI_ERR_TIMEOUT;
}

void peer_owner(struct peer *parent)
{
	sci_desc_t sd = open_library();
	sci_local_segment_t segment, second;
	sci_map_t map, other;
	unsigned char *memory = offer(sd, &segment, &map, ID, SIZE);
	unsigned int order, node, adapter, bell = BELL;
	sci_local_interrupt_t interrupt;
	sci_error_t error;

	DO(SCICreateInterrupt, sd, &interrupt, ADAPTER, &bell, NO_CALLBACK, NO_ARG,
			SCI_FLAG_FIXED_INTNO | SCI_FLAG_COUNTING_INT);
	say(parent, own_node());
	EXPECT(SCIWaitForLocalSegmentEvent(segment, &node, &adapter, LONG_MS, NO_FLAGS, &error) ==
			SCI_CB_CONNECT);
	say(parent, node);
	while ((order = hear(parent)) != END) {
		switch (order) {
		case SUM:
			say(parent, sum(memory, SIZE));
			break;
		case FILL:
			say(parent, fill(memory));
			break;
		case OFFER:
			offer(sd, &second, &other, ID + 1, PAGE);
			say(parent, 0);
			break;
		case TRY_REMOVE:
		case REMOVE:
			say(parent, removed(segment, map,
					order == REMOVE ? SCI_FLAG_FORCE_REMOVE : NO_FLAGS));
			break;
		case WAIT_DISCONNECT:
			EXPECT(SCIWaitForLocalSegmentEvent(segment, &node, &adapter, LONG_MS,
					NO_FLAGS, &error) == SCI_CB_DISCONNECT);
			say(parent, node);
			break;
		case MAILBOX:
			say(parent, take_letters((volatile unsigned int *)memory, hear(parent)));
			break;
		case STOP_DAEMON:
		case WAKE_DAEMON:
		case KILL_DAEMON:
			signal_daemon(order == STOP_DAEMON ? SIGSTOP :
					order == WAKE_DAEMON ? SIGCONT : SIGKILL);
			say(parent, 0);
			break;
		case START_DAEMON:
			start_daemon();
			say(parent, 0);
			break;
		case HEARD:
			say(parent, has_heard(segment));
			break;
		case TRIGGERED:
			/* Once, and not twice. */
			DO(SCIWaitForInterrupt, interrupt, LONG_MS, NO_FLAGS);
			SCIWaitForInterrupt(interrupt, SHORT_MS, NO_FLAGS, &error);
			say(parent, error == SCI_ERR_TIMEOUT);
			break;
		default:
			break;
		}
	}
}

sci_desc_t begin(struct peer *peer, sci_remote_segment_t *remote)
{
	unsigned int node;
	sci_desc_t sd;

	spawn(peer, peer_owner);
	node = hear(peer);
	sd = open_library();
	EXPECT(node != own_node());
	EXPECT(SCIProbeNode(sd, ADAPTER, node, NO_FLAGS, NULL) != 0);
	connect_to(sd, remote, node, ID);
	EXPECT(hear(peer) == own_node());
	EXPECT(SCIGetRemoteSegmentSize(*remote) == SIZE);
	EXPECT(SCIGetRemoteSegmentId(*remote) == ID && SCIGetRemoteSegmentNodeId(*remote) == node);
	return sd;
}

void end(struct peer *peer)
{
	say(peer, END);
	join(peer);
}

sci_map_t map_all(sci_remote_segment_t remote, unsigned char **memory)
{
	sci_error_t error;
	sci_map_t map;

	*memory = (unsigned char *)SCIMapRemoteSegment(remote, &map, 0, SIZE, NULL, NO_FLAGS,
			&error);
	if (error != SCI_ERR_OK)
		give_up(__FILE__, __LINE__, "SCIMapRemoteSegment", error);
	return map;
}
