//! What the tables do.

use std::time::{Duration, Instant};

use causeway_fabric::limits::{GRANTS_PER_BLOCK_MAX, RESTORE_GRACE};
use causeway_fabric::services::pool::{
    Access, AllocateRequest, CreatePoolRequest, Grant, GrantRequest, NameRequest, PartyKind,
    RestoreBlockRequest, RestorePoolRequest, ResumeRequest,
};
use rustix::io::pwrite;

use super::*;

/// User of all but those that are somebody else's.
pub(super) const UID: u32 = 1000;
pub(super) const OTHER_UID: u32 = 1001;
pub(super) const BLOCK: u64 = 8192;

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

pub(super) fn tables() -> Pools {
    Pools::new(own_uid())
}

pub(super) fn enter(pools: &mut Pools, session: SessionName, uid: u32, limits: Limits) {
    pools.enter(session, || Member {
        connection: session,
        tenant: 0,
        tenant_name: "t".into(),
        limits,
        pid: session as i32,
        uid,
        comm: String::new(),
        pools: BTreeSet::new(),
        owned: HashSet::new(),
        bytes: 0,
        held: HashSet::new(),
        awaited: HashSet::new(),
    });
}

fn request(name: &str, capacity: u32) -> CreatePoolRequest {
    CreatePoolRequest {
        name: name.into(),
        block_bytes: BLOCK,
        capacity,
        private: false,
        existing: true,
    }
}

/// Sessions 1 and 2 of one user and 3 of another, with a pool of four blocks.
pub(super) fn three() -> (Pools, PoolId) {
    let mut pools = tables();
    for (session, uid) in [(1, UID), (2, UID), (3, OTHER_UID)] {
        enter(&mut pools, session, uid, Limits::default());
        pools.create_pool(session, &request("p", 4)).unwrap();
    }
    (pools, 1)
}

pub(super) fn allocate(
    pools: &mut Pools,
    session: SessionName,
    pool: PoolId,
) -> Result<Handle, Errno> {
    let request = AllocateRequest {
        pool,
        bytes: 0,
        huge: false,
    };
    pools
        .allocate(session, &request)
        .map(|(reply, _)| reply.handle)
}

pub(super) fn grant(
    pools: &mut Pools,
    handle: Handle,
    to: SessionName,
    access: Access,
) -> Result<(), Errno> {
    let request = GrantRequest {
        handle,
        kind: PartyKind::Session,
        party: to,
        access,
    };
    pools.grant(1, &request)
}

pub(super) fn name(
    pools: &mut Pools,
    handle: Handle,
    name: &str,
    persistent: bool,
) -> Result<(), Errno> {
    let request = NameRequest {
        handle,
        name: name.into(),
        persistent,
    };
    pools.set_name(1, &request)
}

fn errno<T>(outcome: Result<T, Errno>) -> Option<Errno> {
    outcome.err()
}

#[test]
fn a_block_is_its_owners_until_it_is_granted() {
    let (mut pools, pool) = three();
    let handle = allocate(&mut pools, 1, pool).unwrap();
    assert_eq!(pools.right_of(1, handle), Ok(Access::Write));
    for access in [Access::Read, Access::Write] {
        assert_eq!(errno(pools.open(3, handle, access)), Some(Errno::ACCESS));
    }
    assert_eq!(
        pools.info(3, handle).unwrap().handle,
        0,
        "not for those without a right"
    );
    grant(&mut pools, handle, 3, Access::Read).unwrap();
    assert_eq!(pools.info(3, handle).unwrap().handle, handle);
    assert_eq!(
        errno(pools.open(3, handle, Access::Write)),
        Some(Errno::ACCESS)
    );
    let (reply, fd) = pools.open(3, handle, Access::Read).unwrap();
    assert_eq!((reply.access, reply.bytes), (Access::Read, BLOCK));
    assert_eq!(pwrite(&fd, b"x", 0), Err(Errno::BADF));
    // What only its owner may decide.
    let request = GrantRequest {
        handle,
        kind: PartyKind::Everybody,
        party: 0,
        access: Access::Write,
    };
    assert_eq!(errno(pools.grant(3, &request)), Some(Errno::PERM));
    assert_eq!(errno(pools.free(2, handle)), Some(Errno::PERM));
    assert_eq!(errno(pools.begin_move(3, handle)), Some(Errno::PERM));
    assert_eq!(errno(pools.adopt(2, handle)), Some(Errno::PERM));
    assert_eq!(
        errno(grant(&mut pools, handle, 77, Access::Read)),
        Some(Errno::SRCH)
    );
}

