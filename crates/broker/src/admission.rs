//! Admission: which clients get a place where there are too few for all.
//!
//! Endpoints and sessions keep their places, so each tenant and user leaves some to others
//! ([`Shares`]). Connections that are neither are expendable: they hold nothing but themselves, and
//! where there are too many, the user that has the most gives up its oldest ([`Unattached`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use causeway_fabric::limits::{ATTACH_PATIENCE, OWN_SHARE, RESTORE_GRACE, UNATTACHED_MORE};
use rustix::io::Errno;

use crate::config::Tenant;
use crate::ids::{SessionId, TenantId, VmId};

/// Where a tenant admits several users: how many times as many places as it leaves free a user may
/// have. One that takes all it can leaves a fifth, two a ninth: there is always one for the next.
const USER_WEIGHT: usize = 4;
/// Of a tenant's places this part is for clients that come back, for a while after the start.
const RETURNING_PART: usize = 4;
/// Of all places this part is divided among the tenants; the rest goes to the first that come.
const GUARANTEED_PART: usize = 2;

/// A user of a tenant; those of each VM are users of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// The tenant.
    pub tenant: TenantId,
    /// The VM whose user it is.
    pub vm: Option<VmId>,
    /// The user.
    pub uid: u32,
}

/// What a client that wants to stay asks for.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Places of this kind that the broker has.
    pub most: usize,
    /// Places that the newcomer's tenant may have.
    pub limit: usize,
    /// The newcomer.
    pub holder: Holder,
    /// Whether it has proved that it had a place under the broker before.
    pub returns: bool,
}

#[derive(Clone, Copy, Debug)]
struct Share {
    limit: usize,
    several_users: bool,
}

/// What each tenant may have, and leaves to others. Without tenants, as [`Default`] has it, only
/// what a [`Claim`] says counts.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    tenants: Vec<Share>,
    started: Option<Instant>,
}

impl Shares {
    /// The shares of these tenants, the broker's own first, under a broker that starts now.
    pub fn new(tenants: &[Tenant], now: Instant) -> Shares {
        let share = |tenant: &Tenant| {
            let mut users = tenant.members.users.clone();
            users.sort_unstable();
            users.dedup();
            Share {
                limit: tenant.limits.endpoints,
                several_users: users.len() > 1 || !tenant.members.groups.is_empty(),
            }
        };
        Shares {
            tenants: tenants.iter().map(share).collect(),
            started: Some(now),
        }
    }

    /// Whether one more may stay beside those that have places.
    ///
    /// # Errors
    /// `EDQUOT` if its tenant or user has its share, `EMFILE` if what is left is others'.
    pub fn admit(
        &self,
        claim: &Claim,
        held: impl Iterator<Item = Holder>,
        now: Instant,
    ) -> Result<(), Errno> {
        let mut used: BTreeMap<TenantId, usize> = BTreeMap::new();
        let (mut total, mut by_user) = (0, 0);
        for holder in held {
            total += 1;
            *used.entry(holder.tenant).or_default() += 1;
            by_user += usize::from(holder == claim.holder);
        }
        let used_by = |tenant| used.get(&tenant).copied().unwrap_or(0);
        let own = claim.holder.tenant;
        if total >= claim.most {
            return Err(Errno::MFILE);
        }
        if used_by(own) >= claim.limit {
            return Err(Errno::DQUOT);
        }
        // It had its place under the same rules.
        if claim.returns {
            return Ok(());
        }
        let others = self.tenants.iter().enumerate().filter(|at| at.0 != own);
        let guaranteed = |(tenant, share): (TenantId, &Share)| {
            self.guaranteed(tenant, share, claim.most)
                .saturating_sub(used_by(tenant))
        };
        let of_others: usize = others.map(guaranteed).sum();
        let free_to_all = (claim.most - total).saturating_sub(of_others);
        if free_to_all == 0 {
            return Err(Errno::MFILE);
        }
        let kept = self.kept_for_returning(claim.limit, now);
        let free = (claim.limit - used_by(own)).saturating_sub(kept);
        let free = free.min(free_to_all);
        let several = self.tenants.get(own).is_some_and(|own| own.several_users);
        if free == 0 || several && by_user >= USER_WEIGHT * free {
            return Err(Errno::DQUOT);
        }
        Ok(())
    }

    fn kept_for_returning(&self, limit: usize, now: Instant) -> usize {
        let early = |started| now < started + RESTORE_GRACE;
        if self.started.is_some_and(early) {
            limit / RETURNING_PART
        } else {
            0
        }
    }

