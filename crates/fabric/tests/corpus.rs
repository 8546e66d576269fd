//! Replays the fuzzing corpus of the remoting protocol (fuzz/README.md).

#[path = "../../../fuzz/harness/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/harness/remoting.rs"]
mod remoting;

use causeway_fabric::remoting::{Field, Header, Kind, encode_body};
use causeway_fabric::services::pool::{self, Access, PartyKind};
use causeway_fabric::services::{
    AttachRequest, ConnectBody, ConnectReply, Counter, EVENT_PEERS, EVENT_STALE, EndpointStatus,
    PeerChange, PeerEvent, QpStatus, SERVICE, StaleReply, StatusPage, SysfsGid, SysfsRequest, Wire,
    WirePref, session, sisci,
};

use causeway_fabric::services::directory::{DirectoryNode, DirectoryRequest};
use session::{LifeBody, OpenReply, OpenRequest};
use sisci::{
    Backing, Bond, CellChange, CellEvent, ConnectSegmentRequest, EVENT_CELL, InterruptReply, Item,
    ItemKind, ItemPage, LocalSegmentReply, NodeInfo, RestoreInterruptRequest,
    RestoreSegmentRequest, SegmentState, SisciSession, TakeCellReply,
};

#[test]
fn replay_remoting() {
    corpus::replay("remoting", remoting::run);
}

/// A change of the protocol's version makes every seed a message that is refused at its first
/// field: they are to be written again then, by the ignored tests.
#[test]
fn the_seeds_are_of_this_version() {
    let mut whole = 0;
    for (name, data) in corpus::files("remoting") {
        let broken = ["-cut", "-empty", "-ones"];
        if name.starts_with("seed-") && !broken.iter().any(|end| name.ends_with(end)) {
            assert!(Header::decode(&data).is_ok(), "{name} is out of date");
            whole += 1;
        }
    }
    assert!(whole > 0);
}

fn write(name: &str, kind: Kind, method: u16, body: &impl Field) {
    write_of(SERVICE, name, kind, method, body);
}

fn write_of(service: u16, name: &str, kind: Kind, method: u16, body: &impl Field) {
    let header = Header {
        kind,
        service,
        method,
        request: 3,
        status: 0,
        fds: 0,
    };
    let message = header.encode(&encode_body(body));
    corpus::write_seed("remoting", name, &message);
    corpus::write_seed(
        "remoting",
        &format!("{name}-cut"),
        &message[..message.len() - 1],
    );
}

fn status_page() -> StatusPage {
    let qp = QpStatus {
        local_qpn: 0x1001,
        remote_gid: None,
        remote_qpn: 0x2002,
        wire: Wire::Udp,
        joined: false,
        trusted: false,
    };
    let counter = Counter {
        name: "retransmissions".into(),
        value: 9,
    };
    let entry = EndpointStatus {
        endpoint: 5,
        pid: 4711,
        uid: 0,
        comm: "ib_send_lat".into(),
        wire: WirePref::Udp,
        slots: vec![1, 4095],
        netns: 3,
        qps: vec![qp],
        counters: vec![counter],
        tenant: "web".into(),
        segments: 2,
        reserved: 1 << 26,
        resident: 8192,
    };
    StatusPage {
        entry: Some(entry),
        partial: true,
    }
}

