//! The UDP socket that a process shows, as proof that a port is its own.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use causeway_identity::Slot;
use rustix::net::{AddressFamily, SocketType, getsockname, ipproto, sockopt};

/// A socket that is bound to a port of Causeway's on all addresses of a family, or of both. It
/// keeps the port from everybody else.
pub(super) struct Shown {
    _socket: OwnedFd,
    port: u16,
    v4: bool,
    v6: bool,
}

impl Shown {
    /// Looks at what was shown.
    ///
    /// # Errors
    /// Why it proves nothing, in words.
    pub fn new(socket: OwnedFd) -> Result<Shown, String> {
        let unclear = |error: io::Error| format!("what was shown is no socket: {error}");
        let kind = sockopt::socket_type(&socket).map_err(|e| unclear(e.into()))?;
        let protocol = sockopt::socket_protocol(&socket).map_err(|e| unclear(e.into()))?;
        if kind != SocketType::DGRAM || protocol != Some(ipproto::UDP) {
            return Err("what was shown is no UDP socket".to_owned());
        }
        if namespace(&socket).map_err(unclear)? != own_namespace().map_err(unclear)? {
            return Err("causeway-noded is in another network namespace".to_owned());
        }
        let name = getsockname(&socket).map_err(|e| unclear(e.into()))?;
        let name = SocketAddr::try_from(name).map_err(|e| unclear(e.into()))?;
        let port = name.port();
        if !(Slot::MIN.port()..=Slot::MAX.port()).contains(&port) {
            return Err(format!("port {port} is none of Causeway's"));
        }
        if !name.ip().is_unspecified() {
            return Err(format!("the port is bound to {} alone", name.ip()));
        }
        let domain = sockopt::socket_domain(&socket).map_err(|e| unclear(e.into()))?;
        let v6 = domain == AddressFamily::INET6;
        let alone = v6 && sockopt::ipv6_v6only(&socket).map_err(|e| unclear(e.into()))?;
        Ok(Shown {
            _socket: socket,
            port,
            v4: !alone,
            v6,
        })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether what is sent to the port at an address of this host is for this socket.
    pub fn is_bound_to(&self, address: IpAddr) -> bool {
        if address.is_ipv4() { self.v4 } else { self.v6 }
    }
}

/// Names a socket's network namespace (`SO_NETNS_COOKIE`, Linux 5.14).
fn namespace(socket: &OwnedFd) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut len = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `cookie`; both outlive the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    match done {
        0 => Ok(cookie),
        _ => Err(io::Error::last_os_error()),
    }
}

fn own_namespace() -> io::Result<u64> {
    namespace(&causeway_xdp::lease::socket()?)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    /// A UDP socket at a free port of Causeway's, from the upper end, at an address.
    fn bound(address: &str) -> UdpSocket {
        let ports = (Slot::MIN.port()..=Slot::MAX.port()).rev();
        let ip: IpAddr = address.parse().unwrap();
        ports
            .into_iter()
            .find_map(|port| UdpSocket::bind((ip, port)).ok())
            .expect("a free port")
    }

    fn refusal(socket: impl Into<OwnedFd>) -> String {
        Shown::new(socket.into())
            .map(|shown| shown.port)
            .unwrap_err()
    }

    #[test]
    fn a_port_on_all_addresses_is_taken() {
        let socket = bound("0.0.0.0");
        let port = socket.local_addr().unwrap().port();
        let shown = Shown::new(socket.into()).unwrap();
        assert_eq!(shown.port(), port);
        assert!(shown.is_bound_to([10, 0, 0, 1].into()));
        assert!(!shown.is_bound_to("fd83::1".parse().unwrap()));
        // It stays bound.
        assert!(UdpSocket::bind(("0.0.0.0", port)).is_err());
    }

    #[test]
    fn what_proves_nothing_is_refused() {
        assert!(refusal(bound("127.0.0.1")).contains("127.0.0.1 alone"));
        let unbound = UdpSocket::bind("0.0.0.0:0").unwrap();
        let port = unbound.local_addr().unwrap().port();
        assert_eq!(
            refusal(unbound),
            format!("port {port} is none of Causeway's")
        );
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(refusal(tcp), "what was shown is no UDP socket");
        let (pipe, _other) = io::pipe().unwrap();
        assert!(refusal(pipe).contains("no socket"));
    }
}
