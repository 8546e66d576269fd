/* The requester's half: posts a plan's operations, and checks what comes back. */
#include "verify.h"

#include <arpa/inet.h>
#include <string.h>

/* Requests of one call of ibv_post_send. */
#define LIST_MAX 8
/* A key that names nothing, for inline data, whose keys are not looked at. */
#define NO_KEY 0xdeadbeef

static uint64_t request_room(const struct conn *c)
{
	return SQ_DEPTH - (c->serial - c->done);
}

/* Whether the next operation may be posted; fetches it if need be. */
static bool ready(struct conn *c)
{
	uint64_t batch;

	if (!c->has_next && !plan_next(&c->plan, &c->next))
		return false;
	c->has_next = true;
	batch = c->next.batch;
	/* The last places are kept for credits: the peer waits for them. */
	if (c->serial - c->done >= SQ_DEPTH - CREDITS)
		return false;
	return c->credits + WINDOWS > batch && c->retired + WINDOWS > batch;
}

/* Forgets what the batch before the last has left in its half of the arena. */
static void begin_batch(struct conn *c, unsigned int w)
{
	memset(c->arena[w], GUARD, c->arena_used[w]);
	c->arena_used[w] = 0;
	c->expected_used[w] = 0;
}

/* Lays out the local end of an operation. */
static void lay_out(struct conn *c, struct sent *s, unsigned int w)
{
	unsigned char *at = c->arena[w] + c->arena_used[w];
	unsigned char *start = at;
	size_t done = 0;

	if (op_atomic(s->op.kind)) {
		/* One piece: an atomic's result is not to be scattered. */
		at += PIECE_GAP + rng_below(&c->rng, 2) * 8;
		at += -(uintptr_t)at % 8;
		s->piece[0] = (struct piece){ at, 8 };
		s->pieces = 1;
		at += 8 + PIECE_GAP;
	} else {
		s->pieces = cut(&c->rng, &at, s->op.len, MAX_PIECES, s->piece);
	}
	c->arena_used[w] += at - start;
	if (op_reads(s->op.kind) || op_atomic(s->op.kind))
		return;
	for (unsigned int i = 0; i < s->pieces; i++) {
		content_fill(s->piece[i].at, s->op.key, done, s->piece[i].len);
		done += s->piece[i].len;
	}
}

/* What the operation must find or leave at the peer. */
static void foresee(struct conn *c, struct sent *s, unsigned int w)
{
	const struct op *op = &s->op;
	unsigned char *copy;

	switch (op->kind) {
	case OP_WRITE:
	case OP_WRITE_IMM:
		content_fill(c->peer_window[w] + op->offset, op->key, 0, op->len);
		break;
	case OP_READ_WINDOW:
		copy = c->expected[w] + c->expected_used[w];
		memcpy(copy, c->peer_window[w] + op->offset, op->len);
		c->expected_used[w] += op->len;
		s->expect = copy;
		break;
	case OP_FETCH_ADD:
		s->old = c->word[op->offset];
		c->word[op->offset] += op->add;
		break;
	case OP_CMP_SWAP:
		s->old = c->word[op->offset];
		if (op->compare_right)
			c->word[op->offset] = op->add;
		break;
	case OP_FETCH_ADD_SHARED:
		c->shared_sum += op->add;
		break;
	default:
		break;
	}
}

