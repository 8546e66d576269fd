//! What a virtual machine reads of other endpoints' tables, and what the owners keep.

use std::sync::Arc;

use causeway_fabric::services::PeerChange;
use causeway_shm::layout::MR_TABLE_BYTES;
use causeway_shm::{MrEntry, MrTable, PeerMrs, Segment};

use super::*;
use crate::guest_tables::{may_show, new_table};
use crate::pairing::Decision;
use crate::testing::{NETNS, endpoint, qpn};

const VM: VmId = 1 << 63 | 5;
const OTHER_VM: VmId = 1 << 63 | 6;

/// Endpoints with slots 1, 2 and so on, of these VMs.
fn hub(vms: &[Option<VmId>]) -> (Hub, Vec<EndpointId>) {
    let mut hub = Hub::new();
    let ids = (1..)
        .zip(vms)
        .map(|(slot, vm)| {
            let id = endpoint(&mut hub, slot, 4001, NETNS);
            let endpoint = hub.endpoints.get_mut(&id).unwrap();
            (endpoint.vm, endpoint.mr_table) = (*vm, new_table(*vm).unwrap());
            id
        })
        .collect();
    (hub, ids)
}

/// Connects the first QP of endpoint `from` (by its slot) with that of another: the guest table
/// that it is to keep, and the table that it is to read.
fn connect(hub: &mut Hub, ids: &[EndpointId], from: usize, to: usize) -> (u64, OwnedFd) {
    let body = ConnectBody {
        local_qpn: qpn(from as u32),
        remote_qpn: qpn(to as u32),
        ..Default::default()
    };
    match hub.connect(ids[from - 1], &body).unwrap() {
        Decision::Ring {
            guest_table,
            mut fds,
            ..
        } => (guest_table, fds.pop().unwrap()),
        other => panic!("not a ring: {other:?}"),
    }
}

fn same(a: &OwnedFd, b: &OwnedFd) -> bool {
    let inode = |fd| rustix::fs::fstat(fd).unwrap().st_ino;
    inode(a) == inode(b)
}

#[test]
fn a_machine_reads_a_table_that_the_owner_keeps() {
    let (mut hub, ids) = hub(&[None, Some(VM)]);
    let (guest_table, read_by_host) = connect(&mut hub, &ids, 1, 2);
    let (none, read_by_guest) = connect(&mut hub, &ids, 2, 1);
    assert_eq!(none, 0, "the host reads the table");
    let own = &hub.endpoints[&ids[1]].mr_table;
    assert!(same(&read_by_host, own));
    let (kept, live) = hub.guest_table(ids[0], guest_table).unwrap();
    assert!(live == [guest_table] && same(&kept, &read_by_guest));
    assert!(!same(&kept, &hub.endpoints[&ids[0]].mr_table));
    assert!(may_show(&read_by_guest, VM) && !may_show(&read_by_guest, OTHER_VM));
    // A reader that comes before the owner keeps it finds an empty table, and later what the
    // owner does.
    let map = |fd| Arc::new(Segment::map(fd, MR_TABLE_BYTES).unwrap());
    let peer = Segment::map_read_only(read_by_guest, MR_TABLE_BYTES).unwrap();
    let peer = PeerMrs::open(Arc::new(peer)).unwrap();
    assert_eq!(peer.get(1), None);
    let table = map(new_table(None).unwrap());
    let mut table = MrTable::format(table).unwrap();
    let nothing = std::iter::empty();
    table
        .add_guest_table(guest_table, map(kept), nothing)
        .unwrap();
    let entry = MrEntry {
        key: 1,
        len: 4096,
        ..MrEntry::default()
    };
    table.publish(&entry);
    assert_eq!(peer.get(1), Some(entry));
    assert_eq!(
        hub.guest_table(ids[1], guest_table).err(),
        Some(Errno::NOENT)
    );
}

#[test]
fn within_a_machine_there_is_one_table() {
    let (mut hub, ids) = hub(&[Some(VM), Some(VM), Some(OTHER_VM)]);
    let (guest_table, read) = connect(&mut hub, &ids, 1, 2);
    assert!(guest_table == 0 && same(&read, &hub.endpoints[&ids[1]].mr_table));
    assert!(may_show(&read, VM));
    let (guest_table, read) = connect(&mut hub, &ids, 1, 3);
    let theirs = &hub.endpoints[&ids[2]].mr_table;
    assert!(guest_table != 0 && !same(&read, theirs), "another machine");
    assert!(may_show(&read, VM) && !may_show(theirs, VM));
}

#[test]
fn a_guest_table_lives_as_long_as_somebody_may_read_it() {
    let (mut hub, ids) = hub(&[None, Some(VM), Some(VM), Some(OTHER_VM)]);
    let guest_tables: Vec<u64> = (2..5).map(|to| connect(&mut hub, &ids, 1, to).0).collect();
    assert!(guest_tables[0] == guest_tables[1] && guest_tables[0] != guest_tables[2]);
    hub.detach(ids[1], PeerChange::Dead);
    assert!(
        hub.guest_table(ids[0], guest_tables[0]).is_ok(),
        "one is left"
    );
    hub.detach(ids[2], PeerChange::Dead);
    let gone = hub.guest_table(ids[0], guest_tables[0]);
    assert_eq!(gone.err(), Some(Errno::NOENT));
    let (_, live) = hub.guest_table(ids[0], guest_tables[2]).unwrap();
    assert_eq!(live, [guest_tables[2]]);
    hub.detach(ids[0], PeerChange::Dead);
    assert!(hub.guest_tables.is_empty());
}
