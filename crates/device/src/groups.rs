//! The multicast groups of an endpoint: their members, and the ports that receive for them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use causeway_identity::MULTICAST_PORT;
use causeway_netio::UdpPort;
use causeway_owned::Owned;
use causeway_proto::group::{GroupAsk, GroupKey};
use causeway_wire::group::is_group_sealed;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::clock::unix_seconds;
use crate::errno::Errno;
use crate::gid;
use crate::limits::LIMITS;
use crate::sealed_groups::SealedGroups;
use crate::ud::Arrival;

/// The groups of an endpoint. Thread-safe.
#[derive(Default)]
pub(crate) struct Groups(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    v4: Option<GroupPort>,
    v6: Option<GroupPort>,
    members: HashMap<IpAddr, Vec<u32>>,
    /// What is sealed for them, once the secrets of any are known: nothing else is opened.
    sealed: Option<Box<SealedGroups>>,
    /// Tells the thread that receives, where there is one, that there is another port, or that it
    /// is to end.
    wake: Option<Arc<Owned>>,
}

/// The port of a family.
struct GroupPort {
    port: UdpPort,
    /// A descriptor of it, to be waited for without the lock. Made with the port: who attaches the
    /// first queue pair hears that there can be none, and not the thread that receives.
    watched: Arc<Owned>,
}

impl GroupPort {
    fn bind(any: IpAddr) -> Result<Self, Errno> {
        let port = UdpPort::bind_shared(SocketAddr::new(any, MULTICAST_PORT))?;
        let watched = Owned::new(port.fd().try_clone_to_owned()?, "a port of multicast");
        let watched = Arc::new(watched);
        Ok(GroupPort { port, watched })
    }
}

impl Inner {
    /// The port of a group's family.
    fn port(&mut self, group: IpAddr) -> Result<&mut UdpPort, Errno> {
        let (slot, any) = match group {
            IpAddr::V4(_) => (&mut self.v4, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            IpAddr::V6(_) => (&mut self.v6, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        };
        let slot = match slot {
            Some(slot) => slot,
            None => slot.insert(GroupPort::bind(any)?),
        };
        Ok(&mut slot.port)
    }

    /// Has a thread receive from the ports there are; `start` starts it.
    fn watch(&mut self, start: impl FnOnce(Arc<Owned>) -> Result<(), Errno>) -> Result<(), Errno> {
        if let Some(wake) = &self.wake {
            return Ok(wake.signal()?);
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(std::io::Error::from)?;
        let wake = Arc::new(Owned::new(wake, "the wake-up of multicast"));
        start(Arc::clone(&wake))?;
        self.wake = Some(wake);
        Ok(())
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
    /// Makes a queue pair a member of a group. The first one needs a thread that receives, which
    /// `start` starts, given what wakes it.
    ///
    /// # Errors
    /// ENOMEM beyond the device's limits, EMFILE, what the host refuses to join a group with, what
    /// `start` reports. The queue pair is no member then.
    pub fn join(
        &self,
        group: IpAddr,
        qpn: u32,
        start: impl FnOnce(Arc<Owned>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut groups = self.0.lock();
        let known = groups.members.get(&group);
        if known.is_some_and(|members| members.contains(&qpn)) {
            return Ok(());
        }
        let attached = known.map_or(0, Vec::len);
        let full = known.is_none() && groups.members.len() >= LIMITS.max_mcast_grp as usize;
        if full || attached >= LIMITS.max_mcast_qp_attach as usize {
            return Err(Errno(libc::ENOMEM));
        }
        let is_first = known.is_none();
        groups.port(group)?;
        groups.watch(start)?;
        // Last: neither the host nor the queue pair is to be a member without a receiver.
        if is_first {
            groups.join(group)?;
        }
        groups.members.entry(group).or_default().push(qpn);
        Ok(())
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
        ports.all(|port| port.port.check().is_ok())
    }

    /// Descriptors of the ports there are, for waiting without the lock.
    pub fn descriptors(&self) -> Vec<Arc<Owned>> {
        let groups = self.0.lock();
        let ports = [&groups.v4, &groups.v6].into_iter().flatten();
        ports.map(|port| Arc::clone(&port.watched)).collect()
    }

    /// The secrets of a group.
    pub fn learn(&self, ask: GroupAsk, keys: Vec<GroupKey>) {
        let mut groups = self.0.lock();
        let sealed = groups.sealed.get_or_insert_default();
        sealed.learn(ask, keys, unix_seconds());
    }

    /// What the broker is to be asked next.
    pub fn take_ask(&self) -> Option<GroupAsk> {
        self.0.lock().sealed.as_mut()?.take_ask()
    }

    /// What it has said to that; the thread that receives is to be woken.
    pub fn told(&self, ask: &GroupAsk, keys: Option<Vec<GroupKey>>) {
        if let Some(sealed) = &mut self.0.lock().sealed {
            sealed.told(ask, keys);
        }
    }

    /// Takes what has come: `f` gets each datagram to a group, with the group's members, and what
    /// it says; nothing of one that was not sealed as it ought to be. Returns a member if the
    /// broker is to be asked something.
    pub fn receive(
        &self,
        mut f: impl FnMut(IpAddr, &[u32], &Arrival<'_>, Option<&[u8]>),
    ) -> Option<u32> {
        let mut groups = self.0.lock();
        let Inner {
            v4,
            v6,
            members,
            sealed,
            ..
        } = &mut *groups;
        let time = unix_seconds();
        if let Some(sealed) = sealed {
            sealed.go_on(time, |group, arrival, text| {
                if let Some(members) = members.get(&group) {
                    f(group, members, arrival, text);
                }
            });
        }
        for GroupPort { port, .. } in [v4, v6].into_iter().flatten() {
            let _ = port.take_errors(|_| {});
            let _ = port.recv(|from, to, bytes| {
                let arrival = Arrival { from, to, bytes };
                let Some((group, members)) = to.and_then(|to| members.get_key_value(&to)) else {
                    return;
                };
                match sealed {
                    _ if !is_group_sealed(bytes) => f(*group, members, &arrival, Some(bytes)),
                    Some(sealed) => sealed.take(*group, &arrival, time, |text| {
                        f(*group, members, &arrival, text);
                    }),
                    None => f(*group, members, &arrival, None),
                }
            });
        }
        let asks = sealed.as_mut().is_some_and(|sealed| sealed.has_ask());
        asks.then(|| members.values().flatten().next().copied())?
    }
}