/* The verbs part of a work request. */
static void describe(struct conn *c, const struct sent *s, unsigned int w, struct ibv_send_wr *wr)
{
	static const enum ibv_wr_opcode opcode[] = {
		[OP_SEND] = IBV_WR_SEND,
		[OP_SEND_IMM] = IBV_WR_SEND_WITH_IMM,
		[OP_SEND_INV] = IBV_WR_SEND_WITH_INV,
		[OP_WRITE] = IBV_WR_RDMA_WRITE,
		[OP_WRITE_IMM] = IBV_WR_RDMA_WRITE_WITH_IMM,
		[OP_READ_STATIC] = IBV_WR_RDMA_READ,
		[OP_READ_WINDOW] = IBV_WR_RDMA_READ,
		[OP_FETCH_ADD] = IBV_WR_ATOMIC_FETCH_AND_ADD,
		[OP_FETCH_ADD_SHARED] = IBV_WR_ATOMIC_FETCH_AND_ADD,
		[OP_CMP_SWAP] = IBV_WR_ATOMIC_CMP_AND_SWP,
	};
	const struct op *op = &s->op;
	const struct qp_info *peer = &c->peer;
	uint64_t window = plan_window_len(&c->run->params) + WINDOW_GAP;

	wr->opcode = opcode[op->kind];
	if (op->kind == OP_SEND_IMM || op->kind == OP_WRITE_IMM)
		wr->imm_data = htonl(op->imm);
	if (op->kind == OP_SEND_INV)
		wr->invalidate_rkey = c->peer_inv_rkey[w];
	if (op_writes(op->kind) || op->kind == OP_READ_WINDOW) {
		wr->wr.rdma.remote_addr = peer->window.addr + w * window + op->offset;
		wr->wr.rdma.rkey = peer->window.rkey;
	} else if (op->kind == OP_READ_STATIC) {
		wr->wr.rdma.remote_addr = peer->fixed.addr + op->offset;
		wr->wr.rdma.rkey = peer->fixed.rkey;
	} else if (op->kind == OP_FETCH_ADD_SHARED) {
		wr->wr.atomic.remote_addr = peer->shared.addr;
		wr->wr.atomic.rkey = peer->shared.rkey;
		wr->wr.atomic.compare_add = op->add;
	} else if (op_atomic(op->kind)) {
		wr->wr.atomic.remote_addr = peer->words.addr + op->offset * 8;
		wr->wr.atomic.rkey = peer->words.rkey;
		wr->wr.atomic.compare_add = op->add;
	}
	if (op->kind == OP_CMP_SWAP) {
		wr->wr.atomic.swap = op->add;
		wr->wr.atomic.compare_add = op->compare_right ? s->old : ~s->old;
	}
}

/* Flags: what the plan demands, and what is this side's own choice. */
static unsigned int choose_flags(struct conn *c, const struct op *op)
{
	unsigned int flags = 0;
	bool outward = op_takes_receive(op->kind) || op_writes(op->kind);

	if (op->last || rng_one_in(&c->rng, 2))
		flags |= IBV_SEND_SIGNALED;
	if (op_takes_receive(op->kind) && (op->last || rng_one_in(&c->rng, 4)))
		flags |= IBV_SEND_SOLICITED;
	if (outward && op->len <= c->max_inline && rng_one_in(&c->rng, 2))
		flags |= IBV_SEND_INLINE;
	/* A WRITE behind a READ of the same bytes is ordered by a fence only. */
	if ((op_writes(op->kind) && c->read_window) || rng_one_in(&c->rng, 24))
		flags |= IBV_SEND_FENCE;
	if (flags & IBV_SEND_FENCE || op->index % BATCH_OPS == 0)
		c->read_window = false;
	if (op->kind == OP_READ_WINDOW)
		c->read_window = true;
	return flags;
}

/* Makes the next operation of the plan into a work request. */
static void prepare(struct conn *c, struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	struct sent *s = &c->sent[c->serial % SQ_DEPTH];
	unsigned int w = c->next.batch % WINDOWS;

	if (c->next.index % BATCH_OPS == 0)
		begin_batch(c, w);
	*s = (struct sent){
		.op = c->next,
		.wr_id = (uint64_t)c->index << 32 | (uint32_t)c->serial,
	};
	lay_out(c, s, w);
	foresee(c, s, w);
	*wr = (struct ibv_send_wr){ .wr_id = s->wr_id, .sg_list = sge, .num_sge = s->pieces };
	describe(c, s, w, wr);
	wr->send_flags = choose_flags(c, &s->op);
	s->signaled = wr->send_flags & IBV_SEND_SIGNALED;
	for (unsigned int i = 0; i < s->pieces; i++)
		sge[i] = (struct ibv_sge){
			.addr = (uintptr_t)s->piece[i].at,
			.length = s->piece[i].len,
			.lkey = wr->send_flags & IBV_SEND_INLINE ? NO_KEY :
				c->arena_mr[rng_below(&c->rng, 2)]->lkey,
		};
	c->worker->sent[s->op.kind]++;
	c->serial++;
	c->has_next = false;
}