#[test]
#[ignore = "writes the corpus"]
fn write_remoting_seeds() {
    let gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let connect = ConnectBody {
        local_qpn: 0x1001,
        remote_gid: Some(gid),
        gid_is_local: true,
        remote_qpn: 0x2002,
        nonce: 0,
        pd: 3,
        access: 7,
        known: 5,
    };
    write("connect", Kind::Request, 4, &connect);
    let reply = ConnectReply {
        wire: Wire::Ring,
        side: 1,
        generation: 77,
        peer: 5,
        trusted: true,
        ring: 8,
        guest_table: 9,
    };
    write("connect-reply", Kind::Reply, 4, &reply);
    let attach = AttachRequest {
        wire: WirePref::Auto,
        comm: "ib_send_lat".into(),
        reserved: 1 << 26,
        pid_namespace: true,
    };
    write("attach", Kind::Request, 1, &attach);
    write("status-page", Kind::Reply, 7, &status_page());
    let disconnected = StaleReply {
        segments: vec![1, u64::MAX],
    };
    write("stale-reply", Kind::Reply, 5, &disconnected);
    let segment = causeway_fabric::services::RestoreSegmentRequest {
        segment: 99,
        pd: 3,
        writable: true,
        inside: true,
    };
    write("restore-segment", Kind::Request, 12, &segment);
    write("stale-event", Kind::Event, EVENT_STALE, &vec![99u64]);
    let gids = vec![SysfsGid {
        gid,
        ifname: "eth0".into(),
    }];
    write(
        "sysfs",
        Kind::Request,
        8,
        &SysfsRequest {
            node_guid: [1; 8],
            gids,
        },
    );
    let event = PeerEvent {
        local_qpn: 0x1001,
        generation: 77,
        change: PeerChange::Left,
    };
    write("peer-events", Kind::Event, EVENT_PEERS, &vec![event]);
    write_session_seeds();
    write_sisci_seeds();
    corpus::write_seed("remoting", "empty", b"");
    corpus::write_seed("remoting", "ones", &[0xff; 64]);
}

/// Messages of the pool service.
#[test]
#[ignore = "writes the corpus"]
fn write_pool_seeds() {
    let grant = |kind, party, access| pool::Grant {
        kind,
        party,
        access,
    };
    let grants = vec![
        grant(PartyKind::Session, 1 << 40, Access::Exclusive),
        grant(PartyKind::User, 1000, Access::Read),
        grant(PartyKind::Everybody, 0, Access::Read),
    ];
    let restore = pool::RestoreBlockRequest {
        pool: 3,
        number: 7,
        bytes: 8192,
        name: "frame".into(),
        persistent: true,
        moves: 2,
        exposed: true,
        grants: grants.clone(),
    };
    write_of(pool::SERVICE, "pool-restore", Kind::Request, 21, &restore);
    let create = pool::CreatePoolRequest {
        name: "frames".into(),
        block_bytes: 65_536,
        capacity: 16,
        private: true,
        existing: true,
    };
    write_of(pool::SERVICE, "pool-create", Kind::Request, 1, &create);
    write_status_seed(grants);
    let wait = pool::WaitRequest {
        ticket: 9,
        pool: 3,
        name: "frame".into(),
        access: Access::Write,
        ..pool::WaitRequest::default()
    };
    write_of(pool::SERVICE, "pool-wait", Kind::Request, 24, &wait);
    let changed = vec![1u64, u64::MAX];
    write_of(
        pool::SERVICE,
        "pool-changed",
        Kind::Event,
        pool::EVENT_CHANGED,
        &changed,
    );
}

fn write_status_seed(grants: Vec<pool::Grant>) {
    let sync = pool::SyncStatus {
        offset: 64,
        kind: pool::SyncKind::Mutex,
        word: 1 << 16,
        owner_pid: 42,
        owner_thread: 43,
        awaited: true,
        entries: vec![pool::EntryStatus {
            pid: 44,
            threads: 2,
        }],
        ..pool::SyncStatus::default()
    };
    let block = pool::BlockStatus {
        number: 7,
        bytes: 8192,
        name: "frame".into(),
        grants,
        syncs: vec![sync],
        holders: vec![pool::HolderStatus {
            pid: 42,
            access: Access::Write,
        }],
        ..pool::BlockStatus::default()
    };
    let entry = pool::PoolStatus {
        name: "frames".into(),
        blocks: vec![block],
        members: vec![pool::Member::default()],
        ..pool::PoolStatus::default()
    };
    let page = pool::PoolPage {
        entry: Some(entry),
        next: 8,
    };
    write_of(pool::SERVICE, "pool-page", Kind::Reply, 23, &page);
}

