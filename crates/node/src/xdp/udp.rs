//! The UDP socket that a process shows, as proof that a port is its own.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use causeway_identity::Slot;
use rustix::net::{AddressFamily, SocketType, getsockname, ipproto, sockopt};

/// Why such a socket proves nothing: another one may have the port on other interfaces.
const BOUND_TO_A_DEVICE: &str = "the port is bound to one interface alone (SO_BINDTODEVICE)";

/// A socket that is bound to a port of Causeway's on all addresses of a family, or of both. It
/// keeps the port from everybody else.
pub(super) struct Shown {
    socket: OwnedFd,
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
        let unclear = |error: io::Error| format!("the process did not show a socket: {error}");
        let kind = sockopt::socket_type(&socket).map_err(|e| unclear(e.into()))?;
        let protocol = sockopt::socket_protocol(&socket).map_err(|e| unclear(e.into()))?;
        if kind != SocketType::DGRAM || protocol != Some(ipproto::UDP) {
            return Err("the process did not show a UDP socket".to_owned());
        }
        if namespace(&socket).map_err(unclear)? != own_namespace().map_err(unclear)? {
            return Err("causeway-noded is in another network namespace".to_owned());
        }
        let name = getsockname(&socket).map_err(|e| unclear(e.into()))?;
        let name = SocketAddr::try_from(name).map_err(|e| unclear(e.into()))?;
        let port = name.port();
        if !(Slot::MIN.port()..=Slot::MAX.port()).contains(&port) {
            return Err(format!("port {port} is not one of Causeway's"));
        }
        if !name.ip().is_unspecified() {
            return Err(format!("the port is bound to {} alone", name.ip()));
        }
        if device(&socket).map_err(unclear)?.is_some() {
            return Err(BOUND_TO_A_DEVICE.to_owned());
        }
        let domain = sockopt::socket_domain(&socket).map_err(|e| unclear(e.into()))?;
        let v6 = domain == AddressFamily::INET6;
        let alone = v6 && sockopt::ipv6_v6only(&socket).map_err(|e| unclear(e.into()))?;
        Ok(Shown {
            socket,
            port,
            v4: !alone,
            v6,
        })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether what is sent to the port at an address of this host is for this socket. The process
    /// may have narrowed it since: bound it to an interface, or connected it, which binds it to one
    /// address.
    pub fn is_bound_to(&self, address: IpAddr) -> bool {
        let bound = if address.is_ipv4() { self.v4 } else { self.v6 };
        bound && self.is_wide() && matches!(device(&self.socket), Ok(None))
    }

    /// Whether it is bound to all addresses still.
    fn is_wide(&self) -> bool {
        let name = getsockname(&self.socket).ok().map(SocketAddr::try_from);
        let name = name.and_then(Result::ok);
        name.is_some_and(|name| name.ip().is_unspecified() && name.port() == self.port)
    }
}

/// The number of the interface that a socket is bound to (`SO_BINDTOIFINDEX`, Linux 5.0), if it is.
fn device(socket: &OwnedFd) -> io::Result<Option<u32>> {
    let number: u32 = option(socket, libc::SO_BINDTOIFINDEX, 0)?;
    Ok(Some(number).filter(|number| *number > 0))
}

/// A socket's option at the level of sockets.
fn option<T>(socket: &OwnedFd, name: libc::c_int, mut value: T) -> io::Result<T>
where
    T: Copy + Into<u64>,
{
    let mut len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `value`, an integer; both outlive the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    match done {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Names a socket's network namespace (`SO_NETNS_COOKIE`, Linux 5.14).
fn namespace(socket: &OwnedFd) -> io::Result<u64> {
    option(socket, libc::SO_NETNS_COOKIE, 0)
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

    /// Binds a socket to the loopback interface, which takes no privileges (Linux 5.7).
    fn bind_to_loopback(socket: &UdpSocket) {
        let (name, len) = (c"lo", c"lo".to_bytes_with_nul().len());
        // SAFETY: the name has that many bytes, and lives across the call.
        let done = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_BINDTODEVICE,
                name.as_ptr().cast(),
                len as libc::socklen_t,
            )
        };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
    }

    #[test]
    fn a_port_on_one_interface_is_refused_and_given_up() {
        let socket = bound("0.0.0.0");
        let shown = Shown::new(socket.try_clone().unwrap().into()).unwrap();
        assert!(shown.is_bound_to([10, 0, 0, 1].into()));
        bind_to_loopback(&socket);
        assert!(!shown.is_bound_to([10, 0, 0, 1].into()));
        assert_eq!(refusal(socket), BOUND_TO_A_DEVICE);
    }

    #[test]
    fn what_proves_nothing_is_refused() {
        assert!(refusal(bound("127.0.0.1")).contains("127.0.0.1 alone"));
        let unbound = UdpSocket::bind("0.0.0.0:0").unwrap();
        let port = unbound.local_addr().unwrap().port();
        assert_eq!(
            refusal(unbound),
            format!("port {port} is not one of Causeway's")
        );
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(refusal(tcp), "the process did not show a UDP socket");
        let (pipe, _other) = io::pipe().unwrap();
        assert!(refusal(pipe).contains("did not show a socket"));
    }
}
