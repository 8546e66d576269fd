/* Makes the objects of a run, exchanges what the sides must know, connects, and takes all apart. */
#include "verify.h"

#include <stdlib.h>
#include <string.h>

#define MAGIC 0x63617561u
/* Changes with anything both sides must agree on. */
#define VERSION 2u
/* Local bytes of an operation beside its payload. */
#define OP_EXTRA 256

struct hello {
	uint32_t magic, version;
	struct plan_params params;
};

uint64_t fixed_key(const struct run *run, int side)
{
	struct rng r = rng_for(run->params.seed, 0xf1f1, side);

	return rng_next(&r);
}

struct ibv_mr *reg(struct run *run, void *at, size_t len, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(run->pd, at, len, access);

	need(mr, "ibv_reg_mr");
	return mr;
}

static struct ibv_mw *alloc_mw(struct run *run)
{
	struct ibv_mw *mw = ibv_alloc_mw(run->pd, IBV_MW_TYPE_2);

	need(mw, "ibv_alloc_mw");
	/* The key that it will have. */
	mw->rkey = ibv_inc_rkey(mw->rkey);
	return mw;
}

static struct ibv_send_wr bind_wr(struct ibv_mw *mw, struct ibv_mr *mr, void *at, size_t len)
{
	int access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

	return (struct ibv_send_wr){
		.opcode = IBV_WR_BIND_MW,
		.bind_mw = { mw, mw->rkey, { mr, (uintptr_t)at, len, access } },
	};
}

struct ibv_send_wr inv_bind(struct conn *c, unsigned int w)
{
	c->inv_mw[w]->rkey = ibv_inc_rkey(c->inv_mw[w]->rkey);
	c->inv_used[w] = false;
	return bind_wr(c->inv_mw[w], c->inv_mr, c->inv_memory + w * 64, 64);
}

static void bind_now(struct conn *c, struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	wr.send_flags = IBV_SEND_SIGNALED;
	need0(ibv_post_send(c->qp, &wr, &bad));
	while (ibv_poll_cq(c->worker->send_cq, 1, &wc) == 0)
		;
	if (wc.status != IBV_WC_SUCCESS || wc.opcode != IBV_WC_BIND_MW)
		conn_fail(c, "a window is bound: %s, opcode %d", ibv_wc_status_str(wc.status),
			  wc.opcode);
}

/* Every other connection's windows are reached by the key of a memory window; half of these
 * regions have no key of their own that peers may use. */
static void windows_open(struct conn *c, size_t all)
{
	int local = IBV_ACCESS_LOCAL_WRITE;
	int remote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	int access = c->index % 2 == 0 ? local | remote : local | IBV_ACCESS_MW_BIND;

	c->window_memory = page_alloc(all);
	if (c->index % 4 == 3)
		access |= remote;
	c->window_mr = reg(c->run, c->window_memory, all, access);
	if (c->index % 2)
		c->window_mw = alloc_mw(c->run);
	c->inv_memory = page_alloc(WINDOWS * 64);
	c->inv_mr = reg(c->run, c->inv_memory, WINDOWS * 64, local | IBV_ACCESS_MW_BIND);
	for (unsigned int w = 0; w < WINDOWS; w++)
		c->inv_mw[w] = alloc_mw(c->run);
}

static void windows_bind(struct conn *c)
{
	if (c->window_mw)
		bind_now(c, bind_wr(c->window_mw, c->window_mr, c->window_memory,
				    c->window_mr->length));
	for (unsigned int w = 0; w < WINDOWS; w++)
		bind_now(c, bind_wr(c->inv_mw[w], c->inv_mr, c->inv_memory + w * 64, 64));
}

static void windows_close(struct conn *c)
{
	if (c->window_mw)
		need0(ibv_dealloc_mw(c->window_mw));
	for (unsigned int w = 0; w < WINDOWS; w++)
		need0(ibv_dealloc_mw(c->inv_mw[w]));
}

/* The client's parameters are those of the run. */
static void agree(struct run *run)
{
	struct hello hello = { MAGIC, VERSION, run->params };

	if (run->side == 1) {
		oob_send(run->oob, &hello, sizeof(hello));
		return;
	}
	oob_recv(run->oob, &hello, sizeof(hello));
	if (hello.magic != MAGIC || hello.version != VERSION)
		fail("the client is another program or version");
	run->params = hello.params;
}

