//! The multicast groups of an endpoint: their members, and the ports that receive for them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use causeway_identity::MULTICAST_PORT;
use causeway_netio::UdpPort;
use causeway_owned::Owned;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::errno::Errno;
use crate::gid;
use crate::limits::LIMITS;
use crate::ud::Arrival;

/// The groups of an endpoint. Thread-safe.
#[derive(Default)]
pub(crate) struct Groups(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    v4: Option<UdpPort>,
    v6: Option<UdpPort>,
    members: HashMap<IpAddr, Vec<u32>>,
    /// Tells the thread that receives that there is another port, or that it is to end.
    wake: Option<Arc<Owned>>,
}

impl Inner {
    /// The port of a group's family.
    fn port(&mut self, group: IpAddr) -> Result<&mut UdpPort, Errno> {
        let (slot, any) = match group {
            IpAddr::V4(_) => (&mut self.v4, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            IpAddr::V6(_) => (&mut self.v6, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        };
        if let Some(port) = slot {
            return Ok(port);
        }
        Ok(slot.insert(UdpPort::bind_shared(SocketAddr::new(any, MULTICAST_PORT))?))
    }

    /// Has the host receive what is sent to a group, on every interface with a GID.
    fn join(&mut self, group: IpAddr) -> Result<(), Errno> {
        let port = self.port(group)?;
        let mut joined = Err(Errno(libc::ENODEV));
        for ifindex in interfaces() {
            // An interface may be of one family only.
            let result = port.join(group, ifindex).map_err(Errno::from);
            joined = joined.or(result);
        }
        joined
    }

    fn leave(&mut self, group: IpAddr) {
        let Ok(port) = self.port(group) else { return };
        for ifindex in interfaces() {
            let _ = port.leave(group, ifindex);
        }
    }
}

/// The interfaces with a GID.
fn interfaces() -> Vec<u32> {
    let mut found: Vec<u32> = gid::gid_table().iter().map(|e| e.ifindex).collect();
    found.sort_unstable();
    found.dedup();
    found
}

impl Groups {
    /// Makes a queue pair a member of a group. Returns what wakes the thread that receives, where
    /// that has to be started.
    ///
    /// # Errors
    /// ENOMEM beyond the device's limits, what the host refuses to join a group with.
    pub fn join(&self, group: IpAddr, qpn: u32) -> Result<Option<Arc<Owned>>, Errno> {
        let mut groups = self.0.lock();
        let known = groups.members.get(&group);
        if known.is_some_and(|members| members.contains(&qpn)) {
            return Ok(None);
        }
        let attached = known.map_or(0, Vec::len);
        let full = known.is_none() && groups.members.len() >= LIMITS.max_mcast_grp as usize;
        if full || attached >= LIMITS.max_mcast_qp_attach as usize {
            return Err(Errno(libc::ENOMEM));
        }
        if known.is_none() {
            groups.join(group)?;
        }
        groups.members.entry(group).or_default().push(qpn);
        if let Some(wake) = &groups.wake {
            wake.signal()?;
            return Ok(None);
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(std::io::Error::from)?;
        let wake = Arc::new(Owned::new(wake, "the wake-up of multicast"));
        groups.wake = Some(Arc::clone(&wake));
        Ok(Some(wake))
    }

    /// A queue pair is a member of a group no longer.
    ///
    /// # Errors
    /// EINVAL where it was none.
    pub fn leave(&self, group: IpAddr, qpn: u32) -> Result<(), Errno> {
        let mut groups = self.0.lock();
        let members = groups.members.get_mut(&group);
        let members = members.ok_or(Errno(libc::EINVAL))?;
        let at = members.iter().position(|member| *member == qpn);
        members.swap_remove(at.ok_or(Errno(libc::EINVAL))?);
        if members.is_empty() {
            groups.members.remove(&group);
            groups.leave(group);
        }
        Ok(())
    }

    /// Whether a queue pair is attached to any.
    pub fn has(&self, qpn: u32) -> bool {
        let groups = self.0.lock();
        groups
            .members
            .values()
            .any(|members| members.contains(&qpn))
    }

    /// Wakes the thread, if there is one.
    pub fn wake(&self) {
        if let Some(wake) = &self.0.lock().wake {
            // Fails only if the program has closed it; then the thread has ended.
            let _ = wake.signal();
        }
    }

    /// Whether the ports are what they were.
    pub fn are_intact(&self) -> bool {
        let groups = self.0.lock();
        let mut ports = [&groups.v4, &groups.v6].into_iter().flatten();
        ports.all(|port| port.check().is_ok())
    }

    /// Descriptors of the ports there are, for waiting without the lock.
    pub fn descriptors(&self) -> Vec<OwnedFd> {
        let groups = self.0.lock();
        let ports = [&groups.v4, &groups.v6].into_iter().flatten();
        ports
            .filter_map(|port| port.fd().try_clone_to_owned().ok())
            .collect()
    }

    /// Takes what has come: `f` gets each datagram to a group, with the group's members.
    pub fn receive(&self, mut f: impl FnMut(IpAddr, &[u32], &Arrival<'_>)) {
        let mut groups = self.0.lock();
        let Inner {
            v4, v6, members, ..
        } = &mut *groups;
        for port in [v4, v6].into_iter().flatten() {
            let _ = port.take_errors(|_| {});
            let _ = port.recv(|from, to, bytes| {
                let arrival = Arrival { from, to, bytes };
                if let Some((group, members)) = to.and_then(|to| members.get_key_value(&to)) {
                    f(*group, members, &arrival);
                }
            });
        }
    }
}
