/* The responder's half: replays the peer's plan and compares what has arrived with it. */
#include "verify.h"

#include <arpa/inet.h>
#include <string.h>

/* Bytes on either side of what a batch has written that are compared with it. */
#define HULL_MARGIN 256
/* Every so many batches a whole window is compared. */
#define WHOLE_EVERY 64

unsigned int cut(struct rng *rng, unsigned char **at, uint32_t len, unsigned int most,
		 struct piece *piece)
{
	unsigned int n = 0;

	*at += PIECE_GAP;
	while (len) {
		uint32_t part = len;

		*at += rng_below(rng, PIECE_GAP);
		if (n + 1 < most && rng_one_in(rng, 2))
			part = 1 + rng_below(rng, len);
		piece[n++] = (struct piece){ *at, part };
		*at += part + PIECE_GAP;
		len -= part;
	}
	return n;
}

void check_gaps(const struct conn *c, const char *what, const struct piece *piece,
		unsigned int pieces)
{
	for (unsigned int i = 0; i < pieces; i++) {
		if (guard_check(piece[i].at - PIECE_GAP, PIECE_GAP) >= 0)
			conn_fail(c, "%s: bytes in front of piece %u of %u changed", what, i + 1,
				  pieces);
		if (guard_check(piece[i].at + piece[i].len, PIECE_GAP) >= 0)
			conn_fail(c, "%s: bytes behind piece %u of %u changed", what, i + 1,
				  pieces);
	}
}

void respond_post(struct pool *pool, struct ibv_qp *qp, unsigned int slot)
{
	struct slot *s = &pool->slots[slot];
	unsigned char *at = s->base;
	struct ibv_sge sge[MAX_PIECES];
	struct ibv_recv_wr *bad, wr = { .wr_id = RECV_FLAG | slot, .sg_list = sge };

	s->pieces = cut(&pool->rng, &at, SEND_MAX, MAX_PIECES, s->piece);
	wr.num_sge = s->pieces;
	for (unsigned int i = 0; i < s->pieces; i++)
		sge[i] = (struct ibv_sge){
			(uintptr_t)s->piece[i].at, s->piece[i].len, pool->mr->lkey,
		};
	s->posted = true;
	pool->order[pool->posted++ % pool->count] = slot;
	if (pool->srq)
		need0(ibv_post_srq_recv(pool->srq, &wr, &bad));
	else
		need0(ibv_post_recv(qp, &wr, &bad));
}

/* The slot of a completion, which must be one that is posted, and the next one where receives are
 * used in order. */
static unsigned int take_slot(struct conn *c, uint64_t wr_id)
{
	struct pool *pool = c->pool;
	uint64_t slot = wr_id & ~RECV_FLAG;

	if (slot >= pool->count || !pool->slots[slot].posted)
		conn_fail(c, "completion of a receive that is not posted, wr_id %#lx", wr_id);
	if (!pool->srq && pool->order[pool->taken % pool->count] != slot)
		conn_fail(c, "receive %lu completes where %u comes next", slot,
			  pool->order[pool->taken % pool->count]);
	pool->taken++;
	pool->slots[slot].posted = false;
	return slot;
}

/* Checks a received message and wipes it out of its buffer. */
static void check_message(struct conn *c, const struct op *op, struct slot *s)
{
	uint32_t left = op->len;
	size_t done = 0;

	for (unsigned int i = 0; i < s->pieces; i++) {
		struct piece *p = &s->piece[i];
		uint32_t n = left < p->len ? left : p->len;
		uint32_t after = p->len - n < PIECE_GAP ? p->len - n : PIECE_GAP;
		ssize_t bad = content_check(p->at, op->key, done, n);

		if (bad >= 0)
			conn_fail(c, "%s %lu of %u bytes: byte %zu is wrong", op_name(op->kind),
				  op->index, op->len, done + bad);
		if (guard_check(p->at + n, after) >= 0)
			conn_fail(c, "%s %lu of %u bytes: bytes behind it changed",
				  op_name(op->kind), op->index, op->len);
		memset(p->at, GUARD, n);
		done += n;
		left -= n;
	}
	check_gaps(c, op_name(op->kind), s->piece, s->pieces);
}

/* Replays a WRITE of the peer. */
static void replay(struct conn *c, const struct op *op)
{
	unsigned int w = op->batch % WINDOWS;

	content_fill(c->shadow[w] + op->offset, op->key, 0, op->len);
	if (op->len && op->offset < c->dirty_from[w])
		c->dirty_from[w] = op->offset;
	if (op->len && op->offset + op->len > c->dirty_to[w])
		c->dirty_to[w] = op->offset + op->len;
}

static void compare_window(const struct conn *c, unsigned int w, size_t from, size_t to)
{
	const unsigned char *seen = c->window[w] + from, *want = c->shadow[w] + from;
	size_t at = 0;

	if (from >= to || memcmp(seen, want, to - from) == 0)
		return;
	while (seen[at] == want[at])
		at++;
	conn_fail(c, "window %u: byte %zu is %#x, must be %#x (batch %lu wrote %zu to %zu)", w,
		  from + at, seen[at], want[at], c->batches_in, c->dirty_from[w], c->dirty_to[w]);
}

/* All of a batch has arrived: its window must hold just what the plan says. */
static void finish_batch(struct conn *c)
{
	unsigned int w = c->batches_in % WINDOWS;
	size_t len = plan_window_len(&c->run->params), from = 0, to = len;

	if (c->batches_in % WHOLE_EVERY >= WINDOWS) {
		from = c->dirty_from[w] < HULL_MARGIN ? 0 : c->dirty_from[w] - HULL_MARGIN;
		to = c->dirty_to[w] + HULL_MARGIN < len ? c->dirty_to[w] + HULL_MARGIN : len;
	}
	compare_window(c, w, from, to);
	if (guard_check(c->window[w] - WINDOW_GAP, WINDOW_GAP) >= 0 ||
	    guard_check(c->window[w] + len, WINDOW_GAP) >= 0)
		conn_fail(c, "bytes outside of window %u changed", w);
	c->dirty_from[w] = len;
	c->dirty_to[w] = 0;
	c->batches_in++;
}