static void pool_open(struct run *run, struct pool *pool, unsigned int count, uint64_t salt)
{
	size_t bytes = (size_t)count * SLOT_BYTES;

	pool->count = count;
	pool->slots = calloc(count, sizeof(*pool->slots));
	pool->order = calloc(count, sizeof(*pool->order));
	need(pool->slots && pool->order, "memory");
	pool->memory = page_alloc(bytes);
	pool->mr = reg(run, pool->memory, bytes, IBV_ACCESS_LOCAL_WRITE);
	pool->rng = rng_for(run->params.seed, 0x5107 + run->side, salt);
	for (unsigned int i = 0; i < count; i++)
		pool->slots[i].base = pool->memory + (size_t)i * SLOT_BYTES;
}

static void pool_close(struct pool *pool)
{
	respond_final_pool(pool);
	need0(ibv_dereg_mr(pool->mr));
	free(pool->memory);
	free(pool->order);
	free(pool->slots);
}

/* Every third QP takes its receives from its worker's SRQ. */
static bool uses_srq(uint32_t index)
{
	return index % 3 == 2;
}

static void worker_open(struct run *run, struct worker *w)
{
	struct ibv_context *ctx = run->dev.ctx;
	unsigned int srq_qps = 0, send, recv;

	for (unsigned int i = 0; i < w->count; i++)
		srq_qps += uses_srq(w->conns[i]->index);
	if (run->opt.events) {
		w->channel = ibv_create_comp_channel(ctx);
		need(w->channel, "ibv_create_comp_channel");
	}
	send = w->count * SQ_DEPTH;
	recv = w->count * RQ_DEPTH;
	/* Both ways of having them: one CQ for everything, and one for each queue. */
	if (w->index % 2) {
		w->send_cq = ibv_create_cq(ctx, send + recv, w, w->channel, 0);
		w->recv_cq = w->send_cq;
	} else {
		w->send_cq = ibv_create_cq(ctx, send, w, w->channel, 0);
		w->recv_cq = ibv_create_cq(ctx, recv, w, w->channel, 0);
	}
	need(w->send_cq && w->recv_cq, "ibv_create_cq");
	if (srq_qps) {
		unsigned int depth = srq_qps * run->opt.recv_depth;
		struct ibv_srq_init_attr attr = {
			.attr = { .max_wr = depth, .max_sge = MAX_PIECES },
		};

		w->srq_pool.srq = ibv_create_srq(run->pd, &attr);
		need(w->srq_pool.srq, "ibv_create_srq");
		pool_open(run, &w->srq_pool, depth, 0x10000 + w->index);
	}
}

static void qp_open(struct conn *c)
{
	struct run *run = c->run;
	struct ibv_qp_init_attr init = {
		.qp_context = c,
		.send_cq = c->worker->send_cq,
		.recv_cq = c->worker->recv_cq,
		.srq = uses_srq(c->index) ? c->worker->srq_pool.srq : NULL,
		.cap = {
			.max_send_wr = SQ_DEPTH,
			.max_recv_wr = uses_srq(c->index) ? 0 : run->opt.recv_depth,
			.max_send_sge = MAX_PIECES,
			.max_recv_sge = uses_srq(c->index) ? 0 : MAX_PIECES,
			.max_inline_data = INLINE_MAX,
		},
		.qp_type = IBV_QPT_RC,
	};

	c->qp = ibv_create_qp(run->pd, &init);
	need(c->qp, "ibv_create_qp");
	c->max_inline = init.cap.max_inline_data;
	if (c->max_inline < INLINE_MAX)
		conn_fail(c, "%u bytes of inline data asked for, %u granted", INLINE_MAX,
			  c->max_inline);
	if (init.srq) {
		c->pool = &c->worker->srq_pool;
	} else {
		c->pool = calloc(1, sizeof(*c->pool));
		need(c->pool, "memory");
		pool_open(run, c->pool, run->opt.recv_depth, c->index);
	}
	for (unsigned int at = c->qp->qp_num * 2654435761u % QPN_BUCKETS;; at++)
		if (!c->worker->by_qpn[at % QPN_BUCKETS]) {
			c->worker->by_qpn[at % QPN_BUCKETS] = c;
			break;
		}
}

struct conn *worker_find(struct worker *w, uint32_t qpn)
{
	unsigned int at = qpn * 2654435761u;