    /// Places that are kept for a tenant.
    fn guaranteed(&self, tenant: TenantId, share: &Share, most: usize) -> usize {
        let part = most / GUARANTEED_PART / self.tenants.len();
        let part = if tenant == 0 {
            part.max(OWN_SHARE)
        } else {
            part
        };
        part.min(share.limit)
    }
}

/// Connections that are no endpoints or sessions, or not yet.
#[derive(Debug, Default)]
pub struct Unattached {
    /// Those of each user, the oldest first: sessions are numbered in the order they come.
    of: BTreeMap<Holder, BTreeSet<SessionId>>,
    total: usize,
    /// When to look again at those that have asked for nothing yet, in the order they came.
    silent: VecDeque<(Instant, SessionId)>,
    /// Users that the log has named already for having too many.
    named: BTreeSet<Holder>,
}

/// What is to be done with a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is room.
    Room,
    /// There is, when this one has ended.
    InPlaceOf(SessionId),
    /// There is none.
    None(Errno),
}

impl Unattached {
    /// A connection has come.
    pub fn add(&mut self, holder: Holder, number: SessionId, now: Instant) {
        self.total += usize::from(self.of.entry(holder).or_default().insert(number));
        self.silent.push_back((now + ATTACH_PATIENCE, number));
    }

    /// A connection has ended, or is attached now.
    pub fn remove(&mut self, holder: Holder, number: SessionId) {
        let Some(of_user) = self.of.get_mut(&holder) else {
            return;
        };
        self.total -= usize::from(of_user.remove(&number));
        if of_user.is_empty() {
            self.of.remove(&holder);
            self.named.remove(&holder);
        }
    }

    /// Whether one more may come: of a tenant that may have `endpoints` endpoints, where there are
    /// to be `most` of all. The log names a user that has too many, once.
    pub fn admit(&mut self, newcomer: Holder, endpoints: usize, most: usize) -> Verdict {
        let tenant = newcomer.tenant;
        let companions = self.of_tenant(tenant).map(|(_, of_user)| of_user.len());
        let (heaviest, why) = if companions.sum::<usize>() >= endpoints + UNATTACHED_MORE {
            (heaviest(self.of_tenant(tenant)), Errno::DQUOT)
        } else if self.total + if tenant == 0 { 0 } else { OWN_SHARE } >= most {
            (heaviest(self.of.iter()), Errno::USERS)
        } else {
            return Verdict::Room;
        };
        let own = self.of.get(&newcomer).map_or(0, BTreeSet::len);
        let Some((holder, count, oldest)) = heaviest else {
            return Verdict::None(why);
        };
        if self.named.insert(holder) {
            let (uid, tenant) = (holder.uid, holder.tenant);
            tracing::warn!(uid, tenant, count, "too many connections");
        }
        if own < count {
            Verdict::InPlaceOf(oldest)
        } else {
            Verdict::None(why)
        }
    }

    /// The oldest connection of the user that has the most, if that are several.
    pub fn most_expendable(&self) -> Option<SessionId> {
        heaviest(self.of.iter())
            .filter(|(_, count, _)| *count > 1)
            .map(|(_, _, oldest)| oldest)
    }

    /// When [`Unattached::overdue`] has something to say.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.silent.front().map(|(when, _)| *when)
    }

    /// Connections that came so long ago that they should have asked for something.
    pub fn overdue(&mut self, now: Instant) -> Vec<SessionId> {
        let due = self.silent.iter().take_while(|(when, _)| *when <= now);
        let due = due.count();
        self.silent.drain(..due).map(|(_, number)| number).collect()
    }

    fn of_tenant(&self, tenant: TenantId) -> impl Iterator<Item = (&Holder, &BTreeSet<SessionId>)> {
        let first = Holder {
            tenant,
            vm: None,
            uid: 0,
        };
        self.of
            .range(first..)
            .take_while(move |(holder, _)| holder.tenant == tenant)
    }
}

/// The user that has the most, how many that are, and the oldest of them.
fn heaviest<'a>(
    of: impl Iterator<Item = (&'a Holder, &'a BTreeSet<SessionId>)>,
) -> Option<(Holder, usize, SessionId)> {
    let (holder, of_user) = of.max_by_key(|(_, of_user)| of_user.len())?;
    Some((*holder, of_user.len(), *of_user.first()?))
}

#[cfg(test)]
#[path = "admission/tests.rs"]
mod tests;
