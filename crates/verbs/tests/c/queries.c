/* Queries, creation with bad arguments, and what is not offered. */
#include "check.h"
#include <dlfcn.h>

static void check_port(struct ibv_context *context)
{
	int (*symbol)(struct ibv_context *, uint8_t, void *) =
		dlsym(RTLD_DEFAULT, "ibv_query_port");
	struct ibv_port_attr attr;
	unsigned char raw[64];
	uint16_t pkey;

	CHECK(ibv_query_port(context, 1, &attr) == 0);
	CHECK(attr.state == IBV_PORT_ACTIVE && attr.link_layer == IBV_LINK_LAYER_ETHERNET);
	CHECK(attr.gid_tbl_len > 0 && attr.pkey_tbl_len == 1 && attr.lid == 0);
	CHECK(ibv_query_port(context, 2, &attr) == EINVAL);
	CHECK(ibv_query_port(context, 0, &attr) == EINVAL);

	/* The exported function knows the structure as it was: 48 bytes, not one more. */
	memset(raw, 0xa5, sizeof(raw));
	CHECK(symbol && symbol(context, 1, raw) == 0);
	CHECK(raw[46] == IBV_LINK_LAYER_ETHERNET && raw[47] == 0);
	CHECK(raw[48] == 0xa5 && raw[63] == 0xa5);

	CHECK(ibv_query_pkey(context, 1, 0, &pkey) == 0 && pkey == 0xffff);
	CHECK(ibv_query_pkey(context, 1, 1, &pkey) == -1 && errno == EINVAL);
	CHECK(ibv_get_pkey_index(context, 1, 0xffff) == 0);
	CHECK(ibv_get_pkey_index(context, 1, 0x1234) == -1);
}

static void check_gids(struct ibv_context *context)
{
	static struct ibv_gid_entry table[512];
	struct ibv_gid_entry entry;
	union ibv_gid gid, none = { { 0 } };
	ssize_t count = ibv_query_gid_table(context, table, 512, 0);

	NEED(count > 0 && count < 256);
	for (ssize_t i = 0; i < count; i++) {
		CHECK(table[i].port_num == 1 && table[i].gid_type == IBV_GID_TYPE_ROCE_V2);
		CHECK(ibv_query_gid(context, 1, table[i].gid_index, &gid) == 0);
		CHECK(!memcmp(&gid, &table[i].gid, sizeof(gid)));
		CHECK(ibv_query_gid_ex(context, 1, table[i].gid_index, &entry, 0) == 0);
		CHECK(!memcmp(&entry, &table[i], sizeof(entry)));
	}
	CHECK(ibv_query_gid(context, 1, count, &gid) == 0);
	CHECK(!memcmp(&gid, &none, sizeof(gid)));
	CHECK(ibv_query_gid_ex(context, 1, count, &entry, 0) == ENODATA);
	CHECK(ibv_query_gid_ex(context, 1, 0, &entry, 1) == EINVAL);
	CHECK(ibv_query_gid_table(context, table, count - 1, 0) == -EINVAL);
	CHECK(ibv_query_gid(context, 1, -1, &gid) == -1 && errno == EINVAL);
	CHECK(ibv_query_gid(context, 1, 1 << 20, &gid) == -1 && errno == EINVAL);
	CHECK(ibv_query_gid(context, 2, 0, &gid) == -1 && errno == EINVAL);
}

void check_queries(struct ibv_context *context)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	const size_t length = offsetof(struct ibv_device_attr, phys_port_cnt) + 1;
	struct ibv_device_attr attr;
	struct ibv_device_attr_ex extended;

	CHECK(ibv_query_device(context, &attr) == 0);
	CHECK(attr.max_qp > 0 && attr.max_sge > 1 && attr.atomic_cap == IBV_ATOMIC_HCA);
	CHECK(attr.max_mw > 0 && attr.max_raw_ethy_qp == 0 && attr.phys_port_cnt == 1);
	CHECK(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW);
	CHECK(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B);
	CHECK(!(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2A));
	CHECK(!(attr.device_cap_flags & IBV_DEVICE_XRC));
	CHECK(ibv_query_device_ex(context, NULL, &extended) == 0);
	CHECK(!memcmp(&attr, &extended.orig_attr, length));
	CHECK(extended.odp_caps.general_caps == 0 && extended.xrc_odp_caps == 0);
	CHECK(extended.tm_caps.max_num_tags == 0 && extended.max_dm_size == 0);
	CHECK(ibv_query_rt_values_ex(context, &values) == 0);
	CHECK(values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK && values.raw_clock.tv_nsec >= 0);
	CHECK(context->abi_compat == __VERBS_ABI_IS_EXTENDED && context->async_fd >= 0);
	check_port(context);
	check_gids(context);
}

