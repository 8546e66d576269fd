//! Multicast groups of UD queue pairs (`ibv_attach_mcast(3)`).
//!
//! Datagrams to a group go to one port on every host, which each process with members binds beside
//! all others. A thread of its own receives there: a process without members has none of it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use causeway_identity::MULTICAST_PORT;
use causeway_netio::UdpPort;
use causeway_owned::Owned;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::endpoint::Shared;
use crate::errno::Errno;
use crate::gid;
use crate::limits::LIMITS;
use crate::ud::Arrival;

/// The groups of this process.
#[derive(Default)]
pub(crate) struct Groups(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    v4: Option<UdpPort>,
    v6: Option<UdpPort>,
    members: HashMap<IpAddr, Vec<u32>>,
    /// Tells the thread that there is another port, or that it is to end.
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

impl Shared {
    /// Makes a queue pair a member of a group, and receives what is sent to it from now on.
    ///
    /// # Errors
    /// ENOMEM beyond the device's limits, what the host refuses to join a group with.
    pub fn join(self: &Arc<Self>, group: IpAddr, qpn: u32) -> Result<(), Errno> {
        let mut groups = self.groups.0.lock();
        let known = groups.members.get(&group);
        if known.is_some_and(|members| members.contains(&qpn)) {
            return Ok(());
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
            return Ok(wake.signal()?);
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(std::io::Error::from)?;
        let wake = Arc::new(Owned::new(wake, "the wake-up of multicast"));
        groups.wake = Some(Arc::clone(&wake));
        drop(groups);
        let shared = Arc::clone(self);
        crate::threads::spawn("causeway-mcast", move || run(&shared, &wake)).map(drop)
    }
}

impl Groups {
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

    /// Ends the thread, if there is one; [`Shared::stop`] is set.
    pub fn stop(&self) {
        if let Some(wake) = &self.0.lock().wake {
            // Fails only if the program has closed it; then the thread has ended.
            let _ = wake.signal();
        }
    }

    /// Whether the ports are what they were.
    fn are_intact(&self) -> bool {
        let groups = self.0.lock();
        let mut ports = [&groups.v4, &groups.v6].into_iter().flatten();
        ports.all(|port| port.check().is_ok())
    }

    /// Descriptors of the ports there are, for waiting without the lock.
    fn descriptors(&self) -> Vec<OwnedFd> {
        let groups = self.0.lock();
        let ports = [&groups.v4, &groups.v6].into_iter().flatten();
        ports
            .filter_map(|port| port.fd().try_clone_to_owned().ok())
            .collect()
    }
}

/// Receives until the endpoint ends.
fn run(shared: &Shared, wake: &Owned) {
    let mut fds = Vec::new();
    while !shared.stop.load(std::sync::atomic::Ordering::Acquire) {
        if fds.len() < 2 {
            fds = shared.groups.descriptors();
        }
        let mut polled = vec![PollFd::new(wake, PollFlags::IN)];
        polled.extend(fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let _ = poll(&mut polled, None);
        let woken = !polled[0].revents().is_empty();
        if woken && wake.drain().is_err() || !shared.groups.are_intact() {
            shared.common.failure.report();
            // Copies of the ports, whose numbers are the program's.
            return std::mem::forget(fds);
        }
        receive(shared);
    }
}

fn receive(shared: &Shared) {
    let mut groups = shared.groups.0.lock();
    let Inner {
        v4, v6, members, ..
    } = &mut *groups;
    shared.engines.each(|_, state| state.udp.looks += 1);
    for port in [v4, v6].into_iter().flatten() {
        let _ = port.take_errors(|_| {});
        let _ = port.recv(|from, to, bytes| {
            let arrival = Arrival { from, to, bytes };
            if let Some((group, members)) = to.and_then(|to| members.get_key_value(&to)) {
                shared.engines.each(|_, state| {
                    state.receive_multicast(*group, members, &arrival);
                });
            }
        });
    }
}
