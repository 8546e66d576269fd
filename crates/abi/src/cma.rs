//! The connection manager: `<rdma/rdma_cma.h>` and `<infiniband/sa.h>`.

use super::{IbvAhAttr, IbvCompChannel, IbvContext, IbvCq, IbvPd, IbvQp, IbvSrq, layout};
use core::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_sa_path_rec`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvSaPathRec {
    pub dgid: [u8; 16],
    pub sgid: [u8; 16],
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: c_int,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: c_int,
    pub numb_path: u8,
    pub pkey: u16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}
layout!(IbvSaPathRec, 64, pkey @ 54, mtu @ 58);

/// `struct rdma_addr`; the unions hold `struct sockaddr_storage`, and `struct rdma_ib_addr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RdmaAddr {
    pub src: libc::sockaddr_storage,
    pub dst: libc::sockaddr_storage,
    pub sgid: [u8; 16],
    pub dgid: [u8; 16],
    pub pkey: u16,
}
layout!(RdmaAddr, 296, sgid @ 256, dgid @ 272, pkey @ 288);

/// `struct rdma_route`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RdmaRoute {
    pub addr: RdmaAddr,
    pub path_rec: *mut IbvSaPathRec,
    pub num_paths: c_int,
}
layout!(RdmaRoute, 312, path_rec @ 296, num_paths @ 304);

/// `struct rdma_event_channel`
#[repr(C)]
pub struct RdmaEventChannel {
    pub fd: c_int,
}

/// `struct rdma_cm_id`
#[repr(C)]
pub struct RdmaCmId {
    pub verbs: *mut IbvContext,
    pub channel: *mut RdmaEventChannel,
    pub context: *mut c_void,
    pub qp: *mut IbvQp,
    pub route: RdmaRoute,
    pub ps: u32,
    pub port_num: u8,
    pub event: *mut RdmaCmEvent,
    pub send_cq_channel: *mut IbvCompChannel,
    pub send_cq: *mut IbvCq,
    pub recv_cq_channel: *mut IbvCompChannel,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut IbvSrq,
    pub pd: *mut IbvPd,
    pub qp_type: u32,
}
layout!(RdmaCmId, 416, qp @ 24, route @ 32, ps @ 344, port_num @ 348, event @ 352, srq @ 392,
    pd @ 400, qp_type @ 408);

/// `struct rdma_conn_param`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RdmaConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}
layout!(RdmaConnParam, 24, srq @ 14, qp_num @ 16);

/// `struct rdma_ud_param`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RdmaUdParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: IbvAhAttr,
    pub qp_num: u32,
    pub qkey: u32,
}
layout!(RdmaUdParam, 56, ah_attr @ 16, qp_num @ 48, qkey @ 52);

/// The union in `struct rdma_cm_event`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union RdmaEventParam {
    pub conn: RdmaConnParam,
    pub ud: RdmaUdParam,
}

/// `struct rdma_cm_event`
#[repr(C)]
pub struct RdmaCmEvent {
    pub id: *mut RdmaCmId,
    pub listen_id: *mut RdmaCmId,
    pub event: c_uint,
    pub status: c_int,
    pub param: RdmaEventParam,
}
layout!(RdmaCmEvent, 80, status @ 20, param @ 24);

/// `struct rdma_addrinfo`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RdmaAddrinfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: libc::socklen_t,
    pub ai_dst_len: libc::socklen_t,
    pub ai_src_addr: *mut libc::sockaddr,
    pub ai_dst_addr: *mut libc::sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut RdmaAddrinfo,
}
layout!(RdmaAddrinfo, 96, ai_src_addr @ 24, ai_route @ 64, ai_next @ 88);

/// `struct rdma_cm_join_mc_attr_ex`
#[repr(C)]
pub struct RdmaCmJoinMcAttrEx {
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut libc::sockaddr,
}
layout!(RdmaCmJoinMcAttrEx, 16, addr @ 8);
