//! Checks of the network namespace this process lives in.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

use causeway_identity::Slot;

use super::{Finding, read_line};

/// The first and the last port of an endpoint.
const PORT_MIN: u16 = Slot::MIN.port();
const PORT_MAX: u16 = Slot::MAX.port();
/// `UDP_SEGMENT` of udp(7): the kernel cuts one send into datagrams.
const UDP_SEGMENT: libc::c_int = 103;
/// `UDP_GRO` of udp(7): the kernel joins datagrams into one receive.
const UDP_GRO: libc::c_int = 104;
/// `SO_NETNS_COOKIE` of socket(7): names the namespace of a socket.
const SO_NETNS_COOKIE: libc::c_int = 71;
/// A receive buffer that holds a burst of a full congestion window.
const ENOUGH_BUFFER: u64 = 2 << 20;

/// Endpoints take their slots by binding UDP ports.
pub fn ports() -> Vec<Finding> {
    const TOPIC: &str = "UDP ports";
    let bind = |port: u16| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port));
    let free = (PORT_MIN..=PORT_MAX)
        .filter(|&port| bind(port).is_ok())
        .count();
    let range = format!("{PORT_MIN}-{PORT_MAX}");
    let mut findings = vec![match free {
        0 => Finding::fail(
            TOPIC,
            format!(
                "none of the ports {range} can be bound: {}{}",
                why_not(&bind(PORT_MIN)),
                holder()
            ),
        ),
        free if free < usize::from(Slot::COUNT) / 2 => Finding::warn(
            TOPIC,
            format!("only {free} of the ports {range} are free{}", holder()),
        ),
        free => Finding::ok(TOPIC, format!("{free} of the ports {range} are free")),
    }];
    findings.extend(ephemeral_overlap());
    findings
}

/// The process that has most of the ports.
fn holder() -> String {
    let holders = causeway_device::port_holders();
    let most = holders.first();
    most.map_or_else(String::new, |most| format!("; {most} of them"))
}

fn why_not<T>(result: &std::io::Result<T>) -> String {
    result
        .as_ref()
        .err()
        .map_or_else(|| "busy a moment ago".into(), ToString::to_string)
}

/// Ports that the kernel gives to any program can be taken from under an endpoint's slot.
fn ephemeral_overlap() -> Option<Finding> {
    let line = read_line("/proc/sys/net/ipv4/ip_local_port_range")?;
    let (low, _) = parse_range(&line)?;
    (low <= PORT_MAX).then(|| {
        Finding::warn(
            "ephemeral ports",
            format!(
                "they begin at {low} and overlap Causeway's ports: sysctl \
                 net.ipv4.ip_local_reserved_ports={PORT_MIN}-{PORT_MAX}"
            ),
        )
    })
}

fn parse_range(line: &str) -> Option<(u16, u16)> {
    let mut words = line.split_whitespace().map(str::parse::<u16>);
    Some((words.next()?.ok()?, words.next()?.ok()?))
}

/// A UDP socket: where no interface has an address of IPv4, not even loopback, none can be bound to
/// one.
fn any_socket() -> std::io::Result<UdpSocket> {
    UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
}

/// Without segmentation offload every datagram costs a system call.
pub fn offload() -> Vec<Finding> {
    const TOPIC: &str = "UDP offload";
    let socket = match any_socket() {
        Ok(socket) => socket,
        Err(error) => {
            return vec![Finding::fail(
                TOPIC,
                format!("cannot make a UDP socket: {error}"),
            )];
        }
    };
    let gso = set_option(socket.as_raw_fd(), UDP_SEGMENT, 1400);
    let gro = set_option(socket.as_raw_fd(), UDP_GRO, 1);
    vec![if gso && gro {
        Finding::ok(TOPIC, "GSO and GRO")
    } else {
        let state = |present| if present { "yes" } else { "no" };
        Finding::warn(
            TOPIC,
            format!(
                "GSO: {}, GRO: {}; bandwidth between hosts will be low; Linux 5.0 has both",
                state(gso),
                state(gro)
            ),
        )
    }]
}

fn set_option(fd: RawFd, option: libc::c_int, value: libc::c_int) -> bool {
    // SAFETY: the option's value is a C int that lives across the call, and its size is given.
    let result = unsafe {
        libc::setsockopt(
            fd,
            libc::IPPROTO_UDP,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    result == 0
}

/// A burst that does not fit the receive buffer is lost and sent again.
pub fn buffers() -> Vec<Finding> {
    const TOPIC: &str = "UDP buffers";
    const SYSCTL: &str = "/proc/sys/net/core/rmem_max";
    vec![
        match read_line(SYSCTL).and_then(|text| text.parse::<u64>().ok()) {
            Some(bytes) if bytes >= ENOUGH_BUFFER => {
                Finding::ok(TOPIC, format!("{} KiB", bytes >> 10))
            }
            Some(bytes) => Finding::warn(
                TOPIC,
                format!(
                    "{} KiB at most: sysctl net.core.rmem_max={ENOUGH_BUFFER}",
                    bytes >> 10
                ),
            ),
            // The kernel shows net.core only to the first namespace (before Linux 6.8 or so).
            None => Finding::ok(TOPIC, "limit not visible in this network namespace"),
        },
    ]
}

/// The device's GIDs are the addresses of the host.
pub fn addresses() -> Vec<Finding> {
    vec![outside(), ipv6()]
}

fn outside() -> Finding {
    const TOPIC: &str = "addresses";
    let table = causeway_device::gid_table();
    let outside = table.iter().filter(|entry| entry.ifname != "lo").count();
    match (table.len(), outside) {
        (0, _) => Finding::fail(
            TOPIC,
            "no interface has one, not even loopback: ip link set lo up, or give it another",
        ),
        (_, 0) => Finding::warn(
            TOPIC,
            "only loopback has one: other hosts cannot be reached from here",
        ),
        (_, count) => Finding::ok(TOPIC, format!("{count} besides loopback")),
    }
}

fn ipv6() -> Finding {
    const TOPIC: &str = "IPv6";
    match UdpSocket::bind(SocketAddr::from((Ipv6Addr::LOCALHOST, 0))) {
        Ok(_) => Finding::ok(TOPIC, "available"),
        Err(error) => Finding::warn(TOPIC, format!("{error}; GIDs are IPv4 only")),
    }
}

/// Two endpoints with equal addresses are told apart by their network namespaces.
pub fn namespace() -> Vec<Finding> {
    const TOPIC: &str = "network namespace";
    let cookie = any_socket().ok().and_then(|socket| {
        let mut cookie = 0_u64;
        let mut size = size_of_val(&cookie) as libc::socklen_t;
        // SAFETY: the kernel writes at most `size` bytes to `cookie`; both outlive the call.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_NETNS_COOKIE,
                (&raw mut cookie).cast(),
                &raw mut size,
            )
        };
        (result == 0).then_some(cookie)
    });
    vec![match cookie {
        Some(cookie) => Finding::ok(TOPIC, format!("cookie {cookie}")),
        None => Finding::warn(
            TOPIC,
            "the kernel does not tell namespaces apart (SO_NETNS_COOKIE, Linux 5.14): programs of \
             this host reach each other by UDP, not by shared memory",
        ),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_port_range() {
        assert_eq!(parse_range("32768\t60999"), Some((32768, 60999)));
        assert_eq!(parse_range("32768"), None);
        assert_eq!(parse_range("low high"), None);
    }
}
