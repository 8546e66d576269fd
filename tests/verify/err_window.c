/* Memory windows: what their keys allow, to whom, for how long, and what cannot be bound. */
#include "err_window.h"

#include <unistd.h>

static struct ibv_mr *reg(struct env *env, struct side *s, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(env->pd, s->buf, BUF_BYTES, access);

	need(mr, "ibv_reg_mr");
	return mr;
}

static struct ibv_mw *alloc(struct env *env, enum ibv_mw_type type)
{
	struct ibv_mw *mw = ibv_alloc_mw(env->pd, type);

	need(mw, "ibv_alloc_mw");
	check(mw->pd == env->pd && mw->context == env->dev.ctx && mw->type == type, "its fields");
	return mw;
}

struct ibv_mw_bind_info info_of(struct side *s, struct ibv_mr *mr, int access)
{
	return (struct ibv_mw_bind_info){
		mr, (uintptr_t)s->buf + WINDOW_AT, WINDOW_BYTES, access,
	};
}

/* Posts a BIND_MW of `mw`, which gets the key `rkey`. */
int post_bind(struct side *s, uint64_t wr_id, struct ibv_mw *mw, uint32_t rkey,
	      struct ibv_mw_bind_info info)
{
	struct ibv_send_wr *bad, wr = {
		.wr_id = wr_id, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
		.bind_mw = { .mw = mw, .rkey = rkey, .bind_info = info },
	};

	return ibv_post_send(s->qp, &wr, &bad);
}

int post_inv(struct side *s, uint64_t wr_id, enum ibv_wr_opcode op, uint32_t rkey)
{
	struct ibv_send_wr *bad, wr = {
		.wr_id = wr_id, .opcode = op, .send_flags = IBV_SEND_SIGNALED,
		.invalidate_rkey = rkey,
	};

	return ibv_post_send(s->qp, &wr, &bad);
}

/* Binds with the next key, which is returned. */
static uint32_t bind2(struct side *s, struct ibv_mw *mw, struct ibv_mw_bind_info info)
{
	uint32_t rkey = ibv_inc_rkey(mw->rkey);
	struct ibv_wc wc;

	need0(post_bind(s, 20, mw, rkey, info));
	wc = expect_wc(s->cq, 20, IBV_WC_SUCCESS);
	check(wc.opcode == IBV_WC_BIND_MW, "opcode %d of a bind", wc.opcode);
	mw->rkey = rkey;
	return rkey;
}

static void bind1(struct side *s, struct ibv_mw *mw, struct ibv_mw_bind_info info)
{
	struct ibv_mw_bind bind = { 21, IBV_SEND_SIGNALED, info };
	uint32_t old = mw->rkey;

	need0(ibv_bind_mw(s->qp, mw, &bind));
	check(mw->rkey != old && mw->rkey >> 8 == old >> 8, "key %#x after %#x", mw->rkey, old);
	expect_wc(s->cq, 21, IBV_WC_SUCCESS);
}

/* A pair, and a window of type 2 bound by b. */
void scene_open(struct env *env, struct scene *s, int mr_access, int access)
{
	pair_open(env, &s->p, NULL, true);
	s->mr = reg(env, &s->p.b, mr_access);
	s->mw = alloc(env, IBV_MW_TYPE_2);
	s->at = access & IBV_ACCESS_ZERO_BASED ? 0 : (uintptr_t)s->p.b.buf + WINDOW_AT;
	s->rkey = bind2(&s->p.b, s->mw, info_of(&s->p.b, s->mr, access));
}

void allowed(struct pair *p, enum ibv_wr_opcode op, uint32_t len, uint64_t at,
	     uint32_t rkey)
{
	need0(post_send(&p->a, 30, op, len, at, rkey));
	expect_wc(p->a.cq, 30, IBV_WC_SUCCESS);
}

/* The access is refused, both ends fail, and nothing of b's memory has changed. */
static void refused(struct env *env, struct pair *p, enum ibv_wr_opcode op, uint32_t len,
		    uint64_t at, uint32_t rkey)
{
	memset(p->b.buf, 0x77, BUF_BYTES);
	memset(p->a.buf, 0x11, BUF_BYTES);
	need0(post_send(&p->a, 31, op, len, at, rkey));
	expect_wc(p->a.cq, 31, IBV_WC_REM_ACCESS_ERR);
	check(expect_event(env, IBV_EVENT_QP_ACCESS_ERR).qp == p->b.qp, "the event of another QP");
	expect_state(p->a.qp, IBV_QPS_ERR);
	expect_state(p->b.qp, IBV_QPS_ERR);
	/* Of a WRITE that begins inside, what fits may be there. */
	for (size_t i = 0; i < BUF_BYTES; i++)
		check(p->b.buf[i] == 0x77 || (len > WINDOW_BYTES && i - WINDOW_AT < WINDOW_BYTES),
		      "byte %zu has changed", i);
	bystander_check(env);
}

