//! Pools of blocks: the sessions that have them open, holders of blocks, and owners of locks.

use std::fmt::Write as _;

use causeway_fabric::pool::{
    Access, BlockStatus, EntryStatus, Grant, Pages, PartyKind, PoolStatus, SyncHealth, SyncKind,
    SyncStatus,
};
use causeway_fabric::services::pool::HolderStatus;
use serde_json::{Value, json};

use super::{amount, printable};

pub(super) fn as_json(pools: &[PoolStatus]) -> Value {
    pools.iter().map(pool_json).collect()
}

fn pool_json(pool: &PoolStatus) -> Value {
    let member = |member: &causeway_fabric::pool::Member| {
        json!({
            "session": format!("{:016x}", member.session),
            "pid": member.pid,
            "uid": member.uid,
            "command": member.comm,
        })
    };
    json!({
        "name": pool.name,
        "tenant": pool.tenant,
        "uid": pool.uid,
        "private": pool.private,
        "block_bytes": pool.block_bytes,
        "capacity": pool.capacity,
        "used": pool.used,
        "waiting": pool.waiting,
        "members": pool.members.iter().map(member).collect::<Vec<_>>(),
        "blocks": pool.blocks.iter().map(block_json).collect::<Vec<_>>(),
    })
}

fn block_json(block: &BlockStatus) -> Value {
    let holder =
        |held: &HolderStatus| json!({ "pid": held.pid, "access": access_name(held.access) });
    let grant = |grant: &Grant| {
        json!({
            "party": party_name(grant.kind),
            "number": grant.party,
            "access": access_name(grant.access),
        })
    };
    json!({
        "number": block.number,
        "name": block.name,
        "bytes": block.bytes,
        "pid": block.owner_pid,
        "uid": block.uid,
        "persistent": block.persistent,
        "huge": block.pages == Pages::Huge,
        "holders": block.holders.iter().map(holder).collect::<Vec<_>>(),
        "grants": block.grants.iter().map(grant).collect::<Vec<_>>(),
        "locks": block.syncs.iter().map(lock_json).collect::<Vec<_>>(),
    })
}

fn lock_json(lock: &SyncStatus) -> Value {
    let entry = |entry: &EntryStatus| json!({ "pid": entry.pid, "threads": entry.threads });
    json!({
        "kind": kind_name(lock.kind),
        "offset": lock.offset,
        "pid": lock.owner_pid,
        "thread": lock.owner_thread,
        "word": format!("{:016x}", lock.word),
        "health": health_name(lock.health),
        "awaited": lock.awaited,
        "count": lock.count,
        "parties": lock.parties,
        "entries": lock.entries.iter().map(entry).collect::<Vec<_>>(),
    })
}

fn health_name(health: SyncHealth) -> &'static str {
    match health {
        SyncHealth::Fine => "fine",
        SyncHealth::Inconsistent => "inconsistent",
        SyncHealth::NotRecoverable => "not recoverable",
        SyncHealth::Broken => "broken",
        SyncHealth::Overwritten => "overwritten",
    }
}

fn access_name(access: Access) -> &'static str {
    match access {
        Access::None => "nothing",
        Access::Read => "read",
        Access::Write => "write",
        Access::Exclusive => "exclusive",
    }
}

fn party_name(kind: PartyKind) -> &'static str {
    match kind {
        PartyKind::Session => "session",
        PartyKind::User => "user",
        PartyKind::Everybody => "everybody",
    }
}

fn kind_name(kind: SyncKind) -> &'static str {
    match kind {
        SyncKind::None => "nothing",
        SyncKind::Mutex => "mutex",
        SyncKind::RwLock => "rwlock",
        SyncKind::Condvar => "condvar",
        SyncKind::Semaphore => "semaphore",
        SyncKind::Barrier => "barrier",
    }
}

/// For people: a line for each pool, below it one for each block, and below that its locks.
pub(super) fn as_table(pools: &[PoolStatus]) -> String {
    let mut out = String::new();
    for pool in pools {
        let size = match pool.block_bytes {
            0 => "blocks of any size".to_owned(),
            bytes => format!("blocks of {}", amount(bytes)),
        };
        let _ = writeln!(
            out,
            "pool {} of {}, user {}{}: {} of {} {size}, open in {}{}",
            printable(&pool.name),
            printable(&pool.tenant),
            pool.uid,
            if pool.private { " alone" } else { "" },
            pool.used,
            pool.capacity,
            processes(pool.members.iter().map(|member| member.pid)),
            match pool.waiting {
                0 => String::new(),
                waiting => format!(", {waiting} waiting for names"),
            },
        );
        for block in &pool.blocks {
            block_lines(&mut out, block);
        }
    }
    out
}

