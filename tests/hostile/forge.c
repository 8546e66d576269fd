#define _GNU_SOURCE
#include "forge.h"
#include "stage.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* The header of a message: crates/fabric/src/remoting. */
struct header {
	uint16_t magic, version, service, method;
	uint32_t request, status, length;
	uint8_t kind, fds;
	uint16_t zero;
};
#define MAGIC 0x5743
/* The build gives the version that the tree's brokers speak. */
#define VERSION REMOTING_VERSION
#define SERVICE 1
#define DESTROY_SEGMENT 11
#define MAP_SEGMENT 13
#define REPLY 1
#define BODY_MAX 65536
#define FIRST_REQUEST 0x70000000
/* QP numbers tried below and above the own one. */
#define AROUND 8
#define FDS_MAX 16

/* The connection to the broker, which the library keeps. */
static int find_broker(void)
{
	for (int fd = 3; fd < 1024; fd++) {
		struct sockaddr_storage peer;
		socklen_t len = sizeof(int), room = sizeof(peer);
		int type, domain;

		if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 &&
		    type == SOCK_SEQPACKET &&
		    getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 &&
		    domain == AF_UNIX && getpeername(fd, (void *)&peer, &room) == 0)
			return fd;
	}
	fail("no connection to the broker");
}

/* The status of the reply, and its only descriptor or -1. */
static int await(int broker, uint32_t request, int *given)
{
	static char body[BODY_MAX];
	char control[CMSG_SPACE(FDS_MAX * sizeof(int))];
	struct header header;

	do {
		struct iovec iov[2] = { { &header, sizeof(header) }, { body, sizeof(body) } };
		struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2, .msg_control = control,
				      .msg_controllen = sizeof(control) };
		struct cmsghdr *c;
		ssize_t n;

		/* The socket does not block. */
		do
			n = recvmsg(broker, &msg, 0);
		while (n < 0 && (errno == EAGAIN || errno == EINTR));
		need(n >= (ssize_t)sizeof(header), "the broker's reply");
		*given = -1;
		c = CMSG_FIRSTHDR(&msg);
		if (c && c->cmsg_type == SCM_RIGHTS)
			memcpy(given, CMSG_DATA(c), sizeof(*given));
	} while (header.kind != REPLY || header.request != request);
	return header.status;
}

static int ask(int broker, uint16_t method, const void *body, uint32_t length, int *given)
{
	static uint32_t request = FIRST_REQUEST;
	struct header header = {
		.magic = MAGIC, .version = VERSION, .service = SERVICE, .method = method,
		.request = ++request, .length = length,
	};
	struct iovec iov[2] = { { &header, sizeof(header) }, { (void *)body, length } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };

	need(sendmsg(broker, &msg, 0) > 0, "a request to the broker");
	return await(broker, request, given);
}

static void ask_all(int broker, uint32_t qpn, const uint64_t *segments, int count,
		    struct forged *forged)
{
	for (uint32_t q = qpn - AROUND; q <= qpn + AROUND; q++)
		for (int i = 0; i < count; i++) {
			unsigned char body[12];
			int given, status;

			memcpy(body, &q, 4);
			memcpy(body + 4, &segments[i], 8);
			status = ask(broker, MAP_SEGMENT, body, sizeof(body), &given);
			if (status)
				forged->refused++;
			else if ((fcntl(given, F_GETFL) & O_ACCMODE) == O_RDWR)
				forged->writers++;
			else
				forged->readers++;
			if (!status && q != qpn)
				fail("granted by a QP that is not this one's");
		}
	for (int i = 0; i < count; i++) {
		int given;

		if (!ask(broker, DESTROY_SEGMENT, &segments[i], 8, &given))
			fail("another's segment was destroyed");
	}
}

void forge_hang_up(void)
{
	need(shutdown(find_broker(), SHUT_RDWR) == 0, "shutdown");
}

/* Stops a process, and waits until all of it has. */
static void stop(pid_t pid)
{
	char path[64], line[256], state = 0;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	need(kill(pid, SIGSTOP) == 0, "kill");
	while (state != 'T') {
		FILE *stat = fopen(path, "r");

		need(stat && fgets(line, sizeof(line), stat), path);
		fclose(stat);
		if (sscanf(line, "%*d (%*[^)]) %c", &state) != 1)
			fail("%s", line);
	}
}

/* A child asks, since it can stop its parent, whose threads would take the replies. */
void forge(uint32_t qpn, const uint64_t *segments, int count, struct forged *forged)
{
	int result[2], broker = find_broker(), status;
	pid_t parent = getpid(), pid;

	need(pipe(result) == 0, "pipe");
	pid = fork();
	need(pid >= 0, "fork");
	if (pid == 0) {
		stop(parent);
		ask_all(broker, qpn, segments, count, forged);
		need(write(result[1], forged, sizeof(*forged)) == sizeof(*forged), "write");
		kill(parent, SIGCONT);
		_exit(0);
	}
	close(result[1]);
	if (read(result[0], forged, sizeof(*forged)) != sizeof(*forged))
		fail("the forger has failed");
	close(result[0]);
	need(waitpid(pid, &status, 0) == pid, "waitpid");
}
