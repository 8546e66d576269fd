#include "remote.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define KILL_ORDER 'K'
/* The server has the first connection of a peer, and waits for the second. */
#define READY 'R'
#define BACKLOG 16

static void failed(const char *what)
{
	perror(what);
	_exit(EXIT_FAILURE);
}

static void get(int fd, void *to, size_t size)
{
	for (char *at = to; size > 0;) {
		ssize_t got = read(fd, at, size);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			failed("a peer in another machine");
		at += got;
		size -= (size_t)got;
	}
}

static void put(int fd, const void *from, size_t size)
{
	if (write(fd, from, size) != (ssize_t)size)
		failed("a peer in another machine");
}

/* Programs may lie anywhere, but a function always lies at the same distance from another. */
static intptr_t distance(void (*role)(struct peer *))
{
	return (intptr_t)role - (intptr_t)run_tests;
}

/* Watches over a role: its end is told, and it ends when the test does. */
static void guard(int control, int data, intptr_t role)
{
	pid_t pid = fork();
	int status, child;
	struct pollfd fds[2];
	char order;

	if (pid < 0)
		failed("fork");
	if (pid == 0) {
		const char *node = getenv("CHECK_NODE");
		struct peer parent = {getppid(), data, data, 0, 0};

		parent.node = node ? (unsigned int)atoi(node) : 0;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(control);
		run_role(&parent, (void (*)(struct peer *))((intptr_t)run_tests + role));
	}
	close(data);
	child = pidfd_open(pid, 0);
	if (child < 0)
		failed("pidfd_open");
	fds[0] = (struct pollfd){.fd = child, .events = POLLIN};
	fds[1] = (struct pollfd){.fd = control, .events = POLLIN};
	while (poll(fds, 2, -1) < 0 || !fds[0].revents) {
		if (!fds[1].revents)
			continue;
		kill(pid, SIGKILL);
		/* An order, or the end of who could give one. */
		if (read(control, &order, 1) <= 0)
			fds[1].fd = -1;
	}
	waitpid(pid, &status, 0);
	/* Who spawned it may have ended. */
	signal(SIGPIPE, SIG_IGN);
	put(control, &status, sizeof(status));
	_exit(EXIT_SUCCESS);
}

static int accept_one(int listener)
{
	int one = 1, fd;

	while ((fd = accept(listener, NULL, NULL)) < 0)
		if (errno != EINTR)
			failed("accept");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

int serve_peers(int port)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	const char ready = READY;

	signal(SIGCHLD, SIG_IGN);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (struct sockaddr *)&at, sizeof(at)) || listen(listener, BACKLOG))
		failed("bind");
	for (;;) {
		int control = accept_one(listener), data;
		intptr_t role;

		get(control, &role, sizeof(role));
		put(control, &ready, 1);
		data = accept_one(listener);
		if (fork() == 0) {
			signal(SIGCHLD, SIG_DFL);
			close(listener);
			guard(control, data, role);
		}
		close(control);
		close(data);
	}
}

static int connect_to_server(const char *address, int port)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	if (inet_pton(AF_INET, address, &to.sin_addr) != 1 ||
	    connect(fd, (struct sockaddr *)&to, sizeof(to)))
		failed(address);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

/* An entry of a list, which it is cut out of. */
static char *entry(char *list, unsigned int turn)
{
	for (; list && turn > 0; turn--)
		strsep(&list, ",");
	return strsep(&list, ",");
}

void spawn_remote(struct peer *peer, void (*role)(struct peer *))
{
	static unsigned int spawned;
	char *list = strdup(getenv("CHECK_PEERS")), *next, *address, *nodes;
	intptr_t where = distance(role);
	unsigned int count = 1, turn;
	char ready;

	for (char *at = list; *at; at++)
		count += *at == ',';
	turn = spawned++ % count;
	next = entry(list, turn);
	if (getenv("CHECK_PEER_NODES")) {
		nodes = strdup(getenv("CHECK_PEER_NODES"));
		peer->node = (unsigned int)atoi(entry(nodes, turn));
		free(nodes);
	}
	address = strsep(&next, ":");
	if (!next)
		failed("CHECK_PEERS");
	peer->pid = 0;
	peer->control = connect_to_server(address, atoi(next));
	put(peer->control, &where, sizeof(where));
	/*
	 * One after the other: the server would take a second connection for the first whose last
	 * packet of the handshake got lost.
	 */
	get(peer->control, &ready, 1);
	peer->in = peer->out = connect_to_server(address, atoi(next));
	free(list);
}

void kill_remote(struct peer *peer)
{
	char order = KILL_ORDER;

	put(peer->control, &order, 1);
}

int status_of_remote(struct peer *peer)
{
	int status;

	get(peer->control, &status, sizeof(status));
	return status;
}
