//! What SISCI's processes have: segments, connections, interrupts.

use std::fmt::Write as _;

use causeway_fabric::services::sisci::{
    Item, ItemKind, NODE_GROUP_ALL, SegmentState, SisciSession,
};
use serde_json::{Value, json};

use super::{amount, printable};

/// One process, for programs.
pub fn session_json(session: &SisciSession) -> Value {
    json!({
        "pid": session.pid,
        "uid": session.uid,
        "command": session.comm,
        "tenant": session.tenant,
        "node": session.node,
        "items": session.items.iter().map(item_json).collect::<Vec<_>>(),
    })
}

fn item_json(item: &Item) -> Value {
    json!({
        "kind": kind_name(item.kind),
        "node": item.node,
        "id": item.id,
        "bytes": item.size,
        "state": state_name(item),
        "peers": item.peers,
    })
}

/// For people: a line per process, and below it a line for each thing that it has. Nothing if there
/// is no process.
pub fn as_table(sessions: &[SisciSession]) -> String {
    let mut out = String::new();
    if sessions.is_empty() {
        return out;
    }
    let _ = writeln!(
        out,
        "{:>8} {:>6} {:<16} {:>5} {:<10} SISCI",
        "PID", "UID", "COMMAND", "NODE", "TENANT"
    );
    for session in sessions {
        let _ = writeln!(
            out,
            "{:>8} {:>6} {:<16} {:>5} {:<10}",
            session.pid,
            session.uid,
            printable(&session.comm),
            session.node,
            printable(&session.tenant)
        );
        for item in &session.items {
            let _ = writeln!(out, "         {}", item_line(item));
        }
    }
    out
}

fn item_line(item: &Item) -> String {
    let (kind, state) = (kind_name(item.kind), state_name(item));
    let place = match item.node {
        NODE_GROUP_ALL => format!("{} of all nodes", item.id),
        node => format!("{} of node {node}", item.id),
    };
    match item.kind {
        ItemKind::Segment => format!(
            "{kind} {place}, {}, {state}, {} connected",
            amount(item.size),
            item.peers
        ),
        ItemKind::Connection => format!("{kind} to {place}, {}, {state}", amount(item.size)),
        ItemKind::Interrupt | ItemKind::DataInterrupt => {
            format!("{kind} {place}, {} connected", item.peers)
        }
        ItemKind::InterruptConnection | ItemKind::DataInterruptConnection => {
            format!("{kind} to {place}, {state}")
        }
    }
}

fn kind_name(kind: ItemKind) -> &'static str {
    match kind {
        ItemKind::Segment => "segment",
        ItemKind::Connection => "connection",
        ItemKind::Interrupt => "interrupt",
        ItemKind::DataInterrupt => "data interrupt",
        ItemKind::InterruptConnection => "interrupt connection",
        ItemKind::DataInterruptConnection => "data interrupt connection",
    }
}

fn state_name(item: &Item) -> &'static str {
    match (item.kind, item.state) {
        (ItemKind::Segment, SegmentState::Created) => "created",
        (ItemKind::Segment, SegmentState::Prepared) => "prepared",
        (ItemKind::Segment, SegmentState::Unavailable) => "unavailable",
        (ItemKind::Segment, SegmentState::Available) => "available",
        (ItemKind::Interrupt | ItemKind::DataInterrupt, _) => "created",
        (_, SegmentState::Available) => "connected",
        (_, _) => "not connected",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(kind: ItemKind, node: u32, state: SegmentState) -> Item {
        Item {
            kind,
            id: 7,
            node,
            size: 8192,
            state,
            peers: 2,
        }
    }

    fn session() -> SisciSession {
        SisciSession {
            session: 1,
            pid: 42,
            uid: 0,
            comm: "shm\x1bem".into(),
            tenant: "web".into(),
            node: 8,
            items: vec![
                item(ItemKind::Segment, 8, SegmentState::Available),
                item(ItemKind::Connection, NODE_GROUP_ALL, SegmentState::Created),
                item(ItemKind::DataInterrupt, 8, SegmentState::Available),
                item(ItemKind::InterruptConnection, 4, SegmentState::Available),
            ],
        }
    }

    #[test]
    fn people_see_what_there_is() {
        let table = as_table(&[session()]);
        for line in [
            "      42      0 shm?em               8 web",
            "segment 7 of node 8, 8.0KiB, available, 2 connected",
            "connection to 7 of all nodes, 8.0KiB, not connected",
            "data interrupt 7 of node 8, 2 connected",
            "interrupt connection to 7 of node 4, connected",
        ] {
            assert!(table.contains(line), "{line}:\n{table}");
        }
        assert_eq!(as_table(&[]), "");
    }

    #[test]
    fn programs_see_everything() {
        let value = session_json(&session());
        assert_eq!(value["node"], 8);
        assert_eq!(value["items"][0]["kind"], "segment");
        assert_eq!(value["items"][0]["state"], "available");
        assert_eq!(value["items"][3]["state"], "connected");
        assert_eq!(value["items"][2]["peers"], 2);
    }
}
