//! Attribute structures that callers fill in or have filled in.

use super::{IbvCompChannel, IbvCq, IbvPd, IbvSrq, IbvTd, layout};
use core::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device_attr`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvDeviceAttr {
    pub(crate) fw_ver: [c_char; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    pub(crate) atomic_cap: c_int,
    pub(crate) max_ee: c_int,
    pub(crate) max_rdd: c_int,
    pub(crate) max_mw: c_int,
    pub(crate) max_raw_ipv6_qp: c_int,
    pub(crate) max_raw_ethy_qp: c_int,
    pub(crate) max_mcast_grp: c_int,
    pub(crate) max_mcast_qp_attach: c_int,
    pub(crate) max_total_mcast_qp_attach: c_int,
    pub(crate) max_ah: c_int,
    pub(crate) max_fmr: c_int,
    pub(crate) max_map_per_fmr: c_int,
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}
layout!(IbvDeviceAttr, 232, node_guid @ 64, max_mr_size @ 80, max_qp @ 108, max_qp_rd_atom @ 144,
    atomic_cap @ 164, max_srq @ 212, max_pkeys @ 224, local_ca_ack_delay @ 226,
    phys_port_cnt @ 227);

/// `struct ibv_device_attr_ex`; the runs of reserved words are capabilities that are not offered.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvDeviceAttrEx {
    pub(crate) orig_attr: IbvDeviceAttr,
    pub(crate) comp_mask: u32,
    pub(crate) odp_caps: [u64; 3],
    pub(crate) completion_timestamp_mask: u64,
    pub(crate) hca_core_clock: u64,
    pub(crate) device_cap_flags_ex: u64,
    /// `tso_caps` to `max_dm_size`
    pub(crate) offloads: [u64; 12],
    pub(crate) pci_atomic_caps: [u16; 3],
    pub(crate) xrc_odp_caps: u32,
    pub(crate) phys_port_cnt_ex: u32,
}
layout!(IbvDeviceAttrEx, 400, comp_mask @ 232, completion_timestamp_mask @ 264,
    hca_core_clock @ 272, device_cap_flags_ex @ 280, pci_atomic_caps @ 384, phys_port_cnt_ex @ 396);

/// `struct ibv_port_attr` in its newest layout (`active_speed_ex` was appended).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct IbvPortAttr {
    pub(crate) state: c_int,
    pub(crate) max_mtu: u32,
    pub(crate) active_mtu: u32,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) port_cap_flags2: u16,
    pub(crate) active_speed_ex: u32,
}
layout!(IbvPortAttr, 56, gid_tbl_len @ 12, max_msg_sz @ 20, pkey_tbl_len @ 32, active_width @ 43,
    active_speed @ 44, phys_state @ 45, link_layer @ 46, flags @ 47, port_cap_flags2 @ 48);

/// What the symbol `ibv_query_port` writes, whatever the caller's header says
/// (`struct _compat_ibv_port_attr`).
pub(crate) const PORT_ATTR_COMPAT_LEN: usize = 48;

/// `struct ibv_gid_entry`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvGidEntry {
    pub(crate) gid: [u64; 2],
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}
layout!(IbvGidEntry, 32, gid_index @ 16, gid_type @ 24, ndev_ifindex @ 28);

/// `struct ibv_global_route`
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(crate) struct IbvGlobalRoute {
    pub(crate) dgid: [u8; 16],
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}
layout!(IbvGlobalRoute, 24, flow_label @ 16, sgid_index @ 20, hop_limit @ 21, traffic_class @ 22);

/// `struct ibv_ah_attr`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct IbvAhAttr {
    pub(crate) grh: IbvGlobalRoute,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}
layout!(IbvAhAttr, 32, dlid @ 24, sl @ 26, is_global @ 29, port_num @ 30);

/// `struct ibv_grh`
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct IbvGrh {
    pub(crate) version_tclass_flow: u32,
    pub(crate) paylen: u16,
    pub(crate) next_hdr: u8,
    pub(crate) hop_limit: u8,
    pub(crate) sgid: [u8; 16],
    pub(crate) dgid: [u8; 16],
}
layout!(IbvGrh, 40, sgid @ 8, dgid @ 24);

/// `struct ibv_srq_attr`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvSrqAttr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

/// `struct ibv_srq_init_attr`
#[repr(C)]
pub(crate) struct IbvSrqInitAttr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: IbvSrqAttr,
}
layout!(IbvSrqInitAttr, 24, attr @ 8);

/// `struct ibv_srq_init_attr_ex`
#[repr(C)]
pub(crate) struct IbvSrqInitAttrEx {
    pub(crate) base: IbvSrqInitAttrHead,
    pub(crate) comp_mask: u32,
    pub(crate) srq_type: u32,
    pub(crate) pd: *mut IbvPd,
    pub(crate) xrcd: *mut c_void,
    pub(crate) cq: *mut IbvCq,
    pub(crate) tm_cap: [u32; 2],
}
layout!(IbvSrqInitAttrEx, 64, comp_mask @ 20, srq_type @ 24, pd @ 32, cq @ 48, tm_cap @ 56);

/// `struct ibv_srq_init_attr` without its tail padding, where the extended one puts `comp_mask`.
#[repr(C, packed(4))]
#[derive(Clone, Copy)]
pub(crate) struct IbvSrqInitAttrHead {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: IbvSrqAttr,
}

/// `struct ibv_qp_cap`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct IbvQpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IbvQpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut IbvCq,
    pub(crate) recv_cq: *mut IbvCq,
    pub(crate) srq: *mut IbvSrq,
    pub(crate) cap: IbvQpCap,
    pub(crate) qp_type: u32,
    pub(crate) sq_sig_all: c_int,
}
layout!(IbvQpInitAttr, 64, srq @ 24, cap @ 32, qp_type @ 52, sq_sig_all @ 56);

/// `struct ibv_qp_init_attr_ex`; `comp_mask` lies in what is tail padding of the plain structure.
#[repr(C)]
pub(crate) struct IbvQpInitAttrEx {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut IbvCq,
    pub(crate) recv_cq: *mut IbvCq,
    pub(crate) srq: *mut IbvSrq,
    pub(crate) cap: IbvQpCap,
    pub(crate) qp_type: u32,
    pub(crate) sq_sig_all: c_int,
    pub(crate) comp_mask: u32,
    pub(crate) pd: *mut IbvPd,
    pub(crate) xrcd: *mut c_void,
    pub(crate) create_flags: u32,
    pub(crate) max_tso_header: u16,
    pub(crate) rwq_ind_tbl: *mut c_void,
    pub(crate) rx_hash_conf: [u64; 3],
    pub(crate) source_qpn: u32,
    pub(crate) send_ops_flags: u64,
}
layout!(IbvQpInitAttrEx, 136, cap @ 32, sq_sig_all @ 56, comp_mask @ 60, pd @ 64, create_flags @ 80,
    source_qpn @ 120, send_ops_flags @ 128);

/// `struct ibv_qp_attr`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct IbvQpAttr {
    pub(crate) qp_state: u32,
    pub(crate) cur_qp_state: u32,
    pub(crate) path_mtu: u32,
    pub(crate) path_mig_state: u32,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: IbvQpCap,
    pub(crate) ah_attr: IbvAhAttr,
    pub(crate) alt_ah_attr: IbvAhAttr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}
layout!(IbvQpAttr, 144, cap @ 36, ah_attr @ 56, alt_ah_attr @ 88, pkey_index @ 120,
    en_sqd_async_notify @ 124, timeout @ 130, alt_timeout @ 134, rate_limit @ 136);

/// `struct ibv_cq_init_attr_ex`
#[repr(C)]
pub(crate) struct IbvCqInitAttrEx {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut IbvCompChannel,
    pub(crate) comp_vector: u32,
    pub(crate) wc_flags: u64,
    pub(crate) comp_mask: u32,
    pub(crate) flags: u32,
    pub(crate) parent_domain: *mut IbvPd,
}
layout!(IbvCqInitAttrEx, 56, cq_context @ 8, channel @ 16, comp_vector @ 24, wc_flags @ 32,
    comp_mask @ 40, flags @ 44, parent_domain @ 48);

/// `struct ibv_values_ex`
#[repr(C)]
pub(crate) struct IbvValuesEx {
    pub(crate) comp_mask: u32,
    pub(crate) raw_clock: libc::timespec,
}
layout!(IbvValuesEx, 24, raw_clock @ 8);

/// `struct ibv_async_event`; `element` is a pointer or a port number by the type of event.
#[repr(C)]
pub(crate) struct IbvAsyncEvent {
    pub(crate) element: usize,
    pub(crate) event_type: u32,
}
layout!(IbvAsyncEvent, 16, event_type @ 8);

/// `struct ibv_td_init_attr`
#[repr(C)]
pub(crate) struct IbvTdInitAttr {
    pub(crate) comp_mask: u32,
}

/// `struct ibv_parent_domain_init_attr`
#[repr(C)]
pub(crate) struct IbvParentDomainInitAttr {
    pub(crate) pd: *mut IbvPd,
    pub(crate) td: *mut IbvTd,
    pub(crate) comp_mask: u32,
    pub(crate) alloc: usize,
    pub(crate) free: usize,
    pub(crate) pd_context: *mut c_void,
}
layout!(IbvParentDomainInitAttr, 48, td @ 8, comp_mask @ 16, alloc @ 24, pd_context @ 40);

/// `struct ibv_ece`
#[repr(C)]
pub(crate) struct IbvEce {
    pub(crate) vendor_id: u32,
    pub(crate) options: u32,
    pub(crate) comp_mask: u32,
}
layout!(IbvEce, 12, comp_mask @ 8);

/// `struct ibv_mr_init_attr` (rdma-core 57 and later)
#[repr(C)]
pub(crate) struct IbvMrInitAttr {
    pub(crate) length: usize,
    pub(crate) access: c_int,
    pub(crate) comp_mask: u64,
    pub(crate) iova: u64,
    pub(crate) addr: *mut c_void,
    pub(crate) fd: c_int,
    pub(crate) fd_offset: u64,
    pub(crate) dmah: *mut c_void,
    pub(crate) buf: *mut c_void,
}
layout!(IbvMrInitAttr, 72, comp_mask @ 16, addr @ 32);
