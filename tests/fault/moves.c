/* The worker's operations, and the checks of what they moved. */
#include "worker.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define POLL_MAX 16
#define WR_RECV (1ull << 32)
#define WR_READ (1ull << 33)
#define WR_ATOMIC (1ull << 34)
#define WR_VICTIM (1ull << 35)
#define WR_VICTIM_READ (1ull << 36)

enum op { SEND, SMALL, BIG, READ, ATOMIC, LONG_SEND };

static uint64_t key_of(unsigned int serial, bool server)
{
	return ((uint64_t)me.cycle << 9 | serial << 1 | server) + 1;
}

static unsigned char *slot(unsigned int area, unsigned int serial)
{
	return me.local + (size_t)(area * DEPTH + serial % DEPTH) * SLOT_LEN;
}

static uint32_t send_len(unsigned int serial)
{
	return serial % KINDS == SEND ? 16 : 8000;
}

/* Where in the window a WRITE goes. */
static void place(unsigned int serial, size_t *at, size_t *len)
{
	unsigned int nth = serial / KINDS, last = OPS / KINDS - 1;

	if (serial % KINDS == SMALL) {
		/* The first one in the page that is not wholly inside. */
		*at = nth ? SMALL_AT + nth * SMALL_LEN : 8;
		*len = nth == 1 ? 8 : SMALL_LEN;
	} else {
		*at = nth == last ? WINDOW_LEN - BIG_LEN : BIG_AT + nth * BIG_LEN;
		*len = BIG_LEN;
	}
}

void post_recv(void)
{
	unsigned int serial = me.received + me.recvs;
	struct ibv_sge sge = { (uintptr_t)slot(1, serial), SLOT_LEN, me.local_mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = WR_RECV, .sg_list = &sge, .num_sge = 1 };

	need0(ibv_post_recv(me.qp, &wr, &bad));
	me.recvs++;
}

static void post(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->send_flags = IBV_SEND_SIGNALED;
	need0(ibv_post_send(me.qp, wr, &bad));
	me.sends++;
}

static void post_op(unsigned int serial)
{
	unsigned char *from = slot(0, serial);
	struct ibv_sge sge = { (uintptr_t)from, send_len(serial), me.local_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = serial, .sg_list = &sge, .num_sge = 1,
				  .opcode = IBV_WR_SEND };
	size_t at, len;

	wr.wr.rdma.rkey = peer.window_key;
	switch (serial % KINDS) {
	case SMALL: case BIG:
		place(serial, &at, &len);
		wr.opcode = IBV_WR_RDMA_WRITE;
		wr.wr.rdma.remote_addr = peer.window + at;
		sge.length = len;
		break;
	case READ:
		wr.opcode = IBV_WR_RDMA_READ;
		wr.wr_id |= WR_READ;
		wr.wr.rdma.remote_addr = peer.window + READ_AT;
		sge.length = READ_LEN;
		break;
	case ATOMIC:
		wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr.wr_id |= WR_ATOMIC;
		wr.wr.atomic.remote_addr = peer.window + CELL;
		wr.wr.atomic.compare_add = 1;
		wr.wr.atomic.rkey = peer.window_key;
		sge.length = 8;
		break;
	}
	content_fill(from, key_of(serial, me.server), 0, sge.length);
	post(&wr);
}

void post_victim(const struct message *victim, unsigned int serial)
{
	bool read = serial % VICTIM_OPS == 3;
	struct ibv_sge sge = { (uintptr_t)me.local + (read ? SINK : SOURCE), VICTIM_OP,
			       me.local_mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = read ? WR_VICTIM_READ : WR_VICTIM, .sg_list = &sge, .num_sge = 1,
		.opcode = read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
	};

	/* What is read is what the WRITE before it has written. */
	wr.wr.rdma.remote_addr =
		victim->at + (serial - read) % VICTIM_OPS * (uint64_t)VICTIM_OP;
	wr.wr.rdma.rkey = victim->rkey;
	post(&wr);
}

static void check_result(uint64_t id)
{
	unsigned int serial = id & 0xff;
	uint64_t value;

	if (id & WR_READ && content_check(slot(0, serial), KEY_READ ^ me.cycle, 0, READ_LEN) >= 0)
		fail("READ %u of cycle %u is wrong", serial, me.cycle);
	if (id & WR_ATOMIC) {
		memcpy(&value, slot(0, serial), 8);
		if (value != serial / KINDS)
			fail("atomic %u of cycle %u finds %" PRIu64, serial, me.cycle, value);
	}
	if (id & WR_VICTIM_READ && content_check(me.local + SINK, KEY_SOURCE, 0, VICTIM_OP) >= 0)
		fail("a READ of the victim is wrong");
}

/* Receives come in the order of the peer's SENDs: two in each round of kinds. */
static void check_message(const struct ibv_wc *wc)
{
	unsigned int serial = me.received / 2 * KINDS + (me.received % 2 ? LONG_SEND : SEND);

	if (wc->byte_len != send_len(serial) ||
	    content_check(slot(1, me.received), key_of(serial, !me.server), 0, wc->byte_len) >= 0)
		fail("message %u of cycle %u is wrong", me.received, me.cycle);
	me.received++;
	post_recv();
}

bool poll_completions(void)
{
	struct ibv_wc wc[POLL_MAX];
	int n = me.cq ? ibv_poll_cq(me.cq, POLL_MAX, wc) : 0;

	if (n < 0)
		fail("ibv_poll_cq: %d", n);
	for (int i = 0; i < n; i++) {
		if (wc[i].wr_id & WR_RECV)
			me.recvs--;
		else
			me.sends--;
		if (wc[i].status != IBV_WC_SUCCESS) {
			if (!me.failed || me.status == IBV_WC_WR_FLUSH_ERR)
				me.status = wc[i].status;
			me.failed = true;
		} else if (wc[i].wr_id & WR_RECV) {
			check_message(&wc[i]);
		} else {
			check_result(wc[i].wr_id);
		}
	}
	return n > 0;
}

bool move_data(void)
{
	unsigned int serial = 0;

	while (serial < OPS || me.sends || me.received < OPS / KINDS * 2) {
		while (serial < OPS && me.sends < DEPTH / 2)
			post_op(serial++);
		if (!step(1))
			return false;
	}
	return true;
}

static void check_write(unsigned int serial, bool partial)
{
	static unsigned char want[BIG_LEN];
	size_t at, len;

	place(serial, &at, &len);
	content_fill(want, key_of(serial, !me.server), 0, len);
	for (size_t i = 0; i < len; i++) {
		unsigned char byte = me.window[at + i];

		if (byte != want[i] && !(partial && byte == GUARD))
			fail("byte %zu of WRITE %u of cycle %u is wrong", i, serial, me.cycle);
	}
}

void check_window(bool partial)
{
	uint64_t count;

	for (unsigned int serial = 0; serial < OPS; serial++)
		if (serial % KINDS == SMALL || serial % KINDS == BIG)
			check_write(serial, partial);
	if (content_check(me.window + READ_AT, KEY_READ ^ me.cycle, 0, READ_LEN) >= 0)
		fail("what the peer only reads has changed");
	memcpy(&count, me.window + CELL, 8);
	if (count > OPS / KINDS || (!partial && count != OPS / KINDS))
		fail("the cell counts %" PRIu64 " atomics", count);
}
