//! Tests of admission: places, and clients that want them.

use std::time::Duration;

use super::*;
use crate::config::{Limits, Members};

fn holder(tenant: TenantId, uid: u32) -> Holder {
    let vm = None;
    Holder { tenant, vm, uid }
}

fn tenant(endpoints: usize, users: &[u32]) -> Tenant {
    Tenant {
        name: "t".into(),
        socket: None,
        members: Members {
            users: users.to_vec(),
            groups: Vec::new(),
        },
        userfaultfd: Members::default(),
        one_boundary: false,
        limits: Limits {
            endpoints,
            ..Limits::default()
        },
        key: None,
        wire: Default::default(),
        rates: Default::default(),
    }
}

/// Takes all that these get, each what it can before the next; how many each has then.
fn fill(shares: &Shares, most: usize, wanting: &[(Holder, usize)], now: Instant) -> Vec<usize> {
    let mut held: Vec<Holder> = Vec::new();
    let mut counts = Vec::new();
    for &(holder, limit) in wanting {
        let claim = Claim {
            most,
            limit,
            holder,
            returns: false,
        };
        let before = held.len();
        while shares.admit(&claim, held.iter().copied(), now).is_ok() {
            held.push(holder);
        }
        counts.push(held.len() - before);
    }
    counts
}

#[test]
fn each_tenant_and_user_finds_a_place() {
    let begun = Instant::now();
    let later = begun + RESTORE_GRACE;
    let tenants = [
        tenant(400, &[0, 0]),
        tenant(400, &[1, 2, 3]),
        tenant(10, &[1]),
    ];
    let shares = Shares::new(&tenants, begun);
    let wanting = [
        (holder(1, 1), 400),
        (holder(1, 2), 400),
        (holder(1, 3), 400),
        (holder(2, 1), 10),
        (holder(0, 0), 400),
    ];
    let got = fill(&shares, 400, &wanting, later);
    assert!(got[0] > 100, "{got:?}");
    assert!(got.iter().all(|&count| count > 0), "{got:?}");
    assert_eq!(got[3], 10, "less than its part");
    assert!(got[4] >= OWN_SHARE, "{got:?}");
    // One user alone may have all, and without tenants the limits alone count.
    assert_eq!(fill(&shares, 1000, &[(holder(0, 0), 400)], later), [400]);
    assert_eq!(
        fill(
            &Shares::default(),
            9,
            &[(holder(7, 1), 5), (holder(8, 1), 5)],
            begun
        ),
        [5, 4]
    );
}

#[test]
fn who_comes_back_finds_a_place() {
    let begun = Instant::now();
    let shares = Shares::new(&[tenant(8, &[0])], begun);
    assert_eq!(fill(&shares, 100, &[(holder(0, 0), 8)], begun), [6]);
    let mut claim = Claim {
        most: 100,
        limit: 8,
        holder: holder(0, 0),
        returns: true,
    };
    let held = |count| vec![holder(0, 0); count].into_iter();
    assert_eq!(shares.admit(&claim, held(7), begun), Ok(()));
    assert_eq!(shares.admit(&claim, held(8), begun), Err(Errno::DQUOT));
    claim.returns = false;
    assert_eq!(shares.admit(&claim, held(7), begun), Err(Errno::DQUOT));
    assert_eq!(shares.admit(&claim, held(7), begun + RESTORE_GRACE), Ok(()));
    claim.most = 7;
    assert_eq!(shares.admit(&claim, held(7), begun), Err(Errno::MFILE));
}

#[test]
fn the_user_with_the_most_connections_gives_way() {
    let now = Instant::now();
    let mut all = Unattached::default();
    let (alice, bob, other) = (holder(1, 1), holder(1, 2), holder(2, 1));
    let limit = 2 + UNATTACHED_MORE;
    for number in 0..limit as u64 {
        assert_eq!(all.admit(alice, 2, 1000), Verdict::Room);
        all.add(alice, number, now);
    }
    assert_eq!(all.admit(alice, 2, 1000), Verdict::None(Errno::DQUOT));
    assert_eq!(all.admit(bob, 2, 1000), Verdict::InPlaceOf(0));
    // Another tenant has limits of its own, and the places of all count.
    assert_eq!(all.admit(other, 2, 1000), Verdict::Room);
    assert_eq!(all.admit(other, 2, limit), Verdict::InPlaceOf(0));
    all.add(other, 500, now);
    assert_eq!(all.most_expendable(), Some(0));
    all.remove(alice, 0);
    assert_eq!(all.admit(bob, 2, 1000), Verdict::Room);
    let own = holder(0, 0);
    assert_eq!(all.admit(own, 2, limit + 1), Verdict::Room, "of its share");
    assert_eq!(all.admit(other, 2, limit + 1), Verdict::InPlaceOf(1));
    for number in 0..limit as u64 {
        all.remove(alice, number);
    }
    assert_eq!(all.most_expendable(), None, "one each");
}

#[test]
fn silence_is_noticed_once() {
    let now = Instant::now();
    let mut all = Unattached::default();
    assert_eq!(all.next_expiry(), None);
    all.add(holder(0, 0), 1, now);
    all.add(holder(0, 0), 2, now + Duration::from_secs(1));
    assert_eq!(all.next_expiry(), Some(now + ATTACH_PATIENCE));
    assert!(all.overdue(now).is_empty());
    assert_eq!(all.overdue(now + ATTACH_PATIENCE), [1]);
    assert!(all.overdue(now + ATTACH_PATIENCE).is_empty());
}
