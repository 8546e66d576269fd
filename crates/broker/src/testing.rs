//! Endpoints for the tests of the tables.

use std::os::fd::OwnedFd;

use causeway_fabric::services::WirePref;
use causeway_identity::Slot;

use crate::boundary::PidNamespace;
use crate::config::Limits;
use crate::hub::{Endpoint, Hub};
use crate::ids::{EndpointId, OWN_TENANT_ID, TenantId};

/// The network namespace of most of them.
pub const NETNS: u64 = 77;

/// Any descriptor.
pub fn descriptor() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

/// Lets this process have as many descriptors as the system allows.
pub fn allow_many_descriptors() {
    let mut files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    files.current = files.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, files).unwrap();
}

/// The namespace of this process.
pub fn own_namespace() -> Option<PidNamespace> {
    let fd = causeway_fabric::fds::own_pid_namespace().unwrap();
    Some(PidNamespace::examine(fd, std::iter::empty()).unwrap())
}

/// An endpoint with one slot.
pub fn endpoint(hub: &mut Hub, slot: u16, uid: u32, netns: u64) -> EndpointId {
    endpoint_of(hub, OWN_TENANT_ID, (slot, netns), uid)
}

/// An endpoint of a tenant, with one slot in a network namespace.
pub fn endpoint_of(
    hub: &mut Hub,
    tenant: TenantId,
    (slot, netns): (u16, u64),
    uid: u32,
) -> EndpointId {
    let endpoint = Endpoint {
        tenant,
        limits: Limits::default(),
        met: Vec::new(),
        pid: 1,
        uid,
        pid_namespace: own_namespace(),
        one_boundary: false,
        vm: None,
        addresses: Vec::new(),
        comm: String::new(),
        wire: WirePref::Auto,
        inbox: descriptor(),
        stats: Default::default(),
        doorbell: descriptor(),
        mr_table: descriptor(),
        table_inode: 0,
        slots: Default::default(),
        netns: None,
        final_acks: Default::default(),
        links: Default::default(),
        invitations: Default::default(),
        open_rings: 0,
        segments: Default::default(),
        reserved: 0,
        rights: Default::default(),
    };
    let id = hub.attach(endpoint, false).unwrap();
    hub.add_slot(id, Slot::new(slot).unwrap(), netns).unwrap();
    id
}

/// The first QP of a slot.
pub fn qpn(slot: u32) -> u32 {
    let slot = u16::try_from(slot).ok().and_then(Slot::new).unwrap();
    slot.qpn(0).unwrap().number()
}