fn block_lines(out: &mut String, block: &BlockStatus) {
    let name = match block.name.as_str() {
        "" => String::new(),
        name => format!(" {}", printable(name)),
    };
    let owner = match block.owner_pid {
        0 => format!("user {}'s, no owner", block.uid),
        pid => format!("{pid}'s"),
    };
    let holders = |access| {
        let held = block.holders.iter().filter(|held| held.access == access);
        processes(held.map(|held| held.pid))
    };
    let _ = writeln!(
        out,
        "    block {}{name}: {}, {owner}{}{}, written by {}, read by {}",
        block.number,
        amount(block.bytes),
        if block.persistent { ", persistent" } else { "" },
        if block.pages == Pages::Huge {
            ", huge pages"
        } else {
            ""
        },
        holders(Access::Write),
        holders(Access::Read),
    );
    for lock in &block.syncs {
        let _ = writeln!(out, "        {}", lock_line(lock));
    }
}

/// An object: its owner and its waiters, as far as its words say.
fn lock_line(lock: &SyncStatus) -> String {
    let mut line = format!("{} at {}", kind_name(lock.kind), lock.offset);
    match (lock.owner_pid, lock.owner_thread) {
        (0, _) => {}
        (pid, 0) => line += &format!(", held by {pid}"),
        (pid, thread) => line += &format!(", held by {pid} (thread {thread})"),
    }
    match lock.kind {
        SyncKind::Semaphore => line += &format!(", value {}", lock.count),
        SyncKind::Barrier => line += &format!(", {} of {} arrived", lock.count, lock.parties),
        _ => {}
    }
    if !lock.entries.is_empty() {
        let verb = match lock.kind {
            SyncKind::RwLock => "read by",
            _ => "joined by",
        };
        let inside = processes(lock.entries.iter().map(|entry| entry.pid));
        line += &format!(", {verb} {inside}");
    }
    if lock.health != SyncHealth::Fine {
        line += &format!(", {}", health_name(lock.health));
    }
    if lock.awaited {
        line += ", awaited";
    }
    line
}

fn processes(pids: impl Iterator<Item = i32>) -> String {
    let pids = pids.map(|pid| match pid {
        0 => "somebody unknown".into(),
        pid => pid.to_string(),
    });
    let pids: Vec<String> = pids.collect();
    if pids.is_empty() {
        "nobody".into()
    } else {
        pids.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> PoolStatus {
        let block = BlockStatus {
            number: 3,
            bytes: 8192,
            name: "fr\x1b[2Jame".into(),
            owner_pid: 42,
            holders: vec![HolderStatus {
                pid: 42,
                access: Access::Write,
            }],
            grants: vec![Grant {
                kind: PartyKind::Everybody,
                party: 0,
                access: Access::Read,
            }],
            syncs: vec![
                SyncStatus {
                    offset: 64,
                    kind: SyncKind::Mutex,
                    word: 1,
                    owner_pid: 43,
                    owner_thread: 44,
                    awaited: true,
                    ..SyncStatus::default()
                },
                SyncStatus {
                    offset: 128,
                    kind: SyncKind::Barrier,
                    count: 1,
                    parties: 3,
                    health: SyncHealth::Broken,
                    entries: vec![EntryStatus {
                        pid: 45,
                        threads: 1,
                    }],
                    ..SyncStatus::default()
                },
            ],
            ..BlockStatus::default()
        };
        PoolStatus {
            name: "p".into(),
            tenant: "web".into(),
            capacity: 9,
            used: 1,
            block_bytes: 8192,
            blocks: vec![block],
            ..PoolStatus::default()
        }
    }

    #[test]
    fn the_table_shows_blocks_and_locks() {
        let table = as_table(&[pool()]);
        assert!(table.contains("pool p of web, user 0: 1 of 9 blocks of 8.0KiB, open in nobody"));
        assert!(table.contains("written by 42, read by nobody"), "{table}");
        assert!(
            table.contains("mutex at 64, held by 43 (thread 44), awaited\n"),
            "{table}"
        );
        let barrier = "barrier at 128, 1 of 3 arrived, joined by 45, broken\n";
        assert!(table.contains(barrier), "{table}");
        assert!(
            !table.contains('\x1b'),
            "a name must not steer the terminal"
        );
    }

    #[test]
    fn json_keeps_everything() {
        let value = as_json(&[pool()]);
        let block = &value[0]["blocks"][0];
        assert_eq!(block["locks"][0]["thread"], 44);
        assert_eq!(block["locks"][1]["health"], "broken");
        assert_eq!(block["locks"][1]["entries"][0]["pid"], 45);
        assert_eq!(block["grants"][0]["access"], "read");
        assert_eq!(block["holders"][0]["pid"], 42);
    }
}
