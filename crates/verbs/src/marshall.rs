//! `ibv_copy_*_kern`: attributes in the kernel's form (`<rdma/ib_user_verbs.h>`,
//! `<rdma/ib_user_sa.h>`), which the distribution's librdmacm translates through this library.

use crate::abi::{IbvAhAttr, IbvGlobalRoute, IbvQpAttr, IbvQpCap, layout};

/// `struct ib_uverbs_ah_attr`
#[repr(C)]
pub(crate) struct KernelAhAttr {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    reserved_grh: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    reserved: u8,
}
layout!(KernelAhAttr, 32, flow_label @ 16, dlid @ 24, port_num @ 30);

/// `struct ib_uverbs_qp_attr`
#[repr(C)]
pub(crate) struct KernelQpAttr {
    qp_attr_mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    ah_attr: KernelAhAttr,
    alt_ah_attr: KernelAhAttr,
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    reserved: [u8; 5],
}
layout!(KernelQpAttr, 144, ah_attr @ 40, max_send_wr @ 104, pkey_index @ 124, timeout @ 134);

/// `struct ib_user_path_rec`
#[repr(C)]
pub(crate) struct KernelPathRec {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}
layout!(KernelPathRec, 64, dlid @ 32, mtu @ 48, rate @ 60);

/// `struct ibv_sa_path_rec` (`<infiniband/sa.h>`)
#[repr(C, align(8))]
pub(crate) struct IbvSaPathRec {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: i32,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
    reversible: i32,
    numb_path: u8,
    pkey: u16,
    sl: u8,
    mtu_selector: u8,
    mtu: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}
layout!(IbvSaPathRec, 64, reversible @ 48, pkey @ 54, mtu @ 58, preference @ 63);

fn ah_attr(from: &KernelAhAttr) -> IbvAhAttr {
    IbvAhAttr {
        grh: IbvGlobalRoute {
            dgid: from.dgid,
            flow_label: from.flow_label,
            sgid_index: from.sgid_index,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

/// `ibv_copy_ah_attr_from_kern`
pub(crate) unsafe extern "C" fn ah_attr_from_kernel(to: *mut IbvAhAttr, from: *const KernelAhAttr) {
    // SAFETY: the caller passes both structures.
    unsafe { to.write(ah_attr(&*from)) };
}

/// `ibv_copy_qp_attr_from_kern`; leaves `qp_state`, which the kernel's caller sets itself
pub(crate) unsafe extern "C" fn qp_attr_from_kernel(to: *mut IbvQpAttr, from: *const KernelQpAttr) {
    // SAFETY: the caller passes both structures.
    let (out, from, qp_state) = unsafe { (to, &*from, (*to).qp_state) };
    let attr = IbvQpAttr {
        qp_state,
        cur_qp_state: from.cur_qp_state,
        path_mtu: from.path_mtu,
        path_mig_state: from.path_mig_state,
        qkey: from.qkey,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp_num,
        qp_access_flags: from.qp_access_flags,
        cap: IbvQpCap {
            max_send_wr: from.max_send_wr,
            max_recv_wr: from.max_recv_wr,
            max_send_sge: from.max_send_sge,
            max_recv_sge: from.max_recv_sge,
            max_inline_data: from.max_inline_data,
        },
        ah_attr: ah_attr(&from.ah_attr),
        alt_ah_attr: ah_attr(&from.alt_ah_attr),
        pkey_index: from.pkey_index,
        alt_pkey_index: from.alt_pkey_index,
        en_sqd_async_notify: from.en_sqd_async_notify,
        sq_draining: from.sq_draining,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port_num,
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        alt_port_num: from.alt_port_num,
        alt_timeout: from.alt_timeout,
        rate_limit: 0,
    };
    // SAFETY: as above.
    unsafe { out.write(attr) };
}

/// `ibv_copy_path_rec_from_kern`
pub(crate) unsafe extern "C" fn path_rec_from_kernel(
    to: *mut IbvSaPathRec,
    from: *const KernelPathRec,
) {
    // SAFETY: the caller passes both structures.
    let from = unsafe { &*from };
    let record = IbvSaPathRec {
        dgid: from.dgid,
        sgid: from.sgid,
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic.cast_signed(),
        flow_label: from.flow_label,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        reversible: from.reversible.cast_signed(),
        numb_path: from.numb_path,
        pkey: from.pkey,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        // Five bits of a byte on the wire (IBA 15.2.5.16).
        mtu: from.mtu.to_le_bytes()[0],
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: as above.
    unsafe { to.write(record) };
}

/// `ibv_copy_path_rec_to_kern`
pub(crate) unsafe extern "C" fn path_rec_to_kernel(
    to: *mut KernelPathRec,
    from: *const IbvSaPathRec,
) {
    // SAFETY: the caller passes both structures.
    let from = unsafe { &*from };
    let record = KernelPathRec {
        dgid: from.dgid,
        sgid: from.sgid,
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic.cast_unsigned(),
        flow_label: from.flow_label,
        reversible: from.reversible.cast_unsigned(),
        mtu: from.mtu.into(),
        pkey: from.pkey,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        numb_path: from.numb_path,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
    // SAFETY: as above.
    unsafe { to.write(record) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    /// The offsets are asserted above.
    #[test]
    fn kernel_structures_are_as_long_as_in_the_headers() {
        let sizes = [
            ("ib_uverbs_ah_attr", size_of::<KernelAhAttr>()),
            ("ib_uverbs_qp_attr", size_of::<KernelQpAttr>()),
            ("ib_user_path_rec", size_of::<KernelPathRec>()),
            ("ibv_sa_path_rec", size_of::<IbvSaPathRec>()),
        ];
        let mut text = String::from(
            "#include <infiniband/sa.h>\n#include <rdma/ib_user_verbs.h>\n\
             #include <rdma/ib_user_sa.h>\n",
        );
        for (name, size) in sizes {
            text += &format!("_Static_assert(sizeof(struct {name}) == {size}, \"{name}\");\n");
        }
        let mut cc = Command::new("cc")
            .args(["-x", "c", "-fsyntax-only", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        cc.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(cc.wait().unwrap().success());
    }
}
