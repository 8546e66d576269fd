//! Waits: what sessions asked to be told of, once.
//!
//! A session that looks for a name that is not there yet, or grants exclusive access before others
//! have let go, leaves a wait here. The answer is an event, not a late reply: other threads of the
//! process call over the same connection meanwhile, and it may be the process itself that has to
//! let go. A wait ends when it is told, when it is given up, and with its session, so a process
//! that dies leaves none, and one that is stopped is told of each once.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use causeway_fabric::limits::WAITS_PER_SESSION_MAX;
use causeway_fabric::services::pool::{Access, WaitKind, WaitRequest};
use rustix::io::Errno;

use super::pools::name_is_valid;
use super::{Handle, News, PoolId, Pools, SessionName};

/// Names a wait of a session: the session's choice.
pub type Ticket = u64;

/// What a session waits for.
#[derive(Clone, Debug)]
enum Wait {
    /// A block of this name in this pool that it may access so.
    Name(PoolId, String, Access),
    /// That nobody but this session can write to the block.
    Exclusive(Handle, SessionName),
}

/// What a change of the tables is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Subject {
    Name(PoolId, String),
    Block(Handle),
}

impl Wait {
    fn subject(&self) -> Subject {
        match self {
            Wait::Name(pool, name, _) => Subject::Name(*pool, name.clone()),
            Wait::Exclusive(handle, _) => Subject::Block(*handle),
        }
    }
}

/// All waits, by session and by what they wait for.
#[derive(Debug, Default)]
pub struct Waits {
    by_session: HashMap<SessionName, BTreeMap<Ticket, Wait>>,
    by_subject: HashMap<Subject, BTreeSet<(SessionName, Ticket)>>,
}

impl Waits {
    fn add(&mut self, session: SessionName, ticket: Ticket, wait: Wait) -> Result<(), Errno> {
        self.remove(session, ticket);
        let own = self.by_session.entry(session).or_default();
        if own.len() >= WAITS_PER_SESSION_MAX {
            return Err(Errno::DQUOT);
        }
        let subject = self.by_subject.entry(wait.subject()).or_default();
        subject.insert((session, ticket));
        own.insert(ticket, wait);
        Ok(())
    }

    fn remove(&mut self, session: SessionName, ticket: Ticket) {
        let Some(own) = self.by_session.get_mut(&session) else {
            return;
        };
        let Some(wait) = own.remove(&ticket) else {
            return;
        };
        if own.is_empty() {
            self.by_session.remove(&session);
        }
        let subject = wait.subject();
        if let Some(waiting) = self.by_subject.get_mut(&subject) {
            waiting.remove(&(session, ticket));
            if waiting.is_empty() {
                self.by_subject.remove(&subject);
            }
        }
    }

    fn tickets(&self, session: SessionName) -> Vec<Ticket> {
        let own = self.by_session.get(&session);
        own.map_or_else(Vec::new, |own| own.keys().copied().collect())
    }

    /// How many wait for names of a pool.
    pub fn count(&self, pool: PoolId) -> usize {
        let of_pool = |subject: &Subject| matches!(subject, Subject::Name(id, _) if *id == pool);
        let subjects = self.by_subject.iter();
        subjects
            .filter(|(subject, _)| of_pool(subject))
            .map(|(_, waiting)| waiting.len())
            .sum()
    }

    /// Whether nobody waits for anything.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.by_session.is_empty() && self.by_subject.is_empty()
    }
}