static void check_flags(struct conn *c, const struct op *op, const struct ibv_wc *wc)
{
	enum ibv_wc_opcode opcode =
		op->kind == OP_WRITE_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
	unsigned int flags = wc->wc_flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV), want = 0;
	unsigned int w = op->batch % WINDOWS;

	if (op->kind == OP_SEND_IMM || op->kind == OP_WRITE_IMM)
		want = IBV_WC_WITH_IMM;
	if (op->kind == OP_SEND_INV)
		want = IBV_WC_WITH_INV;
	if (wc->opcode != opcode || flags != want || wc->byte_len != op->len)
		conn_fail(c, "%s %lu of %u bytes arrives as opcode %d, flags %#x, %u bytes",
			  op_name(op->kind), op->index, op->len, wc->opcode, wc->wc_flags,
			  wc->byte_len);
	if (want == IBV_WC_WITH_IMM && ntohl(wc->imm_data) != op->imm)
		conn_fail(c, "%s %lu: immediate data %#x, must be %#x", op_name(op->kind),
			  op->index, ntohl(wc->imm_data), op->imm);
	if (want == IBV_WC_WITH_INV) {
		if (wc->invalidated_rkey != c->inv_mw[w]->rkey)
			conn_fail(c, "SEND_WITH_INV %lu: invalidated %#x, must be %#x", op->index,
				  wc->invalidated_rkey, c->inv_mw[w]->rkey);
		c->inv_used[w] = true;
	}
}

/* Whether a request up to the end of a batch waits for an answer with data. Such an answer may be
 * lost where a message is not, and come later. */
static bool awaits_answer(const struct conn *c, uint64_t batch)
{
	for (uint64_t n = c->done; n < c->serial; n++) {
		const struct sent *s = &c->sent[n % SQ_DEPTH];

		if (s->credit || s->bind)
			continue;
		if (op_reads(s->op.kind) || op_atomic(s->op.kind))
			return true;
		if (s->op.batch == batch && s->op.last)
			break;
	}
	return false;
}

/* The peer sent the credit when it had received the batch: here the batch completes before the
 * credit is received. */
static void check_order(struct conn *c)
{
	struct worker *w = c->worker;

	if (w->send_cq != w->recv_cq)
		while (worker_drain(w, w->send_cq))
			;
	if (c->retired <= c->credits && !awaits_answer(c, c->credits))
		conn_fail(c, "credit %lu comes before the completions of what it is for",
			  c->credits);
}

static void take_credit(struct conn *c, const struct ibv_wc *wc)
{
	const struct credit *credit = &c->mailbox[c->credits % WINDOWS];
	uint32_t number = ntohl(wc->imm_data) & ~CREDIT_FLAG;

	if (wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM || wc->byte_len != sizeof(*credit))
		conn_fail(c, "a credit arrives as opcode %d, %u bytes", wc->opcode, wc->byte_len);
	if (number != (c->credits & ~CREDIT_FLAG) || credit->batch != c->credits ||
	    credit->check != ~(uint32_t)c->credits)
		conn_fail(c, "credit %u for batch %lu (%#x) where %lu comes next", number,
			  credit->batch, credit->check, c->credits);
	check_order(c);
	c->peer_inv_rkey[c->credits % WINDOWS] = credit->inv_rkey;
	c->credits++;
}

void respond_complete(struct conn *c, const struct ibv_wc *wc)
{
	unsigned int slot;
	struct op op;

	if (wc->status != IBV_WC_SUCCESS)
		conn_fail(c, "a receive completes with: %s (vendor error %#x)",
			  ibv_wc_status_str(wc->status), wc->vendor_err);
	slot = take_slot(c, wc->wr_id);
	if (wc->wc_flags & IBV_WC_WITH_IMM && ntohl(wc->imm_data) & CREDIT_FLAG) {
		take_credit(c, wc);
		respond_post(c->pool, c->qp, slot);
		return;
	}
	do {
		if (!plan_next(&c->peer_plan, &op))
			conn_fail(c, "a message too many, %u bytes", wc->byte_len);
		if (op_writes(op.kind))
			replay(c, &op);
		c->worker->received[op.kind]++;
	} while (!op_takes_receive(op.kind));
	check_flags(c, &op, wc);
	if (op.kind != OP_WRITE_IMM)
		check_message(c, &op, &c->pool->slots[slot]);
	respond_post(c->pool, c->qp, slot);
	if (op.last)
		finish_batch(c);
}

void respond_final(struct conn *c)
{
	size_t len = plan_window_len(&c->run->params);

	for (unsigned int w = 0; w < WINDOWS; w++) {
		compare_window(c, w, 0, len);
		if (guard_check(c->window[w] - WINDOW_GAP, WINDOW_GAP) >= 0 ||
		    guard_check(c->window[w] + len, WINDOW_GAP) >= 0)
			conn_fail(c, "bytes outside of window %u changed", w);
	}
}

void respond_final_pool(const struct pool *pool)
{
	ssize_t bad = guard_check(pool->memory, (size_t)pool->count * SLOT_BYTES);

	/* Every message was wiped out when it had been checked. */
	if (bad >= 0)
		fail("receive buffer %zu changed at byte %zu, where no message reached",
		     bad / SLOT_BYTES, bad % SLOT_BYTES);
}
