//! The socket's error queue: what ICMP, or the local host, says of datagrams sent before (`ip(7)`,
//! IP_RECVERR; `ipv6(7)`, IPV6_RECVERR).

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use socket2::SockAddr;

use crate::canonical;
use crate::route::overhead;

/// ICMP type "destination unreachable" and its codes "port unreachable" and "fragmentation needed"
/// (RFC 792).
const ICMP_UNREACHABLE: (u8, u8, u8) = (3, 3, 4);
/// ICMPv6 type "destination unreachable" and its code "port unreachable" (RFC 4443 section 3.1).
const ICMP6_UNREACHABLE: (u8, u8) = (1, 4);
/// ICMPv6 type "packet too big" (RFC 4443 section 3.2).
const ICMP6_TOO_BIG: u8 = 2;

/// Room for an extended error, the offender's address, and whatever else the kernel may add.
const CONTROL_LEN: usize = 256;

/// Bytes of a quoted datagram that are kept: enough to name its connection (docs/WIRE.md).
pub const QUOTE_LEN: usize = 24;

/// Why a datagram did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// The host is there, and nobody has the port: the peer's process is gone.
    Port,
    /// The host or its network can't be reached at the moment, or an administrator forbids it: a
    /// soft error (RFC 5927 section 5.2), which says nothing of the peer.
    Host,
    /// The datagram was larger than the path takes.
    TooBig {
        /// UDP payload that fits, in bytes; 0 if the report did not say.
        max_payload: usize,
    },
}

/// What was reported of a datagram that was sent. Anybody who can guess the ports can forge a
/// report of the network's; a sender that quotes the datagram has seen it (RFC 5927 section 4, RFC
/// 9000 section 14.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Where the datagram went.
    pub to: SocketAddr,
    /// What became of it.
    pub why: Unreachable,
    /// This host says so, not the network: it is true, and quotes nothing.
    pub local: bool,
    quote: [u8; QUOTE_LEN],
    quoted: usize,
}

impl Report {
    /// How the datagram began, behind its UDP header: at most [`QUOTE_LEN`] bytes, and none where
    /// the report quotes no more than the eight bytes that RFC 792 asks for.
    #[must_use]
    pub fn quote(&self) -> &[u8] {
        self.quote.get(..self.quoted).unwrap_or_default()
    }
}

/// Control messages want the alignment of their header.
#[repr(C)]
union Control {
    bytes: [u8; CONTROL_LEN],
    _align: libc::cmsghdr,
}

/// Takes one entry off the queue of `fd`. `Ok(None)`: the queue is empty. `Ok(Some(None))`: an
/// entry that says nothing we know.
pub(crate) fn take(fd: BorrowedFd<'_>) -> io::Result<Option<Option<Report>>> {
    let mut control = Control {
        bytes: [0; CONTROL_LEN],
    };
    let mut quote = [0; QUOTE_LEN];
    let mut iov = libc::iovec {
        iov_base: quote.as_mut_ptr().cast(),
        iov_len: QUOTE_LEN,
    };
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = (&raw mut control).cast();
    msg.msg_controllen = CONTROL_LEN as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: every pointer in `msg` is to a live local of the stated size; on success the kernel
    // has written the address (the datagram's destination) and its length.
    let received = unsafe {
        SockAddr::try_init(|storage, len| {
            msg.msg_name = storage.cast();
            msg.msg_namelen = *len;
            let n = libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), &raw mut msg, flags);
            *len = msg.msg_namelen;
            usize::try_from(n).map_err(|_| io::Error::last_os_error())
        })
    };
    let (quoted, to) = match received {
        Ok((quoted, addr)) => (quoted, addr.as_socket().map(canonical)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        Err(e) => return Err(e),
    };
    // SAFETY: recvmsg has filled `msg` and the control buffer it points to, which is still alive.
    let error = unsafe { extended_error(&msg) };
    Ok(Some(to.zip(error).and_then(|(to, error)| {
        Some(Report {
            to,
            why: meaning(to, &error)?,
            local: error.ee_origin == libc::SO_EE_ORIGIN_LOCAL,
            quote,
            quoted,
        })
    })))
}

/// The extended error among the control messages.
///
/// # Safety
/// `msg` must have been filled by a successful recvmsg, and its control buffer be alive.
unsafe fn extended_error(msg: &libc::msghdr) -> Option<libc::sock_extended_err> {
    // SAFETY: see the function's contract; the macros stay inside msg_controllen.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(msg);
        while let Some(header) = at.as_ref() {
            let kind = (header.cmsg_level, header.cmsg_type);
            let wanted = [
                (libc::IPPROTO_IP, libc::IP_RECVERR),
                (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
            ];
            let need = libc::CMSG_LEN(size_of::<libc::sock_extended_err>() as u32) as usize;
            if wanted.contains(&kind) && header.cmsg_len >= need {
                return Some(
                    libc::CMSG_DATA(at)
                        .cast::<libc::sock_extended_err>()
                        .read_unaligned(),
                );
            }
            at = libc::CMSG_NXTHDR(msg, at);
        }
    }
    None
}

/// What an extended error says of its destination, if it says that something did not arrive.
fn meaning(dst: SocketAddr, error: &libc::sock_extended_err) -> Option<Unreachable> {
    let too_big = || {
        let mtu = error.ee_info as usize;
        Unreachable::TooBig {
            max_payload: mtu.saturating_sub(overhead(dst.ip())),
        }
    };
    let (kind, code) = (error.ee_type, error.ee_code);
    let (unreachable, port, fragmentation) = ICMP_UNREACHABLE;
    let (unreachable6, port6) = ICMP6_UNREACHABLE;
    match error.ee_origin {
        libc::SO_EE_ORIGIN_LOCAL if error.ee_errno == libc::EMSGSIZE as u32 => Some(too_big()),
        libc::SO_EE_ORIGIN_LOCAL => Some(Unreachable::Host),
        libc::SO_EE_ORIGIN_ICMP if kind == unreachable => Some(match code {
            c if c == port => Unreachable::Port,
            c if c == fragmentation => too_big(),
            _ => Unreachable::Host,
        }),
        libc::SO_EE_ORIGIN_ICMP6 if kind == ICMP6_TOO_BIG => Some(too_big()),
        libc::SO_EE_ORIGIN_ICMP6 if kind == unreachable6 => Some(if code == port6 {
            Unreachable::Port
        } else {
            Unreachable::Host
        }),
        _ => None,
    }
}
