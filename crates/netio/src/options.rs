//! Socket options that neither std nor socket2 has, and the sizes of the socket's buffers.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Bytes of datagrams, with the kernel's overhead, that may wait to be received. A software
/// receiver may be off the CPU for some milliseconds; at 10 Gbit/s this holds about ten of them.
const RECV_BUFFER: libc::c_int = 16 << 20;
/// Bytes of datagrams that may wait in the network device before sends would block.
const SEND_BUFFER: libc::c_int = 4 << 20;

/// The MTU that every IPv6 path has (RFC 8200 section 5).
const MIN_IPV6_MTU: libc::c_int = 1280;

/// "Don't fragment" as the socket has it now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DontFragment {
    pub v4: bool,
    pub v6: bool,
}

impl DontFragment {
    /// As quinn-udp sets a socket up.
    pub const ON: DontFragment = DontFragment { v4: true, v6: true };
}

/// Sets an integer option.
pub(crate) fn set(
    fd: &impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = size_of_val(&value) as libc::socklen_t;
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the pointer and length describe `value`, which outlives the call.
    let rc = unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), len) };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Reads an integer option.
pub(crate) fn get(
    fd: &impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = size_of_val(&value) as libc::socklen_t;
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the pointers describe `value` and `len`, which outlive the call.
    let rc = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
    if rc == 0 {
        Ok(value)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Asks for the traffic class of each datagram, by both names on a socket of both families.
pub(crate) fn receive_class(fd: &impl AsFd, v6: bool, on: bool) -> io::Result<()> {
    set(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, on.into())?;
    match v6 {
        true => set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, on.into()),
        false => Ok(()),
    }
}

/// Gives what a socket of one family sends a traffic class, where none is named.
pub(crate) fn class(fd: &impl AsFd, v6: bool, class: u8) -> io::Result<()> {
    match v6 {
        true => set(fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class.into()),
        false => set(fd, libc::IPPROTO_IP, libc::IP_TOS, class.into()),
    }
}

/// Asks no more for the local address of each datagram: the socket has but one.
pub(crate) fn no_packet_info(fd: &impl AsFd, v6: bool) -> io::Result<()> {
    match v6 {
        true => set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 0),
        false => set(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, 0),
    }
}

/// Enlarges the buffers: past the system's limit if we may (CAP_NET_ADMIN), else up to it.
pub(crate) fn enlarge_buffers(fd: &impl AsFd) {
    for (force, plain, bytes) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, RECV_BUFFER),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER),
    ] {
        if set(fd, libc::SOL_SOCKET, force, bytes).is_err() {
            // The plain option never fails for a size: it takes what the limit allows, and a port
            // with small buffers works, only slower.
            let _ = set(fd, libc::SOL_SOCKET, plain, bytes);
        }
    }
}

/// Sets or clears "don't fragment" for what is sent to IPv4 destinations.
pub(crate) fn dont_fragment_v4(fd: &impl AsFd, on: bool) -> io::Result<()> {
    // PROBE: DF, and the size is checked against the interface only, not against a path MTU the
    // kernel has cached: finding that out is TRP's. DONT: no DF, fragments of the path's MTU.
    let mode = if on {
        libc::IP_PMTUDISC_PROBE
    } else {
        libc::IP_PMTUDISC_DONT
    };
    set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, mode)
}

/// Sets or clears "don't fragment" for what is sent to IPv6 destinations.
pub(crate) fn dont_fragment_v6(fd: &impl AsFd, on: bool) -> io::Result<()> {
    let mode = if on {
        libc::IPV6_PMTUDISC_PROBE
    } else {
        libc::IPV6_PMTUDISC_DONT
    };
    set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, mode)?;
    // The mode alone still lets the sending host fragment.
    set(fd, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, on.into())?;
    // No router fragments IPv6, and one may say nothing of what it drops: fragments are as short as
    // every path takes them. 0: as long as the kernel believes.
    let fragments = if on { 0 } else { MIN_IPV6_MTU };
    set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU, fragments)
}

/// `IPV6_MULTICAST_ALL`, which libc lacks.
const IPV6_MULTICAST_ALL: libc::c_int = 29;

/// Has a socket receive only what groups that it has joined itself are sent; by default it gets
/// what any socket of the host has joined.
pub(crate) fn only_joined_groups(fd: &impl AsFd, v6: bool) -> io::Result<()> {
    if v6 {
        set(fd, libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0)
    } else {
        set(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)
    }
}
