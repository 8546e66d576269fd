#include "plan.h"

#define PAGE 4096u

const char *op_name(enum op_kind kind)
{
	static const char *const names[] = {
		[OP_SEND] = "SEND",
		[OP_SEND_IMM] = "SEND_WITH_IMM",
		[OP_SEND_INV] = "SEND_WITH_INV",
		[OP_WRITE] = "WRITE",
		[OP_WRITE_IMM] = "WRITE_WITH_IMM",
		[OP_READ_STATIC] = "READ",
		[OP_READ_WINDOW] = "READ (of the window)",
		[OP_FETCH_ADD] = "FETCH_ADD",
		[OP_FETCH_ADD_SHARED] = "FETCH_ADD (shared)",
		[OP_CMP_SWAP] = "CMP_SWAP",
	};

	return names[kind];
}

size_t plan_window_len(const struct plan_params *params)
{
	return ((size_t)params->max_size + WINDOW_SLACK + PAGE - 1) / PAGE * PAGE;
}

size_t plan_batch_bytes(const struct plan_params *params)
{
	return (size_t)params->max_size + BATCH_SLACK;
}

void plan_start(struct plan *plan, const struct plan_params *params, int side, uint32_t qp)
{
	*plan = (struct plan){
		.params = params,
		.rng = rng_for(params->seed, side, qp),
	};
}

static enum op_kind pick_kind(struct plan *plan, bool last)
{
	/* Of 64. */
	static const struct {
		enum op_kind kind;
		unsigned int share;
	} mix[] = {
		{ OP_SEND, 10 }, { OP_SEND_IMM, 7 }, { OP_SEND_INV, 3 },
		{ OP_WRITE, 14 }, { OP_WRITE_IMM, 7 },
		{ OP_READ_STATIC, 7 }, { OP_READ_WINDOW, 6 },
		{ OP_FETCH_ADD, 3 }, { OP_FETCH_ADD_SHARED, 3 }, { OP_CMP_SWAP, 4 },
	};

	for (;;) {
		unsigned int at = rng_below(&plan->rng, 64), i = 0;

		while (at >= mix[i].share)
			at -= mix[i++].share;
		/* The responder has one key to give away per batch. */
		if (mix[i].kind == OP_SEND_INV && plan->invalidated)
			continue;
		if (!last || op_takes_receive(mix[i].kind))
			return mix[i].kind;
	}
}

/* Small sizes mostly: a million operations are to take a minute. */
static uint32_t pick_len(struct plan *plan, uint32_t max)
{
	struct rng *r = &plan->rng;
	uint64_t bound, roll = rng_below(r, 256);

	if (max > plan->budget)
		max = plan->budget;
	if (max == 0 || roll < 12)
		return 0;
	if (roll < 24)
		return 1;
	if (roll < 128)
		bound = 64;
	else if (roll < 200)
		bound = 512;
	else if (roll < 240)
		bound = 5000;
	else if (roll < 255)
		bound = 20000;
	else
		bound = max;
	return 1 + rng_below(r, bound < max ? bound : max);
}

/* Anywhere it fits; often next to a page boundary, at odd addresses, at the very ends. */
static uint64_t pick_offset(struct plan *plan, uint32_t len, size_t room)
{
	struct rng *r = &plan->rng;
	uint64_t most = room - len, at;

	switch (rng_below(r, 8)) {
	case 0:
		return 0;
	case 1:
		return most;
	case 2:
	case 3:
		at = PAGE * (1 + rng_below(r, room / PAGE)) - rng_below(r, len + 9ull);
		return at < most ? at : most;
	default:
		return rng_below(r, most + 1);
	}
}

bool plan_next(struct plan *plan, struct op *op)
{
	const struct plan_params *p = plan->params;
	uint64_t index = plan->next++;
	size_t window = plan_window_len(p);

	if (index >= p->batches * BATCH_OPS)
		return false;
	*op = (struct op){
		.index = index,
		.batch = index / BATCH_OPS,
		.last = index % BATCH_OPS == BATCH_OPS - 1,
	};
	if (index % BATCH_OPS == 0) {
		plan->budget = plan_batch_bytes(p);
		plan->invalidated = false;
	}
	op->kind = pick_kind(plan, op->last);
	op->key = rng_next(&plan->rng);
	/* Credits are told apart by the upper bit. */
	op->imm = rng_next(&plan->rng) & 0x7fffffff;
	if (op_atomic(op->kind)) {
		op->len = 8;
		op->offset = rng_below(&plan->rng, ATOMIC_WORDS);
		op->add = rng_next(&plan->rng);
		if (op->kind == OP_FETCH_ADD_SHARED)
			op->add &= 0xff;
		op->compare_right = rng_below(&plan->rng, 3) != 0;
		return true;
	}
	if (op_takes_receive(op->kind) && op->kind != OP_WRITE_IMM)
		op->len = pick_len(plan, p->max_size < SEND_MAX ? p->max_size : SEND_MAX);
	else
		op->len = pick_len(plan, p->max_size);
	op->offset = pick_offset(plan, op->len, window);
	plan->budget -= op->len;
	if (op->kind == OP_SEND_INV)
		plan->invalidated = true;
	return true;
}
