//! Compares the structures with the installed `<infiniband/verbs.h>`: a C program that includes it
//! prints sizes and offsets, the same lines are made from the Rust structures.

use super::*;
use core::mem::{offset_of, size_of};
use std::fmt::Write as _;
use std::process::Command;

/// Lines that Rust expects, and the C statements that print them.
#[derive(Default)]
struct Comparison {
    expected: String,
    statements: String,
}

impl Comparison {
    fn size(&mut self, name: &str, size: usize) {
        writeln!(self.expected, "{name} {size}").unwrap();
        writeln!(
            self.statements,
            "printf(\"{name} %zu\\n\", sizeof(struct {name}));"
        )
        .unwrap();
    }

    fn offset(&mut self, name: &str, field: &str, offset: usize) {
        writeln!(self.expected, "{name}.{field} {offset}").unwrap();
        let print = format!("printf(\"{name}.{field} %zu\\n\", offsetof(struct {name}, {field}));");
        writeln!(self.statements, "{print}").unwrap();
    }

    /// Distance of a field back from the end of `verbs_context`, which grows at the front.
    fn before_context(&mut self, field: &str, offset: usize) {
        let distance = offset_of!(VerbsContext, context) - offset;
        writeln!(self.expected, "verbs_context-{field} {distance}").unwrap();
        let c = format!(
            "offsetof(struct verbs_context, context) - offsetof(struct verbs_context, {field})"
        );
        writeln!(
            self.statements,
            "printf(\"verbs_context-{field} %zu\\n\", {c});"
        )
        .unwrap();
    }

    fn run(&self) {
        let dir = tempfile::tempdir().unwrap();
        let (source, program) = (dir.path().join("layout.c"), dir.path().join("layout"));
        let text = format!(
            "#include <infiniband/verbs.h>\n#include <infiniband/sa.h>\n\
             #include <rdma/ib_user_verbs.h>\n#include <rdma/ib_user_sa.h>\n\
             #include <rdma/rdma_cma.h>\n#include <stdio.h>\n\
             int main(void) {{\n{}}}\n",
            self.statements
        );
        std::fs::write(&source, text).unwrap();
        let cc = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let compiled = Command::new(cc)
            .arg(&source)
            .arg("-o")
            .arg(&program)
            .status();
        assert!(
            compiled.unwrap().success(),
            "libibverbs-dev is needed to build and test"
        );
        let output = Command::new(&program).output().unwrap();
        let found = String::from_utf8(output.stdout).unwrap();
        for (expected, found) in self.expected.lines().zip(found.lines()) {
            assert_eq!(expected, found, "Rust (left) and the header (right) differ");
        }
        assert_eq!(self.expected.lines().count(), found.lines().count());
    }
}

/// Adds fields of a structure to a comparison; `sized` if its size must match as well.
macro_rules! compare {
    ($to:ident, sized $name:ident = $type:ty { $($c:ident $(= $($rust:ident).+)?),* $(,)? }) => {
        $to.size(stringify!($name), size_of::<$type>());
        compare!($to, $name = $type { $($c $(= $($rust).+)?),* });
    };
    ($to:ident, $name:ident = $type:ty { $($c:ident $(= $($rust:ident).+)?),* $(,)? }) => {
        $($to.offset(
            stringify!($name),
            stringify!($c),
            compare!(@offset $type, $c $(, $($rust).+)?),
        );)*
    };
    (@offset $type:ty, $c:ident) => { offset_of!($type, $c) };
    (@offset $type:ty, $c:ident, $($rust:ident).+) => { offset_of!($type, $($rust).+) };
}

#[test]
fn objects_are_laid_out_as_in_the_header() {
    let mut c = Comparison::default();
    compare!(c, sized ibv_device = IbvDevice {
        node_type, transport_type, name, dev_name, dev_path, ibdev_path
    });
    compare!(c, sized ibv_context = IbvContext {
        device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat
    });
    compare!(c, sized ibv_context_ops = IbvContextOps {
        alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv,
    });
    compare!(c, sized ibv_pd = IbvPd { context, handle });
    compare!(c, sized ibv_mr = IbvMr { context, pd, addr, length, handle, lkey, rkey });
    compare!(c, sized ibv_ah = IbvAh { context, pd, handle });
    compare!(c, sized ibv_comp_channel = IbvCompChannel { context, fd, refcnt });
    compare!(c, sized ibv_cq = IbvCq {
        context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
        async_events_completed,
    });
    compare!(c, sized ibv_cq_ex = IbvCqEx {
        context = base.context, cqe = base.cqe, comp_mask, status, wr_id, start_poll, next_poll,
        end_poll, read_opcode, read_vendor_err, read_byte_len, read_imm_data, read_qp_num,
        read_src_qp, read_wc_flags, read_slid, read_sl, read_dlid_path_bits, read_completion_ts,
        read_cvlan, read_flow_tag, read_tm_info, read_completion_wallclock_ns,
    });
    compare!(c, sized ibv_srq = IbvSrq {
        context, srq_context, pd, handle, mutex, cond, events_completed,
    });
    compare!(c, sized ibv_qp = IbvQp {
        context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
        events_completed,
    });
    // Older headers lack the last function, wr_flush.
    compare!(c, ibv_qp_ex = IbvQpEx {
        qp_base = base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add,
        wr_bind_mw, wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send,
        wr_send_imm, wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data,
        wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start, wr_complete, wr_abort,
        wr_atomic_write,
    });
    c.run();
}