static void usable(struct env *env, int mr_access, int access)
{
	struct scene s;
	uint64_t word;

	scene_open(env, &s, mr_access, access);
	memset(s.p.a.buf, 0x11, BUF_BYTES);
	memset(s.p.b.buf, 0, BUF_BYTES);
	/* All of it, twice: the first access by a key may go another way than the second. */
	for (int i = 0; i < 2; i++)
		allowed(&s.p, IBV_WR_RDMA_WRITE, WINDOW_BYTES, s.at, s.rkey);
	for (size_t i = 0; i < BUF_BYTES; i++) {
		bool in = i >= WINDOW_AT && i < WINDOW_AT + WINDOW_BYTES;

		check(s.p.b.buf[i] == (in ? 0x11 : 0), "byte %zu is %#x", i, s.p.b.buf[i]);
	}
	memset(s.p.b.buf + WINDOW_AT, 0x22, WINDOW_BYTES);
	allowed(&s.p, IBV_WR_RDMA_READ, WINDOW_BYTES, s.at, s.rkey);
	for (size_t i = 0; i < BUF_BYTES; i++)
		check(s.p.a.buf[i] == (i < WINDOW_BYTES ? 0x22 : 0x11), "read: byte %zu", i);
	allowed(&s.p, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, s.at + WINDOW_BYTES - 8, s.rkey);
	memcpy(&word, s.p.a.buf, 8);
	check(word == 0x2222222222222222, "fetched %#lx", word);
}

static void use_of_a_window(struct env *env)
{
	usable(env, HIDDEN, REMOTE_ACCESS);
	usable(env, OPEN, REMOTE_ACCESS);
	usable(env, OPEN | IBV_ACCESS_RELAXED_ORDERING, REMOTE_ACCESS | IBV_ACCESS_ZERO_BASED);
	usable(env, HIDDEN, REMOTE_ACCESS | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
}

static void beyond_its_range(struct env *env)
{
	static const struct {
		enum ibv_wr_opcode op;
		uint32_t len;
		int64_t at;
	} cases[] = {
		{ IBV_WR_RDMA_WRITE, 8, -1 },
		{ IBV_WR_RDMA_WRITE, 8, WINDOW_BYTES - 7 },
		{ IBV_WR_RDMA_WRITE, WINDOW_BYTES + 1, 0 },
		{ IBV_WR_RDMA_READ, 8, -8 },
		{ IBV_WR_RDMA_READ, 1, WINDOW_BYTES },
		{ IBV_WR_ATOMIC_CMP_AND_SWP, 8, WINDOW_BYTES },
		{ IBV_WR_RDMA_WRITE, 8, INT64_MAX },
	};

	for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(*cases); i++) {
		struct scene s;
		size_t c = i / 2;

		scene_open(env, &s, i % 2 ? OPEN : HIDDEN, REMOTE_ACCESS);
		allowed(&s.p, IBV_WR_RDMA_WRITE, 8, s.at, s.rkey);
		refused(env, &s.p, cases[c].op, cases[c].len, s.at + cases[c].at, s.rkey);
	}
}

/* One of type 2 is bound to a queue pair; one of type 1 serves all of its domain. */
static void another_qp(struct env *env)
{
	static const int regions[] = { HIDDEN, OPEN };

	for (int i = 0; i < 2; i++) {
		struct pair other;
		struct ibv_mw *mw;
		struct scene s;

		scene_open(env, &s, regions[i], REMOTE_ACCESS);
		pair_open(env, &other, NULL, true);
		allowed(&s.p, IBV_WR_RDMA_WRITE, 8, s.at, s.rkey);
		mw = alloc(env, IBV_MW_TYPE_1);
		bind1(&s.p.b, mw, info_of(&s.p.b, s.mr, REMOTE_ACCESS));
		allowed(&s.p, IBV_WR_RDMA_WRITE, 8, s.at, mw->rkey);
		allowed(&other, IBV_WR_RDMA_WRITE, 8, s.at, mw->rkey);
		refused(env, &other, IBV_WR_RDMA_WRITE, 8, s.at, s.rkey);
		allowed(&s.p, IBV_WR_RDMA_WRITE, 8, s.at, s.rkey);
	}
}