#[test]
fn blocks_of_pools_that_are_not_open_do_not_exist() {
    let (mut pools, pool) = three();
    let handle = allocate(&mut pools, 1, pool).unwrap();
    let mut everybody = request("other", 1);
    everybody.private = true;
    enter(&mut pools, 4, OTHER_UID, Limits::default());
    for outcome in [
        errno(pools.open(4, handle, Access::Read)),
        errno(pools.info(4, handle)),
        errno(pools.refresh(4, handle, Access::Read)),
        errno(pools.free(4, handle)),
        errno(pools.find(4, pool, "x")),
    ] {
        assert_eq!(outcome, Some(Errno::NOENT));
    }
    pools.create_pool(1, &everybody).unwrap();
    assert_eq!(errno(pools.open_pool(4, "other")), Some(Errno::ACCESS));
    assert!(
        pools.open_pool(2, "other").is_ok(),
        "a process of the same user"
    );
}

#[test]
fn exclusive_writing_is_one_sessions() {
    let (mut pools, pool) = three();
    let handle = allocate(&mut pools, 1, pool).unwrap();
    let exclusive = |pools: &mut Pools| errno(grant(pools, handle, 2, Access::Exclusive));
    assert_eq!(
        exclusive(&mut pools),
        Some(Errno::BUSY),
        "the owner may write"
    );
    grant(&mut pools, handle, 1, Access::Read).unwrap();
    assert_eq!(pools.take_news(), [(1, EVENT_CHANGED, vec![handle])]);
    assert_eq!(
        exclusive(&mut pools),
        Some(Errno::AGAIN),
        "it has not let go"
    );
    pools.refresh(1, handle, Access::Read).unwrap();
    assert_eq!(exclusive(&mut pools), None);
    for to in [1, 3] {
        let outcome = errno(grant(&mut pools, handle, to, Access::Write));
        assert_eq!(outcome, Some(Errno::BUSY));
    }
    assert!(grant(&mut pools, handle, 3, Access::Read).is_ok());
    assert!(pools.open(2, handle, Access::Write).is_ok());
    assert_eq!(exclusive(&mut pools), None, "once more");
    // It ends with its session.
    pools.leave(2);
    assert!(grant(&mut pools, handle, 1, Access::Write).is_ok());
}

#[test]
fn a_hostile_ex_writer_gets_nothing_of_what_comes_later() {
    let (mut pools, pool) = three();
    let handle = allocate(&mut pools, 1, pool).unwrap();
    grant(&mut pools, handle, 3, Access::Write).unwrap();
    let (_, kept) = pools.open(3, handle, Access::Write).unwrap();
    grant(&mut pools, handle, 3, Access::None).unwrap();
    grant(&mut pools, handle, 1, Access::Read).unwrap();
    pools.refresh(1, handle, Access::Read).unwrap();
    let exclusive = |pools: &mut Pools| errno(grant(pools, handle, 2, Access::Exclusive));
    assert_eq!(exclusive(&mut pools), Some(Errno::STALE));
    // It says that it has let go, which proves nothing.
    pools.refresh(3, handle, Access::None).unwrap();
    assert_eq!(exclusive(&mut pools), Some(Errno::STALE));
    assert_eq!(
        errno(pools.open(3, handle, Access::Read)),
        Some(Errno::ACCESS)
    );
    let fresh = pools.begin_move(1, handle).unwrap();
    pwrite(&fresh, b"new", 0).unwrap();
    pools.end_move(1, handle).unwrap();
    assert_eq!(exclusive(&mut pools), None);
    let (reply, fd) = pools.open(2, handle, Access::Read).unwrap();
    let mut seen = [0; 3];
    rustix::io::pread(&fd, &mut seen[..], 0).unwrap();
    assert_eq!((&seen, reply.moves), (b"new", 1));
    rustix::io::pread(&kept, &mut seen[..], 0).unwrap();
    assert_eq!(&seen, &[0; 3]);
    assert_eq!(errno(pools.end_move(1, handle)), Some(Errno::INVAL));
}

