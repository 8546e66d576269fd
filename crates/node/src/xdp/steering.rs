//! The program of an interface, and what it steers.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use causeway_xdp::bpf::{self, Map};
use causeway_xdp::program::{self, KEY_LEN};
use rustix::io::Errno;

use super::udp::Shown;
use crate::limits::{XDP_QUEUES_MAX, XDP_STEERED_MAX};

/// An interface that steers as long as this lives.
pub(super) struct Interface {
    ifindex: u32,
    steered: Map,
    sockets: Map,
    _link: OwnedFd,
}

/// A port's datagrams are steered to a socket until this is dropped.
pub(super) struct Steering<'a> {
    interface: &'a Interface,
    queue: u32,
    /// It keeps the port bound.
    shown: Shown,
    keys: HashSet<[u8; KEY_LEN]>,
}

impl Interface {
    /// Has an interface steer.
    ///
    /// # Errors
    /// What keeps it from that, and what to do.
    pub fn steer(name: &str) -> Result<Interface, String> {
        let ifindex = ifindex(name).ok_or_else(|| format!("there is no interface {name}"))?;
        let steer = || -> io::Result<Interface> {
            let steered = Map::hash(KEY_LEN, XDP_STEERED_MAX)?;
            let sockets = Map::sockets(XDP_QUEUES_MAX)?;
            let program = program::load(&steered, &sockets)?;
            let link = bpf::attach(program.as_fd(), ifindex)?;
            Ok(Interface {
                ifindex,
                steered,
                sockets,
                _link: link,
            })
        };
        steer().map_err(|error| match advice(&error) {
            Some(advice) => format!("{name} cannot steer: {error}: {advice}"),
            None => format!("{name} cannot steer: {error}"),
        })
    }

    /// Its number.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Steers what comes to a port by a queue to that queue's socket.
    ///
    /// # Errors
    /// What bpf(2) reports.
    pub fn begin(&self, queue: u32, socket: &OwnedFd, shown: Shown) -> io::Result<Steering<'_>> {
        let descriptor = socket.as_raw_fd().cast_unsigned();
        self.sockets.insert(&queue.to_ne_bytes(), descriptor)?;
        let mut steering = Steering {
            interface: self,
            queue,
            shown,
            keys: HashSet::new(),
        };
        steering.follow_addresses()?;
        Ok(steering)
    }
}

impl Steering<'_> {
    /// The port.
    pub fn port(&self) -> u16 {
        self.shown.port()
    }

    /// Steers what is for the addresses that the interface has now, and nothing else.
    ///
    /// # Errors
    /// What bpf(2) reports.
    pub fn follow_addresses(&mut self) -> io::Result<()> {
        let table = causeway_device::gid_table();
        let own = table
            .iter()
            .filter(|entry| entry.ifindex == self.interface.ifindex);
        let addresses = own.map(|entry| Ipv6Addr::from(entry.gid).to_canonical());
        let addresses = addresses.filter(|address| self.shown.is_bound_to(*address));
        let key = |address: IpAddr| program::key(self.queue, address, self.shown.port());
        let wanted: HashSet<_> = addresses.map(key).collect();
        let steered = &self.interface.steered;
        for gone in self.keys.difference(&wanted) {
            steered.remove(gone)?;
        }
        self.keys.retain(|key| wanted.contains(key));
        for key in wanted {
            if !self.keys.contains(&key) {
                steered.insert(&key, 1)?;
                self.keys.insert(key);
            }
        }
        Ok(())
    }
}

impl Drop for Steering<'_> {
    fn drop(&mut self) {
        for key in &self.keys {
            let _ = self.interface.steered.remove(key);
        }
    }
}

fn ifindex(name: &str) -> Option<u32> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: the name ends with a null byte and lives across the call.
    Some(unsafe { libc::if_nametoindex(name.as_ptr()) }).filter(|number| *number > 0)
}

/// What may be done about it.
fn advice(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::PERM | Errno::ACCESS => {
            Some("it takes root, or CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF of the host")
        }
        Errno::OPNOTSUPP => Some("its driver knows no XDP"),
        Errno::BUSY | Errno::EXIST => Some("another program is there (ip link show)"),
        Errno::RANGE | Errno::INVAL => Some("its MTU may be too large for XDP"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_there_is_named() {
        let error = Interface::steer("cw-none").map(drop).unwrap_err();
        assert_eq!(error, "there is no interface cw-none");
        assert_eq!(ifindex("nul\0"), None);
    }

    #[test]
    fn refusals_come_with_advice() {
        let text = |errno: Errno| advice(&errno.into());
        assert!(text(Errno::PERM).unwrap().contains("CAP_BPF"));
        assert!(text(Errno::RANGE).unwrap().contains("MTU"));
        assert_eq!(text(Errno::NOMEM), None);
    }
}