#[test]
fn extended_operations_lie_where_the_header_looks() {
    let mut c = Comparison::default();
    c.before_context("sz", offset_of!(VerbsContext, sz));
    c.before_context("query_port", offset_of!(VerbsContext, query_port));
    c.before_context("query_rt_values", offset_of!(VerbsContext, query_rt_values));
    c.before_context("create_cq_ex", offset_of!(VerbsContext, create_cq_ex));
    c.before_context("query_device_ex", offset_of!(VerbsContext, query_device_ex));
    c.before_context("create_qp_ex", offset_of!(VerbsContext, create_qp_ex));
    c.before_context("get_srq_num", offset_of!(VerbsContext, get_srq_num));
    c.before_context("create_srq_ex", offset_of!(VerbsContext, create_srq_ex));
    c.before_context("open_xrcd", offset_of!(VerbsContext, xrcd));
    c.before_context("advise_mr", offset_of!(VerbsContext, memory_and_flow));
    c.before_context(
        "alloc_parent_domain",
        offset_of!(VerbsContext, alloc_parent_domain),
    );
    c.before_context("dealloc_td", offset_of!(VerbsContext, dealloc_td));
    c.before_context("alloc_td", offset_of!(VerbsContext, alloc_td));
    c.before_context(
        "modify_qp_rate_limit",
        offset_of!(VerbsContext, modify_qp_rate_limit),
    );
    c.before_context("modify_cq", offset_of!(VerbsContext, queues));
    c.run();
}

#[test]
fn work_requests_are_laid_out_as_in_the_header() {
    let mut c = Comparison::default();
    compare!(c, sized ibv_sge = IbvSge { addr, length, lkey });
    compare!(c, sized ibv_data_buf = IbvDataBuf { addr, length });
    compare!(c, sized ibv_send_wr = IbvSendWr {
        wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data = imm_or_rkey,
        invalidate_rkey = imm_or_rkey, wr, qp_type = remote_srqn, bind_mw = extra,
    });
    let wr = offset_of!(IbvSendWr, wr);
    c.offset("ibv_send_wr", "wr.rdma.rkey", wr + offset_of!(WrRdma, rkey));
    c.offset(
        "ibv_send_wr",
        "wr.atomic.compare_add",
        wr + offset_of!(WrAtomic, compare_add),
    );
    c.offset(
        "ibv_send_wr",
        "wr.atomic.swap",
        wr + offset_of!(WrAtomic, swap),
    );
    c.offset(
        "ibv_send_wr",
        "wr.atomic.rkey",
        wr + offset_of!(WrAtomic, rkey),
    );
    c.offset(
        "ibv_send_wr",
        "wr.ud.remote_qpn",
        wr + offset_of!(WrUd, remote_qpn),
    );
    c.offset(
        "ibv_send_wr",
        "wr.ud.remote_qkey",
        wr + offset_of!(WrUd, remote_qkey),
    );
    compare!(c, sized ibv_recv_wr = IbvRecvWr { wr_id, next, sg_list, num_sge });
    compare!(c, sized ibv_wc = IbvWc {
        wr_id, status, opcode, vendor_err, byte_len, imm_data = imm_or_rkey,
        invalidated_rkey = imm_or_rkey, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
        dlid_path_bits,
    });
    compare!(c, sized ibv_poll_cq_attr = IbvPollCqAttr { comp_mask });
    compare!(c, sized ibv_wc_tm_info = IbvWcTmInfo { tag, priv = private });
    c.run();
}

