/* What both verification programs need: reporting, random numbers, patterns, a device, a pair. */
#ifndef CAUSEWAY_VERIFY_COMMON_H
#define CAUSEWAY_VERIFY_COMMON_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Prints "verify: ..." on standard error and exits with status 1. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* fail() with strerror(errno) when a condition that the system or verbs owes us does not hold. */
#define need(cond, what) ((cond) ? (void)0 : fail("%s:%d: %s: %m", __FILE__, __LINE__, what))

/* fail() when a call that returns an errno value returns one. */
#define need0(call) need_zero((call), #call, __FILE__, __LINE__)
void need_zero(int rc, const char *what, const char *file, int line);

/* splitmix64: small, fast, and good enough that every seed is a different test. */
struct rng {
	uint64_t state;
};
uint64_t rng_next(struct rng *r);
/* A number below `bound`, which is not 0. */
uint64_t rng_below(struct rng *r, uint64_t bound);
/* True once in `n` times. */
bool rng_one_in(struct rng *r, uint64_t n);
/* A generator for a purpose that several numbers name. */
struct rng rng_for(uint64_t seed, uint64_t a, uint64_t b);

/* The byte stream of `key`: content_fill writes bytes [at, at + len) of it, content_check returns
 * the index of the first byte that differs from it, or -1. */
void content_fill(void *dst, uint64_t key, size_t at, size_t len);
ssize_t content_check(const void *src, uint64_t key, size_t at, size_t len);

/* Bytes that nobody may change: checks that all of them are `GUARD`; index of the first that is
 * not, or -1. */
#define GUARD 0xa5
ssize_t guard_check(const void *src, size_t len);

/* Memory aligned to pages, filled with GUARD. */
void *page_alloc(size_t len);

/* An opened device with what every QP of a run needs. */
struct device {
	struct ibv_context *ctx;
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	union ibv_gid gid;
	int gid_index;
};
/* Opens the device called `name`, or the first one. */
void device_open(struct device *dev, const char *name, int gid_index);

/* What one side must know of a QP of the other to connect to it. */
struct qp_addr {
	uint32_t qpn;
	uint32_t psn;
	union ibv_gid gid;
};

/* The part of connecting that programs vary. */
struct qp_params {
	int access;
	uint8_t timeout;
	uint8_t retry_cnt;
	uint8_t rnr_retry;
	uint8_t min_rnr_timer;
	uint8_t rd_atomic;
};
int qp_to_init(struct ibv_qp *qp, const struct qp_params *p);
int qp_to_rtr(struct ibv_qp *qp, const struct device *dev, const struct qp_params *p,
	      const struct qp_addr *peer);
int qp_to_rts(struct ibv_qp *qp, const struct qp_params *p, uint32_t psn);

/* Everything a verification run exchanges goes over one TCP connection, `host` NULL to listen. */
int oob_connect(const char *host, const char *port);
void oob_send(int fd, const void *buf, size_t len);
void oob_recv(int fd, void *buf, size_t len);
/* Returns when the other side has come here too; fails if it is at another step. */
void oob_barrier(int fd, uint32_t step);

#endif