	for (at %= QPN_BUCKETS; w->by_qpn[at % QPN_BUCKETS]; at++)
		if (w->by_qpn[at % QPN_BUCKETS]->qp->qp_num == qpn)
			return w->by_qpn[at % QPN_BUCKETS];
	fail("a completion of QP %#x, which this thread does not have", qpn);
}

/* Memory that the peer reads and writes, and what it must hold. */
static void responder_open(struct conn *c)
{
	struct run *run = c->run;
	size_t len = plan_window_len(&run->params), all = WINDOWS * (len + WINDOW_GAP) + WINDOW_GAP;

	windows_open(c, all);
	for (unsigned int w = 0; w < WINDOWS; w++) {
		c->window[w] = c->window_memory + WINDOW_GAP + w * (len + WINDOW_GAP);
		c->shadow[w] = page_alloc(len);
		c->dirty_from[w] = len;
	}
	c->words = page_alloc(ATOMIC_WORDS * 8);
	memset(c->words, 0, ATOMIC_WORDS * 8);
	c->words_mr = reg(run, c->words, ATOMIC_WORDS * 8,
			  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	c->mailbox = page_alloc(WINDOWS * sizeof(*c->mailbox));
	c->mailbox_mr = reg(run, c->mailbox, WINDOWS * sizeof(*c->mailbox),
			    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	c->grant = page_alloc(WINDOWS * sizeof(*c->grant));
	c->grant_mr = reg(run, c->grant, WINDOWS * sizeof(*c->grant), 0);
	plan_start(&c->peer_plan, &run->params, !run->side, c->index);
}

/* Memory that this side's requests come from and go to. */
static void requester_open(struct conn *c)
{
	struct run *run = c->run;
	size_t len = plan_window_len(&run->params), bytes = plan_batch_bytes(&run->params);
	size_t half = bytes + BATCH_OPS * OP_EXTRA;

	c->rng = rng_for(run->params.seed, 0xc0 + run->side, c->index);
	c->arena_memory = page_alloc(WINDOWS * half);
	for (unsigned int i = 0; i < 2; i++)
		c->arena_mr[i] = reg(run, c->arena_memory, WINDOWS * half, IBV_ACCESS_LOCAL_WRITE);
	for (unsigned int w = 0; w < WINDOWS; w++) {
		c->arena[w] = c->arena_memory + w * half;
		c->expected[w] = page_alloc(bytes);
		c->peer_window[w] = page_alloc(len);
	}
	plan_start(&c->plan, &run->params, run->side, c->index);
}

static struct remote_buf remote(const void *at, const struct ibv_mr *mr)
{
	return (struct remote_buf){ .addr = (uintptr_t)at, .rkey = mr->rkey };
}

static void describe(struct conn *c)
{
	struct run *run = c->run;
	struct qp_info *me = &c->mine;

	me->addr = (struct qp_addr){
		.qpn = c->qp->qp_num,
		.psn = rng_next(&c->rng) & 0xffffff,
		.gid = run->dev.gid,
	};
	me->window = remote(c->window[0], c->window_mr);
	if (c->window_mw)
		me->window.rkey = c->window_mw->rkey;
	me->fixed = remote(run->fixed, run->fixed_mr);
	me->words = remote(c->words, c->words_mr);
	me->shared = remote(run->shared, run->shared_mr);
	me->mailbox = remote(c->mailbox, c->mailbox_mr);
	for (unsigned int w = 0; w < WINDOWS; w++)
		me->inv_rkey[w] = c->inv_mw[w]->rkey;
}

/* Exchanges, moves the QP to RTS, with its receives posted. */
static void connect_qp(struct conn *c)
{
	struct run *run = c->run;

	oob_send(run->oob, &c->mine, sizeof(c->mine));
	oob_recv(run->oob, &c->peer, sizeof(c->peer));
	memcpy(c->peer_inv_rkey, c->peer.inv_rkey, sizeof(c->peer_inv_rkey));
	need0(qp_to_init(c->qp, &run->qp_params));
	if (!c->pool->srq || c->pool->posted == 0)
		for (unsigned int i = 0; i < c->pool->count; i++)
			respond_post(c->pool, c->qp, i);
	need0(qp_to_rtr(c->qp, &run->dev, &run->qp_params, &c->peer.addr));
	need0(qp_to_rts(c->qp, &run->qp_params, c->mine.addr.psn));
	windows_bind(c);
}

static void regions_open(struct run *run)
{
	size_t len = plan_window_len(&run->params);

	run->fixed = page_alloc(len);
	content_fill(run->fixed, fixed_key(run, run->side), 0, len);
	run->fixed_mr = reg(run, run->fixed, len, IBV_ACCESS_REMOTE_READ);
	run->shared = page_alloc(sizeof(*run->shared));
	*run->shared = 0;
	run->shared_mr = reg(run, run->shared, sizeof(*run->shared),
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
}

void run_open(struct run *run)
{
	struct plan_params *p = &run->params;
	struct conn *c;

	run->side = run->opt.host ? 1 : 0;
	device_open(&run->dev, run->opt.device, run->opt.gid_index);
	run->oob = oob_connect(run->opt.host, run->opt.port);
	agree(run);
	if (p->qps == 0 || p->qps > MAX_QPS)
		fail("%u QPs: 1 to %u are possible", p->qps, MAX_QPS);
	if (run->opt.threads > p->qps)
		run->opt.threads = p->qps;
	run->pd = ibv_alloc_pd(run->dev.ctx);
	need(run->pd, "ibv_alloc_pd");
	regions_open(run);
	run->conns = calloc(p->qps, sizeof(*run->conns));
	run->workers = calloc(run->opt.threads, sizeof(*run->workers));
	need(run->conns && run->workers, "memory");
	for (unsigned int i = 0; i < run->opt.threads; i++) {
		struct worker *w = &run->workers[i];

		w->run = run;
		w->index = i;
		w->conns = calloc(p->qps, sizeof(*w->conns));
		need(w->conns, "memory");
	}
	for (uint32_t i = 0; i < p->qps; i++) {
		c = &run->conns[i];
		c->index = i;
		c->run = run;
		c->worker = &run->workers[i % run->opt.threads];
		c->worker->conns[c->worker->count++] = c;
	}
	for (unsigned int i = 0; i < run->opt.threads; i++)
		worker_open(run, &run->workers[i]);
	for (c = run->conns; c < run->conns + p->qps; c++) {
		responder_open(c);
		requester_open(c);
		qp_open(c);
		describe(c);
	}
	for (c = run->conns; c < run->conns + p->qps; c++)
		connect_qp(c);
	oob_barrier(run->oob, 1);
}

static void conn_close(struct conn *c)
{
	struct ibv_mr *const mrs[] = {
		c->window_mr, c->words_mr, c->mailbox_mr, c->grant_mr, c->inv_mr, c->arena_mr[0],
		c->arena_mr[1],
	};
	void *const memory[] = {
		c->window_memory, c->words, c->mailbox, c->grant, c->inv_memory, c->arena_memory,
		c->shadow[0], c->shadow[1], c->expected[0], c->expected[1], c->peer_window[0],
		c->peer_window[1],
	};

	windows_close(c);
	for (size_t i = 0; i < sizeof(mrs) / sizeof(*mrs); i++)
		need0(ibv_dereg_mr(mrs[i]));
	for (size_t i = 0; i < sizeof(memory) / sizeof(*memory); i++)
		free(memory[i]);
	if (!c->pool->srq) {
		pool_close(c->pool);
		free(c->pool);
	}
}

void run_close(struct run *run)
{
	farewell(run);
	for (uint32_t i = 0; i < run->params.qps; i++)
		conn_close(&run->conns[i]);
	for (unsigned int i = 0; i < run->opt.threads; i++) {
		struct worker *w = &run->workers[i];

		if (w->srq_pool.srq) {
			need0(ibv_destroy_srq(w->srq_pool.srq));
			pool_close(&w->srq_pool);
		}
		if (w->recv_cq != w->send_cq)
			need0(ibv_destroy_cq(w->recv_cq));
		need0(ibv_destroy_cq(w->send_cq));
		if (w->channel)
			need0(ibv_destroy_comp_channel(w->channel));
		free(w->conns);
	}
	need0(ibv_dereg_mr(run->fixed_mr));
	need0(ibv_dereg_mr(run->shared_mr));
	need0(ibv_dealloc_pd(run->pd));
	need0(ibv_close_device(run->dev.ctx));
	free(run->fixed);
	free(run->shared);
	free(run->workers);
	free(run->conns);
}