static void check_memory(struct ibv_pd *pd)
{
	static char buffer[4096];
	struct ibv_mr *mr;

	CHECK(!ibv_reg_mr(pd, buffer, 4096, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	CHECK(!ibv_reg_mr(pd, (void *)16, 4096, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	CHECK(!ibv_reg_mr(pd, buffer, 4096, IBV_ACCESS_ON_DEMAND) && errno == EOPNOTSUPP);
	/* Optional flags that mean nothing here are ignored (ibv_reg_mr(3)). */
	NEED(mr = ibv_reg_mr(pd, buffer, 4096, IBV_ACCESS_OPTIONAL_RANGE));
	CHECK(mr->addr == buffer && mr->length == 4096 && mr->pd == pd);
	CHECK(mr->context == pd->context);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, buffer + 1024, 1024, 0) == 0);
	CHECK(mr->addr == buffer + 1024 && mr->length == 1024);
	CHECK(ibv_dereg_mr(mr) == 0);
}

static void check_address_handle(struct ibv_pd *pd)
{
	struct ibv_ah_attr attr = { .port_num = 1 };
	struct ibv_ah *ah;

	CHECK(!ibv_create_ah(pd, &attr) && errno == EINVAL);
	attr.is_global = 1;
	attr.grh.sgid_index = 255;
	CHECK(!ibv_create_ah(pd, &attr) && errno == EINVAL);
	attr.grh.sgid_index = 0;
	NEED(ah = ibv_create_ah(pd, &attr));
	CHECK(ah->pd == pd && ah->context == pd->context);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_destroy_ah(ah) == 0);
}

static void check_parent_domain(struct ibv_pd *pd)
{
	struct ibv_td_init_attr none = { 0 };
	struct ibv_td *td = ibv_alloc_td(pd->context, &none);
	struct ibv_parent_domain_init_attr attr = { .td = td };
	static char buffer[4096];
	struct ibv_pd *parent;
	struct ibv_mr *mr;

	NEED(td);
	CHECK(!ibv_alloc_parent_domain(pd->context, &attr) && errno == EINVAL);
	attr.pd = pd;
	NEED(parent = ibv_alloc_parent_domain(pd->context, &attr));
	NEED(mr = ibv_reg_mr(parent, buffer, 4096, 0));
	CHECK(ibv_dealloc_td(td) == EBUSY);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_dealloc_pd(parent) == EBUSY);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0) == 0 && mr->pd == pd);
	CHECK(ibv_dealloc_pd(parent) == 0);
	CHECK(ibv_dealloc_td(td) == 0);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_dereg_mr(mr) == 0);
}

void check_creation(struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 10, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = qp_attr(cq, cq);
	struct ibv_qp *qp;

	NEED(pd && cq);
	CHECK(cq->cqe >= 10);
	CHECK(ibv_resize_cq(cq, 100) == 0 && cq->cqe >= 100);
	CHECK(ibv_resize_cq(cq, 0) == EINVAL);
	CHECK(!ibv_create_cq(context, 0, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(context, 1 << 30, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(context, 1, NULL, NULL, context->num_comp_vectors));

	NEED(qp = ibv_create_qp(pd, &attr));
	CHECK(attr.cap.max_send_wr >= 16 && attr.cap.max_inline_data >= 64);
	CHECK(qp->state == IBV_QPS_RESET && qp->qp_type == IBV_QPT_RC && !qp->srq);
	CHECK(!ibv_qp_to_qp_ex(qp));
	CHECK(connect_to(qp, 1) == EINVAL && qp->state == IBV_QPS_RESET);
	CHECK(to_init(qp) == 0 && qp->state == IBV_QPS_INIT);
	CHECK(ibv_modify_qp(qp, &(struct ibv_qp_attr){ 0 }, 1 << 30) == EINVAL);
	CHECK(ibv_modify_qp(qp, &(struct ibv_qp_attr){ .qp_state = 99 }, IBV_QP_STATE) == EINVAL);
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_destroy_qp(qp) == 0);

	attr.send_cq = NULL;
	CHECK(!ibv_create_qp(pd, &attr) && errno == EINVAL);
	attr.send_cq = cq;
	attr.cap.max_send_wr = 1 << 30;
	CHECK(!ibv_create_qp(pd, &attr) && errno == EINVAL);
	check_memory(pd);
	check_address_handle(pd);
	check_parent_domain(pd);
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
}

void check_unsupported(struct ibv_context *context)
{
	struct ibv_alloc_dm_attr dm = { .length = 64 };
	struct ibv_xrcd_init_attr xrcd = { 0 };
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 10, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = qp_attr(cq, cq);
	union ibv_gid gid = { { 0 } };
	struct ibv_qp *qp;

	NEED(pd && cq && (qp = ibv_create_qp(pd, &attr)));
	attr.qp_type = IBV_QPT_RAW_PACKET;
	CHECK(!ibv_create_qp(pd, &attr) && errno == EOPNOTSUPP);
	CHECK(!ibv_alloc_dm(context, &dm) && errno == EOPNOTSUPP);
	CHECK(!ibv_open_xrcd(context, &xrcd) && errno == EOPNOTSUPP);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 64, 0, 0, 0) && errno == EOPNOTSUPP);
	CHECK(!ibv_import_device(0) && errno == EOPNOTSUPP);
	CHECK(!ibv_create_flow(qp, NULL) && errno == EOPNOTSUPP);
	/* Groups are for datagrams. */
	CHECK(ibv_attach_mcast(qp, &gid, 0) == EINVAL);
	CHECK(ibv_set_ece(qp, &(struct ibv_ece){ 0 }) == EOPNOTSUPP);
	CHECK(ibv_query_ece(qp, &(struct ibv_ece){ 0 }) == EOPNOTSUPP);
	CHECK(ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 0) == 0);
	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
}
