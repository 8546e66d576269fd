/* Error cases: each runs in a process of its own, between two connected QPs of that process. */
#ifndef CAUSEWAY_VERIFY_ERR_H
#define CAUSEWAY_VERIFY_ERR_H

#include "common.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of each side's buffer. */
#define BUF_BYTES 65536
/* Depths of the queues of the QPs under test. */
#define DEPTH 8

#define ANY_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
		    IBV_ACCESS_REMOTE_ATOMIC)

/* Fails the case at hand. */
#define check(cond, ...) ((cond) ? (void)0 : case_fail(__FILE__, __LINE__, __VA_ARGS__))
_Noreturn void case_fail(const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* A call that must fail with `error`, either returned or in errno with NULL or -1 returned. */
#define check_errno(call, error) check_returns((call), (error), #call, __FILE__, __LINE__)
#define check_null(call, error) \
	(errno = 0, check_pointer((call), (error), #call, __FILE__, __LINE__))
void check_returns(int rc, int error, const char *what, const char *file, int line);
void check_pointer(const void *p, int error, const char *what, const char *file, int line);

struct side {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	unsigned char *buf;
	struct ibv_mr *mr;
	uint32_t psn;
};

struct pair {
	struct side a, b;
};

struct env {
	struct device dev;
	struct ibv_pd *pd;
	struct qp_params params;
	struct pair bystander;
};

/* Makes a pair; `connect` moves both to RTS. `srq` is for side b, and may be NULL. */
void pair_open(struct env *env, struct pair *p, struct ibv_srq *srq, bool connect);
void side_open(struct env *env, struct side *s, struct ibv_srq *srq);
void side_connect(struct env *env, struct side *s, const struct side *peer);
/* A pair of connected UC queue pairs, which may WRITE. */
void uc_open(struct env *env, struct pair *p);
/* Checks that the bystander's QPs still move data both ways. */
void bystander_check(struct env *env);

/* Posts; the local end is the buffer's first `len` bytes. Returns what the verb returns. */
int post_recv(struct side *s, uint64_t wr_id, uint32_t len);
int post_send(struct side *s, uint64_t wr_id, enum ibv_wr_opcode op, uint32_t len,
	      uint64_t remote, uint32_t rkey);

/* Waits for a completion and checks it. */
struct ibv_wc expect_wc(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status);
/* Waits for an asynchronous event of a type, passing over others; the caller has to compare the
 * object. It is acknowledged. */
union event_object {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_srq *srq;
};
union event_object expect_event(struct env *env, enum ibv_event_type type);
void expect_state(struct ibv_qp *qp, enum ibv_qp_state state);
void expect_quiet(struct ibv_cq *cq);

struct error_case {
	const char *name;
	void (*run)(struct env *env);
};
extern const struct error_case remote_cases[], local_cases[], api_cases[], datagram_cases[],
	window_cases[], event_cases[], memory_cases[], signal_cases[], end_cases[],
	key_cases[], twice_cases[];

#endif