#[test]
fn who_loses_a_right_is_told_once_until_it_asks() {
    let (mut pools, pool) = three();
    let handle = allocate(&mut pools, 1, pool).unwrap();
    grant(&mut pools, handle, 3, Access::Write).unwrap();
    pools.open(3, handle, Access::Write).unwrap();
    for _ in 0..5 {
        grant(&mut pools, handle, 3, Access::Read).unwrap();
        grant(&mut pools, handle, 3, Access::Write).unwrap();
    }
    grant(&mut pools, handle, 3, Access::Read).unwrap();
    assert_eq!(pools.take_news(), [(3, EVENT_CHANGED, vec![handle])]);
    let (reply, fd, moved) = pools.refresh(3, handle, Access::Write).unwrap();
    assert_eq!((reply.access, moved), (Access::Read, false));
    assert_eq!(pwrite(fd.unwrap(), b"x", 0), Err(Errno::BADF));
    pools.refresh(3, handle, Access::Read).unwrap();
    grant(&mut pools, handle, 3, Access::None).unwrap();
    assert_eq!(pools.take_news(), [(3, EVENT_CHANGED, vec![handle])]);
    let (reply, fd, _) = pools.refresh(3, handle, Access::None).unwrap();
    assert!(reply.access == Access::None && fd.is_none());
    assert_eq!(
        errno(pools.refresh(3, handle, Access::None)),
        Some(Errno::NOENT)
    );
}

#[test]
fn the_free_list_is_right_after_every_death() {
    let (mut pools, pool) = three();
    let handles: Vec<_> = (0..4)
        .map(|_| allocate(&mut pools, 1, pool).unwrap())
        .collect();
    assert_eq!(errno(allocate(&mut pools, 2, pool)), Some(Errno::NOSPC));
    grant(&mut pools, handles[0], 2, Access::Read).unwrap();
    pools.open(2, handles[0], Access::Read).unwrap();
    name(&mut pools, handles[3], "kept", true).unwrap();
    pools.leave(1);
    assert_eq!(pools.take_news(), [(2, EVENT_ORPHANED, vec![handles[0]])]);
    assert_eq!(pools.pools[&pool].slots.used(), 1);
    let usage = Usage {
        blocks: 1,
        bytes: BLOCK,
        pools: 1,
    };
    assert_eq!(pools.usage(0), usage);
    // The orphan is any session's of its user, and nobody's of another.
    let kept = pools.find(2, pool, "kept").unwrap();
    assert_eq!((kept.owner, kept.uid, kept.handle), (0, UID, handles[3]));
    assert_eq!(pools.find(3, pool, "kept").unwrap().handle, 0);
    assert_eq!(errno(pools.adopt(3, handles[3])), Some(Errno::PERM));
    assert_eq!(errno(pools.free(3, handles[3])), Some(Errno::PERM));
    pools.adopt(2, handles[3]).unwrap();
    assert_eq!(pools.right_of(2, handles[3]), Ok(Access::Write));
    assert_eq!(pools.own(2).unwrap().bytes, BLOCK);
    for _ in 0..3 {
        allocate(&mut pools, 3, pool).unwrap();
    }
    pools.leave(3);
    pools.free(2, handles[3]).unwrap();
    assert_eq!(pools.usage(0).blocks, 0);
    pools.leave(2);
    assert_eq!(pools.usage(0), Usage::default());
    assert!(pools.blocks.is_empty() && pools.pools.is_empty() && pools.by_name.is_empty());
    assert!(pools.granted.is_empty() && pools.members.is_empty());
}

#[test]
fn a_freed_blocks_place_is_used_again_and_its_memory_never() {
    let (mut pools, pool) = three();
    let first = allocate(&mut pools, 1, pool).unwrap();
    let (_, kept) = pools.open(1, first, Access::Write).unwrap();
    pwrite(&kept, b"old", 0).unwrap();
    grant(&mut pools, first, 3, Access::Write).unwrap();
    pools.open(3, first, Access::Write).unwrap();
    pools.free(1, first).unwrap();
    assert_eq!(pools.take_news(), [(3, EVENT_FREED, vec![first])]);
    let second = allocate(&mut pools, 3, pool).unwrap();
    assert_eq!(pools.info(3, second).unwrap().number, 0);
    let (_, fd) = pools.open(3, second, Access::Read).unwrap();
    let mut seen = [1; 3];
    rustix::io::pread(fd, &mut seen[..], 0).unwrap();
    assert_eq!(seen, [0; 3]);
    assert_eq!(
        errno(pools.open(1, first, Access::Read)),
        Some(Errno::NOENT)
    );
}