static void missing_window_access(struct env *env)
{
	static const struct {
		enum ibv_wr_opcode op;
		int lacks;
	} cases[] = {
		{ IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE },
		{ IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ },
		{ IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC },
	};

	for (int i = 0; i < 6; i++) {
		struct scene s;

		scene_open(env, &s, i % 2 ? OPEN : HIDDEN, REMOTE_ACCESS & ~cases[i / 2].lacks);
		refused(env, &s.p, cases[i / 2].op, 8, s.at, s.rkey);
	}
}

static void invalidated(struct env *env)
{
	for (int i = 0; i < 4; i++) {
		struct scene s;

		scene_open(env, &s, i % 2 ? OPEN : HIDDEN, REMOTE_ACCESS);
		allowed(&s.p, IBV_WR_RDMA_WRITE, 8, s.at, s.rkey);
		if (i < 2) {
			struct ibv_wc wc;

			need0(post_inv(&s.p.b, 40, IBV_WR_LOCAL_INV, s.rkey));
			wc = expect_wc(s.p.b.cq, 40, IBV_WC_SUCCESS);
			check(wc.opcode == IBV_WC_LOCAL_INV, "opcode %d", wc.opcode);
		} else {
			struct ibv_wc wc;

			need0(post_recv(&s.p.b, 41, 64));
			need0(post_inv(&s.p.a, 42, IBV_WR_SEND_WITH_INV, s.rkey));
			wc = expect_wc(s.p.b.cq, 41, IBV_WC_SUCCESS);
			check(wc.wc_flags & IBV_WC_WITH_INV && wc.invalidated_rkey == s.rkey,
			      "the receive does not tell the key");
			expect_wc(s.p.a.cq, 42, IBV_WC_SUCCESS);
		}
		refused(env, &s.p, IBV_WR_RDMA_WRITE, 8, s.at, s.rkey);
	}
}

static void bound_again(struct env *env)
{
	for (int i = 0; i < 4; i++) {
		struct scene s;
		uint32_t old;

		scene_open(env, &s, i % 2 ? OPEN : HIDDEN, REMOTE_ACCESS);
		if (i < 2) {
			need0(post_inv(&s.p.b, 40, IBV_WR_LOCAL_INV, s.rkey));
			expect_wc(s.p.b.cq, 40, IBV_WC_SUCCESS);
		} else {
			s.mw = alloc(env, IBV_MW_TYPE_1);
			bind1(&s.p.b, s.mw, info_of(&s.p.b, s.mr, REMOTE_ACCESS));
			s.rkey = s.mw->rkey;
			allowed(&s.p, IBV_WR_RDMA_WRITE, 8, s.at, s.rkey);
		}
		old = s.rkey;
		for (int n = 0; n < 300; n++) {
			struct ibv_mw_bind_info info = info_of(&s.p.b, s.mr, REMOTE_ACCESS);

			info.addr += 8 * (n % 2);
			info.length = 8;
			if (i < 2 && n) {
				need0(post_inv(&s.p.b, 40, IBV_WR_LOCAL_INV, s.rkey));
				expect_wc(s.p.b.cq, 40, IBV_WC_SUCCESS);
			}
			if (i < 2)
				bind2(&s.p.b, s.mw, info);
			else
				bind1(&s.p.b, s.mw, info);
			check(s.mw->rkey != s.rkey, "the same key");
			s.rkey = s.mw->rkey;
			allowed(&s.p, IBV_WR_RDMA_WRITE, 8, info.addr, s.rkey);
		}
		/* The low byte has gone round: the key before the last. */
		old = (s.rkey & ~0xff) | ((s.rkey - 1) & 0xff);
		refused(env, &s.p, IBV_WR_RDMA_WRITE, 8, s.at + 8, old);
	}
}

