//! One sendmsg(2), of data that may lie in pieces, and one recvmsg(2).
//!
//! quinn-udp sends one run of bytes, and names a traffic class each time: with the source address
//! that is more than the 36 bytes of control messages that the kernel takes without allocating. It
//! receives by recvmmsg(2), which costs more than recvmsg(2) where one message is asked for.

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use quinn_udp::{EcnCodepoint, RecvMeta};
use socket2::SockAddr;

use crate::class::ECN;

/// Room for the control messages of either direction: a packet's addresses and its class, both by
/// IPv4's names and IPv6's, and a segment's size.
const CONTROL_LEN: usize = 192;
/// What the kernel aligns control messages to (`CMSG_ALIGN`).
const CONTROL_ALIGN: usize = size_of::<usize>();

/// Control messages want the alignment of their header.
#[repr(C)]
union Control {
    bytes: [u8; CONTROL_LEN],
    _align: libc::cmsghdr,
}

/// Control messages to send.
struct Controls {
    control: Control,
    used: usize,
}

impl Controls {
    fn new() -> Self {
        Controls {
            control: Control {
                bytes: [0; CONTROL_LEN],
            },
            used: 0,
        }
    }

    /// Appends a message; there is room for those there are.
    fn push(&mut self, level: libc::c_int, kind: libc::c_int, data: &[u8]) {
        // SAFETY: all bytes are initialized, and any bytes are bytes.
        let bytes = unsafe { &mut self.control.bytes };
        let header = size_of::<libc::cmsghdr>();
        let end = self.used + header + data.len();
        let room = &mut bytes[self.used..end];
        let len = header + data.len();
        // `struct cmsghdr`: length, level, type (cmsg(3)).
        room[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
        room[header - 8..header - 4].copy_from_slice(&level.to_ne_bytes());
        room[header - 4..header].copy_from_slice(&kind.to_ne_bytes());
        room[header..].copy_from_slice(data);
        self.used = end.next_multiple_of(CONTROL_ALIGN);
    }

    /// The class (`ip(7)`, IP_TOS; `ipv6(7)`, IPV6_TCLASS).
    fn push_mark(&mut self, mark: Marked) {
        let (level, kind) = match mark.v6 {
            true => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
            false => (libc::IPPROTO_IP, libc::IP_TOS),
        };
        self.push(level, kind, &libc::c_int::from(mark.class).to_ne_bytes());
    }

    /// The address to send from (`ip(7)`, `ipv6(7)`), on whatever interface.
    fn push_source(&mut self, src: IpAddr) {
        let any_interface = [0; 4];
        match src {
            IpAddr::V4(v4) => {
                // `struct in_pktinfo`: interface, source, unused.
                let mut info = [0; 12];
                info[..4].copy_from_slice(&any_interface);
                info[4..8].copy_from_slice(&v4.octets());
                self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            IpAddr::V6(v6) => {
                // `struct in6_pktinfo`: source, interface.
                let mut info = [0; 20];
                info[..16].copy_from_slice(&v6.octets());
                info[16..].copy_from_slice(&any_interface);
                self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
    }
}

/// How the network is to treat a datagram: the second byte of its IPv4 header, or IPv6's traffic
/// class. DSCP is the upper six bits (RFC 2474).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marked {
    pub class: u8,
    pub v6: bool,
}

/// Sends the bytes of `pieces`, as one datagram or cut into segments of that many bytes: to an
/// address, from one if it is given; or, without, where the socket is connected to. Without a mark
/// it is the socket's.
///
/// # Errors
/// Whatever `sendmsg(2)` reports: EFAULT where a piece is not mapped.
///
/// # Safety
/// Each piece names memory of this process that may be read, by the kernel, while others write it.
pub(crate) unsafe fn send(
    fd: BorrowedFd<'_>,
    to: Option<(SocketAddr, Option<IpAddr>)>,
    pieces: &[libc::iovec],
    (segment, mark): (Option<u16>, Option<Marked>),
) -> io::Result<()> {
    let dst = to.map(|(dst, _)| SockAddr::from(dst));
    let mut controls = Controls::new();
    if let Some((_, Some(src))) = to {
        controls.push_source(src);
    }
    if let Some(segment) = segment {
        controls.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
    }
    if let Some(mark) = mark {
        controls.push_mark(mark);
    }
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    if let Some(dst) = &dst {
        msg.msg_name = dst.as_ptr().cast_mut().cast();
        msg.msg_namelen = dst.len();
    }
    msg.msg_iov = pieces.as_ptr().cast_mut();
    msg.msg_iovlen = pieces.len() as _;
    if controls.used > 0 {
        msg.msg_control = (&raw mut controls.control).cast();
        msg.msg_controllen = controls.used as _;
    }
    loop {
        // Not the C library's function, where a thread that the program cancels would be unwound,
        // with the caller's locks.
        // SAFETY: every pointer in `msg` is to a live local of the stated size, none of which
        // sendmsg changes; the pieces are as the caller promises.
        let sent = unsafe { libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), &raw const msg, 0) };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Sends one datagram to where the socket is connected to, by the shortest call that there is
/// (`send(2)`).
///
/// # Errors
/// Whatever `send(2)` reports.
#[inline]
pub(crate) fn send_datagram(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    // As in `send`, not the C library's function.
    // SAFETY: the bytes are borrowed, and no address is given.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_sendto,
            fd.as_raw_fd(),
            bytes.as_ptr(),
            bytes.len(),
            0,
            std::ptr::null::<libc::sockaddr>(),
            0usize,
        )
    };
    match sent {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Receives one datagram into `buffer`, by the shortest call that there is (`recv(2)`). Returns its
/// length: where the kernel has coalesced several, or has cut off what did not fit, nothing tells.
///
/// # Errors
/// Whatever `recv(2)` reports: `WouldBlock` where there is nothing.
#[inline]
pub(crate) fn receive_datagram(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        // As in `send`, not the C library's function.
        // SAFETY: the buffer is borrowed, and no address is asked for.
        let received = unsafe {
            libc::syscall(
                libc::SYS_recvfrom,
                fd.as_raw_fd(),
                buffer.as_mut_ptr(),
                buffer.len(),
                0,
                std::ptr::null_mut::<libc::sockaddr>(),
                std::ptr::null_mut::<libc::socklen_t>(),
            )
        };
        match usize::try_from(received) {
            Ok(len) => return Ok(len),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Receives a datagram, or several that the kernel has coalesced, into `buffer`.
///
/// # Errors
/// Whatever `recvmsg(2)` reports: `WouldBlock` where there is nothing.
pub(crate) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<RecvMeta> {
    let mut control = Control {
        bytes: [0; CONTROL_LEN],
    };
    let mut iov = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = (&raw mut control).cast();
    loop {
        msg.msg_controllen = CONTROL_LEN as _;
        // SAFETY: every pointer in `msg` is to a live local or argument of the stated size; on
        // success the kernel has written the source's address and its length.
        let received = unsafe {
            SockAddr::try_init(|storage, len| {
                msg.msg_name = storage.cast();
                msg.msg_namelen = *len;
                let n = libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), &raw mut msg, 0);
                *len = msg.msg_namelen;
                usize::try_from(n).map_err(|_| io::Error::last_os_error())
            })
        };
        let (len, from) = match received {
            Ok(received) => received,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        let Some(addr) = from
            .as_socket()
            .filter(|_| msg.msg_flags & libc::MSG_TRUNC == 0)
        else {
            continue;
        };
        let mut meta = RecvMeta::default();
        (meta.addr, meta.len, meta.stride) = (addr, len, len);
        // SAFETY: recvmsg has filled `msg` and the control buffer it points to, still alive.
        unsafe { read_controls(&msg, &mut meta) };
        return Ok(meta);
    }
}

/// Takes the local address, the size of segments and the mark from the control messages received.
///
/// # Safety
/// `msg` must have been filled by a successful recvmsg, and its control buffer be alive.
unsafe fn read_controls(msg: &libc::msghdr, meta: &mut RecvMeta) {
    // SAFETY: see the function's contract; the macros stay inside msg_controllen, and each length
    // is checked before the data are read.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(msg);
        while let Some(header) = at.as_ref() {
            let data = libc::CMSG_DATA(at);
            let holds = |size: usize| header.cmsg_len >= libc::CMSG_LEN(size as u32) as usize;
            match (header.cmsg_level, header.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) if holds(size_of::<libc::in_pktinfo>()) => {
                    let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                    let octets = info.ipi_addr.s_addr.to_ne_bytes();
                    meta.dst_ip = Some(Ipv4Addr::from(octets).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO)
                    if holds(size_of::<libc::in6_pktinfo>()) =>
                {
                    let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                    meta.dst_ip = Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                }
                (libc::SOL_UDP, libc::UDP_GRO) if holds(size_of::<libc::c_int>()) => {
                    let stride = data.cast::<libc::c_int>().read_unaligned();
                    meta.stride = usize::try_from(stride).unwrap_or(meta.len);
                }
                (libc::IPPROTO_IP, libc::IP_TOS) if holds(size_of::<u8>()) => {
                    meta.ecn = EcnCodepoint::from_bits(data.cast::<u8>().read() & ECN);
                }
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) if holds(size_of::<libc::c_int>()) => {
                    let class = data.cast::<libc::c_int>().read_unaligned();
                    meta.ecn = EcnCodepoint::from_bits(class as u8 & ECN);
                }
                _ => {}
            }
            at = libc::CMSG_NXTHDR(msg, at);
        }
    }
}