#[test]
fn limits_hold() {
    let mut pools = tables();
    let limits = Limits {
        pools: 1,
        blocks: 2,
        block_bytes: 3 * BLOCK,
        tenant_blocks: 3,
        tenant_block_bytes: u64::MAX,
        ..Limits::default()
    };
    for session in [1, 2] {
        enter(&mut pools, session, UID, limits);
        pools.create_pool(session, &request("p", 9)).unwrap();
    }
    let second = errno(pools.create_pool(1, &request("q", 9)));
    assert_eq!(second, Some(Errno::DQUOT));
    let made: Vec<_> = [1, 1, 1, 2, 2]
        .iter()
        .map(|&s| allocate(&mut pools, s, 1))
        .collect();
    let refused: Vec<_> = made.iter().map(|made| made.is_err()).collect();
    assert_eq!(refused, [false, false, true, false, true]);
    assert_eq!(made[2], Err(Errno::DQUOT));
    let handle = *made[0].as_ref().unwrap();
    for uid in 1..GRANTS_PER_BLOCK_MAX as u64 {
        let kind = PartyKind::User;
        pools
            .grant(
                1,
                &GrantRequest {
                    handle,
                    kind,
                    party: uid,
                    access: Access::Read,
                },
            )
            .unwrap();
    }
    assert_eq!(
        errno(grant(&mut pools, handle, 2, Access::Read)),
        Some(Errno::NOSPC)
    );
    for (name, capacity) in [("", 1), ("a\u{7}", 1), (&"x".repeat(64), 1), ("x", 0)] {
        let outcome = errno(pools.create_pool(1, &request(name, capacity)));
        assert_eq!(outcome, Some(Errno::INVAL), "{name:?}");
    }
}

#[test]
fn names_are_unique_and_vanish_with_their_blocks() {
    let (mut pools, pool) = three();
    let [a, b] = [(); 2].map(|()| allocate(&mut pools, 1, pool).unwrap());
    name(&mut pools, a, "x", false).unwrap();
    assert_eq!(errno(name(&mut pools, b, "x", false)), Some(Errno::EXIST));
    assert_eq!(errno(name(&mut pools, b, "", true)), Some(Errno::INVAL));
    name(&mut pools, a, "y", false).unwrap();
    name(&mut pools, b, "x", false).unwrap();
    assert_eq!(pools.find(1, pool, "x").unwrap().handle, b);
    pools.free(1, b).unwrap();
    assert_eq!(errno(pools.find(1, pool, "x")), Some(Errno::NOENT));
    assert_eq!(errno(pools.destroy_pool(3, "p")), Some(Errno::PERM));
    let theirs = allocate(&mut pools, 3, pool).unwrap();
    assert_eq!(errno(pools.destroy_pool(1, "p")), Some(Errno::BUSY));
    pools.free(3, theirs).unwrap();
    pools.destroy_pool(2, "p").unwrap_err();
    pools.destroy_pool(1, "p").unwrap();
    assert_eq!(pools.usage(0), Usage::default());
}

/// What a session brings of a block to a new broker.
fn restore(pool: PoolId, grants: Vec<Grant>) -> RestoreBlockRequest {
    RestoreBlockRequest {
        pool,
        number: 2,
        bytes: BLOCK,
        name: "x".into(),
        persistent: false,
        moves: 3,
        exposed: false,
        grants,
    }
}

fn to_session(party: SessionName, access: Access) -> Grant {
    Grant {
        kind: PartyKind::Session,
        party,
        access,
    }
}

pub(super) fn returned(pools: &mut Pools, session: SessionName, uid: u32) -> PoolId {
    enter(pools, session, uid, Limits::default());
    let request = RestorePoolRequest {
        name: "p".into(),
        block_bytes: BLOCK,
        capacity: 4,
        private: false,
        uid: UID,
    };
    pools.restore_pool(session, &request).unwrap().pool
}

#[test]
fn blocks_come_back_with_their_owners_in_any_order() {
    let (mut old, pool) = three();
    let handle = allocate(&mut old, 1, pool).unwrap();
    let (_, fd) = old.open(1, handle, Access::Write).unwrap();
    drop(old);
    let now = Instant::now();
    let mut new = tables();
    // One that holds it comes first.
    let pool = returned(&mut new, 3, OTHER_UID);
    let resume = ResumeRequest {
        pool,
        handle,
        access: Access::Write,
    };
    new.resume(3, &resume, now).unwrap();
    assert_eq!(returned(&mut new, 1, UID), pool);
    let grants = vec![
        to_session(1, Access::Write),
        to_session(3, Access::Read),
        to_session(99, Access::Read),
    ];
    let brought = restore(pool, grants);
    new.restore_block(1, &brought, fd.try_clone().unwrap(), now)
        .unwrap();
    let info = new.find(3, pool, "x").unwrap();
    assert_eq!(
        (info.handle, info.number, info.access),
        (handle, 2, Access::Read)
    );
    // It claimed more than it has.
    assert_eq!(new.take_news(), [(3, EVENT_CHANGED, vec![handle])]);
    assert_eq!(new.blocks[&handle].holders[&3].given, Access::Read);
    let again = new.restore_block(1, &brought, fd, now);
    assert_eq!(errno(again), Some(Errno::EXIST));
    assert_eq!(new.next_expiry(), Some(now + RESTORE_GRACE));
    new.expire(now + RESTORE_GRACE);
    let grants = &new.blocks[&handle].grants;
    assert_eq!(
        grants.iter().map(|grant| grant.party).collect::<Vec<_>>(),
        [1, 3]
    );
    // Taken up at its place.
    let more: Vec<_> = (0..3)
        .map(|_| allocate(&mut new, 1, pool).unwrap())
        .collect();
    let number = |handle: &Handle| new.info(1, *handle).unwrap().number;
    let places: Vec<_> = more.iter().map(number).collect();
    assert_eq!(places.iter().max(), Some(&3));
    assert!(!places.contains(&2));
}