/* Zero bytes unbind a window of type 1; the end of a window, or of its queue pair, any. */
static void unbound(struct env *env)
{
	for (int i = 0; i < 4; i++) {
		struct ibv_mw_bind_info none = { 0 };
		struct scene s;

		scene_open(env, &s, i % 2 ? OPEN : HIDDEN, REMOTE_ACCESS);
		allowed(&s.p, IBV_WR_RDMA_WRITE, 8, s.at, s.rkey);
		check_errno(ibv_dereg_mr(s.mr), EBUSY);
		check_errno(ibv_rereg_mr(s.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, OPEN),
			    EBUSY);
		need0(ibv_dealloc_mw(s.mw));
		if (i > 1) {
			s.mw = alloc(env, IBV_MW_TYPE_1);
			bind1(&s.p.b, s.mw, info_of(&s.p.b, s.mr, REMOTE_ACCESS));
			s.rkey = s.mw->rkey;
			allowed(&s.p, IBV_WR_RDMA_WRITE, 8, s.at, s.rkey);
			check_errno(ibv_dereg_mr(s.mr), EBUSY);
			bind1(&s.p.b, s.mw, none);
		}
		refused(env, &s.p, IBV_WR_RDMA_WRITE, 8, s.at, s.rkey);
		need0(ibv_rereg_mr(s.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, OPEN));
		need0(ibv_dereg_mr(s.mr));
	}
}

static void qp_destroyed(struct env *env)
{
	struct ibv_pd *pd = env->pd;
	struct scene s;

	scene_open(env, &s, OPEN, REMOTE_ACCESS);
	allowed(&s.p, IBV_WR_RDMA_WRITE, 8, s.at, s.rkey);
	check_errno(ibv_dereg_mr(s.mr), EBUSY);
	need0(ibv_destroy_qp(s.p.b.qp));
	need0(ibv_dereg_mr(s.mr));
	check_errno(ibv_dealloc_pd(pd), EBUSY);
	need0(ibv_dealloc_mw(s.mw));
}

/* A bind fails, and what is queued behind it is flushed. */
static void bind_fails(struct env *env, struct scene *s, struct ibv_mw *mw, uint32_t rkey,
		       struct ibv_mw_bind_info info)
{
	need0(post_bind(&s->p.b, 50, mw, rkey, info));
	expect_wc(s->p.b.cq, 50, IBV_WC_MW_BIND_ERR);
	expect_state(s->p.b.qp, IBV_QPS_ERR);
	need0(post_bind(&s->p.b, 51, mw, rkey, info));
	expect_wc(s->p.b.cq, 51, IBV_WC_WR_FLUSH_ERR);
	bystander_check(env);
}

static void bad_regions(struct env *env)
{
	struct ibv_pd *other = ibv_alloc_pd(env->dev.ctx);

	need(other, "ibv_alloc_pd");
	for (int i = 0; i < 7; i++) {
		struct ibv_mw_bind_info info;
		struct scene s;

		scene_open(env, &s, OPEN, REMOTE_ACCESS);
		need0(post_inv(&s.p.b, 40, IBV_WR_LOCAL_INV, s.rkey));
		expect_wc(s.p.b.cq, 40, IBV_WC_SUCCESS);
		info = info_of(&s.p.b, s.mr, REMOTE_ACCESS);
		if (i == 0)
			info.mr = reg(env, &s.p.b, ANY_ACCESS);
		else if (i == 1)
			info.mr = reg(env, &s.p.b, IBV_ACCESS_MW_BIND);
		else if (i == 2)
			info.mr = ibv_reg_mr(other, s.p.b.buf, BUF_BYTES, OPEN);
		else if (i == 3)
			info.mr = reg(env, &s.p.b, OPEN | IBV_ACCESS_ZERO_BASED);
		else if (i == 4)
			info.length = BUF_BYTES;
		else if (i == 5)
			info.addr = (uintptr_t)s.p.b.buf - 1;
		else
			info.length = UINT64_MAX - 4096;
		need(info.mr, "ibv_reg_mr");
		bind_fails(env, &s, s.mw, ibv_inc_rkey(s.rkey), info);
	}
}

static void bad_windows(struct env *env)
{
	struct ibv_pd *other = ibv_alloc_pd(env->dev.ctx);

	need(other, "ibv_alloc_pd");
	for (int i = 0; i < 5; i++) {
		struct ibv_mw_bind_info info;
		struct ibv_mw *mw;
		struct scene s;
		uint32_t rkey;

		scene_open(env, &s, OPEN, REMOTE_ACCESS);
		info = info_of(&s.p.b, s.mr, REMOTE_ACCESS);
		mw = i == 4 ? ibv_alloc_mw(other, IBV_MW_TYPE_2) : alloc(env, IBV_MW_TYPE_2);
		need(mw, "ibv_alloc_mw");
		rkey = ibv_inc_rkey(mw->rkey);
		if (i == 0) {
			/* It is bound. */
			mw = s.mw;
			rkey = ibv_inc_rkey(s.rkey);
		} else if (i == 1) {
			rkey = mw->rkey;
		} else if (i == 2) {
			info.length = 0;
		} else if (i == 3) {
			/* Nothing but the low byte counts, and that is the present one. */
			rkey = (uint8_t)mw->rkey;
		}
		bind_fails(env, &s, mw, rkey, info);
	}
}