impl Pools {
    /// Notes that a session waits. True if what it waits for is there already, and nothing is
    /// noted.
    ///
    /// # Errors
    /// - `EINVAL` for no name or no access, `ENOENT` without the pool;
    /// - `ENOENT` without the block, `EPERM` if it is another's;
    /// - `EDQUOT` beyond [`WAITS_PER_SESSION_MAX`].
    pub fn wait(&mut self, session: SessionName, request: &WaitRequest) -> Result<bool, Errno> {
        let wait = match request.kind {
            WaitKind::Name => {
                self.joined(session, request.pool)?;
                if !name_is_valid(&request.name) || request.access == Access::None {
                    return Err(Errno::INVAL);
                }
                Wait::Name(request.pool, request.name.clone(), request.access)
            }
            WaitKind::Exclusive => {
                self.administered(session, request.handle)?;
                Wait::Exclusive(request.handle, request.party)
            }
        };
        if self.has_come(session, &wait) {
            return Ok(true);
        }
        self.waits.add(session, request.ticket, wait)?;
        Ok(false)
    }

    /// A session waits no longer.
    pub fn give_up(&mut self, session: SessionName, ticket: Ticket) {
        self.waits.remove(session, ticket);
    }

    /// Whether there is no reason to wait any more: it has come about, or never will.
    fn has_come(&self, session: SessionName, wait: &Wait) -> bool {
        match wait {
            Wait::Name(id, name, access) => {
                let Ok(pool) = self.joined(session, *id) else {
                    return true;
                };
                let found = pool.names.get(name);
                let right = found.map(|&handle| self.right_of(session, handle));
                right.is_some_and(|right| right.is_ok_and(|right| right >= *access))
            }
            Wait::Exclusive(handle, party) => {
                let own = self.administered(session, *handle);
                own.map_or(true, |block| {
                    self.check_let_go(block, *party) != Err(Errno::AGAIN)
                })
            }
        }
    }

    /// Something about the block of this name in a pool has changed.
    pub(super) fn tell_of_name(&mut self, pool: PoolId, name: &str) {
        if !name.is_empty() {
            self.tell_of(&Subject::Name(pool, name.to_owned()));
        }
    }

    /// Somebody has let go of a block.
    pub(super) fn tell_of_block(&mut self, handle: Handle) {
        self.tell_of(&Subject::Block(handle));
    }

    fn tell_of(&mut self, subject: &Subject) {
        let waiting = self.waits.by_subject.get(subject);
        let waiting: Vec<_> = waiting.into_iter().flatten().copied().collect();
        for (session, ticket) in waiting {
            self.tell_if_come(session, ticket);
        }
    }

    fn tell_if_come(&mut self, session: SessionName, ticket: Ticket) {
        let own = self.waits.by_session.get(&session);
        let come = own
            .and_then(|own| own.get(&ticket))
            .is_some_and(|wait| self.has_come(session, wait));
        if come {
            self.waits.remove(session, ticket);
            self.outbox.push((session, News::Ready(ticket)));
        }
    }

    /// A session has closed a pool: it waits for nothing there.
    pub(super) fn tell_who_left(&mut self, session: SessionName) {
        for ticket in self.waits.tickets(session) {
            self.tell_if_come(session, ticket);
        }
    }