#[test]
fn attributes_are_laid_out_as_in_the_header() {
    let mut c = Comparison::default();
    compare!(c, sized ibv_device_attr = IbvDeviceAttr {
        fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id,
        hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr,
        max_pd, max_qp_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, atomic_cap, max_mw, max_ah,
        max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt,
    });
    compare!(c, sized ibv_device_attr_ex = IbvDeviceAttrEx {
        orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock,
        device_cap_flags_ex, tso_caps = offloads, max_wq_type_rq, packet_pacing_caps,
        raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size, pci_atomic_caps, xrc_odp_caps,
        phys_port_cnt_ex,
    });
    // Older headers lack the last field, active_speed_ex.
    compare!(
        c,
        ibv_port_attr = IbvPortAttr {
            state,
            max_mtu,
            active_mtu,
            gid_tbl_len,
            port_cap_flags,
            max_msg_sz,
            bad_pkey_cntr,
            qkey_viol_cntr,
            pkey_tbl_len,
            lid,
            sm_lid,
            lmc,
            max_vl_num,
            sm_sl,
            subnet_timeout,
            init_type_reply,
            active_width,
            active_speed,
            phys_state,
            link_layer,
            flags,
            port_cap_flags2,
        }
    );
    compare!(c, sized ibv_gid_entry = IbvGidEntry {
        gid, gid_index, port_num, gid_type, ndev_ifindex,
    });
    compare!(c, sized ibv_global_route = IbvGlobalRoute {
        dgid, flow_label, sgid_index, hop_limit, traffic_class,
    });
    compare!(c, sized ibv_ah_attr = IbvAhAttr {
        grh, dlid, sl, src_path_bits, static_rate, is_global, port_num,
    });
    compare!(c, sized ibv_grh = IbvGrh {
        version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid,
    });
    compare!(c, sized ibv_srq_attr = IbvSrqAttr { max_wr, max_sge, srq_limit });
    compare!(c, sized ibv_srq_init_attr = IbvSrqInitAttr { srq_context, attr });
    compare!(c, sized ibv_srq_init_attr_ex = IbvSrqInitAttrEx {
        attr = base.attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap,
    });
    compare!(c, sized ibv_values_ex = IbvValuesEx { comp_mask, raw_clock });
    compare!(c, sized ibv_async_event = IbvAsyncEvent { element, event_type });
    compare!(c, sized ibv_td = IbvTd { context });
    compare!(c, sized ibv_td_init_attr = IbvTdInitAttr { comp_mask });
    compare!(c, sized ibv_parent_domain_init_attr = IbvParentDomainInitAttr {
        pd, td, comp_mask, alloc, free, pd_context,
    });
    compare!(c, sized ibv_ece = IbvEce { vendor_id, options, comp_mask });
    c.run();
}

#[test]
fn queue_pair_attributes_are_laid_out_as_in_the_header() {
    let mut c = Comparison::default();
    compare!(c, sized ibv_qp_cap = IbvQpCap {
        max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data,
    });
    compare!(c, sized ibv_qp_init_attr = IbvQpInitAttr {
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all,
    });
    compare!(c, sized ibv_qp_init_attr_ex = IbvQpInitAttrEx {
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd,
        create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags,
    });
    compare!(c, sized ibv_qp_attr = IbvQpAttr {
        qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
        qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify,
        sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt,
        rnr_retry, alt_port_num, alt_timeout, rate_limit,
    });
    compare!(c, sized ibv_cq_init_attr_ex = IbvCqInitAttrEx {
        cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain,
    });
    compare!(c, sized ibv_packet_pacing_caps = IbvPacketPacingCaps {
        qp_rate_limit_min, qp_rate_limit_max, supported_qpts,
    });
    compare!(c, sized ibv_qp_rate_limit_attr = IbvQpRateLimitAttr {
        rate_limit, max_burst_sz, typical_pkt_sz, comp_mask,
    });
    c.run();
}

#[test]
fn the_connection_manager_is_laid_out_as_in_the_header() {
    let mut c = Comparison::default();
    compare!(c, sized rdma_cm_id = RdmaCmId {
        verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq,
        recv_cq_channel, recv_cq, srq, pd, qp_type,
    });
    compare!(c, sized rdma_cm_event = RdmaCmEvent { id, listen_id, event, status, param });
    compare!(c, sized rdma_route = RdmaRoute { addr, path_rec, num_paths });
    compare!(c, sized rdma_conn_param = RdmaConnParam {
        private_data, private_data_len, responder_resources, initiator_depth, flow_control,
        retry_count, rnr_retry_count, srq, qp_num,
    });
    compare!(c, sized rdma_ud_param = RdmaUdParam {
        private_data, private_data_len, ah_attr, qp_num, qkey,
    });
    compare!(c, sized rdma_addrinfo = RdmaAddrinfo {
        ai_flags, ai_family, ai_qp_type, ai_port_space, ai_src_len, ai_dst_len, ai_src_addr,
        ai_dst_addr, ai_src_canonname, ai_dst_canonname, ai_route_len, ai_route, ai_connect_len,
        ai_connect, ai_next,
    });
    compare!(c, sized rdma_cm_join_mc_attr_ex = RdmaCmJoinMcAttrEx { comp_mask, join_flags, addr });
    c.size("rdma_addr", size_of::<RdmaAddr>());
    compare!(c, sized ibv_sa_path_rec = IbvSaPathRec {
        dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit, traffic_class, reversible,
        numb_path, pkey, sl, mtu_selector, mtu, rate_selector, rate, packet_life_time_selector,
        packet_life_time, preference,
    });
    c.run();
}
