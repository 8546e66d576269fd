//! The processes that hold the UDP ports of endpoints, where none is free.
//!
//! They are ordinary ports, above 1024: any user of the network namespace can bind them all, and
//! nobody opens the device there until they are free again. Then the process is to be named.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs;

use causeway_identity::Slot;

/// State of a TCP socket that listens, as proc(5) has it.
const TCP_LISTEN: &str = "0A";

/// A process that has ports of endpoints, or a user, where the process may not be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortHolder {
    /// How many.
    pub ports: usize,
    /// The process whose sockets they are.
    pub uid: u32,
    /// The process and its name.
    pub process: Option<(u32, String)>,
}

impl fmt::Display for PortHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.process {
            Some((pid, name)) => write!(f, "process {pid} ({name}) of user {}", self.uid)?,
            None => write!(f, "a process of user {}", self.uid)?,
        }
        write!(f, " has {}", self.ports)
    }
}

/// The processes that have ports of endpoints in this network namespace, the one with most of them
/// first. For people: it reads all of /proc.
#[must_use]
pub fn port_holders() -> Vec<PortHolder> {
    let mut sockets = HashMap::new();
    for table in ["/proc/net/udp", "/proc/net/udp6"] {
        let text = fs::read_to_string(table).unwrap_or_default();
        sockets.extend(text.lines().skip(1).filter_map(socket));
    }
    let mut found: HashMap<(u32, Option<u32>), HashSet<u16>> = HashMap::new();
    let owners = owners(&sockets);
    for (inode, (uid, port)) in &sockets {
        let owner = (*uid, owners.get(inode).copied());
        found.entry(owner).or_default().insert(*port);
    }
    let mut holders: Vec<PortHolder> = found
        .into_iter()
        .map(|((uid, pid), ports)| PortHolder {
            ports: ports.len(),
            uid,
            process: pid.map(|pid| (pid, name(pid))),
        })
        .collect();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.ports));
    holders
}

/// The process that listens at a TCP port of this network namespace, if one does. For people, as
/// [`port_holders`].
#[must_use]
pub fn tcp_port_holder(port: u16) -> Option<PortHolder> {
    let mut sockets = HashMap::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = fs::read_to_string(table).unwrap_or_default();
        sockets.extend(text.lines().skip(1).filter_map(|line| listener(line, port)));
    }
    let owners = owners(&sockets);
    let (inode, uid) = sockets.into_iter().next()?;
    let process = owners.get(&inode).map(|pid| (*pid, name(*pid)));
    Some(PortHolder {
        ports: 1,
        uid,
        process,
    })
}

/// The inode of a socket that listens at a TCP port, and its user (proc(5)).
fn listener(line: &str, port: u16) -> Option<(u64, u32)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (_, own) = words.get(1)?.rsplit_once(':')?;
    let listens = *words.get(3)? == TCP_LISTEN && u16::from_str_radix(own, 16) == Ok(port);
    let (uid, inode) = (words.get(7)?.parse().ok()?, words.get(9)?.parse().ok()?);
    listens.then_some((inode, uid))
}

/// The inode of a socket that is bound to a port of an endpoint's, its user, and the port
/// (proc(5)).
fn socket(line: &str) -> Option<(u64, (u32, u16))> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (_, port) = words.get(1)?.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let ours = Slot::of_port(port).is_some();
    let (uid, inode) = (words.get(7)?.parse().ok()?, words.get(9)?.parse().ok()?);
    ours.then_some((inode, (uid, port)))
}

/// The processes that have those sockets, as far as this one may see.
fn owners<T>(sockets: &HashMap<u64, T>) -> HashMap<u64, u32> {
    let mut owners = HashMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok()) {
        let files = fs::read_dir(format!("/proc/{pid}/fd"));
        for file in files.into_iter().flatten().flatten() {
            let target = fs::read_link(file.path()).unwrap_or_default();
            let inode = target
                .to_str()
                .and_then(|t| t.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
            if let Some(inode) = inode.filter(|inode| sockets.contains_key(inode)) {
                owners.insert(inode, pid);
            }
        }
    }
    owners
}

fn name(pid: u32) -> String {
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    comm.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, UdpSocket};

    #[test]
    fn this_process_is_named() {
        let taken = (Slot::MIN.port()..=Slot::MAX.port())
            .rev()
            .find_map(|port| UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).ok());
        let _taken = taken.expect("a free port");
        let holders = port_holders();
        let own = |h: &&PortHolder| {
            h.process
                .as_ref()
                .is_some_and(|p| p.0 == std::process::id())
        };
        let own = holders.iter().find(own).expect("this process");
        assert!(own.ports >= 1);
        let text = own.to_string();
        let pid = std::process::id().to_string();
        assert!(text.contains(&pid) && text.contains("user"), "{text}");
    }

    #[test]
    fn who_listens_at_a_tcp_port_is_named() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let holder = tcp_port_holder(port).expect("this process");
        assert_eq!(
            holder.process.map(|found| found.0),
            Some(std::process::id())
        );
        let _connected = std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        drop(listener);
        assert_eq!(tcp_port_holder(port), None, "a connection does not listen");
    }

    #[test]
    fn only_ports_of_endpoints_count() {
        let line = |port: &str| {
            format!(
                " 12: 00000000:{port} 00000000:0000 07 00000000:00000000 00:00000000 00000000  \
                 1000        0 4711 2 0000000000000000 0"
            )
        };
        assert_eq!(socket(&line("5001")), Some((4711, (1000, 0x5001))));
        for other in ["5000", "6000", "0035", "x"] {
            assert_eq!(socket(&line(other)), None, "{other}");
        }
    }
}