/* Inline data may be overwritten as soon as it is posted. */
static void scribble(const struct conn *c, const struct ibv_send_wr *wr, uint64_t serial)
{
	const struct sent *s = &c->sent[serial % SQ_DEPTH];

	if (wr->send_flags & IBV_SEND_INLINE)
		for (unsigned int i = 0; i < s->pieces; i++)
			memset(s->piece[i].at, 0x5a, s->piece[i].len);
}

/* Binds a window anew that the peer has invalidated; the credit behind it tells the key. */
static void request_bind(struct conn *c, unsigned int w)
{
	struct ibv_send_wr *bad, wr = inv_bind(c, w);
	int rc;

	wr.wr_id = (uint64_t)c->index << 32 | (uint32_t)c->serial;
	wr.send_flags = rng_one_in(&c->rng, 2) ? IBV_SEND_SIGNALED : 0;
	c->sent[c->serial % SQ_DEPTH] = (struct sent){
		.wr_id = wr.wr_id, .bind = true, .signaled = wr.send_flags & IBV_SEND_SIGNALED,
	};
	rc = ibv_post_send(c->qp, &wr, &bad);
	if (rc)
		conn_fail(c, "ibv_post_send of a bind: %s", strerror(rc));
	c->serial++;
}

/* Posts a credit for the oldest batch that has none. */
static void request_credit(struct conn *c)
{
	unsigned int w = c->granted % WINDOWS;
	struct sent *s;
	struct credit *grant = &c->grant[w];
	struct ibv_sge sge = { (uintptr_t)grant, sizeof(*grant), c->grant_mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED,
		.imm_data = htonl(CREDIT_FLAG | (uint32_t)(c->granted & ~CREDIT_FLAG)),
		.wr.rdma = { c->peer.mailbox.addr + w * sizeof(*grant), c->peer.mailbox.rkey },
	};
	int rc;

	if (c->inv_used[w])
		request_bind(c, w);
	s = &c->sent[c->serial % SQ_DEPTH];
	wr.wr_id = (uint64_t)c->index << 32 | (uint32_t)c->serial;
	*grant = (struct credit){ c->granted, c->inv_mw[w]->rkey, ~(uint32_t)c->granted };
	*s = (struct sent){ .wr_id = wr.wr_id, .credit = true, .signaled = true };
	rc = ibv_post_send(c->qp, &wr, &bad);
	if (rc)
		conn_fail(c, "ibv_post_send of a credit: %s", strerror(rc));
	c->serial++;
	c->granted++;
}

bool request_post(struct conn *c)
{
	struct ibv_send_wr wr[LIST_MAX], *bad = NULL;
	struct ibv_sge sge[LIST_MAX][MAX_PIECES];
	unsigned int n = 0, most = 1 + rng_below(&c->rng, LIST_MAX);
	uint64_t first = c->serial;
	int rc;

	/* A credit's source is used again when the credit before the last has completed. */
	while (c->granted < c->batches_in && c->granted < c->granted_done + WINDOWS &&
	       request_room(c) > 1)
		request_credit(c);
	first = c->serial;
	while (n < most && ready(c)) {
		prepare(c, &wr[n], sge[n]);
		if (n)
			wr[n - 1].next = &wr[n];
		n++;
	}
	if (!n)
		return false;
	rc = ibv_post_send(c->qp, wr, &bad);
	if (rc)
		conn_fail(c, "ibv_post_send of %u requests, the %zdth: %s", n, bad - wr,
			  strerror(rc));
	for (unsigned int i = 0; i < n; i++)
		scribble(c, &wr[i], first + i);
	return true;
}

static void check_read(const struct conn *c, const struct sent *s)
{
	const struct op *op = &s->op;
	uint64_t key = fixed_key(c->run, !c->run->side);
	size_t done = 0;

	for (unsigned int i = 0; i < s->pieces; i++) {
		const struct piece *p = &s->piece[i];
		ssize_t bad = -1;

		if (op->kind == OP_READ_STATIC) {
			bad = content_check(p->at, key, op->offset + done, p->len);
		} else if (memcmp(p->at, s->expect + done, p->len)) {
			for (bad = 0; p->at[bad] == s->expect[done + bad];)
				bad++;
		}
		if (bad >= 0)
			conn_fail(c, "%s %lu of %u bytes: byte %zu is wrong", op_name(op->kind),
				  op->index, op->len, done + bad);
		done += p->len;
	}
	check_gaps(c, op_name(op->kind), s->piece, s->pieces);
}

