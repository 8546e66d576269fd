//! Attribute structures that callers fill in or have filled in.

use super::{IbvCompChannel, IbvCq, IbvPd, IbvSrq, IbvTd, layout};
use core::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device_attr`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvDeviceAttr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_int,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}
layout!(IbvDeviceAttr, 232, node_guid @ 64, max_mr_size @ 80, max_qp @ 108, max_qp_rd_atom @ 144,
    atomic_cap @ 164, max_srq @ 212, max_pkeys @ 224, local_ca_ack_delay @ 226,
    phys_port_cnt @ 227);

/// `struct ibv_device_attr_ex`; the runs of reserved words are capabilities that are not offered.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvDeviceAttrEx {
    pub orig_attr: IbvDeviceAttr,
    pub comp_mask: u32,
    pub odp_caps: [u64; 3],
    pub completion_timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    /// `tso_caps`, `rss_caps`
    pub offloads: [u64; 5],
    pub max_wq_type_rq: u32,
    pub packet_pacing_caps: IbvPacketPacingCaps,
    pub raw_packet_caps: u32,
    pub tm_caps: [u32; 5],
    pub cq_mod_caps: [u16; 2],
    pub max_dm_size: u64,
    pub pci_atomic_caps: [u16; 3],
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}
layout!(IbvDeviceAttrEx, 400, comp_mask @ 232, completion_timestamp_mask @ 264,
    hca_core_clock @ 272, device_cap_flags_ex @ 280, packet_pacing_caps @ 332,
    raw_packet_caps @ 344, tm_caps @ 348, cq_mod_caps @ 368, max_dm_size @ 376,
    pci_atomic_caps @ 384, phys_port_cnt_ex @ 396);

/// `struct ibv_packet_pacing_caps`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvPacketPacingCaps {
    pub qp_rate_limit_min: u32,
    pub qp_rate_limit_max: u32,
    pub supported_qpts: u32,
}
layout!(IbvPacketPacingCaps, 12, supported_qpts @ 8);

/// `struct ibv_port_attr` in its newest layout (`active_speed_ex` was appended).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvPortAttr {
    pub state: c_int,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    pub active_speed_ex: u32,
}
layout!(IbvPortAttr, 56, gid_tbl_len @ 12, max_msg_sz @ 20, pkey_tbl_len @ 32, active_width @ 43,
    active_speed @ 44, phys_state @ 45, link_layer @ 46, flags @ 47, port_cap_flags2 @ 48);

/// What the symbol `ibv_query_port` writes, whatever the caller's header says
/// (`struct _compat_ibv_port_attr`).
pub const PORT_ATTR_COMPAT_LEN: usize = 48;

/// `struct ibv_gid_entry`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvGidEntry {
    pub gid: [u64; 2],
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}
layout!(IbvGidEntry, 32, gid_index @ 16, gid_type @ 24, ndev_ifindex @ 28);

/// `struct ibv_global_route`
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub struct IbvGlobalRoute {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}
layout!(IbvGlobalRoute, 24, flow_label @ 16, sgid_index @ 20, hop_limit @ 21, traffic_class @ 22);

/// `struct ibv_ah_attr`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvAhAttr {
    pub grh: IbvGlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}
layout!(IbvAhAttr, 32, dlid @ 24, sl @ 26, is_global @ 29, port_num @ 30);

/// `struct ibv_grh`
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct IbvGrh {
    pub version_tclass_flow: u32,
    pub paylen: u16,
    pub next_hdr: u8,
    pub hop_limit: u8,
    pub sgid: [u8; 16],
    pub dgid: [u8; 16],
}
layout!(IbvGrh, 40, sgid @ 8, dgid @ 24);

/// `struct ibv_srq_attr`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvSrqAttr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

/// `struct ibv_srq_init_attr`
#[repr(C)]
pub struct IbvSrqInitAttr {
    pub srq_context: *mut c_void,
    pub attr: IbvSrqAttr,
}
layout!(IbvSrqInitAttr, 24, attr @ 8);

/// `struct ibv_srq_init_attr_ex`
#[repr(C)]
pub struct IbvSrqInitAttrEx {
    pub base: IbvSrqInitAttrHead,
    pub comp_mask: u32,
    pub srq_type: u32,
    pub pd: *mut IbvPd,
    pub xrcd: *mut c_void,
    pub cq: *mut IbvCq,
    pub tm_cap: [u32; 2],
}
layout!(IbvSrqInitAttrEx, 64, comp_mask @ 20, srq_type @ 24, pd @ 32, cq @ 48, tm_cap @ 56);

/// `struct ibv_srq_init_attr` without its tail padding, where the extended one puts `comp_mask`.
#[repr(C, packed(4))]
#[derive(Clone, Copy)]
pub struct IbvSrqInitAttrHead {
    pub srq_context: *mut c_void,
    pub attr: IbvSrqAttr,
}

/// `struct ibv_qp_cap`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvQpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvQpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut IbvSrq,
    pub cap: IbvQpCap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
}
layout!(IbvQpInitAttr, 64, srq @ 24, cap @ 32, qp_type @ 52, sq_sig_all @ 56);

/// `struct ibv_qp_init_attr_ex`; `comp_mask` lies in what is tail padding of the plain structure.
#[repr(C)]
pub struct IbvQpInitAttrEx {
    pub qp_context: *mut c_void,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut IbvSrq,
    pub cap: IbvQpCap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut IbvPd,
    pub xrcd: *mut c_void,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub rx_hash_conf: [u64; 3],
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}
layout!(IbvQpInitAttrEx, 136, cap @ 32, sq_sig_all @ 56, comp_mask @ 60, pd @ 64, create_flags @ 80,
    source_qpn @ 120, send_ops_flags @ 128);

/// `struct ibv_qp_attr`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvQpAttr {
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: IbvQpCap,
    pub ah_attr: IbvAhAttr,
    pub alt_ah_attr: IbvAhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}
layout!(IbvQpAttr, 144, cap @ 36, ah_attr @ 56, alt_ah_attr @ 88, pkey_index @ 120,
    en_sqd_async_notify @ 124, timeout @ 130, alt_timeout @ 134, rate_limit @ 136);

/// `struct ibv_cq_init_attr_ex`
#[repr(C)]
pub struct IbvCqInitAttrEx {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut IbvCompChannel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut IbvPd,
}
layout!(IbvCqInitAttrEx, 56, cq_context @ 8, channel @ 16, comp_vector @ 24, wc_flags @ 32,
    comp_mask @ 40, flags @ 44, parent_domain @ 48);

/// `struct ibv_values_ex`
#[repr(C)]
pub struct IbvValuesEx {
    pub comp_mask: u32,
    pub raw_clock: libc::timespec,
}
layout!(IbvValuesEx, 24, raw_clock @ 8);

/// `struct ibv_async_event`; `element` is a pointer or a port number by the type of event.
#[repr(C)]
pub struct IbvAsyncEvent {
    pub element: usize,
    pub event_type: u32,
}
layout!(IbvAsyncEvent, 16, event_type @ 8);

/// `struct ibv_td_init_attr`
#[repr(C)]
pub struct IbvTdInitAttr {
    pub comp_mask: u32,
}

/// `struct ibv_parent_domain_init_attr`
#[repr(C)]
pub struct IbvParentDomainInitAttr {
    pub pd: *mut IbvPd,
    pub td: *mut IbvTd,
    pub comp_mask: u32,
    pub alloc: usize,
    pub free: usize,
    pub pd_context: *mut c_void,
}
layout!(IbvParentDomainInitAttr, 48, td @ 8, comp_mask @ 16, alloc @ 24, pd_context @ 40);

/// `struct ibv_qp_rate_limit_attr`
#[repr(C)]
pub struct IbvQpRateLimitAttr {
    pub rate_limit: u32,
    pub max_burst_sz: u32,
    pub typical_pkt_sz: u16,
    pub comp_mask: u32,
}
layout!(IbvQpRateLimitAttr, 16, typical_pkt_sz @ 8, comp_mask @ 12);

/// `struct ibv_ece`
#[repr(C)]
pub struct IbvEce {
    pub vendor_id: u32,
    pub options: u32,
    pub comp_mask: u32,
}
layout!(IbvEce, 12, comp_mask @ 8);

/// `struct ibv_mr_init_attr` (rdma-core 57 and later)
#[repr(C)]
pub struct IbvMrInitAttr {
    pub length: usize,
    pub access: c_int,
    pub comp_mask: u64,
    pub iova: u64,
    pub addr: *mut c_void,
    pub fd: c_int,
    pub fd_offset: u64,
    pub dmah: *mut c_void,
    pub buf: *mut c_void,
}
layout!(IbvMrInitAttr, 72, comp_mask @ 16, addr @ 32);
