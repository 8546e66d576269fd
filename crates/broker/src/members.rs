//! Sessions that are no endpoints: what all services beside the endpoints' build on.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Instant;

use causeway_fabric::limits::{COMM_MAX, MEMBERS_MAX};
use causeway_fabric::remoting::Answer;
use causeway_fabric::services::session::{LifeBody, OpenReply, OpenRequest, SessionService};
use causeway_shm::Life;
use rustix::io::Errno;

use crate::config::Tenant;
use crate::hub::TenantId;
use crate::lives::Lives;
use crate::services::{Caller, SessionId};

/// One session.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its tenant: nothing of another is ever visible to it.
    pub tenant: TenantId,
    /// Process as the socket's credentials give it; 0 if it lives in a foreign PID namespace.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its name, as it says.
    pub comm: String,
    /// Its life.
    pub life: Life,
}

/// All sessions, and the lives of each tenant.
#[derive(Debug)]
pub struct Members {
    members: BTreeMap<SessionId, Member>,
    lives: BTreeMap<TenantId, Lives>,
    /// The broker's user, who owns all that it makes.
    pub own_uid: u32,
}

impl Default for Members {
    fn default() -> Self {
        Members {
            members: BTreeMap::new(),
            lives: BTreeMap::new(),
            own_uid: rustix::process::geteuid().as_raw(),
        }
    }
}

impl Members {
    /// A session by its number.
    pub fn get(&self, session: SessionId) -> Option<&Member> {
        self.members.get(&session)
    }

    /// The lives of a tenant.
    pub fn lives(&mut self, id: TenantId, tenant: &Tenant) -> &mut Lives {
        let own_uid = self.own_uid;
        let lives = self.lives.entry(id);
        lives.or_insert_with(|| Lives::new(&tenant.name, own_uid))
    }

    /// The lives of a tenant that has had any.
    pub fn lives_of(&mut self, tenant: TenantId) -> Option<&mut Lives> {
        self.lives.get_mut(&tenant)
    }

    /// Adds a session. Returns the reply and its descriptors.
    ///
    /// # Errors
    /// `EISCONN` if it is one, `EMFILE` beyond [`MEMBERS_MAX`], `EDQUOT` beyond its tenant's limit
    /// of endpoints, `ENOSPC` if no life is left, `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn open(
        &mut self,
        caller: &Caller<'_>,
        request: &OpenRequest,
        fds: &[OwnedFd],
        now: Instant,
    ) -> Result<Answer<OpenReply>, Errno> {
        let id = caller.peer.tenant;
        if self.members.contains_key(&caller.session) {
            return Err(Errno::ISCONN);
        }
        let companions = self.members.values().filter(|member| member.tenant == id);
        if companions.count() >= caller.tenant.limits.endpoints {
            return Err(Errno::DQUOT);
        }
        if self.members.len() >= MEMBERS_MAX {
            return Err(Errno::MFILE);
        }
        let lives = self.lives(id, caller.tenant);
        let same_table = fds.first().is_some_and(|table| lives.adopt(table, now));
        let mut given = Vec::new();
        if !same_table {
            given.push(lives.table()?);
        }
        let proved = fds.get(1).and_then(|ticket| lives.life_of_ticket(ticket));
        let kept = proved.filter(|life| lives.reclaim(*life));
        let life = match kept {
            Some(life) => life,
            None => {
                let life = lives.begin()?;
                let ticket = lives.ticket(life).inspect_err(|_| lives.end(life))?;
                given.push(ticket);
                life
            }
        };
        let said = request.comm.chars().filter(|c| !c.is_control());
        let member = Member {
            tenant: id,
            pid: caller.peer.pid,
            uid: caller.peer.uid,
            comm: said.take(COMM_MAX).collect(),
            life,
        };
        self.members.insert(caller.session, member);
        let body = OpenReply {
            life: body_of(life),
            same_table,
            same_life: kept.is_some(),
        };
        Ok(Answer { body, fds: given })
    }

    /// A session has ended.
    pub fn end(&mut self, session: SessionId) {
        if let Some(member) = self.members.remove(&session)
            && let Some(lives) = self.lives.get_mut(&member.tenant)
        {
            lives.end(member.life);
        }
    }

    /// When [`Members::expire`] has something to do.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.lives.values().filter_map(Lives::next_expiry).min()
    }

    /// Gives up on those who did not come back after a restart of the broker.
    pub fn expire(&mut self, now: Instant) {
        self.lives.values_mut().for_each(|lives| lives.expire(now));
    }

    /// Wakes those who wait for deaths.
    pub fn announce(&mut self) {
        self.lives.values_mut().for_each(Lives::announce);
    }
}

/// A life as messages have it.
pub fn body_of(life: Life) -> LifeBody {
    let Life { index, generation } = life;
    LifeBody { index, generation }
}

/// The sessions' service, for one caller.
#[derive(Debug)]
pub struct Client<'a> {
    /// All sessions.
    pub members: &'a mut Members,
    /// Who calls.
    pub caller: &'a Caller<'a>,
}

impl SessionService for Client<'_> {
    fn open(
        &mut self,
        request: OpenRequest,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer<OpenReply>, Errno> {
        let opened = self
            .members
            .open(self.caller, &request, &fds, Instant::now())?;
        tracing::info!(
            session = self.caller.session,
            pid = self.caller.peer.pid,
            "opened"
        );
        Ok(opened)
    }

    fn confirm(&mut self, request: LifeBody, _: Vec<OwnedFd>) -> Result<Answer<bool>, Errno> {
        let member = self
            .members
            .get(self.caller.session)
            .ok_or(Errno::NOTCONN)?;
        let LifeBody { index, generation } = request;
        let tenant = member.tenant;
        let lives = self.members.lives_of(tenant).ok_or(Errno::NOTCONN)?;
        Ok(lives.knows(Life { index, generation }).into())
    }
}