static void check_atomic(struct conn *c, const struct sent *s)
{
	uint64_t old;

	memcpy(&old, s->piece[0].at, 8);
	check_gaps(c, op_name(s->op.kind), s->piece, 1);
	if (s->op.kind == OP_FETCH_ADD_SHARED) {
		/* Others add too: it only grows, by at least what this QP adds. */
		if (old < c->shared_seen)
			conn_fail(c, "shared counter went from %lu back to %lu", c->shared_seen,
				  old);
		c->shared_seen = old + s->op.add;
	} else if (old != s->old) {
		conn_fail(c, "%s %lu of word %lu returned %#lx, must be %#lx",
			  op_name(s->op.kind), s->op.index, s->op.offset, old, s->old);
	}
}

/* Checks a completion's fields against its request. */
static void check_wc(const struct conn *c, const struct sent *s, const struct ibv_wc *wc)
{
	static const enum ibv_wc_opcode opcode[] = {
		[OP_SEND] = IBV_WC_SEND,
		[OP_SEND_IMM] = IBV_WC_SEND,
		[OP_SEND_INV] = IBV_WC_SEND,
		[OP_WRITE] = IBV_WC_RDMA_WRITE,
		[OP_WRITE_IMM] = IBV_WC_RDMA_WRITE,
		[OP_READ_STATIC] = IBV_WC_RDMA_READ,
		[OP_READ_WINDOW] = IBV_WC_RDMA_READ,
		[OP_FETCH_ADD] = IBV_WC_FETCH_ADD,
		[OP_FETCH_ADD_SHARED] = IBV_WC_FETCH_ADD,
		[OP_CMP_SWAP] = IBV_WC_COMP_SWAP,
	};
	enum ibv_wc_opcode want = s->credit ? IBV_WC_RDMA_WRITE : opcode[s->op.kind];

	if (s->bind)
		want = IBV_WC_BIND_MW;
	if (wc->opcode != want)
		conn_fail(c, "%s %lu completes as opcode %d", op_name(s->op.kind), s->op.index,
			  wc->opcode);
	if (!s->bind && op_reads(s->op.kind) && wc->byte_len != s->op.len)
		conn_fail(c, "READ %lu of %u bytes completes with %u", s->op.index, s->op.len,
			  wc->byte_len);
}

_Noreturn static void failed(const struct conn *c, const struct ibv_wc *wc)
{
	const struct sent *s = &c->sent[(uint32_t)wc->wr_id % SQ_DEPTH];

	conn_fail(c, "%s %lu of %u bytes at %lu (wr_id %#lx) completes with: %s (vendor error %#x)",
		  s->bind ? "bind" : s->credit ? "credit" : op_name(s->op.kind),
		  s->op.index, s->op.len, s->op.offset, wc->wr_id,
		  ibv_wc_status_str(wc->status), wc->vendor_err);
}

void request_complete(struct conn *c, const struct ibv_wc *wc)
{
	struct sent *s;

	if (wc->status != IBV_WC_SUCCESS)
		failed(c, wc);
	do {
		if (c->done == c->serial)
			conn_fail(c, "a completion too many, wr_id %#lx", wc->wr_id);
		s = &c->sent[c->done++ % SQ_DEPTH];
		if (s->signaled && s->wr_id != wc->wr_id)
			conn_fail(c, "completion of wr_id %#lx (%s) where %#lx comes next",
				  wc->wr_id, ibv_wc_status_str(wc->status), s->wr_id);
		/* An unsignaled one is complete when a later one completes. */
		if (s->signaled)
			check_wc(c, s, wc);
		if (s->credit) {
			c->granted_done++;
			continue;
		}
		if (s->bind)
			continue;
		if (op_reads(s->op.kind))
			check_read(c, s);
		else if (op_atomic(s->op.kind))
			check_atomic(c, s);
		if (s->op.last)
			c->retired++;
	} while (!s->signaled);
}
