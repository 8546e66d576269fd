#define _GNU_SOURCE
#include "stage.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QPS 64
#define PDS 4
/* Bytes of the buffer from and into which the commands move. */
#define LOCAL_BYTES (1ul << 20)

struct side {
	struct ibv_qp *qp;
	struct ibv_cq *cq;
	/* The buffer, registered in the QP's protection domain. */
	struct ibv_mr *local;
	struct qp_params params;
};

static struct device dev;
static struct ibv_pd *pds[PDS];
static struct side sides[QPS];
static unsigned char *buffer;

void say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	/* In one piece, whatever other threads say. */
	flockfile(stdout);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
	funlockfile(stdout);
}

uint64_t number(const char *text)
{
	char *end;
	uint64_t value = strtoull(text, &end, 0);

	if (*end || end == text)
		fail("%s is no number", text);
	return value;
}

static unsigned int below(const char *text, unsigned int bound)
{
	uint64_t value = number(text);

	if (value >= bound)
		fail("%s is not below %u", text, bound);
	return value;
}

struct device *stage_device(void)
{
	if (!dev.ctx)
		device_open(&dev, NULL, 0);
	return &dev;
}

struct ibv_pd *stage_pd(const char *index)
{
	struct ibv_pd **pd = &pds[below(index, PDS)];

	if (!*pd)
		need(*pd = ibv_alloc_pd(stage_device()->ctx), "ibv_alloc_pd");
	return *pd;
}

static void do_qp(char **args, int count)
{
	struct side *s = &sides[below(args[0], QPS)];
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};

	(void)count;
	s->params = (struct qp_params){
		.access = number(args[2]), .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.min_rnr_timer = 1, .rd_atomic = 8,
	};
	stage_device();
	if (!s->cq)
		need(s->cq = ibv_create_cq(dev.ctx, 64, NULL, NULL, 0), "ibv_create_cq");
	init.send_cq = init.recv_cq = s->cq;
	need(s->qp = ibv_create_qp(stage_pd(args[1]), &init), "ibv_create_qp");
	need0(qp_to_init(s->qp, &s->params));
	printf("ok ");
	for (int i = 0; i < 16; i++)
		printf("%02x", dev.gid.raw[i]);
	say(" %u %u", s->qp->qp_num, s->qp->qp_num & 0xfff);
}

static struct side *side_of(const char *index)
{
	struct side *s = &sides[below(index, QPS)];

	if (!s->qp)
		fail("no QP %s", index);
	return s;
}

struct ibv_qp *stage_qp(const char *index)
{
	return side_of(index)->qp;
}

static void do_connect(char **args, int count)
{
	struct side *s = side_of(args[0]);
	struct qp_addr peer = { .qpn = number(args[2]), .psn = number(args[3]) };

	(void)count;
	for (int i = 0; i < 16; i++) {
		char digits[3] = { args[1][2 * i], args[1][2 * i + 1] };

		peer.gid.raw[i] = strtoul(digits, NULL, 16);
	}
	need0(qp_to_rtr(s->qp, &dev, &s->params, &peer));
	need0(qp_to_rts(s->qp, &s->params, s->qp->qp_num & 0xfff));
	say("ok");
}

static void do_access(char **args, int count)
{
	struct ibv_qp_attr attr = { .qp_access_flags = number(args[1]) };

	(void)count;
	need0(ibv_modify_qp(side_of(args[0])->qp, &attr, IBV_QP_ACCESS_FLAGS));
	say("ok");
}

static void do_error(char **args, int count)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	(void)count;
	need0(ibv_modify_qp(side_of(args[0])->qp, &attr, IBV_QP_STATE));
	say("ok");
}

static void do_destroy(char **args, int count)
{
	struct side *s = side_of(args[0]);

	(void)count;
	need0(ibv_destroy_qp(s->qp));
	s->qp = NULL;
	if (s->local)
		need0(ibv_dereg_mr(s->local));
	s->local = NULL;
	say("ok");
}

enum ibv_wc_status stage_post(unsigned int qp, struct ibv_send_wr *wr)
{
	struct side *s = &sides[qp];
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int n;

	wr->send_flags |= IBV_SEND_SIGNALED;
	need0(ibv_post_send(s->qp, wr, &bad));
	while ((n = ibv_poll_cq(s->cq, 1, &wc)) == 0)
		;
	if (n < 0)
		fail("ibv_poll_cq: %d", n);
	return wc.status;
}

enum ibv_wc_status stage_rdma(unsigned int qp, enum ibv_wr_opcode op, struct ibv_mr *mr,
			      size_t len, uint32_t rkey, uint64_t addr)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr, len, mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = op,
	};

	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = addr;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = addr;
		wr.wr.rdma.rkey = rkey;
	}
	return stage_post(qp, &wr);
}

/* "write N RKEY ADDR LEN BYTE", and the like: the bytes written, or read, are all BYTE, or the
 * answer says which came. */
static void operate(enum ibv_wr_opcode op, char **args)
{
	size_t len = number(args[3]);
	int byte = number(args[4]);
	struct side *s = side_of(args[0]);
	enum ibv_wc_status status;

	if (len > LOCAL_BYTES)
		fail("%zu bytes at once", len);
	if (!buffer)
		buffer = page_alloc(LOCAL_BYTES);
	if (!s->local)
		s->local = ibv_reg_mr(s->qp->pd, buffer, LOCAL_BYTES, IBV_ACCESS_LOCAL_WRITE);
	need(s->local, "ibv_reg_mr");
	memset(buffer, byte, len);
	status = stage_rdma(s - sides, op, s->local, len, number(args[1]), number(args[2]));
	say("ok %d %02x", status, buffer[0]);
}

static void do_write(char **args, int count)
{
	(void)count;
	operate(IBV_WR_RDMA_WRITE, args);
}

static void do_read(char **args, int count)
{
	(void)count;
	operate(IBV_WR_RDMA_READ, args);
}

static void do_add(char **args, int count)
{
	(void)count;
	operate(IBV_WR_ATOMIC_FETCH_AND_ADD, args);
}

static const struct command shared_commands[] = {
	{ "qp", 3, do_qp }, { "connect", 4, do_connect }, { "access", 2, do_access },
	{ "error", 1, do_error }, { "destroy", 1, do_destroy }, { "write", 5, do_write },
	{ "read", 5, do_read }, { "add", 5, do_add }, { 0 },
};

static const struct command *find(const struct command *commands, const char *name)
{
	for (; commands->name; commands++)
		if (!strcmp(commands->name, name))
			return commands;
	return NULL;
}

static void do_line(const struct command *own, char *line)
{
	char *words[ARGS_MAX + 1], *save;
	const struct command *command;
	int n = 0;

	for (char *w = strtok_r(line, " \n", &save); w; w = strtok_r(NULL, " \n", &save)) {
		if (n > ARGS_MAX)
			fail("too many words");
		words[n++] = w;
	}
	if (!n)
		return;
	command = find(own, words[0]);
	if (!command)
		command = find(shared_commands, words[0]);
	if (!command || n - 1 < command->args)
		fail("cannot do: %s with %d arguments", words[0], n - 1);
	command->run(words + 1, n - 1);
}

void stage_run(const struct command *commands)
{
	size_t room = 0;
	char *line = NULL;

	while (getline(&line, &room, stdin) > 0)
		do_line(commands, line);
	free(line);
}