#[test]
fn what_its_owner_does_not_bring_is_given_up() {
    let now = Instant::now();
    let mut new = tables();
    let pool = returned(&mut new, 3, OTHER_UID);
    let resume = |handle| ResumeRequest {
        pool,
        handle,
        access: Access::Read,
    };
    for _ in 0..2 {
        assert_eq!(new.resume(3, &resume(5), now), Ok(true), "nobody has it");
    }
    new.expire(now + RESTORE_GRACE - Duration::from_millis(1));
    assert_eq!(new.take_news(), []);
    new.expire(now + RESTORE_GRACE);
    assert_eq!(new.take_news(), [(3, EVENT_ORPHANED, vec![5])]);
    assert_eq!(new.next_expiry(), None);
}

/// What no owner would say of a block.
fn malformed(good: &RestoreBlockRequest) -> [RestoreBlockRequest; 6] {
    [
        RestoreBlockRequest {
            bytes: BLOCK / 2,
            ..good.clone()
        },
        RestoreBlockRequest {
            bytes: 0,
            ..good.clone()
        },
        RestoreBlockRequest {
            name: String::new(),
            persistent: true,
            ..good.clone()
        },
        restore(good.pool, vec![to_session(1, Access::None)]),
        restore(
            good.pool,
            vec![
                to_session(1, Access::Exclusive),
                to_session(2, Access::Write),
            ],
        ),
        restore(good.pool, vec![to_session(1, Access::Read); 2]),
    ]
}

#[test]
fn nobody_brings_anothers_block() {
    let (mut old, pool) = three();
    let handle = allocate(&mut old, 1, pool).unwrap();
    grant(&mut old, handle, 3, Access::Write).unwrap();
    let (_, own) = old.open(1, handle, Access::Write).unwrap();
    let (_, theirs) = old.open(3, handle, Access::Write).unwrap();
    let (_, reader) = old.open(1, handle, Access::Read).unwrap();
    let now = Instant::now();
    let mut new = tables();
    let pool = returned(&mut new, 1, UID);
    returned(&mut new, 3, OTHER_UID);
    let bring = |pools: &mut Pools, session, fd, request: &RestoreBlockRequest| {
        errno(pools.restore_block(session, request, fd, now))
    };
    let good = restore(pool, vec![to_session(1, Access::Write)]);
    assert_eq!(
        bring(&mut new, 3, theirs, &good),
        Some(Errno::INVAL),
        "another user's"
    );
    assert_eq!(
        bring(&mut new, 1, reader, &good),
        Some(Errno::INVAL),
        "for reading only"
    );
    let null = crate::testing::descriptor();
    assert_eq!(
        bring(&mut new, 1, null, &good),
        Some(Errno::INVAL),
        "no block at all"
    );
    let forged = causeway_fabric::fds::sealed_memfd("causeway-block:t:1000:7", BLOCK).unwrap();
    assert_eq!(
        bring(&mut new, 1, forged, &good),
        Some(Errno::INVAL),
        "not the broker's"
    );
    for bad in malformed(&good) {
        let fd = own.try_clone().unwrap();
        assert_eq!(bring(&mut new, 1, fd, &bad), Some(Errno::INVAL), "{bad:?}");
    }
    let beyond = RestoreBlockRequest {
        number: 4,
        ..good.clone()
    };
    assert_eq!(
        bring(&mut new, 1, own.try_clone().unwrap(), &beyond),
        Some(Errno::EXIST)
    );
    assert_eq!(bring(&mut new, 1, own, &good), None);
}

/// A block without a name that nobody but its owner has.
pub(super) fn own_blocks(pool: PoolId) -> RestoreBlockRequest {
    RestoreBlockRequest {
        name: String::new(),
        ..restore(pool, Vec::new())
    }
}
