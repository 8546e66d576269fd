/* Buffers of the device's own (ibv_alloc_buf(3)), which headers have since rdma-core 64. */
#include "check.h"

#include <dlfcn.h>
#include <stdint.h>

#define PAGE 4096
#define SIZE (3 * PAGE)
#define LOCAL_WRITE IBV_ACCESS_LOCAL_WRITE

struct ibv_buf;

/* struct ibv_mr_init_attr, and of enum ibv_mr_init_attr_mask what buffers matter to. */
struct init_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
	struct ibv_buf *buf;
};

enum { IOVA = 1, ADDR = 2, FD = 4, FD_OFFSET = 8, DMAH = 16, BUF = 32 };

static void *(*alloc_buf)(struct ibv_pd *, size_t, struct ibv_buf **);
static void (*free_buf)(struct ibv_buf *);
static struct ibv_mr *(*reg_buf_mr)(struct ibv_pd *, struct ibv_buf *, void *, size_t, int);
static int (*export_buf_dmabuf_fd)(struct ibv_buf *);
static struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct init_attr *);

static void *symbol(const char *name, const char *version)
{
	void *found = dlvsym(RTLD_DEFAULT, name, version);

	CHECK(found);
	return found;
}

static int refused(struct ibv_pd *pd, struct init_attr attr, int error)
{
	errno = 0;
	return !reg_mr_ex(pd, &attr) && errno == error;
}

/* What a buffer does not allow is refused before anything else is looked at. */
static void check_refusals(struct ibv_pd *pd, struct ibv_pd *other, struct ibv_buf *buf, char *at)
{
	struct init_attr good = {
		.length = PAGE,
		.access = LOCAL_WRITE,
		.comp_mask = BUF | ADDR,
		.addr = at,
		.buf = buf,
	};
	struct init_attr bad = good;

	CHECK(refused(other, good, EINVAL));
	for (int bit = FD; bit <= FD_OFFSET; bit <<= 1) {
		bad.comp_mask = good.comp_mask | bit;
		CHECK(refused(pd, bad, EINVAL));
	}
	bad.comp_mask = BUF;
	CHECK(refused(pd, bad, EINVAL));
	bad.comp_mask = good.comp_mask | DMAH;
	CHECK(refused(pd, bad, EOPNOTSUPP));
	bad = good;
	bad.buf = NULL;
	CHECK(refused(pd, bad, EINVAL));
	bad.buf = (struct ibv_buf *)at;
	CHECK(refused(pd, bad, EINVAL));
	CHECK(!reg_buf_mr(pd, buf, at - 1, PAGE, LOCAL_WRITE) && errno == EINVAL);
	CHECK(!reg_buf_mr(pd, buf, at + PAGE, SIZE, LOCAL_WRITE) && errno == EINVAL);
	CHECK(!reg_buf_mr(pd, buf, at + PAGE, SIZE_MAX, LOCAL_WRITE) && errno == EINVAL);
	CHECK(!reg_buf_mr(pd, buf, at + SIZE + 1, 0, LOCAL_WRITE) && errno == EINVAL);
}

void check_buffers(struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
	struct init_attr attr = { .length = PAGE, .access = LOCAL_WRITE };
	struct ibv_buf *buf = NULL;
	struct ibv_mr *mr;
	char *at = NULL;

	alloc_buf = symbol("ibv_alloc_buf", "IBVERBS_1.17");
	free_buf = symbol("ibv_free_buf", "IBVERBS_1.17");
	reg_buf_mr = symbol("ibv_reg_buf_mr", "IBVERBS_1.17");
	export_buf_dmabuf_fd = symbol("ibv_export_buf_dmabuf_fd", "IBVERBS_1.18");
	reg_mr_ex = symbol("ibv_reg_mr_ex", "IBVERBS_1.15");
	NEED(pd && other && (at = alloc_buf(pd, SIZE, &buf)) && buf);
	CHECK((uintptr_t)at % PAGE == 0);
	memset(at, 0x5a, SIZE);
	CHECK(export_buf_dmabuf_fd(buf) == -1 && errno == ENODATA);
	check_refusals(pd, other, buf, at);
	NEED(mr = reg_buf_mr(pd, buf, at, SIZE, LOCAL_WRITE));
	CHECK(mr->pd == pd && mr->addr == at && mr->length == SIZE);
	CHECK(ibv_dereg_mr(mr) == 0);
	attr.comp_mask = BUF | ADDR | IOVA;
	attr.addr = at + 2 * PAGE;
	attr.buf = buf;
	NEED(mr = reg_mr_ex(pd, &attr));
	CHECK(mr->addr == attr.addr && mr->length == PAGE);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(at[0] == 0x5a && at[SIZE - 1] == 0x5a);
	free_buf(buf);
	/* It is no more. */
	CHECK(!reg_buf_mr(pd, buf, at, PAGE, LOCAL_WRITE) && errno == EINVAL);
	free_buf(buf);
	free_buf(NULL);
	CHECK(!alloc_buf(pd, SIZE_MAX / 2, &buf) && errno == ENOMEM);
	CHECK(ibv_dealloc_pd(other) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
}