/* Only windows of type 2 can be invalidated, and only by their queue pair. */
static void bad_invalidations(struct env *env)
{
	for (int i = 0; i < 8; i++) {
		bool remote = i % 2;
		struct pair other;
		struct ibv_mw *mw;
		struct side *s;
		struct scene sc;
		uint32_t rkey;

		scene_open(env, &sc, OPEN, REMOTE_ACCESS);
		pair_open(env, &other, NULL, true);
		mw = alloc(env, IBV_MW_TYPE_1);
		bind1(&sc.p.b, mw, info_of(&sc.p.b, sc.mr, REMOTE_ACCESS));
		rkey = i / 2 == 0 ? sc.mr->rkey : i / 2 == 1 ? mw->rkey : sc.rkey;
		if (i / 2 == 3)
			rkey ^= 1;
		s = i / 2 == 2 ? &other.b : &sc.p.b;
		if (remote) {
			struct side *peer = i / 2 == 2 ? &other.a : &sc.p.a;

			need0(post_recv(s, 60, 64));
			need0(post_inv(peer, 61, IBV_WR_SEND_WITH_INV, rkey));
			expect_wc(peer->cq, 61, IBV_WC_REM_ACCESS_ERR);
			expect_wc(s->cq, 60, IBV_WC_LOC_ACCESS_ERR);
		} else {
			need0(post_inv(s, 62, IBV_WR_LOCAL_INV, rkey));
			expect_wc(s->cq, 62, IBV_WC_MW_BIND_ERR);
		}
		expect_state(s->qp, IBV_QPS_ERR);
		if (i / 2 == 2)
			allowed(&sc.p, IBV_WR_RDMA_WRITE, 8, sc.at, sc.rkey);
	}
}

static void bad_calls(struct env *env)
{
	struct ibv_mw_bind bind = { .wr_id = 1 };
	struct ibv_mw *one = alloc(env, IBV_MW_TYPE_1);
	struct scene s;

	scene_open(env, &s, OPEN, REMOTE_ACCESS);
	check_null(ibv_alloc_mw(env->pd, 3), EINVAL);
	check_null(ibv_alloc_mw(env->pd, 0), EINVAL);
	bind.bind_info = info_of(&s.p.b, s.mr, REMOTE_ACCESS);
	check_errno(ibv_bind_mw(s.p.b.qp, s.mw, &bind), EINVAL);
	check_errno(post_bind(&s.p.b, 1, one, ibv_inc_rkey(one->rkey), bind.bind_info), EINVAL);
	bind.send_flags = IBV_SEND_INLINE;
	check_errno(ibv_bind_mw(s.p.b.qp, one, &bind), EINVAL);
	expect_quiet(s.p.b.cq);
	/* A window's key is for peers. */
	s.p.b.mr->lkey = s.rkey;
	need0(post_send(&s.p.b, 2, IBV_WR_SEND, 8, 0, 0));
	expect_wc(s.p.b.cq, 2, IBV_WC_LOC_PROT_ERR);
}

