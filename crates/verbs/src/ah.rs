//! Address handles: `ibv_create_ah(3)`, `ibv_init_ah_from_wc(3)`, `ibv_create_ah_from_wc(3)`.

use crate::abi::{IbvAh, IbvAhAttr, IbvContext, IbvGlobalRoute, IbvGrh, IbvPd, IbvWc};
use crate::objects::{self, AhObject};
use crate::port::PORT;
use crate::qp_attr::av_from_c;
use crate::{errno, gid, live, pd};
use causeway_device::{self as dev, Errno};
use core::ffi::c_int;

/// `IBV_WC_GRH`
const WC_GRH: u32 = 1;
/// Hop limit of a reply: as far as it takes.
const MAX_HOPS: u8 = 0xff;
/// Where a RoCE v2 packet over IPv4 has its IP header inside the 40 bytes of the GRH.
const IPV4_OFFSET: usize = 20;
/// IP version of a GRH that is an IPv6 header.
const IP_VERSION_6: u8 = 6;

/// `ibv_create_ah(3)`
pub(crate) unsafe extern "C" fn create_ah(pd: *mut IbvPd, attr: *mut IbvAhAttr) -> *mut IbvAh {
    // SAFETY: the caller passes a live PD and a valid structure.
    let (attr, context) = unsafe { (*attr, (*pd).context) };
    // On Ethernet every address has a global route (ibv_create_ah(3)).
    if attr.port_num != PORT {
        return errno::null(libc::EINVAL);
    }
    // SAFETY: the PD is live.
    let dev = match unsafe { objects::pd(pd) }.dev.create_ah(&av_from_c(&attr)) {
        Ok(dev) => dev,
        Err(Errno(code)) => return errno::null(code),
    };
    // SAFETY: the PD is live, and its context open.
    let handle = unsafe {
        pd::add_user(pd);
        objects::context(context).handle()
    };
    let object = AhObject {
        ah: IbvAh {
            context,
            pd,
            handle,
        },
        dev,
    };
    objects::publish(objects::allocate(), object).cast()
}

/// `ibv_destroy_ah(3)`
pub(crate) unsafe extern "C" fn destroy_ah(ah: *mut IbvAh) -> c_int {
    if !live::is(ah.cast::<AhObject>()) {
        return errno::fail(libc::EINVAL);
    }
    // SAFETY: the caller passes a live address handle, whose PD is live.
    unsafe {
        let object = objects::ah(ah);
        object.dev.destroy();
        pd::drop_user(object.ah.pd);
        objects::reclaim(ah.cast::<AhObject>());
    }
    0
}

/// Source and destination of a received packet, as GIDs, with its traffic class and flow label.
struct Route {
    sgid: [u8; 16],
    dgid: [u8; 16],
    traffic_class: u8,
    flow_label: u32,
}

/// Reads what precedes a datagram in its receive buffer: an IPv6 header, or 20 bytes unused and an
/// IPv4 header.
fn route(grh: &IbvGrh) -> Route {
    let head = u32::from_be(grh.version_tclass_flow);
    let [first, ..] = head.to_be_bytes();
    if first >> 4 == IP_VERSION_6 {
        return Route {
            sgid: grh.sgid,
            dgid: grh.dgid,
            traffic_class: (head >> 20).to_be_bytes()[3],
            flow_label: head & 0x000f_ffff,
        };
    }
    // The IPv4 header is bytes 20 to 39: the last 4 of `sgid`, then `dgid`.
    const TOS: usize = IPV4_OFFSET - 8 + 1;
    let mapped = |start: usize| {
        let mut out = [0; 16];
        out[10..12].fill(0xff);
        out[12..].copy_from_slice(&grh.dgid[start..start + 4]);
        out
    };
    // Source at byte 12 of the IP header, destination at 16.
    Route {
        sgid: mapped(8),
        dgid: mapped(12),
        traffic_class: grh.sgid[TOS],
        flow_label: 0,
    }
}

/// `ibv_init_ah_from_wc(3)`: 0, or -1 with `errno` if the packet was not for this host
pub(crate) unsafe extern "C" fn init_ah_from_wc(
    _context: *mut IbvContext,
    port: u8,
    wc: *mut IbvWc,
    grh: *mut IbvGrh,
    attr: *mut IbvAhAttr,
) -> c_int {
    // SAFETY: the caller passes a valid completion.
    let wc = unsafe { &*wc };
    let mut out = IbvAhAttr {
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        port_num: port,
        ..IbvAhAttr::default()
    };
    if wc.wc_flags & WC_GRH != 0 {
        // SAFETY: the flag says that the receive buffer begins with a header; it may be unaligned.
        let route = route(&unsafe { grh.read_unaligned() });
        // What was sent to a group is answered from any of this host's addresses.
        let to_group = dev::is_group(route.dgid).then_some(0);
        let Some(sgid_index) = gid::find(&route.dgid).or(to_group) else {
            return errno::minus_one(libc::ENOENT);
        };
        out.is_global = 1;
        out.grh = IbvGlobalRoute {
            dgid: route.sgid,
            flow_label: route.flow_label,
            sgid_index,
            hop_limit: MAX_HOPS,
            traffic_class: route.traffic_class,
        };
    }
    // SAFETY: the caller passes memory for the structure.
    unsafe { attr.write(out) };
    0
}

/// `ibv_create_ah_from_wc(3)`
pub(crate) unsafe extern "C" fn create_ah_from_wc(
    pd: *mut IbvPd,
    wc: *mut IbvWc,
    grh: *mut IbvGrh,
    port: u8,
) -> *mut IbvAh {
    let mut attr = IbvAhAttr::default();
    // SAFETY: the caller passes a live PD, a valid completion and its header.
    unsafe {
        if init_ah_from_wc((*pd).context, port, wc, grh, &raw mut attr) != 0 {
            return core::ptr::null_mut();
        }
        create_ah(pd, &raw mut attr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_header_becomes_mapped_gids() {
        let mut bytes = [0_u8; 40];
        bytes[20] = 0x45;
        bytes[21] = 7;
        bytes[32..36].copy_from_slice(&[10, 0, 0, 1]);
        bytes[36..40].copy_from_slice(&[10, 0, 0, 2]);
        // SAFETY: plain data of the same size.
        let route = route(&unsafe { core::mem::transmute::<[u8; 40], IbvGrh>(bytes) });
        assert_eq!(
            route.sgid,
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1]
        );
        assert_eq!(
            route.dgid,
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 2]
        );
        assert_eq!(route.traffic_class, 7);
    }

    #[test]
    fn an_ipv6_header_gives_class_and_flow() {
        let mut bytes = [0_u8; 40];
        bytes[..4].copy_from_slice(&0x6a12_3456_u32.to_be_bytes());
        bytes[8] = 0xfe;
        bytes[24] = 0xfd;
        // SAFETY: plain data of the same size.
        let route = route(&unsafe { core::mem::transmute::<[u8; 40], IbvGrh>(bytes) });
        assert_eq!((route.sgid[0], route.dgid[0]), (0xfe, 0xfd));
        assert_eq!((route.traffic_class, route.flow_label), (0xa1, 0x2_3456));
    }
}
