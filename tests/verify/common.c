#define _GNU_SOURCE
#include "common.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* How often a client tries to reach a server that may still be starting, and the pause between. */
#define CONNECT_TRIES 200
#define CONNECT_PAUSE_US 50000

void fail(const char *format, ...)
{
	int saved = errno;
	va_list args;

	va_start(args, format);
	flockfile(stderr);
	fputs("verify: ", stderr);
	errno = saved;
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	fflush(stderr);
	funlockfile(stderr);
	va_end(args);
	/* Other threads are still at work on what exit handlers would take away. */
	_exit(1);
}

void need_zero(int rc, const char *what, const char *file, int line)
{
	if (rc)
		fail("%s:%d: %s: %s (%d)", file, line, what, strerror(rc < 0 ? errno : rc), rc);
}

static uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

uint64_t rng_next(struct rng *r)
{
	return mix(r->state += 0x9e3779b97f4a7c15u);
}

uint64_t rng_below(struct rng *r, uint64_t bound)
{
	return (uint64_t)(((unsigned __int128)rng_next(r) * bound) >> 64);
}

bool rng_one_in(struct rng *r, uint64_t n)
{
	return rng_below(r, n) == 0;
}

struct rng rng_for(uint64_t seed, uint64_t a, uint64_t b)
{
	struct rng r = { mix(mix(mix(seed + 1) + a + 1) + b + 1) };

	return r;
}

/* Word `index` of the stream of `key`: one multiplication, so that making and checking contents
 * costs little beside moving them, yet every word differs from its neighbours and other streams. */
static inline uint64_t content_word(uint64_t key, uint64_t index)
{
	uint64_t z = (key ^ index) * 0x9e3779b97f4a7c15u + key;

	return z ^ (z >> 32);
}

void content_fill(void *dst, uint64_t key, size_t at, size_t len)
{
	unsigned char *out = dst;
	uint64_t index = at / 8;
	size_t skip = at % 8;

	while (len) {
		uint64_t word = content_word(key, index++);
		size_t n = len < 8 - skip ? len : 8 - skip;

		if (n == 8)
			memcpy(out, &word, 8);
		else
			memcpy(out, (char *)&word + skip, n);
		out += n;
		len -= n;
		skip = 0;
	}
}

ssize_t content_check(const void *src, uint64_t key, size_t at, size_t len)
{
	const unsigned char *in = src;
	uint64_t index = at / 8;
	size_t skip = at % 8, done = 0;

	while (done < len) {
		uint64_t word = content_word(key, index++), seen;
		size_t n = len - done < 8 - skip ? len - done : 8 - skip;

		if (n == 8) {
			memcpy(&seen, in + done, 8);
			if (seen == word) {
				done += 8;
				continue;
			}
		}
		for (size_t i = 0; i < n; i++)
			if (in[done + i] != ((unsigned char *)&word)[skip + i])
				return done + i;
		done += n;
		skip = 0;
	}
	return -1;
}

ssize_t guard_check(const void *src, size_t len)
{
	const unsigned char *in = src;

	for (size_t i = 0; i < len; i++)
		if (in[i] != GUARD)
			return i;
	return -1;
}

void *page_alloc(size_t len)
{
	void *p = NULL;
	long page = sysconf(_SC_PAGESIZE);

	len = (len + page - 1) / page * page;
	need((errno = posix_memalign(&p, page, len)) == 0, "memory");
	memset(p, GUARD, len);
	return p;
}

void device_open(struct device *dev, const char *name, int gid_index)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);

	need(list, "ibv_get_device_list");
	if (n == 0)
		fail("no RDMA device (is this running under `causeway run`?)");
	for (int i = 0; i < n && !dev->ctx; i++)
		if (!name || !strcmp(name, ibv_get_device_name(list[i]))) {
			dev->ctx = ibv_open_device(list[i]);
			need(dev->ctx, "ibv_open_device");
		}
	if (!dev->ctx)
		fail("no RDMA device called %s", name);
	ibv_free_device_list(list);
	dev->gid_index = gid_index;
	need0(ibv_query_device(dev->ctx, &dev->attr));
	need0(ibv_query_port(dev->ctx, 1, &dev->port));
	if (dev->port.state != IBV_PORT_ACTIVE)
		fail("port 1 is %s", ibv_port_state_str(dev->port.state));
	need0(ibv_query_gid(dev->ctx, 1, gid_index, &dev->gid));
}

