/* What victim and attacker have in common: they do one command after the other, as told on
 * standard input, and answer each with one line on standard output: "ok ..." or "BAD ...". */
#ifndef CAUSEWAY_HOSTILE_STAGE_H
#define CAUSEWAY_HOSTILE_STAGE_H

#include "../verify/common.h"

#define PAGE 4096ul
#define ARGS_MAX 64

struct command {
	const char *name;
	/* Least number of arguments. */
	int args;
	void (*run)(char **args, int count);
};

/* Answers. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Does commands until standard input ends. Commands that both programs know: "qp N PD ACCESS",
 * "connect N GID QPN PSN", "access N FLAGS", "error N", "destroy N", and on a connected QP "write",
 * "read" and "add" N RKEY ADDR LEN BYTE. */
void stage_run(const struct command *commands);
/* A number in the notation of C. */
uint64_t number(const char *text);

/* A work request of its own on a connected QP; its completion status. */
enum ibv_wc_status stage_post(unsigned int qp, struct ibv_send_wr *wr);

struct device *stage_device(void);
struct ibv_pd *stage_pd(const char *index);
struct ibv_qp *stage_qp(const char *index);

/* One operation on a connected QP, carried out from or into `local`; its completion status. */
enum ibv_wc_status stage_rdma(unsigned int qp, enum ibv_wr_opcode op, struct ibv_mr *local,
			      size_t len, uint32_t rkey, uint64_t addr);

#endif