/* Completions come in the order of posting, and a bind needs no peer. */
static void in_order(struct env *env)
{
	struct ibv_send_wr *bad, wr[4] = { 0 };
	struct ibv_sge sge;
	struct scene s;

	scene_open(env, &s, OPEN, REMOTE_ACCESS);
	need0(post_inv(&s.p.b, 40, IBV_WR_LOCAL_INV, s.rkey));
	expect_wc(s.p.b.cq, 40, IBV_WC_SUCCESS);
	sge = (struct ibv_sge){ (uintptr_t)s.p.b.buf, 4096, s.p.b.mr->lkey };
	for (int i = 0; i < 4; i++)
		wr[i] = (struct ibv_send_wr){
			.wr_id = 70 + i, .next = i < 3 ? &wr[i + 1] : NULL, .sg_list = &sge,
			.num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		};
	wr[1].opcode = IBV_WR_BIND_MW;
	wr[1].num_sge = 0;
	wr[1].bind_mw.mw = s.mw;
	wr[1].bind_mw.rkey = ibv_inc_rkey(s.rkey);
	wr[1].bind_mw.bind_info = info_of(&s.p.b, s.mr, REMOTE_ACCESS);
	wr[3].opcode = IBV_WR_LOCAL_INV;
	wr[3].num_sge = 0;
	wr[3].invalidate_rkey = ibv_inc_rkey(s.rkey);
	/* The peer is not ready for the first: nothing completes. */
	need0(ibv_post_send(s.p.b.qp, wr, &bad));
	usleep(20000);
	expect_quiet(s.p.b.cq);
	need0(post_recv(&s.p.a, 80, 4096));
	need0(post_recv(&s.p.a, 81, 4096));
	for (int i = 0; i < 4; i++) {
		static const enum ibv_wc_opcode opcodes[] = {
			IBV_WC_SEND, IBV_WC_BIND_MW, IBV_WC_SEND, IBV_WC_LOCAL_INV,
		};
		struct ibv_wc wc = expect_wc(s.p.b.cq, 70 + i, IBV_WC_SUCCESS);

		check(wc.opcode == opcodes[i], "opcode %d of %d", wc.opcode, i);
	}
	expect_wc(s.p.a.cq, 80, IBV_WC_SUCCESS);
	expect_wc(s.p.a.cq, 81, IBV_WC_SUCCESS);
}

/* Unreliable connections bind windows and invalidate them too; what is refused is dropped. */
static void unreliable(struct env *env)
{
	volatile unsigned char *at;
	struct ibv_mw *mw;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	struct pair p;
	uint32_t rkey;

	uc_open(env, &p);
	mr = reg(env, &p.b, HIDDEN);
	mw = alloc(env, IBV_MW_TYPE_2);
	rkey = bind2(&p.b, mw, info_of(&p.b, mr, IBV_ACCESS_REMOTE_WRITE));
	memset(p.b.buf, 0, BUF_BYTES);
	p.a.buf[0] = 0x5a;
	at = p.b.buf + WINDOW_AT;
	allowed(&p, IBV_WR_RDMA_WRITE, 8, (uintptr_t)at, rkey);
	while (*at != 0x5a)
		expect_quiet(p.b.cq);
	/* Invalid keys: the first is dropped, with its receive left to the second. */
	need0(post_recv(&p.b, 90, 64));
	need0(post_inv(&p.a, 91, IBV_WR_SEND_WITH_INV, rkey ^ 1));
	expect_wc(p.a.cq, 91, IBV_WC_SUCCESS);
	need0(post_inv(&p.a, 92, IBV_WR_SEND_WITH_INV, rkey));
	expect_wc(p.a.cq, 92, IBV_WC_SUCCESS);
	wc = expect_wc(p.b.cq, 90, IBV_WC_SUCCESS);
	check(wc.wc_flags & IBV_WC_WITH_INV && wc.invalidated_rkey == rkey, "key %#x",
	      wc.invalidated_rkey);
	p.a.buf[0] = 0x66;
	allowed(&p, IBV_WR_RDMA_WRITE, 8, (uintptr_t)at, rkey);
	rkey = bind2(&p.b, mw, info_of(&p.b, mr, IBV_ACCESS_REMOTE_WRITE));
	allowed(&p, IBV_WR_RDMA_WRITE, 8, (uintptr_t)at + 8, rkey);
	while (at[8] != 0x66)
		expect_quiet(p.b.cq);
	check(*at == 0x5a, "a WRITE by an invalid key has changed it");
	/* A local error stops the sends, and no more. */
	need0(post_inv(&p.b, 93, IBV_WR_LOCAL_INV, rkey ^ 1));
	expect_wc(p.b.cq, 93, IBV_WC_MW_BIND_ERR);
	expect_state(p.b.qp, IBV_QPS_SQE);
}

const struct error_case window_cases[] = {
	{ "window: WRITE, READ, atomic by its key", use_of_a_window },
	{ "window: beyond its range", beyond_its_range },
	{ "window: used from another QP", another_qp },
	{ "window: lacks the access", missing_window_access },
	{ "window: invalidated, locally and by the peer", invalidated },
	{ "window: bound again", bound_again },
	{ "window: unbound, deallocated; its region is busy", unbound },
	{ "window: its QP destroyed", qp_destroyed },
	{ "window: regions it can't be bound to", bad_regions },
	{ "window: windows that can't be bound", bad_windows },
	{ "window: keys that can't be invalidated", bad_invalidations },
	{ "window: calls that fail at once", bad_calls },
	{ "window: completions in order", in_order },
	{ "window: of an unreliable connection", unreliable },
	{ 0 },
};