int qp_to_init(struct ibv_qp *qp, const struct qp_params *p)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = p->access,
	};

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			     IBV_QP_ACCESS_FLAGS);
}

int qp_to_rtr(struct ibv_qp *qp, const struct device *dev, const struct qp_params *p,
	      const struct qp_addr *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = dev->port.active_mtu,
		.dest_qp_num = peer->qpn,
		.rq_psn = peer->psn,
		.max_dest_rd_atomic = p->rd_atomic,
		.min_rnr_timer = p->min_rnr_timer,
		.ah_attr = {
			.is_global = 1,
			.port_num = 1,
			.grh = { .dgid = peer->gid, .sgid_index = dev->gid_index, .hop_limit = 64 },
		},
	};

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
			     IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			     IBV_QP_MIN_RNR_TIMER);
}

int qp_to_rts(struct ibv_qp *qp, const struct qp_params *p, uint32_t psn)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = psn,
		.timeout = p->timeout,
		.retry_cnt = p->retry_cnt,
		.rnr_retry = p->rnr_retry,
		.max_rd_atomic = p->rd_atomic,
	};

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			     IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

/* Listens on every address of both families where the host has IPv6, and takes one caller. */
static int oob_accept(const struct addrinfo *all)
{
	const struct addrinfo *a = all;
	int one = 1, zero = 0, fd = -1, conn;

	for (; a; a = a->ai_next)
		if (a->ai_family == AF_INET6)
			break;
	a = a ? a : all;
	fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
	if (fd < 0 && a != all) {
		a = all;
		fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
	}
	need(fd >= 0, "socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (a->ai_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
	need(bind(fd, a->ai_addr, a->ai_addrlen) == 0, "bind");
	need(listen(fd, 1) == 0, "listen");
	conn = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
	need(conn >= 0, "accept");
	close(fd);
	return conn;
}

static int oob_call(const struct addrinfo *all)
{
	for (int i = 0; i < CONNECT_TRIES; i++) {
		for (const struct addrinfo *a = all; a; a = a->ai_next) {
			int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC,
					a->ai_protocol);

			if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0)
				return fd;
			if (fd >= 0)
				close(fd);
		}
		usleep(CONNECT_PAUSE_US);
	}
	fail("cannot reach the server: %m");
}

int oob_connect(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = host ? 0 : AI_PASSIVE };
	struct addrinfo *all;
	int rc = getaddrinfo(host, port, &hints, &all), one = 1, fd;

	if (rc)
		fail("%s port %s: %s", host ? host : "any address", port, gai_strerror(rc));
	fd = host ? oob_call(all) : oob_accept(all);
	freeaddrinfo(all);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

void oob_send(int fd, const void *buf, size_t len)
{
	const char *p = buf;

	while (len) {
		ssize_t n = send(fd, p, len, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		need(n > 0, "the other side is gone: send");
		p += n;
		len -= n;
	}
}

void oob_recv(int fd, void *buf, size_t len)
{
	char *p = buf;

	while (len) {
		ssize_t n = recv(fd, p, len, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n == 0)
			fail("the other side has given up");
		if (n < 0 && errno == ECONNRESET)
			fail("the other side is gone");
		need(n > 0, "recv");
		p += n;
		len -= n;
	}
}

void oob_barrier(int fd, uint32_t step)
{
	uint32_t theirs;

	oob_send(fd, &step, sizeof(step));
	oob_recv(fd, &theirs, sizeof(theirs));
	if (theirs != step)
		fail("this side is at step %u, the other at step %u", step, theirs);
}