    /// A session has ended.
    pub(super) fn forget_waits(&mut self, session: SessionName) {
        for ticket in self.waits.tickets(session) {
            self.waits.remove(session, ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{allocate, grant, name, three};
    use super::*;

    fn named(ticket: Ticket, pool: PoolId, name: &str, access: Access) -> WaitRequest {
        WaitRequest {
            ticket,
            pool,
            name: name.into(),
            access,
            ..WaitRequest::default()
        }
    }

    fn exclusive(ticket: Ticket, handle: Handle, party: SessionName) -> WaitRequest {
        WaitRequest {
            ticket,
            kind: WaitKind::Exclusive,
            handle,
            party,
            ..WaitRequest::default()
        }
    }

    /// The waits that were told, and the sessions.
    fn told(pools: &mut Pools) -> Vec<(SessionName, Ticket)> {
        let outbox = std::mem::take(&mut pools.outbox);
        let ready = |(to, news)| match news {
            News::Ready(ticket) => Some((to, ticket)),
            _ => None,
        };
        outbox.into_iter().filter_map(ready).collect()
    }

    #[test]
    fn a_name_is_told_to_those_who_may_access_it() {
        let (mut pools, pool) = three();
        let handle = allocate(&mut pools, 1, pool).unwrap();
        for (session, access) in [(2, Access::Read), (3, Access::Write)] {
            assert_eq!(pools.wait(session, &named(7, pool, "a", access)), Ok(false));
        }
        assert_eq!(pools.waits.count(pool), 2);
        name(&mut pools, handle, "a", false).unwrap();
        assert_eq!(told(&mut pools), [], "the name alone is no right");
        grant(&mut pools, handle, 2, Access::Read).unwrap();
        assert_eq!(told(&mut pools), [(2, 7)]);
        grant(&mut pools, handle, 3, Access::Read).unwrap();
        assert_eq!(told(&mut pools), [], "not what it asked for");
        grant(&mut pools, handle, 3, Access::Write).unwrap();
        assert_eq!(told(&mut pools), [(3, 7)]);
        assert!(pools.waits.is_empty());
        assert_eq!(pools.wait(3, &named(8, pool, "a", Access::Write)), Ok(true));
        assert!(pools.waits.is_empty());
    }

    #[test]
    fn who_dies_closes_the_pool_or_gives_up_leaves_no_wait() {
        let (mut pools, pool) = three();
        for session in [1, 2, 3] {
            let request = named(1, pool, "a", Access::Read);
            assert_eq!(pools.wait(session, &request), Ok(false));
            assert_eq!(pools.wait(session, &request), Ok(false), "one of a ticket");
        }
        pools.leave(1);
        pools.close_pool(2, pool).unwrap();
        assert_eq!(told(&mut pools), [(2, 1)], "there is nothing to wait for");
        pools.give_up(3, 1);
        pools.give_up(3, 99);
        assert!(pools.waits.is_empty());
        let absent = pools.wait(2, &named(1, pool, "a", Access::Read));
        assert_eq!(absent, Err(Errno::NOENT));
    }

    #[test]
    fn exclusive_access_is_told_when_the_last_has_let_go() {
        let (mut pools, pool) = three();
        let handle = allocate(&mut pools, 1, pool).unwrap();
        grant(&mut pools, handle, 2, Access::Write).unwrap();
        pools.open(2, handle, Access::Write).unwrap();
        grant(&mut pools, handle, 2, Access::None).unwrap();
        grant(&mut pools, handle, 1, Access::Read).unwrap();
        let refused = grant(&mut pools, handle, 3, Access::Exclusive);
        assert_eq!(refused, Err(Errno::AGAIN));
        assert_eq!(pools.wait(1, &exclusive(5, handle, 3)), Ok(false));
        pools.refresh(2, handle, Access::None).unwrap();
        assert_eq!(told(&mut pools), [], "the owner itself has not");
        pools.refresh(1, handle, Access::Read).unwrap();
        assert_eq!(told(&mut pools), [(1, 5)]);
        grant(&mut pools, handle, 3, Access::Exclusive).unwrap();
        assert_eq!(
            pools.wait(2, &exclusive(6, handle, 3)),
            Err(Errno::PERM),
            "not its block"
        );
    }

    #[test]
    fn a_session_waits_for_so_much_and_no_more() {
        let (mut pools, pool) = three();
        for ticket in 0..WAITS_PER_SESSION_MAX as u64 {
            let request = named(ticket, pool, &format!("n{ticket}"), Access::Read);
            assert_eq!(pools.wait(1, &request), Ok(false));
        }
        let beyond = named(u64::MAX, pool, "a", Access::Read);
        assert_eq!(pools.wait(1, &beyond), Err(Errno::DQUOT));
        assert_eq!(pools.wait(2, &beyond), Ok(false));
        for wrong in [
            named(0, pool, "", Access::Read),
            named(0, pool, "a", Access::None),
        ] {
            assert_eq!(pools.wait(1, &wrong), Err(Errno::INVAL));
        }
    }
}