const LIFE: LifeBody = LifeBody {
    index: 65_535,
    generation: 3,
};

fn write_session_seeds() {
    let request = OpenRequest {
        comm: "shmem".into(),
    };
    write_of(session::SERVICE, "open", Kind::Request, 1, &request);
    let reply = OpenReply {
        life: LIFE,
        same_table: true,
        same_life: false,
    };
    write_of(session::SERVICE, "open-reply", Kind::Reply, 1, &reply);
}

fn write_sisci_seeds() {
    let segment = LocalSegmentReply {
        segment: 1,
        id: 7,
        name: u64::MAX,
        size: 8192,
        offset: 4096,
        state: SegmentState::Available,
        life: LIFE,
    };
    let bonds = vec![Bond { name: 5, node: 8 }, Bond { name: 6, node: 4 }];
    let restore = RestoreSegmentRequest {
        segment: segment.clone(),
        backing: Backing::Group,
        private: false,
        shared: true,
        connections: bonds,
    };
    let connect = ConnectSegmentRequest {
        node: 252,
        id: 7,
        group: true,
        wait: true,
    };
    let of = sisci::SERVICE;
    write_of(of, "sisci-create-reply", Kind::Reply, 5, &segment);
    write_of(of, "sisci-connect", Kind::Request, 13, &connect);
    write_of(of, "sisci-restore", Kind::Request, 21, &restore);
    write_interrupt_seeds(restore.connections);
    write_directory_seed();
}

fn write_interrupt_seeds(bonds: Vec<Bond>) {
    let interrupt = RestoreInterruptRequest {
        interrupt: InterruptReply {
            interrupt: 2,
            number: 9,
        },
        data: true,
        shared: true,
        cells: bonds,
    };
    let node = NodeInfo {
        node: 8,
        addresses: vec![[1; 16]],
        here: true,
        sessions: 2,
        trusted: true,
        port: 20480,
        from_directory: true,
        suspect: true,
    };
    let event = CellEvent {
        handle: 2,
        local: true,
        change: CellChange::Removed,
        cell: 5,
    };
    let cell = TakeCellReply {
        cell: Some(5),
        node: 8,
        life: LIFE,
    };
    write_of(
        sisci::SERVICE,
        "sisci-nodes-reply",
        Kind::Reply,
        1,
        &vec![node.clone()],
    );
    write_of(
        sisci::SERVICE,
        "sisci-items-reply",
        Kind::Reply,
        4,
        &item_page(),
    );
    write_of(sisci::SERVICE, "sisci-cell-reply", Kind::Reply, 20, &cell);
    write_of(
        sisci::SERVICE,
        "sisci-restore-interrupt",
        Kind::Request,
        23,
        &interrupt,
    );
    write_of(
        sisci::SERVICE,
        "sisci-cell-event",
        Kind::Event,
        EVENT_CELL,
        &event,
    );
}

fn write_directory_seed() {
    let named = DirectoryNode {
        node: 8,
        addresses: vec![[1; 16]],
        port: 20480,
        trusted: true,
        suspect: false,
    };
    let directory = DirectoryRequest { nodes: vec![named] };
    let of = sisci::SERVICE;
    write_of(of, "sisci-directory", Kind::Request, 43, &directory);
}

fn item_page() -> ItemPage {
    let item = Item {
        kind: ItemKind::DataInterruptConnection,
        id: 9,
        node: 8,
        size: 0,
        state: SegmentState::Unavailable,
        peers: 2,
    };
    let entry = SisciSession {
        session: 130,
        pid: 4711,
        uid: 0,
        comm: "shmem".into(),
        tenant: "web".into(),
        node: 4,
        items: vec![item],
    };
    ItemPage {
        entry: Some(entry),
        partial: true,
    }
}
